"""Lost references: what a sequence leaves when it ends is no sharing, whoever measures it and however it is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvscope.inspector import longrun
from kvscope.inspector.findings import check
from kvscope.inspector.following import Follower
from kvscope.inspector.lost import Lost, Move, lost_moves
from kvscope.inspector.measures import MEASURES, series, series_of, summary
from kvscope.inspector.state import BlockState, PoolState, state_at, tables_at
from kvscope.inspector.sums import COUNTS
from kvscope.inspector.table_seek import NO_TABLES, TableSeeker, fold_tables, tables_of
from kvscope.inspector.telemetry.gauges import _in_tables
from kvscope.inspector.top import FolderSource
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, open_trace, reader

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
LEAK = SAMPLES / "leak.kvpack"


class Told(MemoryRecorder):
    """A trace told row by row."""

    def __init__(self) -> None:
        super().__init__(pool=PoolFacts(4, 4))
        self.emit(Kind.POOL, aux=4, fill=4)

    def take(self, seq_id: int, block: int, *, gen: int = 1, kind: Kind = Kind.ALLOC, ref: int = 1) -> None:
        self.emit(kind, block=block, gen=gen, ref_before=ref - 1, ref_after=ref, seq_id=seq_id, lblock=0)

    def give(self, seq_id: int, block: int, *, gen: int = 1, ref: int = 0) -> None:
        self.emit(Kind.RELEASE, block=block, gen=gen, ref_before=ref + 1, ref_after=ref, seq_id=seq_id, lblock=0)
        if not ref:
            self.emit(Kind.FREE, block=block, gen=gen)

    def end(self, seq_id: int, kind: Kind = Kind.FINISH) -> None:
        self.emit(kind, seq_id=seq_id)

    def next_step(self) -> None:
        self.emit(Kind.STEP_BEGIN)


def _left_behind() -> Told:
    """Sequence 1 is preempted and leaves block 2; then it, and later sequence 5, hit the block."""
    told = Told()
    told.take(1, 2)
    told.end(1, Kind.PREEMPT)
    told.next_step()
    told.take(1, 2, kind=Kind.HIT, ref=2)
    told.take(5, 2, kind=Kind.HIT, ref=3)
    told.end(1)
    told.give(1, 2, ref=2)
    told.end(5)
    told.give(5, 2, ref=1)
    told.next_step()
    return told


def test_what_is_left_when_a_sequence_ends_is_lost_from_the_next_step_on() -> None:
    measured = series(_left_behind())
    assert measured.lost_blocks.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1]
    assert measured.table_entries.tolist() == [0, 1, 1, 0, 1, 2, 2, 1, 1, 0, 0]
    assert measured.saved_blocks.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert measured.held_blocks.tolist() == [0, *[1] * 10]
    assert measured.private.tolist() == [0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0]
    assert measured.shared.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert np.isnan(measured.sharing_factor[-1])


def test_the_operation_that_ends_a_sequence_loses_nothing_while_it_gives_back() -> None:
    told = Told()
    told.take(1, 0)
    told.end(1)
    told.give(1, 0)
    told.next_step()
    assert lost_moves(told) == []


def test_a_reference_that_comes_back_late_is_lost_no_more() -> None:
    told = Told()
    told.take(1, 0)
    told.end(1)
    told.next_step()
    told.give(1, 0)
    assert [move.by for move in lost_moves(told)] == [1, -1]
    assert series(told).lost_blocks.tolist()[-2:] == [0, 0]


def test_who_gave_back_among_missing_events_is_not_blamed() -> None:
    told = Told()
    told.take(1, 0)
    told.emit(Kind.GAP, aux=3)
    told.end(1)
    told.next_step()
    assert lost_moves(told) == []


def test_a_new_life_of_the_block_has_lost_nothing() -> None:
    told = Told()
    told.take(1, 0)
    told.end(1)
    told.next_step()
    told.take(2, 0, gen=2)
    assert series(told).lost_blocks.tolist()[-2:] == [1, 0]
    assert series(told).table_entries[-1] == 1


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_rows_may_come_in_parts_of_any_length(rows: int) -> None:
    trace = open_trace(LEAK)
    whole, found, lost = lost_moves(trace), [], Lost()
    held = NO_TABLES
    for lo in range(0, len(trace.events), rows):
        part, seqs = trace.events[lo : lo + rows], trace.seqs[lo : lo + rows]
        found += [move._replace(row=lo + move.row) for move in lost.add_events(part, seqs)]
        held = fold_tables(held, part)
    assert found == whole
    assert len(whole) == summary(trace)["preemptions"]  # the fault: each leaves one
    assert tables_of(held) == {}


def test_a_leak_saves_nothing_whoever_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = open_trace(LEAK)
    leaked = {f.block for f in check(trace).findings if f.code == "KV005"}
    measured = series(trace)
    assert measured.lost_blocks[-1] == len(leaked)
    assert measured.saved_blocks.max() == 0  # no two of its requests begin alike
    pool = FolderSource(LEAK).look().pool
    assert (pool["saved_blocks"], pool["lost_blocks"], pool["table_entries"]) == (0, len(leaked), 0)
    assert pool["blocks"] == {name: int(getattr(measured, name)[-1]) for name in pool["blocks"]}
    assert summary(trace)["lost_blocks"]["last"] == len(leaked)
    monkeypatch.setattr(longrun, "_RUN", 777)
    for lo, part in longrun.parts_of_counts(trace, COUNTS):
        for name in COUNTS:
            assert part[name].tolist() == getattr(measured, name)[lo : lo + len(part[name])].tolist(), name
    picked = series_of(longrun.longrun(trace), trace)
    rows = np.searchsorted(measured.seq, picked.seq)
    for name in MEASURES:
        np.testing.assert_allclose(getattr(picked, name), np.asarray(getattr(measured, name))[rows])


@pytest.mark.parametrize("name", ["leak", "healthy"])
def test_tables_hold_what_is_counted_at_every_event(name: str) -> None:
    trace = open_trace(SAMPLES / f"{name}.kvpack")
    measured, seeker = series(trace), TableSeeker(trace, every=512)
    for row in range(0, len(measured), 379):
        tables = tables_at(trace, int(measured.seq[row]))
        assert sum(map(len, tables.values())) == measured.table_entries[row]
        assert seeker.at(int(measured.seq[row])) == tables


def test_nothing_is_lost_where_nothing_leaks(toy_traces: dict[str, Path]) -> None:
    for path in (*toy_traces.values(), *SAMPLES.glob("*.kvpack")):
        trace = open_trace(path)
        leaks = [f for f in check(trace).findings if f.code == "KV005"]
        assert bool(lost_moves(trace)) <= bool(leaks), path.name


def test_a_server_counts_what_its_tables_hold() -> None:
    class Manager:
        def held(self) -> dict[int, int]:
            return {1: 2, 2: 2}

        def sequences(self) -> list[int]:
            return [1, 2]

        def table(self, seq_id: int) -> list[int]:
            return {1: [0, 1], 2: [0, -1]}[seq_id]

    engine: Any = SimpleNamespace(manager=Manager())
    counted = np.array([2, 1, 0, 1])
    assert _in_tables(engine, counted) is counted  # as many as the tables say: they are not asked
    assert _in_tables(engine, np.array([2, 1, 1, 1])).tolist() == [2, 1, 0, 0]


def _same(one: PoolState, other: PoolState) -> None:
    for name in PoolState.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("told", [_left_behind(), open_trace(LEAK)])
def test_a_lost_block_is_a_state_of_its_own_at_every_event(told: Any) -> None:
    measured = series(told)
    for row in range(0, len(measured), max(1, len(measured) // 97)):
        state = state_at(told, int(measured.seq[row]))
        assert state.counts == {name: int(getattr(measured, name)[row]) for name in state.counts}
        reached = {block for table in tables_at(told, int(measured.seq[row])).values() for block, _ in table}
        assert set(np.flatnonzero((state.entries > 0) & ~state.held).tolist()).isdisjoint(reached)
        assert int(state.fill[state.held].sum()) == measured.filled_slots[row]
        part = state_at(told, int(measured.seq[row]), range(1, 3))
        assert part.state.tolist() == state.state[1:3].tolist()


def test_what_is_lost_lowers_the_use_and_is_no_tail() -> None:
    trace = open_trace(LEAK)
    measured, told = series(trace), summary(trace)
    assert measured.lost_blocks[-1] == measured.held_blocks[-1] > 0  # all that is in use at the end
    assert (measured.utilization[-1], measured.filled_slots[-1]) == (0.0, 0)
    assert np.isnan(measured.tail_waste[-1])
    assert told["blocks"]["lost"]["last"] == told["lost_blocks"]["last"]
    pool = FolderSource(LEAK).look()
    assert (pool.pool["utilization"], pool.pool["tail_waste"], pool.pool["filled_slots"]) == (0.0, None, 0)
    assert pool.cells(1 << 17)[1].count("L") == pool.pool["blocks"]["lost"] == pool.pool["lost_blocks"]


def test_a_long_trace_and_one_that_grows_know_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    short, moment = open_trace(LEAK), Follower(open_trace(LEAK)).look()
    _same(moment.pool, state_at(short, moment.seq))
    monkeypatch.setattr(reader, "SETTLED_ROWS", 0)
    long = open_trace(LEAK)
    for seq in (-1, *range(0, moment.seq + 2, 389)):
        _same(state_at(long, seq), state_at(short, seq))


def test_a_lost_block_under_a_lease_is_not_lost() -> None:
    told = Told()
    told.take(1, 0)
    told.emit(Kind.LEASE, block=0, gen=1, ref_before=1, ref_after=2, aux=7)
    told.end(1)
    told.next_step()
    assert state_at(told, 99).state[0] == BlockState.IN_TRANSIT
    assert series(told).lost_blocks[-1] == 0
    told.emit(Kind.UNLEASE, block=0, gen=1, ref_before=2, ref_after=1, aux=7)
    assert state_at(told, 99).state[0] == BlockState.LOST
    assert series(told).lost_blocks[-1] == 1


def test_moves_are_in_the_order_of_their_rows() -> None:
    assert lost_moves(_left_behind()) == [Move(3, 2, 1, 1)]
