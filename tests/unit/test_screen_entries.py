"""Table entries by columns against a plain loop over them: what is wrong, what is held, since when; in any pieces."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen.columns import Chunk
from kvscope.inspector.screen.details import DetailTables
from kvscope.inspector.screen.entries import Entries, EntryPass
from kvscope.inspector.source import frozen
from kvscope.traces.schema import Kind, Reason

TAKES = (Kind.ALLOC, Kind.SHARE, Kind.HIT)
Held = dict[tuple[int, int], list[tuple[int, int, int]]]  # (sequence, place) -> (block, life, event), oldest first


class Loop:
    """One entry after the other."""

    def __init__(self) -> None:
        self.held: Held = {}
        self.current: dict[int, bool] = {}
        self.since: dict[int, int] = {}
        self.bad: list[int] = []

    def play(self, seq: int, row: Any, *, replaces: bool) -> None:
        there = self.held.setdefault((row.seq_id, row.lblock), [])
        if row.kind in TAKES:
            if there and not (len(there) == 1 and replaces):
                self.bad.append(seq)
            there.append((row.block, row.gen, seq))
            return
        self.current[seq] = len(there) == 1
        if not there or there[0][:2] != (row.block, row.gen):
            self.bad.append(seq)
            return
        self.since[seq] = there.pop(0)[2]  # of two, the older one: the newer takes its place

    def rows(self) -> list[list[int]]:
        return [
            [seq_id << 32 | lblock, *entry] for (seq_id, lblock), there in sorted(self.held.items()) for entry in there
        ]


def history(chance: random.Random, length: int, wrong: float) -> tuple[HandTrace, Loop, list[int]]:
    """Random entries, now and then wrong; the loop over them; and the rows in front of which it may be cut."""
    trace, loop, cuts = HandTrace(num_blocks=8), Loop(), list[int]()

    def event(kind: Kind, *, replaces: bool = False, **columns: int) -> None:
        seq = len(trace._rows)
        trace.event(kind, **columns)
        if kind in (*TAKES, Kind.RELEASE):
            loop.play(seq, SimpleNamespace(kind=kind, **columns), replaces=replaces)

    while len(trace._rows) < length and not loop.bad:
        cuts.append(len(trace._rows))
        seq_id, lblock = chance.randrange(3), chance.randrange(3)
        place, fresh = {"seq_id": seq_id, "lblock": lblock}, {"block": chance.randrange(8), "gen": chance.randrange(3)}
        there = loop.held.get((seq_id, lblock), [])
        if chance.random() < wrong:
            kind = chance.choice((*TAKES, Kind.RELEASE))
            event(kind, replaces=False, reason=Reason.FORK, **place, **fresh)
        elif not there:
            event(chance.choice(TAKES), **place, **fresh)
        elif len(there) == 2 or chance.random() < 0.5:
            event(Kind.RELEASE, **place, block=there[0][0], gen=there[0][1])
        elif chance.random() < 0.5:
            event(Kind.SHARE, replaces=True, reason=Reason.RESIZED, **place, **fresh)
        else:
            event(Kind.ALLOC, replaces=True, **place, **fresh)
            trace.event(Kind.LEASE).event(Kind.COW, **place, **fresh)
    return trace, loop, cuts


@pytest.mark.parametrize("wrong", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(12))
def test_pieces_say_what_the_loop_says(seed: int, wrong: float) -> None:
    chance = random.Random(seed)
    trace, loop, cuts = history(chance, chance.choice((1, 5, 60)), wrong)
    events, details = trace.events, DetailTables(frozen(trace))
    ends = sorted({*chance.sample(cuts[1:], min(len(cuts) - 1, chance.randrange(5))), len(events)})
    held, found, first = Entries.none(), list[int](), 0
    for end in ends:
        chunk, suspects = Chunk(events[first:end], first, details), dict[str, Any]()
        entries = EntryPass(chunk, held)
        held = entries.check(suspects)
        for rows in suspects.values():
            found += (rows + first).tolist()
        for row in np.flatnonzero(chunk.kind == Kind.RELEASE).tolist():
            if first + row in loop.since:
                assert entries.since[row] == loop.since[first + row]
                assert entries.current[row] == loop.current[first + row]
        if found:
            break
        first = end
    assert found == loop.bad
    if not found:
        assert held.rows.tolist() == loop.rows()
        assert held.seq_id.tolist() == [row[0] >> 32 for row in loop.rows()]


@pytest.mark.parametrize(("block", "gen", "seq_id", "lblock", "bad"), [
    (5, 2, 1, 3, []), (5, 1, 1, 3, [1]), (5, 3, 1, 3, [1]), (5, 5, 1, 3, [1]), (2, 2, 1, 3, [1]), (4, 2, 1, 3, [1]),
    (5, 2, 2, 3, [1]), (5, 2, 1, 4, [1]),
])  # fmt: skip
@pytest.mark.parametrize("apart", [False, True])
def test_an_entry_is_given_back_as_it_was_taken(
    block: int, gen: int, seq_id: int, lblock: int, bad: list[int], apart: bool
) -> None:
    trace = HandTrace(num_blocks=8).event(Kind.ALLOC, block=5, gen=2, seq_id=1, lblock=3)
    trace.event(Kind.RELEASE, block=block, gen=gen, seq_id=seq_id, lblock=lblock)
    events, details, held, found = trace.events, DetailTables(frozen(trace)), Entries.none(), list[int]()
    for first, end in ((0, 1), (1, 2)) if apart else ((0, 2),):
        suspects = dict[str, Any]()
        held = EntryPass(Chunk(events[first:end], first, details), held).check(suspects)
        found += [first + row for rows in suspects.values() for row in rows.tolist()]
    assert found == bad


def test_entries_are_parted_by_place_and_merged_again() -> None:
    rows = np.array([[place, block, 1, 10 + block] for block, place in enumerate((2, 5, 5, 9))], dtype=np.int64)
    every = Entries(rows)
    for places, taken in (([], []), ([1, 3, 10], []), ([5], [1, 2]), ([9, 2], [0, 3]), ([2, 5, 5, 9], [0, 1, 2, 3])):
        here, others = every.parted(np.array(places, dtype=np.int64))
        assert here.tolist() == rows[taken].tolist()
        assert others.rows.tolist() == [row for i, row in enumerate(rows.tolist()) if i not in taken]
        assert others.merged(here).rows.tolist() == rows.tolist()
    here, others = Entries.none().parted(np.array([1], dtype=np.int64))
    assert (len(here), len(others.rows)) == (0, 0)


@pytest.mark.parametrize(("places", "twice"), [
    ([], []), ([2], []), ([2, 5, 5, 9], [5]), ([1, 1, 4, 4], [1, 4]), ([1, 2, 3], []), ([7, 7], [7]),
])  # fmt: skip
def test_places_where_there_are_two(places: list[int], twice: list[int]) -> None:
    rows = np.array([[place, 0, 1, at] for at, place in enumerate(places)], dtype=np.int64).reshape(-1, 4)
    assert Entries(rows, doubled=True).twice().tolist() == twice
    assert Entries(rows).twice().tolist() == []
