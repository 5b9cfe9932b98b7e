"""What `explain` says is what happened: checked against a device that holds the content of every slot.

The device runs beside the engine's own scheduler and a broken block manager, and knows nothing of events: a slot holds
the hash of the whole prefix that was written there, and every step checks that its table leads to its own prefix.
"""

from __future__ import annotations

import random
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvscope.errors import FaultyCall
from kvscope.inspector.explain import explain
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.findings import check
from kvscope.inspector.reads import reads_of
from kvscope.traces import Kind, MemoryRecorder

SIZE = 4


def device_engine(toy_engine: ModuleType) -> Any:
    """A ToyEngine whose steps run on slots that hold content."""

    class DeviceEngine(toy_engine.ToyEngine):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.slots: dict[int, int] = {}
            self.wrong: dict[int, tuple[int, int]] = {}  # sequence -> step, first wrong position
            self.ordinal = -1

        def run_step(self, plan: Any) -> None:
            self.ordinal += 1
            for copy in (copies := self.manager.drain_copies()):
                for slot in range(copy.slots):
                    self.slots[copy.target * SIZE + slot] = self.slots.get(copy.source * SIZE + slot, -1)
            self.manager.copies_done(copies)
            places = {}
            for sequence, row in zip(plan.sequences, plan.rows, strict=True):
                tokens = [*sequence.request.prompt, *sequence.output]
                table = self.manager.table(row.seq_id)
                places[row.seq_id] = [
                    (table[p // SIZE] * SIZE + p % SIZE, hash(tuple(tokens[: p + 1]))) for p in range(row.hi)
                ]
                for slot, content in places[row.seq_id][row.lo :]:
                    self.slots[slot] = content
            for seq_id, own in places.items():
                bad = [p for p, (slot, content) in enumerate(own) if self.slots.get(slot) != content]
                if bad and seq_id not in self.wrong:
                    self.wrong[seq_id] = (self.ordinal, bad[0])

        def step(self) -> None:
            manager, begin = self.manager, self.manager.begin_step
            plan = None
            schedule = self.scheduler.schedule

            def planned() -> Any:
                nonlocal plan
                plan = schedule()
                return plan

            def begun(rows: Any) -> int:
                number = begin(rows)
                self.run_step(plan)
                return int(number)

            self.scheduler.schedule, manager.begin_step = planned, begun
            try:
                super().step()
            finally:
                del self.scheduler.schedule, manager.begin_step

    return DeviceEngine


def broken_run(
    toy_engine: ModuleType, name: str | None, seed: int
) -> tuple[MemoryRecorder, dict[int, tuple[int, int]]]:
    """(trace, what the device saw) of a busy run in a tight pool."""
    rng = random.Random(seed)
    sink = MemoryRecorder(num_blocks=24, block_size=SIZE)
    good = toy_engine.MissingCopy
    toy_engine.MissingCopy = FAULTS[name].manager() if name else toy_engine.BlockManager
    try:
        engine = device_engine(toy_engine)(sink, num_blocks=24, block_size=SIZE, faulty=True, seed=seed)
        systems = [[rng.randrange(1000) for _ in range(8)] for _ in range(2)]
        for i in range(24):
            short = rng.random() < 0.5  # its only block is never full, so it is freed, not cached
            prompt = [] if short else list(rng.choice(systems))
            prompt += [rng.randrange(1000) for _ in range(1 if short else rng.randint(1, 9))]
            engine.submit(f"q{i}", prompt, max_tokens=2 if short else rng.randint(2, 8), n=rng.choice((1, 1, 2, 3)))
        with suppress(FaultyCall, KeyError, IndexError, RuntimeError):
            for _ in range(200):
                if not engine.scheduler.has_work:
                    break
                engine.step()
        return sink, engine.wrong
    finally:
        toy_engine.MissingCopy = good


def told(trace: MemoryRecorder) -> dict[int, tuple[int, int]]:
    """What the trace tells: sequence -> (step, first wrong position)."""
    begins = np.flatnonzero(trace.events["kind"] == Kind.STEP_BEGIN)
    return {
        seq_id: (int(np.searchsorted(begins, damage.first.row)) - 1, damage.first.position)
        for seq_id, damage in reads_of(trace).damage.items()
        if damage.first is not None
    }


def test_right_runs_have_no_foreign_read(toy_engine: ModuleType) -> None:
    for seed in range(6):
        trace, wrong = broken_run(toy_engine, None, seed)
        assert wrong == {}
        assert reads_of(trace).damage == {}
        assert explain(trace, "q3").verdict == "clean"


# How many of six runs must really corrupt something, for the test to say anything. Steps that run one after another
# never read what a missing fence, or an early publication, would let them read: these two corrupt nothing here.
CORRUPTING = {"missing-copy": 6, "short-copy": 6, "double-free": 6, "stale-index": 4, "free-without-fence": 0,
              "publish-before-commit": 0}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTING)
def test_the_first_foreign_read_is_the_device_s(toy_engine: ModuleType, name: str) -> None:
    corrupted = 0
    for seed in range(6):
        trace, wrong = broken_run(toy_engine, name, seed)
        found = told(trace)
        for seq_id, (step, position) in wrong.items():
            assert seq_id in found, (seed, seq_id, step, position)
            assert found[seq_id] <= (step, position)
        if name != "double-free":  # there two owners may write equal tokens: still foreign, yet nothing is wrong
            assert found == wrong
        corrupted += bool(wrong)
        result = check(trace)
        for seq_id in wrong:
            story = explain(trace, f"s{seq_id}", result=result)
            assert story.verdict == "damaged"
            assert story.cause is not None
            assert story.read is not None
            assert seq_id in {victim.seq_id for victim in story.victims}
    assert corrupted >= CORRUPTING[name], f"{name} corrupted {corrupted} of 6 runs"
