"""A pool that grows and shrinks, seen from its trace alone: counts, states and findings follow its size."""

from __future__ import annotations

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.measures import COUNT_NAMES, series
from kvscope.inspector.state import state_at


def resized() -> HandTrace:
    trace = HandTrace(num_blocks=4, block_size=2)
    trace._gen, trace._ref, trace._fill = ([0] * 8 for _ in range(3))
    trace.alloc(0, seq_id=1).write(0, 0, 2, seq_id=1)
    trace.resize(4, 8).alloc(6, seq_id=1, lblock=1)
    return trace


def test_counts_add_up_to_the_size_of_the_moment() -> None:
    trace = resized().release(6, seq_id=1, lblock=1).free(6).resize(8, 5)
    measured = series(trace)
    assert measured.blocks.tolist() == [4, 4, 8, 8, 8, 8, 5]
    assert sum(getattr(measured, name) for name in COUNT_NAMES).tolist() == measured.blocks.tolist()
    assert measured.free.tolist() == [3, 3, 7, 6, 7, 7, 4]
    assert [state_at(trace, seq).num_blocks for seq in (1, 2, 6)] == [4, 8, 5]
    assert state_at(trace, 3).counts["private"] == 2
    assert check(trace).findings == ()


def test_block_of_a_grown_pool_is_no_bad_slot_and_one_that_is_gone_is() -> None:
    trace = resized()
    assert check(trace).findings == ()
    trace.release(6, seq_id=1, lblock=1).free(6).resize(8, 4).alloc(5, seq_id=1, lblock=1)
    assert [f.code for f in check(trace).findings] == ["KV019"]


def test_pool_that_gives_up_a_held_block_is_found() -> None:
    found = check(resized().resize(8, 4)).findings
    assert [f.code for f in found] == ["KV012"]
    assert "gives up b6#1, which is held by s1" in found[0].why
