"""Layer 2 beside a real engine: clean runs are clean, faults are named, nothing is skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.prefix import identity
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import CheckNotRun
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.findings import check
from kvscope.inspector.provenance import Provenance
from kvscope.inspector.shadow_device import DeviceWords
from kvscope.inspector.shadow_words import Expected, Reading, SlotWords
from kvscope.traces import Kind, MemoryRecorder

HEAD = list(range(5, 13))


@pytest.fixture(scope="module")
def tiny_model(tiny_folder: Path) -> LoadedModel:
    return load_model(str(tiny_folder))


def run(
    tiny: Any, *, fault: str | None = None, backend: str | None = None, preemption: str = "recompute", blocks: int = 14
) -> tuple[MemoryRecorder, Provenance]:
    """Nine requests, two with samples and one with beams, in a pool that is too small for all of them."""
    sink = MemoryRecorder(num_blocks=blocks, block_size=4)
    config = EngineConfig(
        num_blocks=blocks, block_size=4, hash_key=b"k", host_blocks=24 if preemption == "swap" else 0,
        scheduler=SchedulerConfig(max_seqs=8, max_batched_tokens=24, preemption=preemption),
    )  # fmt: skip
    manager = FAULTS[fault].manager() if fault else BlockManager
    engine = Engine(tiny, config, sink=sink, manager_factory=manager)
    provenance = Provenance(engine, backend=backend)
    for i in range(8):
        params = SamplingParams(6, temperature=0.9, seed=i, n=3 if i in (1, 5) else 1, ignore_eos=True)
        engine.submit([*HEAD, 20 + i, 30, 31][: 9 + i % 3], params, extras=identity(tenant="t") if i == 6 else ())
    engine.submit([*HEAD, 50], SamplingParams(4, beams=2, ignore_eos=True))
    list(engine.run())
    sink.close()
    return sink, provenance


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("backend", [None, "torch"])
def test_clean_runs_are_clean_and_say_how_much_was_compared(
    tiny_model: Any, preemption: str, backend: str | None
) -> None:
    sink, provenance = run(tiny_model, backend=backend, preemption=preemption)
    assert provenance.wrong == {}
    assert (sink.events["kind"] == Kind.PREEMPT).any()
    reads = sink.events[sink.events["kind"] == Kind.SCHED]["aux"] >> 32
    assert provenance.slots == int(reads.sum()) > 0
    checks = sink.events[sink.events["kind"] == Kind.CHECK]
    assert len(checks) == provenance.steps == (sink.events["kind"] == Kind.STEP_BEGIN).sum()
    assert int(checks["aux"].sum()) == provenance.slots
    assert f"{provenance.slots:,} slots" in provenance.close()
    assert check(sink).findings == ()


@pytest.mark.parametrize("name", ["missing-copy", "stale-table", "copy-never-runs", "hash-without-identity"])
def test_device_and_host_words_name_the_same_wrong_reads(tiny_model: Any, name: str) -> None:
    (trace, host), (_, device) = (run(tiny_model, fault=name, backend=backend) for backend in (None, "torch"))
    assert host.wrong
    strip = [w._replace(positions=0) for w in host.wrong.values()]
    assert strip == [w._replace(positions=0) for w in device.wrong.values()]
    found = [f for f in check(trace).findings if f.code == "KV023"]
    assert {f.seq_id for f in found} == set(host.wrong)
    assert "written by" in found[0].why or "nothing was written" in found[0].why


def test_a_check_that_did_not_run_is_an_error(tiny_model: Any) -> None:
    engine = Engine(tiny_model, EngineConfig(num_blocks=8, block_size=4))
    provenance = Provenance(engine)
    engine.runner.hooks = ()
    engine.submit([1, 2, 3], SamplingParams(2, ignore_eos=True))
    with pytest.raises(CheckNotRun, match="was not asked"):
        list(engine.run())
    with pytest.raises(CheckNotRun, match="compared no slot"):
        provenance.close()


def test_words_follow_a_resized_pool(tiny_model: Any) -> None:
    engine = Engine(tiny_model, EngineConfig(num_blocks=8, block_size=4))
    provenance = Provenance(engine)
    for i in range(3):
        engine.submit([i + 1, 2, 3, 4, 5], SamplingParams(8, ignore_eos=True))
    engine.step()
    engine.resize(12)
    engine.step()
    engine.resize(9)
    list(engine.run())
    assert provenance.wrong == {}
    assert provenance.steps > 5


@pytest.mark.parametrize("made", [SlotWords, lambda n, s: DeviceWords(n, s, device="cpu", backend="torch")])
def test_copies_and_swaps_carry_the_words(made: Any) -> None:
    words = made(4, 2)
    host = isinstance(words, SlotWords)

    def cells(block: int) -> list[int]:
        return words.words[block].tolist() if host else words._cells[0][block].tolist()

    if host:
        words.write(np.array([0, 1]), np.array([11, 12]), np.array([5, 5]), 1)
    else:
        words._cells[0][0] = torch.tensor([11, 12])
    words.copy(0, 1, 1)
    assert cells(1) == [11, 0]
    words.swap([0], [7], out=True)
    words.swap([2], [7], out=False)
    assert cells(2) == [11, 12]
    words.resize(2)
    words.resize(3)
    assert cells(2) == [0, 0]


def test_expected_words_are_those_of_the_whole_prefix_and_identity() -> None:
    expected = Expected()
    whole = expected.of(1, [4, 5, 6, 7], 4).copy()
    expected.of(2, [4, 5], 2)
    expected.continue_many([2], [6])
    assert expected.words(2, 3).tolist() == whole[:3].tolist()
    assert expected.of(3, [4, 5], 2, identity(tenant="x")).tolist() != whole[:2].tolist()
    assert expected.owner(int(whole[3])) == (1, 4)
    words = SlotWords(2, 2)
    words.write(np.array([0, 1, 2]), whole[:3], np.array([1, 1, 1]), 0)
    reading = Reading(1, np.array([0, 1]), 0, 4)
    slots, wrong = words.check([reading], [whole])
    assert (slots, [(w.position, w.slot, w.found, w.writer) for w in wrong]) == (4, [(3, 3, 0, -1)])
