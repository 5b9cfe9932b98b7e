"""What lies in the slots of a pool, as the events have it: of each slot the WRITE whose bytes are there."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.read_records import NEVER, UNKNOWN
from kvscope.inspector.source import IntArray


class Landing:
    """The slots of the pool and of the host behind it; each holds the row of a WRITE, or NEVER.

    Args:
        blocks: of the pool, and those beyond it that events name.
        size: slots of a block.
    """

    def __init__(self, blocks: int, size: int) -> None:
        self.size = size
        self.slots = np.full(blocks * size, NEVER, dtype=np.int64)
        self.host: dict[int, IntArray] = {}
        self._copies: dict[int, tuple[int, int]] = {}  # target -> source, slots
        self._under: dict[int, tuple[int, IntArray]] = {}  # row of a write no step has taken -> where, what lay there

    def lose(self) -> None:
        """Events are missing: nobody knows what lies where."""
        self.slots[:] = UNKNOWN
        self._copies.clear()
        self._under.clear()

    def block(self, block: int) -> IntArray:
        """The slots of a block."""
        return self.slots[block * self.size : (block + 1) * self.size]

    def write(self, row: int, at: int, count: int) -> None:
        """A write of `count` slots from `at` on is issued; it runs over the end of its block where it is told to."""
        self._under[row] = at, self.slots[at : at + count].copy()
        self.slots[at : at + count] = row

    def overlap(self, rows: list[int]) -> bool:
        """Whether one of these writes, which no step has taken yet, lies over another of them."""
        over: set[int] = set()
        for row in rows:
            at, under = self._under.get(row, (0, self.slots[:0]))
            over.update(self.slots[at : at + len(under)].tolist())
            over.discard(row)
        return not over.isdisjoint(rows)

    def keep(self, rows: list[int]) -> None:
        """A step takes these writes."""
        for row in rows:
            self._under.pop(row, None)

    def move(self, row: int, at: int) -> None:
        """The step that takes a write puts it here."""
        count = len(self._under[row][1]) if row in self._under else 0
        self.drop([row])
        self.write(row, at, count)

    def drop(self, rows: list[int]) -> None:
        """No step will take these writes: what lay under them is there still."""
        for row in reversed(rows):
            at, under = self._under.pop(row, (0, self.slots[:0]))
            here = self.slots[at : at + len(under)]
            here[here == row] = under[here == row]

    def copy(self, source: int, target: int, slots: int) -> None:
        """A copy of the first slots of a block is decided."""
        self._copies[target] = source, min(max(slots, 0), self.size)
        slots = self._copies[target][1]
        self.block(target)[:slots] = self.block(source)[:slots]

    def copied(self, target: int, moved: int) -> None:
        """The copy into a block has run; where fewer slots were moved than was decided, the rest was never written."""
        source, slots = self._copies.pop(target, (-1, 0))
        if source >= 0 and 0 <= moved < slots:
            rest = self.block(target)[moved:slots]
            rest[rest == self.block(source)[moved:slots]] = NEVER
