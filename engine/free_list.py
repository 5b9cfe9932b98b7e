"""The free list: a ring of block ids, first freed, first handed out again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
_FIRST_NUMBERS = np.arange(1 << 13, dtype=np.int32)


def numbers(lo: int, count: int) -> npt.NDArray[np.int32]:
    """lo, lo + 1, ..., `count` of them; not to be written to."""
    end = lo + count
    return _FIRST_NUMBERS[lo:end] if end <= len(_FIRST_NUMBERS) else np.arange(lo, end, dtype=np.int32)


class FreeList:
    """Ids of free blocks in the order they were freed; bulk operations are copies of at most two slices.

    It checks nothing: whether a block may be here is the pool's business. There is room for more ids than the pool
    has blocks, so that a faulty pool which frees a block twice is found by a checker, not by a crash here.
    """

    def __init__(self, num_blocks: int) -> None:
        self._capacity = 2 * num_blocks + 16
        self._ring = np.empty(self._capacity, dtype=np.int64)
        self._ring[:num_blocks] = np.arange(num_blocks)
        self._slots = self._ring.data  # one item at a time: three times as fast as the array
        self._head = 0
        self.count = num_blocks

    @classmethod
    def of(cls, blocks: list[int], num_blocks: int) -> FreeList:
        """The list of a pool of `num_blocks` blocks that holds these, in this order."""
        made = cls(num_blocks)
        made._ring[: len(blocks)] = blocks
        made.count = len(blocks)
        return made

    def __len__(self) -> int:
        return self.count

    def pop(self) -> int:
        """Take the block that was freed longest ago; there must be one."""
        block: int = self._slots[self._head]
        head = self._head + 1
        self._head = head if head < self._capacity else 0
        self.count -= 1
        return block

    def pop_many(self, count: int) -> IntArray:
        """Take `count` blocks in the order they were freed; there must be as many."""
        assert self.count >= count, "more blocks than the free list has"
        head, end = self._head, self._head + count
        if end <= self._capacity:
            blocks = self._ring[head:end].copy()
        else:
            blocks = np.concatenate([self._ring[head:], self._ring[: end - self._capacity]])
        self._head = end % self._capacity
        self.count -= count
        return blocks

    def push(self, block: int) -> None:
        """Put a block at the end."""
        end = self._head + self.count
        self._slots[end if end < self._capacity else end - self._capacity] = block
        self.count += 1

    def push_many(self, blocks: IntArray) -> None:
        """Put blocks at the end, in this order."""
        start, count = (self._head + self.count) % self._capacity, len(blocks)
        room = self._capacity - start
        if count <= room:
            self._ring[start : start + count] = blocks
        else:
            self._ring[start:] = blocks[:room]
            self._ring[: count - room] = blocks[room:]
        self.count += count

    def to_list(self) -> list[int]:
        """All ids, next one first."""
        places = (self._head + np.arange(self.count)) % self._capacity
        listed: list[int] = self._ring[places].tolist()
        return listed
