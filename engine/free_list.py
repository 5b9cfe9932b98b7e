"""The free list: a ring of block ids, first freed, first handed out again."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
AHEAD = 128  # ids that lie in lists, at most so many in each
_FIRST_NUMBERS = np.arange(1 << 13, dtype=np.int32)


def numbers(lo: int, count: int) -> npt.NDArray[np.int32]:
    """lo, lo + 1, ..., `count` of them; not to be written to."""
    end = lo + count
    return _FIRST_NUMBERS[lo:end] if end <= len(_FIRST_NUMBERS) else np.arange(lo, end, dtype=np.int32)


class FreeList:
    """Ids of free blocks in the order they were freed; bulk operations are copies of at most two slices.

    It checks nothing: whether a block may be here is the pool's business. There is room for more ids than the pool
    has blocks, so that a faulty pool which frees a block twice is found by a checker, not by a crash here.

    Single ids are handed out of a list, `ahead`, and collected in another, `behind`: that takes a fifth of the time of
    an array. The ids lie in `ahead` (the next one last), then in the ring from `_head` on, then in `behind`.
    """

    __slots__ = ("_capacity", "_filed", "_head", "_ring", "ahead", "behind")  # lanes.c reads and sets them

    def __init__(self, num_blocks: int) -> None:
        self._capacity = 2 * num_blocks + 16
        self._ring = np.empty(self._capacity, dtype=np.int64)
        self._ring[:num_blocks] = np.arange(num_blocks)
        self._head = 0
        self._filed = num_blocks  # ids in the ring
        self.ahead: list[int] = []
        self.behind: list[int] = []

    @classmethod
    def of(cls, blocks: list[int], num_blocks: int) -> FreeList:
        """The list of a pool of `num_blocks` blocks that holds these, in this order."""
        made = cls(num_blocks)
        made._ring[: len(blocks)] = blocks
        made._filed = len(blocks)
        return made

    @property
    def count(self) -> int:
        """How many ids there are."""
        return self._filed + len(self.ahead) + len(self.behind)

    def __len__(self) -> int:
        return self._filed + len(self.ahead) + len(self.behind)

    def pop(self) -> int:
        """Take the block that was freed longest ago; there must be one."""
        if not self.ahead:
            self._look_ahead()
        return self.ahead.pop()

    def push(self, block: int) -> None:
        """Put a block at the end."""
        self.behind.append(block)
        if len(self.behind) >= AHEAD:
            self.file()

    def pop_many(self, count: int) -> IntArray:
        """Take `count` blocks in the order they were freed; there must be as many."""
        if self.ahead or self._filed < count:
            self._back()
        assert self._filed >= count, "more blocks than the free list has"
        head, end = self._head, self._head + count
        if end <= self._capacity:
            blocks = self._ring[head:end].copy()
        else:
            blocks = np.concatenate([self._ring[head:], self._ring[: end - self._capacity]])
        self._head = end if end < self._capacity else end - self._capacity
        self._filed -= count
        return blocks

    def push_many(self, blocks: IntArray) -> None:
        """Put blocks at the end, in this order."""
        if self.behind:
            self.file()
        start, count = self._head + self._filed, len(blocks)
        if start >= self._capacity:
            start -= self._capacity
        end = start + count
        if end <= self._capacity:
            self._ring[start:end] = blocks
        else:
            room = self._capacity - start
            self._ring[start:] = blocks[:room]
            self._ring[: count - room] = blocks[room:]
        self._filed += count

    def to_list(self) -> list[int]:
        """All ids, next one first."""
        places = (self._head + np.arange(self._filed)) % self._capacity
        return [*reversed(self.ahead), *self._ring[places].tolist(), *self.behind]

    def file(self) -> None:
        """What was pushed singly goes into the ring."""
        blocks, self.behind = self.behind, []
        self.push_many(np.frombuffer(array("q", blocks), np.int64))  # quicker than from a list

    def _look_ahead(self) -> None:
        """Have the next id in `ahead`; there must be one."""
        if not self._filed:
            self.file()
        blocks = self.pop_many(min(self._filed, AHEAD)).tolist()
        blocks.reverse()
        self.ahead = blocks

    def _back(self) -> None:
        """Everything goes into the ring."""
        if self.behind:
            self.file()
        blocks, self.ahead = self.ahead[::-1], []
        start = self._head - len(blocks)
        self._ring[np.arange(start, self._head)] = blocks  # places below 0 are at the ring's end
        self._head = start if start >= 0 else start + self._capacity
        self._filed += len(blocks)
