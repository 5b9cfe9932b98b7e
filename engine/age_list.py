"""Blocks in the order in which they came, any of which may leave at any time: a linked list in two arrays."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

_ABSENT = -1


class AgeList:
    """The oldest comes first. 8 bytes per block of the pool, whether it is in the list or not.

    Layout: `next[b]` and `before[b]` are the neighbours of block `b`, -1 where it is not in the list; element
    `num_blocks` is the end of the list, which is in front of the oldest block too.
    """

    __slots__ = ("_b", "_before", "_end", "_n", "_next", "count")  # lanes.c reads them

    def __init__(self, num_blocks: int) -> None:
        self._end = num_blocks
        self._next = np.full(num_blocks + 1, _ABSENT, dtype=np.int32)
        self._before = np.full(num_blocks + 1, _ABSENT, dtype=np.int32)
        self._next[num_blocks] = self._before[num_blocks] = num_blocks
        self._look()
        self.count = 0  # of the blocks in it

    def _look(self) -> None:
        self._n, self._b = self._next.data, self._before.data  # one item at a time: faster than the arrays

    def __len__(self) -> int:
        return self.count

    def __contains__(self, block: int) -> bool:
        return self._n[block] >= 0

    def __iter__(self) -> Iterator[int]:
        at = self._n[self._end]
        while at != self._end:
            yield at
            at = self._n[at]

    def add(self, block: int) -> None:
        """Put a block behind all others; it must not be here."""
        end, before = self._end, self._b
        last = before[end]
        self._n[last] = before[end] = block
        before[block], self._n[block] = last, end
        self.count += 1

    def discard(self, block: int) -> None:
        """Take a block out, if it is here."""
        after = self._n[block]
        if after < 0:
            return
        before = self._b[block]
        self._n[before], self._b[after] = after, before
        self._n[block] = self._b[block] = _ABSENT
        self.count -= 1

    def __delitem__(self, block: int) -> None:
        if block not in self:
            raise KeyError(block)
        self.discard(block)

    def resize(self, num_blocks: int) -> None:
        """For blocks 0..num_blocks - 1 from now on; those in the list stay."""
        kept = list(self)
        self.__init__(num_blocks)  # type: ignore[misc]
        for block in kept:
            self.add(block)
