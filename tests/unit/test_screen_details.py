"""The details of events as the screen looks them up: told one by one, side by side, or read from a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen.columns import Chunk, flags, table
from kvscope.inspector.screen.details import (
    DETAILED,
    DetailTables,
    GivenDetails,
    kept_between,
    kept_of,
    part_details,
)
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces.schema import Kind

WIDTH = {Kind.SCHED: 2, Kind.COW: 4, Kind.LEASE: 2, Kind.WITNESS: 9, Kind.PUBLISH: 4, Kind.HIT: 4, Kind.SWAP_OUT: 2,
         Kind.SWAP_IN: 2}  # fmt: skip
FIRST = 100  # number of the first event


def given(kinds: list[Kind], singles: dict[int, tuple[int, ...]], bulk: Any = (), first: int = FIRST) -> GivenDetails:
    parts = [(seq, np.array(values, dtype=np.int64)) for seq, values in bulk]
    return GivenDetails(singles, parts, np.array(kinds, dtype=np.uint8), first)


def told(details: Any, kind: Kind, seqs: list[int]) -> list[list[int] | None]:
    found = details.of(kind, np.array(seqs, dtype=np.int64))
    return [found.values[at].tolist() if at >= 0 else None for at in found.at.tolist()]


def test_so_many_values_of_each_kind_are_looked_at() -> None:
    assert WIDTH == DETAILED


@pytest.mark.parametrize("kind", WIDTH)
@pytest.mark.parametrize("by", [-2, -1, 0, 1])
@pytest.mark.parametrize("way", ["alone", "together", "read"])
def test_rows_with_too_few_values_are_ragged(kind: Kind, by: int, way: str) -> None:
    values = tuple(range(1, WIDTH[kind] + by + 1))
    least = 8 if kind == Kind.WITNESS else WIDTH[kind]
    exact = kind in (Kind.PUBLISH, Kind.HIT)
    details: Any
    if way == "read":
        trace = HandTrace().event(Kind.NOTE, details=(7,)).event(kind, details=values)
        details = DetailTables(frozen(trace))
    else:
        alone = way == "alone"
        details = given(
            [Kind.NOTE, kind], {FIRST + 1: values} if alone else {}, () if alone else [(FIRST + 1, [values])]
        )
    assert details.ragged is (len(values) < least or (exact and by != 0))
    if not details.ragged:
        wanted = [*values, -1][: WIDTH[kind]] if len(values) < WIDTH[kind] else list(values)[: WIDTH[kind]]
        assert told(details, kind, [1 if way == "read" else FIRST + 1]) == [wanted]


def test_witnesses_with_and_without_a_host_tier_stand_in_one_table() -> None:
    eight, nine, ten = tuple(range(8)), tuple(range(20, 29)), tuple(range(40, 50))
    trace = HandTrace()
    for values in (eight, nine, ten, eight):
        trace.event(Kind.WITNESS, details=values)
    expected = [[*eight, -1], [*nine], [*ten[:9]], [*eight, -1]]
    read = DetailTables(frozen(trace))
    assert not read.ragged
    assert told(read, Kind.WITNESS, [0, 1, 2, 3]) == expected
    live = given([Kind.WITNESS] * 4, {FIRST + i: v for i, v in enumerate((eight, nine, ten, eight))})
    assert told(live, Kind.WITNESS, [FIRST + i for i in range(4)]) == expected


def test_what_was_told_alone_and_together_is_found_by_its_event() -> None:
    kinds = [Kind.SCHED, Kind.SCHED, Kind.NOTE, Kind.SCHED, Kind.SCHED, Kind.LEASE, Kind.SCHED, Kind.SCHED]
    bulk = [(FIRST, [(1, 2), (3, 4)]), (FIRST + 3, [(5, 6, 0), (7, 8, 0)])]
    details = given(kinds, {FIRST + 5: (0, 4, 9), FIRST + 6: (9, 10), FIRST + 3: (50, 60)}, bulk)
    assert not details.ragged
    at = [FIRST, FIRST + 1, FIRST + 3, FIRST + 4, FIRST + 6, FIRST + 7]
    assert told(details, Kind.SCHED, at) == [[1, 2], [3, 4], [50, 60], [7, 8], [9, 10], None]
    assert told(details, Kind.SCHED, at[1:3]) == [[3, 4], [50, 60]]
    assert told(details, Kind.LEASE, [FIRST + 5]) == [[0, 4]]
    assert told(details, Kind.COW, [FIRST + 5]) == [None]
    assert [details.get(FIRST + i) for i in range(8)] == [
        [1, 2], [3, 4], None, (50, 60), [7, 8, 0], (0, 4, 9), (9, 10), None,
    ]  # fmt: skip


@pytest.mark.parametrize(("seq", "rows", "ragged"), [
    (FIRST - 1, 1, False), (FIRST, 2, False), (FIRST, 3, True), (FIRST + 2, 1, False), (FIRST + 2, 2, True),
    (FIRST + 3, 2, False), (FIRST + 3, 0, False), (FIRST + 5, 1, False), (FIRST - 2, 2, False),
])  # fmt: skip
def test_rows_told_together_are_of_one_kind_and_of_this_look(seq: int, rows: int, ragged: bool) -> None:
    kinds = [Kind.SCHED, Kind.SCHED, Kind.LEASE, Kind.SCHED, Kind.SCHED]
    details = given(kinds, {}, [(seq, [(1, 2)] * rows)])
    assert details.ragged is ragged
    if not ragged:
        inside = [seq + i for i in range(rows) if FIRST <= seq + i < FIRST + 5]
        kind = kinds[seq - FIRST] if inside else Kind.SCHED
        assert told(details, kind, inside) == [[1, 2]] * len(inside)


@pytest.mark.parametrize("seq", [FIRST - 1, FIRST + 2, FIRST + 3])
def test_details_of_other_looks_are_passed_over(seq: int) -> None:
    details = given([Kind.SCHED, Kind.LEASE], {seq: (1,)})
    assert not details.ragged
    assert told(details, Kind.SCHED, [FIRST]) == [None]


def test_of_rows_that_tell_nothing_nothing_is_found() -> None:
    for details in (given([Kind.SCHED] * 3, {}), DetailTables(frozen(HandTrace().event(Kind.SCHED)))):
        assert told(details, Kind.SCHED, [0, 1]) == [None, None]
        assert told(details, Kind.SCHED, []) == []
        assert details.of(Kind.SCHED, np.arange(2)).at.tolist() == [-1, -1]


class Reader:
    """Of a trace on disk, the details of its events 101, 103 and 104."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def details_between(self, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self.asked.append((lo, hi))
        return np.array([101, 103, 104]), np.array([0, 2, 3, 6]), np.array([1, 2, 7, 3, 4, 5])


