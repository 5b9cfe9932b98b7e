"""First fit over the holes of one address space: what external fragmentation comes from."""

from __future__ import annotations

from bisect import bisect_left

from kvscope.engine.baselines.spaces import Region, Space


class ContiguousSpace(Space):
    """First fit by address; a region grows into the hole behind it, or moves to the first hole that is big enough.

    Args:
        relocate: whether a region that cannot grow where it lies may move; otherwise the growth is refused.
    """

    name = "contiguous"

    def __init__(self, num_blocks: int, block_size: int, *, relocate: bool = True) -> None:
        super().__init__(num_blocks, block_size)
        self.relocate = relocate
        self._starts = [0]  # of the holes, rising; no two holes touch
        self._length = {0: num_blocks}

    def size_for(self, tokens: int) -> int:
        """The tokens, rounded up to whole blocks."""
        return -(-tokens // self.block_size)

    def largest_free(self) -> int:
        """The largest hole."""
        return max(self._length.values(), default=0)

    def holes(self) -> list[tuple[int, int]]:
        """(start, blocks) of every hole, by address."""
        return [(start, self._length[start]) for start in self._starts]

    def _take(self, blocks: int) -> int | None:
        length = self._length
        for i, start in enumerate(self._starts):
            if length[start] >= blocks:
                self._cut(i, start, blocks)
                return start
        return None

    def _absorb(self, region: Region, blocks: int) -> bool:
        behind, more = region.end, blocks - region.blocks
        if self._length.get(behind, 0) < more:
            return False
        self._cut(bisect_left(self._starts, behind), behind, more)
        region.blocks = blocks
        return True

    def _cut(self, i: int, start: int, blocks: int) -> None:
        """Take the first `blocks` blocks of hole number `i`."""
        rest = self._length.pop(start) - blocks
        if rest:
            self._starts[i] = start + blocks
            self._length[start + blocks] = rest
        else:
            del self._starts[i]

    def _give(self, start: int, blocks: int) -> None:
        i = bisect_left(self._starts, start)
        if i < len(self._starts) and self._starts[i] == start + blocks:  # a hole behind
            blocks += self._length.pop(self._starts.pop(i))
        if i and self._starts[i - 1] + self._length[self._starts[i - 1]] == start:  # a hole in front
            self._length[self._starts[i - 1]] += blocks
            return
        self._starts.insert(i, start)
        self._length[start] = blocks
