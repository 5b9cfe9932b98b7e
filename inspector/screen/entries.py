"""Table entries: each is taken once and given back once, as the same life of the same block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.inspector.screen.columns import ENTRY_SIGN, NUMBERS, TAKES, Chunk
from kvscope.inspector.screen.runs import Runs
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import Kind, Reason

_RESIZED = np.uint8(Reason.RESIZED)  # its bytes were moved into another block, for the pool shrinks
_ENTRY = (*TAKES, Kind.RELEASE)
_NOWHERE = np.full(2, np.iinfo(np.int64).max)  # behind every place


@dataclass
class Entries:
    """Table entries that are held between two chunks, rising by place and then by time.

    rows: [N, 4] place (sequence id << 32 | logical block), block, life, number of the event that took it.
    doubled: whether two may be at one place.
    """

    rows: IntArray
    doubled: bool = False

    @classmethod
    def none(cls) -> Entries:
        return cls(np.empty((0, 4), dtype=np.int64))

    @property
    def seq_id(self) -> IntArray:
        return self.rows[:, 0] >> 32

    def parted(self, places: IntArray) -> tuple[IntArray, Entries]:
        """(rows at these places, the others); at most two are at one place."""
        have = np.concatenate([self.rows[:, 0], _NOWHERE])
        at = have.searchsorted(places)
        here = np.zeros(len(have), dtype=np.bool_)
        for nth in (at, at + 1):
            here[nth[have[nth] == places]] = True
        here = here[: len(self.rows)]
        return self.rows[here], Entries(self.rows[~here])

    def twice(self) -> IntArray:
        """The places where there are two."""
        places = self.rows[:, 0]
        return places[1:][places[1:] == places[:-1]] if self.doubled else places[:0]

    def merged(self, more: IntArray) -> Entries:
        """All of both, which have no place in common."""
        if not len(more):
            return self
        fresh = np.zeros(len(self.rows) + len(more), dtype=np.bool_)
        fresh[self.rows[:, 0].searchsorted(more[:, 0]) + np.arange(len(more))] = True
        out = np.empty((len(fresh), 4), dtype=np.int64)
        out[fresh], out[~fresh] = more, self.rows
        return Entries(out)


class EntryPass:
    """The ALLOC, SHARE, HIT and RELEASE rows of a chunk, table entry by table entry.

    A place in a table is empty, or holds one block, or, between the ALLOC of a copy-on-write and the RELEASE of its
    source, two: the newer one counts.
    """

    def __init__(self, chunk: Chunk, held: Entries, parents: dict[int, int] | None = None) -> None:
        self.chunk, self.held, self.parents = chunk, held, {} if parents is None else parents
        self.rows = chunk.rows(*_ENTRY)
        self.current = np.zeros(chunk.length, dtype=np.bool_)  # RELEASE rows of the block that the place holds
        self.since = np.empty(chunk.length, dtype=np.int64)  # per RELEASE row: when the entry was taken; else anything

    def _sorted(self) -> None:
        """The rows, and what is held at their places, by place and time."""
        chunk, rows = self.chunk, self.rows
        picked = chunk.picked(rows)
        mine = np.empty((len(rows), 4), dtype=np.int64)
        mine[:, 0] = picked["seq_id"].astype(np.int64) << 32 | picked["lblock"]
        mine[:, 1], mine[:, 2], mine[:, 3] = picked["block"], picked["gen"], rows + chunk.first
        theirs = np.asarray([place for _, place in self.inherited], dtype=np.int64)
        held, self.held = self.held.parted(np.concatenate([mine[:, 0], self.held.twice(), theirs]))
        every = np.concatenate([held, mine])
        order = np.argsort(every[:, 0], kind="stable")
        sign = np.ones(len(every), dtype=np.int64)
        sign[len(held) :] = ENTRY_SIGN.take(chunk.kind[rows])
        local = np.full(len(every), -1, dtype=np.int64)
        local[len(held) :] = rows
        self.every, self.sign, self.local = every[order], sign[order], local[order]
        self.runs = Runs(np.ascontiguousarray(self.every[:, 0]))

    def check(self, suspects: dict[str, IntArray]) -> Entries:
        """Add suspicious rows; returns what is held after the chunk."""
        self.inherited = self._inherited()
        if not len(self.rows) and not self.held.doubled:
            return self.held
        self._sorted()
        chunk, runs, sign = self.chunk, self.runs, self.sign
        took = sign > 0
        total = np.cumsum(sign)
        start = runs.start
        after = total - (total - sign)[start] if len(sign) else total
        before = after - sign
        newest = runs.last(took)  # of a RELEASE: the last entry taken before it
        previous = np.zeros_like(sign)  # of a take: the one before it, in the same place where that held two
        takes = np.flatnonzero(took)
        previous[takes[1:]] = takes[:-1]
        target = np.where(before == 1, newest, np.where(before == 2, previous[newest], -1))
        replaces = np.zeros(len(sign), dtype=np.bool_)  # what stands there is released in the rows that follow
        own = self.local >= 0
        replaces[own] = chunk.starts_copy[self.local[own]]
        if chunk.present[Kind.SHARE]:
            shared = self.local[own & took]
            shared = shared[(chunk.kind[shared] == NUMBERS[Kind.SHARE]) & (chunk.at("reason", shared) == _RESIZED)]
            replaces |= np.isin(self.local, shared)
        sound_take = ~own | (before == 0) | ((before == 1) & replaces)
        found = target >= 0
        block, gen, number = self.every[:, 1], self.every[:, 2], self.every[:, 3]
        same = found & (block[target] == block) & (gen[target] == gen)
        bad = np.where(took, ~sound_take, ~same)
        if bad.any():
            suspects["entry"] = self.local[bad & own]
        if self.inherited:
            self._forked(np.where(after > 0, newest, -1), suspects)
        if chunk.present[Kind.COW]:
            self._copied(np.flatnonzero(replaces & took & (before == 1)), previous, suspects)
        self._written_behind(np.flatnonzero(after == 2), suspects)
        given = np.flatnonzero(~took)
        self.current[self.local[given]] = before[given] == 1
        self.since[self.local[given]] = np.where(found[given], number[target[given]], -1)
        return self._left(after, newest, previous)

    def _inherited(self) -> list[tuple[int, int]]:
        """(row, place in the parent's table) of each SHARE of a fork; notes who is whose fork."""
        chunk, out = self.chunk, list[tuple[int, int]]()
        rows = chunk.rows(Kind.FORK, Kind.ADMIT, Kind.RESUME, Kind.SHARE)
        columns = (rows, chunk.kind[rows], chunk.seq_id[rows], chunk.lblock[rows], chunk.aux[rows],
                   chunk.at("reason", rows))  # fmt: skip
        for row, kind, seq_id, lblock, aux, reason in zip(*(c.tolist() for c in columns), strict=True):
            if kind == Kind.FORK:
                self.parents[seq_id] = aux
            elif kind != Kind.SHARE:
                self.parents.pop(seq_id, None)
            elif reason != _RESIZED and seq_id in self.parents:
                out.append((row, self.parents[seq_id] << 32 | lblock))
        return out

    def _forked(self, stands: IntArray, suspects: dict[str, IntArray]) -> None:
        """What a fork has of its parent, it has at the parent's place.

        Args:
            stands: after each row, where what its place holds was taken; -1 where that is empty.
        """
        every, first, bad = self.every, self.chunk.first, []
        for row, place in self.inherited:
            lo, hi = every[:, 0].searchsorted((place, place + 1)).tolist()
            at = lo + int(every[lo:hi, 3].searchsorted(row + first)) - 1
            own = every[np.flatnonzero(self.local == row)[0]]
            if at < lo or stands[at] < 0 or (every[stands[at], 1:3] != own[1:3]).any():
                bad.append(row)
        if bad:
            suspects["inherits"] = np.asarray(bad, dtype=np.int64)

    def _copied(self, takes: IntArray, previous: IntArray, suspects: dict[str, IntArray]) -> None:
        """A copy is of the block in whose place it comes."""
        chunk, sources = self.chunk, np.full((self.chunk.length, 2), -1, dtype=np.int64)
        rows, detail = chunk.detail(Kind.COW)
        told = detail.at >= 0
        begun = self.local[takes] + 2
        inside = begun < chunk.length
        takes, begun = takes[inside], begun[inside]
        sources[begun] = self.every[previous[takes], 1:3]
        rows, values = rows[told], detail.values[detail.at[told], :2]
        wrong = rows[(sources[rows, 0] >= 0) & (sources[rows] != values).any(axis=1)]
        if len(wrong):
            suspects["copy source"] = np.union1d(wrong, suspects.get("copy source", wrong))

    def _written_behind(self, doubled: IntArray, suspects: dict[str, IntArray]) -> None:
        """While a place holds two blocks nothing is written for it into the older one."""
        if not len(doubled):
            return
        chunk, local = self.chunk, self.local
        ends = np.minimum(doubled + 1, len(local) - 1)
        same_place = (ends > doubled) & (self.every[ends, 0] == self.every[doubled, 0])
        rows = chunk.rows(Kind.WRITE, Kind.COW, Kind.SWAP_IN)
        los = rows.searchsorted(local[doubled])
        his = rows.searchsorted(np.where(same_place, local[ends], chunk.length))
        bad = []
        for at, lo, hi in zip(
            doubled[los < his].tolist(), los[los < his].tolist(), his[los < his].tolist(), strict=True
        ):
            its = rows[lo:hi]
            place = chunk.seq_id[its].astype(np.int64) << 32 | chunk.lblock[its]
            bad.append(its[(place == self.every[at, 0]) & (chunk.block[its] != self.every[at, 1])])
        if sum(map(len, bad)):
            suspects["writer"] = np.concatenate([*bad, suspects.get("writer", bad[0][:0])])

    def _left(self, after: IntArray, newest: IntArray, previous: IntArray) -> Entries:
        ends = self.runs.ends
        one = newest[ends[after[ends] >= 1]]
        two = previous[newest[ends[after[ends] == 2]]]
        at = np.sort(np.concatenate([one, two]))
        left = self.held.merged(self.every[at])
        left.doubled = bool(len(two))  # all places where there were two have been looked at
        return left


__all__ = ["Entries", "EntryPass"]
