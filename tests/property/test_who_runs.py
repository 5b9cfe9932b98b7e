"""Who runs and who waits: what the live page, `top` and the engine's own scheduler say of any history is the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.inspector.following import Follower
from kvscope.inspector.lineup import Lineup
from kvscope.inspector.telemetry.gauges import gauges
from kvscope.traces import Kind, MemoryRecorder

BLOCKS = 9
SUBMITS = st.tuples(st.just("submit"), st.integers(1, 14), st.sampled_from([(1, 0), (3, 0), (1, 2)]))
OPERATIONS = st.lists(
    SUBMITS | st.tuples(st.just("step"), st.integers(1, 4), st.none())
    | st.tuples(st.just("abort"), st.integers(0, 5), st.none()), min_size=4, max_size=24,
)  # fmt: skip


class Kept(MemoryRecorder):
    """As a trace reader offers itself."""

    @property
    def rows(self) -> int:
        return len(self.events)

    def row_of(self, seq: int) -> int:
        return seq + 1

    def columns(self, names: Sequence[str], lo: int, hi: int) -> dict[str, Any]:
        return {name: (self.seqs if name == "seq" else self.events[name])[lo:hi] for name in names}


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


def build(loaded: LoadedModel, preemption: Any, sink: Kept) -> Engine:
    """Tight, so that sequences queue and are preempted; its model computes nothing."""
    config = SchedulerConfig(max_seqs=4, max_batched_tokens=16, preemption=preemption)
    engine = Engine(loaded, EngineConfig(BLOCKS, 4, config, host_blocks=6 * (preemption == "swap")), sink=sink)
    logits = torch.zeros(16, loaded.config.vocab_size)
    engine.runner.run = lambda plan, sampled: logits[: len(sampled)]  # type: ignore[method-assign]
    return engine


def counts_of(engine: Engine) -> tuple[int, int]:
    return len(engine.scheduler.running), len(engine.scheduler.waiting)


@settings(max_examples=40)
@given(operations=OPERATIONS, preemption=st.sampled_from(["recompute", "swap"]), together=st.integers(1, 5))
def test_all_say_the_same_of_any_history(
    loaded: LoadedModel, operations: list[tuple[str, int, Any]], preemption: str, together: int
) -> None:
    sink = Kept(num_blocks=BLOCKS, block_size=4)
    engine, asked, seen = build(loaded, preemption, sink), [], set()
    follower, lineup, taken = Follower(sink), Lineup(), 0
    for number, (what, amount, more) in enumerate(operations):
        if what == "submit":
            asked.append(engine.submit(list(range(3, 3 + amount)),
                                       SamplingParams(8, n=more[0], beams=more[1], ignore_eos=True)))  # fmt: skip
        elif what == "step":
            for _ in range(amount):
                engine.step()
        elif asked:
            engine.abort(asked[amount % len(asked)])
        if number % together:
            continue  # a look takes in several of them
        lineup.add(sink.events[taken:])
        taken, moment, now = len(sink.events), follower.look(), gauges(engine)
        seen = {
            (moment.running, moment.waiting),
            (len(lineup.running), len(lineup.waiting)),
            (now.running, now.waiting),
        }
        assert seen == {counts_of(engine)}
    engine.close()
    moment = follower.look()
    assert (moment.running, moment.waiting) == (0, 0)


def test_the_histories_hold_what_counts_of_kinds_get_wrong(loaded: LoadedModel) -> None:
    """Aborted in the queue, aborted while preempted, aborted in the host tier, and several samples."""
    for preemption in ("recompute", "swap"):
        sink = Kept(num_blocks=BLOCKS, block_size=4)
        engine, follower = build(loaded, preemption, sink), Follower(sink)
        ids = [engine.submit([n] * 9, SamplingParams(20, n=1 + n % 2, ignore_eos=True)) for n in range(3, 9)]
        while not np.count_nonzero(sink.events["kind"] == Kind.PREEMPT):
            engine.step()
        assert engine.scheduler.waiting
        for number in ids:
            engine.abort(number)
            moment = follower.look()
            assert (moment.running, moment.waiting) == counts_of(engine)
        assert (moment.running, moment.waiting) == (0, 0)


def test_another_writer_begins_with_nobody() -> None:
    sink = Kept(num_blocks=4, block_size=4)
    sink.emit(Kind.SUBMIT, seq_id=1)
    sink.emit(Kind.FORK, seq_id=2)
    lineup = Lineup()
    lineup.add(sink.events)
    assert (lineup.running, lineup.waiting) == ({2}, {1})
    sink.emit(Kind.GAP, aux=7)  # events were lost, by the same writer
    sink.emit(Kind.GAP)  # another one
    sink.emit(Kind.SUBMIT, seq_id=3)
    lineup.add(sink.events[2:3])
    assert lineup.waiting == {1}
    lineup.add(sink.events[3:])
    assert (lineup.running, lineup.waiting) == (set(), {3})
