"""Table entries and leases: each is taken once and given back once, as the same life of the same block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.inspector.screen.columns import ENTRY_SIGN, TAKES, Chunk, flags
from kvscope.inspector.screen.runs import Runs
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import Kind

_ENTRY = flags((*TAKES, Kind.RELEASE))
_NAMES = ("seq_id", "lblock", "block", "gen")


@dataclass
class Entries:
    """Table entries that are held between two chunks, in the order they were taken."""

    seq_id: IntArray
    lblock: IntArray
    block: IntArray
    gen: IntArray
    since: IntArray  # number of the event that took it

    @classmethod
    def none(cls) -> Entries:
        return cls(*(np.empty(0, dtype=np.int64) for _ in range(5)))


class EntryPass:
    """The ALLOC, SHARE, HIT and RELEASE rows of a chunk, table entry by table entry.

    A place in a table is empty, or holds one block, or, between the ALLOC of a copy-on-write and the RELEASE of its
    source, two: the newer one counts.
    """

    def __init__(self, chunk: Chunk, held: Entries) -> None:
        self.chunk = chunk
        rows = np.flatnonzero(_ENTRY.take(chunk.kind))
        picked = chunk.picked(rows)
        old = len(held.since)
        columns = {name: np.concatenate([getattr(held, name), picked[name]]) for name in _NAMES}
        sign = np.concatenate([np.ones(old, dtype=np.int64), ENTRY_SIGN[chunk.kind[rows]].astype(np.int64)])
        local = np.concatenate([np.full(old, -1, dtype=np.int64), rows])
        since = np.concatenate([held.since, rows + chunk.first])
        order = _order(columns["seq_id"], columns["lblock"])
        key = columns["seq_id"][order] << 32 | columns["lblock"][order]
        self.columns = {name: column[order] for name, column in columns.items()}
        self.sign, self.local, self.number = sign[order], local[order], since[order]
        self.runs = Runs(key)
        self.current = np.zeros(chunk.length, dtype=np.bool_)  # RELEASE rows of the block that the place holds
        self.since = np.full(chunk.length, -1, dtype=np.int64)  # per RELEASE row: when the entry was taken

    def check(self, suspects: dict[str, IntArray]) -> Entries:
        """Add suspicious rows; returns what is held after the chunk."""
        chunk, runs, sign = self.chunk, self.runs, self.sign
        took = sign > 0
        total = np.cumsum(sign)
        start = runs.start
        after = total - (total - sign)[start] if len(sign) else total
        before = after - sign
        newest = runs.last(took)  # of a RELEASE: the last entry taken before it
        previous = np.full(len(sign), -1, dtype=np.int64)  # of a take: the take before it in the same place
        takes = np.flatnonzero(took)
        if len(takes):
            near = np.append(-1, takes[:-1])
            previous[takes] = np.where(near >= start[takes], near, -1)
        target = np.where(before == 1, newest, np.where(before == 2, previous[newest], -1))
        copy = np.zeros(len(sign), dtype=np.bool_)
        own = self.local >= 0
        copy[own] = chunk.starts_copy[self.local[own]]
        sound_take = ~own | (before == 0) | ((before == 1) & copy)
        found = target >= 0
        same = found & (self.columns["block"][target] == self.columns["block"])
        same &= self.columns["gen"][target] == self.columns["gen"]
        bad = np.where(took, ~sound_take, ~same)
        if bad.any():
            suspects["entry"] = self.local[bad & own]
        given = np.flatnonzero(~took)
        self.current[self.local[given]] = before[given] == 1
        self.since[self.local[given]] = np.where(found[given], self.number[target[given]], -1)
        return self._left(after, newest, previous)

    def _left(self, after: IntArray, newest: IntArray, previous: IntArray) -> Entries:
        ends = self.runs.ends
        one = newest[ends[after[ends] >= 1]]
        two = previous[newest[ends[after[ends] == 2]]]
        at = np.concatenate([one, two])
        at = at[at >= 0]
        at = at[np.argsort(self.number[at])]
        return Entries(**{name: self.columns[name][at] for name in _NAMES}, since=self.number[at])


def _order(seq_id: IntArray, lblock: IntArray) -> IntArray:
    """Indices sorted by (sequence, logical block), in order of time within each; one packed sort where it fits."""
    if not len(seq_id):
        return np.empty(0, dtype=np.int64)
    low, bits_l, bits_n = int(seq_id.min()), int(lblock.max()).bit_length(), len(seq_id).bit_length()
    bits_s = (int(seq_id.max()) - low).bit_length()
    if bits_s + bits_l + bits_n < 63 and low >= 0 and int(lblock.min()) >= 0:
        packed = ((seq_id - low) << bits_l | lblock) << bits_n | np.arange(len(seq_id))
        return np.asarray(np.sort(packed) & ((1 << bits_n) - 1), dtype=np.int64)
    return np.lexsort((lblock, seq_id))


@dataclass
class Leases:
    """Leases that are held between two chunks: (lease id, block) -> life."""

    held: dict[tuple[int, int], int]

    def check(self, chunk: Chunk, suspects: dict[str, IntArray]) -> None:
        """A lease holds a block once at a time, and ends on the life that it began on."""
        rows = chunk.rows(Kind.LEASE, Kind.UNLEASE)
        bad = []
        columns = (rows, chunk.kind[rows], chunk.aux[rows], chunk.block[rows], chunk.at("gen", rows))
        for row, kind, lease, block, gen in zip(*(c.tolist() for c in columns), strict=True):
            if kind == Kind.LEASE:
                if (lease, block) in self.held:
                    bad.append(row)
                self.held[lease, block] = gen
            elif self.held.pop((lease, block), None) != gen:
                bad.append(row)
        if bad:
            suspects["lease id"] = np.asarray(bad, dtype=np.int64)


__all__ = ["Entries", "EntryPass", "Leases"]
