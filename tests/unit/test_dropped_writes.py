"""A write that no step takes, for its sequence ended first, is no write: as `explain` has it, so do the findings."""

from __future__ import annotations

import pytest

from kvscope.inspector.explain import explain
from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.traces.schema import Kind


def aborted(end: Kind, *, step: bool, commit: bool = False) -> HandTrace:
    """1 publishes what it is about to write, and ends before its step, or behind it; 2 hits the block and reads it."""
    trace = HandTrace(block_size=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1)
    trace.publish(0, seq_id=1, lblock=0)
    if step:
        trace.begin((1, 0, 2, [(0, 1)])).commit(0).end()
    if commit:
        trace.commit(0)
    trace.event(end, seq_id=1).release(0, seq_id=1).event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2)
    trace.alloc(1, seq_id=2, lblock=1).write(1, 0, 1, seq_id=2, lblock=1)
    return trace.begin((2, 2, 3, [(0, 1), (1, 1)])).end()


@pytest.mark.parametrize("end", [Kind.ABORT, Kind.PREEMPT, Kind.FINISH])
def test_who_hits_what_was_dropped_reads_nothing_that_was_written(end: Kind) -> None:
    trace = aborted(end, step=False)
    found = {finding.code: finding for finding in check(trace).findings}
    assert found.keys() == {"KV016", "KV009"}
    assert (found["KV009"].block, found["KV009"].slot_lo, found["KV009"].slot_hi) == (0, 0, 2)
    told = explain(trace, "s2")
    assert (told.verdict, told.cause) == ("damaged", found["KV016"])
    assert [finding.code for finding in told.followed] == ["KV009"]


@pytest.mark.parametrize("end", [Kind.ABORT, Kind.PREEMPT, Kind.FINISH])
def test_what_a_step_has_taken_is_there(end: Kind) -> None:
    assert check(aborted(end, step=True)).clean
    assert explain(aborted(end, step=True), "s2").verdict == "clean"


def test_what_is_committed_is_there_whoever_took_it() -> None:
    assert "KV009" not in {finding.code for finding in check(aborted(Kind.ABORT, step=False, commit=True)).findings}


def test_a_trace_without_steps_has_its_writes_done_at_once() -> None:
    trace = HandTrace(block_size=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1)
    trace.publish(0, seq_id=1, lblock=0).event(Kind.ABORT, seq_id=1).release(0, seq_id=1)
    assert check(trace.event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2)).clean
