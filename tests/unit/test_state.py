"""The pool at any event, worked out by hand, and against the series on traces of the real block manager."""

from __future__ import annotations

import numpy as np
import pytest

from kvscope.errors import TraceError, UsageError
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.source import Names, gap_rows, joined, row_of, short_path
from kvscope.inspector.state import BlockState, Holder, holders, state_at, tables_at
from kvscope.traces.schema import Kind


def story() -> HandTrace:
    """Sequence 1 fills three slots of block 0; 2 forks, copies to block 1, and ends; both blocks go."""
    trace = HandTrace(num_blocks=4, block_size=4)
    trace.alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).share(0, seq_id=2)  # 0 1 2
    trace.copy_on_write(0, 1, 3, seq_id=2)  # 3 ALLOC 4 LEASE 5 COW 6 RELEASE
    trace.write(1, 3, 4, seq_id=2).copy_done(0, 1)  # 7, 8 COPY_DONE 9 UNLEASE
    trace.commit(1).publish(1).release(1, seq_id=2)  # 10 11 12: cached
    trace.evict(1)  # 13 EVICT 14 FREE
    return trace.release(0, seq_id=1).quarantine(0).settle(0)  # 15 16 17


@pytest.mark.parametrize(
    ("seq", "states"),
    [
        (-1, "FFFF"),
        (0, "PFFF"),
        (1, "WFFF"),
        (2, "SFFF"),
        (3, "SPFF"),
        (6, "WPFF"),  # one entry and the lease are left
        (7, "WWFF"),
        (11, "WPFF"),
        (12, "WCFF"),
        (13, "WFFF"),
        (15, "FFFF"),
        (16, "QFFF"),
        (17, "FFFF"),
        (999, "FFFF"),
    ],
)
def test_states_by_hand(seq: int, states: str) -> None:
    pool = state_at(story(), seq)
    assert "".join(pool.letter(b) for b in range(4)) == states
    assert sum(pool.counts.values()) == 4


def test_arrays_by_hand() -> None:
    pool = state_at(story(), 7)
    assert pool.entries.tolist() == [1, 1, 0, 0]
    assert pool.leases.tolist() == [1, 0, 0, 0]
    assert pool.ref.tolist() == [2, 1, 0, 0]
    assert pool.fill.tolist() == [3, 4, 0, 0]
    assert pool.gen.tolist() == [1, 1, 0, 0]
    assert pool.last_seq.tolist() == [6, 7, -1, -1]
    assert (pool.num_private, pool.num_shared, pool.num_free) == (2, 0, 2)


def test_held_by_a_lease_alone_is_in_transit() -> None:
    trace = HandTrace().alloc(0, seq_id=1).lease(0, 7, 0, 2).release(0, seq_id=1)
    pool = state_at(trace, 2)
    assert pool.state[0] == BlockState.IN_TRANSIT
    assert pool.num_in_transit == 1
    assert state_at(trace.unlease(0, 7).free(0), 99).num_in_transit == 0


def test_a_stale_handle_changes_nothing() -> None:
    trace = HandTrace().alloc(0, seq_id=1).release(0, seq_id=1).free(0).alloc(0, seq_id=2)
    before = state_at(trace, 3)
    trace.write(0, 0, 4, seq_id=1, gen=1, fill=4)
    after = state_at(trace, 4)
    assert after.fill[0] == before.fill[0] == 0
    assert after.gen[0] == 2
    assert not after.writing[0]


def test_tables() -> None:
    trace = story()
    assert tables_at(trace, 2) == {1: [(0, 1)], 2: [(0, 1)]}
    assert tables_at(trace, 6) == {1: [(0, 1)], 2: [(1, 1)]}
    assert tables_at(trace, 12) == {1: [(0, 1)]}
    assert tables_at(trace, 17) == {}
    two = HandTrace().alloc(3, seq_id=5, lblock=1).alloc(2, seq_id=5, lblock=0)
    assert tables_at(two, 1) == {5: [(2, 1), (3, 1)]}


def test_holders() -> None:
    trace = story()
    assert holders(trace, 0, 4) == [
        Holder("table", 1, 0, seq_id=1, lblock=0),
        Holder("table", 1, 2, seq_id=2, lblock=0),
        Holder("lease", 1, 4, lease_id=1, slot_lo=0, slot_hi=3),
    ]
    assert [h.seq_id for h in holders(trace, 0, 9)] == [1]
    assert holders(trace, 0, 17) == []
    with pytest.raises(UsageError, match=r"the pool has blocks 0\.\.3"):
        holders(trace, 4, 0)


def test_rows_and_gaps() -> None:
    trace = HandTrace().alloc(0, seq_id=1).lose(5).alloc(1, seq_id=1, lblock=1)
    assert row_of(trace, 6) == 1
    with pytest.raises(TraceError, match="no event 3"):
        row_of(trace, 3)
    assert gap_rows(trace) == [(1, 5)]
    assert gap_rows(HandTrace().lose(2).alloc(0, seq_id=1)) == [(0, 2)]
    assert gap_rows(HandTrace().alloc(0, seq_id=1).event(Kind.GAP, aux=9)) == [(1, 9)]
    assert gap_rows(HandTrace()) == []


def test_names() -> None:
    names = Names(
        [
            {"type": "request", "request": 3, "name": "haiku", "seq_ids": [7]},
            {"type": "sample", "request": 3, "sample": 2, "seq_id": 9},
        ]
    )
    assert (names(7), names(9), names(1)) == ("haiku", "haiku/2", "s1")
    assert names.request(9) == 3
    assert joined([]) == ""
    assert joined(["a", "b", "c"]) == "a, b and c"
    assert short_path("/x/src/kvscope/engine/pool.py") == "engine/pool.py"
    assert short_path("run.py") == "run.py"


def test_unknown_kinds_are_passed_over() -> None:
    trace = story()
    pool = state_at(trace, 11)
    trace.event(Kind.NOTE).event(200, block=0)  # type: ignore[arg-type]
    assert np.array_equal(state_at(trace, 11).state, pool.state)
    assert state_at(trace, 99).num_free == 4
