"""The simulation and the real engine write the same events for the same requests."""

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

BLOCKS, SIZE = 40, 8
COLUMNS = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux", "step")


def requests(*, system: int, samples: int) -> list[WorkRequest]:
    chance = random.Random(11)
    return [
        WorkRequest(0, system + chance.randint(3, 60), chance.randint(1, 40), 1 if i % 3 else samples,
                    ((5, system),) if system else ())
        for i in range(50)
    ]  # fmt: skip


@pytest.mark.parametrize(("system", "samples"), [(0, 1), (20, 3)], ids=["nothing shared", "prefix and samples"])
def test_simulation_agrees_with_the_engine_event_for_event(
    system: int, samples: int, tiny_folder: Path, tmp_path: Path
) -> None:
    work = Workload("agree", "gen", requests(system=system, samples=samples))
    limits = SchedulerConfig(max_seqs=8, max_batched_tokens=64)
    sink = MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    config = EngineConfig(num_blocks=BLOCKS, block_size=SIZE, scheduler=limits, share_prefixes=work.names_prefixes)
    engine = Engine(load_model(tiny_folder), config, sink=sink)
    chance = random.Random(12)
    common = [chance.randrange(256) for _ in range(system)]
    for i, request in enumerate(work.requests):
        own = [chance.randrange(256) for _ in range(request.prompt - system)]
        # Hot, so that no two samples say the same.
        params = SamplingParams(request.output, temperature=100.0, seed=i, n=request.samples, ignore_eos=True)
        engine.submit(common + own, params)
    for _ in engine.run():
        pass

    settings = Settings(BLOCKS * SIZE, 1, 512, max_seqs=8, max_batched_tokens=64)
    found = simulate(work, Cell("paged", SIZE), settings, trace=tmp_path / "simulated.kvtrace")
    real, simulated = sink.events, open_trace(tmp_path / "simulated.kvtrace").events
    assert found.preemptions == engine.scheduler.preemptions > 0
    assert len(real) == len(simulated)
    for column in COLUMNS:
        differ = np.flatnonzero(real[column] != simulated[column])
        assert not len(differ), f"{column} differs first at event {differ[0]}"
