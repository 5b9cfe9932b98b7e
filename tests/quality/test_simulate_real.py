"""Fifty requests on the real model and in the simulation: the same events, one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.inspector.simulate import Cell, Settings, simulate
from kvscope.inspector.workloads import Workload, WorkRequest
from kvscope.traces import open_trace
from kvscope.traces.memory import MemoryRecorder

BLOCKS, SIZE, SYSTEM = 30, 8, 20
COLUMNS = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux", "step")


@pytest.mark.model
@pytest.mark.timeout(600)
def test_the_real_model_and_the_simulation_agree_event_for_event(smollm2_path: Path, tmp_path: Path) -> None:
    chance = random.Random(11)
    requests = [
        WorkRequest(0, SYSTEM + chance.randint(3, 30), chance.randint(2, 14), 1 if i % 5 else 3, ((5, SYSTEM),))
        for i in range(50)
    ]
    limits = SchedulerConfig(max_seqs=8, max_batched_tokens=64)
    sink = MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    engine = Engine(
        load_model("smollm2"), EngineConfig(num_blocks=BLOCKS, block_size=SIZE, scheduler=limits), sink=sink
    )
    common = [chance.randrange(1000, 9000) for _ in range(SYSTEM)]
    for i, request in enumerate(requests):
        own = [chance.randrange(1000, 9000) for _ in range(request.prompt - SYSTEM)]
        # Hot, so that no two samples say the same.
        params = SamplingParams(request.output, temperature=100.0, seed=i, n=request.samples, ignore_eos=True)
        engine.submit(common + own, params)
    for _ in engine.run():
        pass

    settings = Settings(BLOCKS * SIZE, 1, 512, max_seqs=8, max_batched_tokens=64)
    work = Workload("agree", "gen", requests)
    found = simulate(work, Cell("paged", SIZE), settings, trace=tmp_path / "simulated.kvtrace")
    real, simulated = sink.events, open_trace(tmp_path / "simulated.kvtrace").events
    assert found.preemptions == engine.scheduler.preemptions > 0
    assert len(real) == len(simulated)
    for column in COLUMNS:
        differ = np.flatnonzero(real[column] != simulated[column])
        assert not len(differ), f"{column} differs first at event {differ[0]}"