@pytest.mark.parametrize(("third", "ragged"), [(Kind.SUBMIT, False), (Kind.SCHED, False), (Kind.HIT, True)])
def test_a_part_of_a_trace_has_the_details_of_its_rows(third: Kind, ragged: bool) -> None:
    reader: Any = Reader()
    kinds = np.array([Kind.SCHED, Kind.SCHED, Kind.NOTE, Kind.SUBMIT, third, Kind.SCHED], dtype=np.uint8)
    details = part_details(reader, FIRST, kinds)
    assert reader.asked == [(100, 106)]
    assert details.ragged is ragged
    if not ragged:
        last = [3, 4] if third == Kind.SCHED else None
        assert told(details, Kind.SCHED, [100, 101, 104, 105]) == [None, [1, 2], last, None]


def test_details_as_they_are_kept_are_told_by_their_places() -> None:
    reader: Any = Reader()
    assert [column.tolist() for column in kept_between(reader, 100, 105)] == [
        [101, 103, 104], [0, 2, 3], [2, 1, 3], [1, 2, 7, 3, 4, 5],
    ]  # fmt: skip
    trace = HandTrace().event(Kind.LEASE, details=(1, 2)).event(Kind.SCHED, details=(3, 4)).event(Kind.NOTE)
    trace.event(Kind.LEASE, details=(5, 6, 7)).event(Kind.SUBMIT, details=(8,)).event(Kind.SCHED, details=(9, 10))
    seqs, starts, lengths, values = kept_of(frozen(trace), (Kind.SCHED, Kind.HIT, Kind.LEASE))
    rows = {
        seq: values[start : start + length].tolist()
        for seq, start, length in zip(seqs.tolist(), starts.tolist(), lengths.tolist(), strict=True)
    }
    assert rows == {0: [1, 2], 1: [3, 4], 3: [5, 6, 7], 5: [9, 10]}
    assert seqs.tolist() == [0, 1, 3, 5]
    assert [len(column) for column in kept_of(frozen(trace), (Kind.HIT,))] == [0, 0, 0, 0]


