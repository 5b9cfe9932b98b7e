"""The buddy system: pieces of a power of two that split and merge."""

from __future__ import annotations

from bisect import bisect_left, insort

from kvscope.engine.baselines.spaces import Region, Space


class BuddySpace(Space):
    """Pieces of 2**k blocks: a larger one is split in two for a smaller, two free halves merge again.

    A pool that is no power of two is a row of ever smaller pieces that never merge with each other.
    """

    name = "buddy"
    reserves = True

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self._pieces: dict[int, list[int]] = {1 << k: [] for k in range(num_blocks.bit_length())}  # size: free starts
        start = 0
        for size in sorted(self._pieces, reverse=True):
            if num_blocks & size:
                self._pieces[size].append(start)
                start += size
        self._largest = 1 << (num_blocks.bit_length() - 1)

    def size_for(self, tokens: int) -> int:
        """The tokens in whole blocks, rounded up to a power of two."""
        blocks = -(-tokens // self.block_size)
        return 1 << (blocks - 1).bit_length() if blocks > 0 else 1

    def could_hold(self, tokens: int) -> bool:
        """Whether the largest piece is large enough."""
        return self.size_for(tokens) <= self._largest

    def largest_free(self) -> int:
        """The largest free piece: a request cannot be given two pieces, though they lie side by side."""
        return max((size for size, starts in self._pieces.items() if starts), default=0)

    def _take(self, blocks: int) -> int | None:
        size = blocks
        while size <= self._largest and not self._pieces[size]:
            size *= 2
        if size > self._largest:
            return None
        start = self._pieces[size].pop(0)
        while size > blocks:  # keep the lower half, free the upper
            size //= 2
            insort(self._pieces[size], start + size)
        return start

    def _absorb(self, region: Region, blocks: int) -> bool:
        sizes = []
        size = region.blocks
        while size < blocks:  # it must be the lower half of each pair, and the upper half free
            if region.start % (2 * size) or not _has(self._pieces[size], region.start + size):
                return False
            sizes.append(size)
            size *= 2
        for size in sizes:
            self._pieces[size].remove(region.start + size)
        region.blocks = blocks
        return True

    def _give(self, start: int, blocks: int) -> None:
        while blocks < self._largest and _has(self._pieces[blocks], start ^ blocks):
            self._pieces[blocks].remove(start ^ blocks)
            start &= ~blocks
            blocks *= 2
        insort(self._pieces[blocks], start)


def _has(starts: list[int], start: int) -> bool:
    i = bisect_left(starts, start)
    return i < len(starts) and starts[i] == start