# -- what a chunk makes of them ----------------------------------------------------------------------------------------


def chunk(*rows: tuple[Kind, tuple[int, ...] | None], **columns: int) -> Chunk:
    trace = HandTrace()
    for kind, details in rows:
        trace.event(kind, details=details, **columns)
    return Chunk(trace.events, 0, DetailTables(frozen(trace)))


def test_equal_tables_have_equal_words_and_others_another() -> None:
    rows = [(5, 1), (5, 1), (5, 2), (7, 1), None, (0, 0), (5, 1)]
    for told_ in (rows, [row or (3, 3) for row in rows], [(5, 1), None], [(5, 1), None, (5, 2)]):
        words = chunk(*((Kind.SCHED, row) for row in told_)).tables.tolist()
        for one, word in zip(told_, words, strict=True):
            assert word == words[0] if one == (5, 1) else word != words[0]
        assert len(set(words)) == len({row or (0, 0) for row in told_})
    assert chunk((Kind.SCHED, None), (Kind.SCHED, (5, 0)), (Kind.SCHED, (6, 0))).tables.tolist() == [0, 5, 6]
    odd = 0x5851F42D4C957F2D
    assert chunk((Kind.NOTE, None), (Kind.SCHED, (5, 2))).tables.tolist() == [0, (5 + 2 * odd + 2**63) % 2**64 - 2**63]


@pytest.mark.parametrize(("told_", "slots"), [((9, 1, 0, 3), 3), ((9, 1, 1, 3), -1), ((9, 1, -1, 3), -1), (None, -1)])
def test_a_copy_says_how_many_leading_slots_it_copies(told_: tuple[int, ...] | None, slots: int) -> None:
    rows = chunk((Kind.COW, told_), (Kind.NOTE, None), (Kind.COW, (9, 1, 0, 2)))
    assert rows.copies.tolist() == [slots, -1, 2]


@pytest.mark.parametrize("name", ["block", "gen", "seq_id", "lblock", None])
def test_a_copy_begins_two_rows_before_it_is_decided(name: str | None) -> None:
    trace = HandTrace().event(Kind.ALLOC, block=1, gen=2, seq_id=3, lblock=4).event(Kind.LEASE)
    shown = {"block": 1, "gen": 2, "seq_id": 3, "lblock": 4}
    if name is not None:
        shown[name] += 1
    trace.event(Kind.COW, **shown).event(Kind.COW, **shown)
    rows = Chunk(trace.events, 0, DetailTables(frozen(trace)))
    assert rows.starts_copy.tolist() == [name is None, False, False, False]
    early = HandTrace().event(Kind.COW).event(Kind.COW)
    assert not Chunk(early.events, 0, DetailTables(frozen(early))).starts_copy.any()


def test_tables_by_kind_have_room_for_every_number() -> None:
    made = table({Kind.ALLOC: 3, Kind.NOTE: -1}, 2)
    assert (len(made), made[Kind.ALLOC], made[Kind.NOTE], made[255]) == (256, 3, -1, 2)
    assert np.flatnonzero(flags((Kind.ALLOC, Kind.NOTE))).tolist() == [Kind.ALLOC, Kind.NOTE]


@pytest.mark.parametrize("number", [40, 42, 200, 255])
def test_kinds_that_are_not_known_are_left_to_the_replay(number: int) -> None:
    trace = HandTrace().alloc(0, seq_id=1).alloc(1, seq_id=1, lblock=1)
    trace._rows[-1]["kind"] = number
    expected = {"lost events": 0} if number == Kind.GAP else {"unknown kind": 0}
    found = screen(frozen(trace))
    assert (found.suspects, found.blocks, found.slots, found.clean) == (expected, 0, 0, False)
