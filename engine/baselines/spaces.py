"""Address spaces that hand out contiguous regions, one per sequence; sizes and addresses are in blocks.

A region is `[start, start + blocks)`. Regions never overlap, and what is in no region is free. A block is only the
unit of account here: nothing is shared, and nothing is found through a table.

                 takes at first          grows                                    fails although room is free
    reserved     room for max_model_len  never                                    when less than a reservation is left
    contiguous   its tokens, first fit   into the free room behind it, else moves when no single hole is big enough
    buddy        the next power of two   into its free buddy, else moves          when no piece is big enough
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from kvscope.errors import FaultyCall, UsageError


@dataclass(slots=True, eq=False)
class Region:
    """Blocks [start, start + blocks) of one sequence."""

    start: int
    blocks: int

    @property
    def end(self) -> int:
        """The first block behind the region."""
        return self.start + self.blocks


class Growth(IntEnum):
    """How a region came by room for more tokens."""

    FITS = 0  # the room was there
    IN_PLACE = 1
    MOVED = 2  # to another address: its content has to be copied
    REFUSED = 3  # nothing was changed


class Space(ABC):
    """`num_blocks` blocks of `block_size` slots, given out in contiguous regions; not thread-safe, its owner locks.

    Counters: `grown` regions that grew in place, `moves` that had to move, `refused` growths that found no room,
    `refused_by_holes` those of them for which enough was free in all, only not in one piece.
    """

    name = ""
    reserves = False  # a region is larger than its tokens by policy, not by the last block alone
    relocate = True  # a region that cannot grow where it lies may move

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise UsageError(f"a space of {num_blocks} blocks of {block_size} slots: both must be at least 1")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free = num_blocks  # blocks in no region
        self.grown = self.moves = self.refused = self.refused_by_holes = 0

    @property
    def held(self) -> int:
        """Blocks in regions."""
        return self.num_blocks - self.free

    @abstractmethod
    def size_for(self, tokens: int) -> int:
        """Blocks that a sequence of this many tokens holds."""

    @abstractmethod
    def largest_free(self) -> int:
        """Blocks of the largest region that could be opened now."""

    @abstractmethod
    def _take(self, blocks: int) -> int | None:
        """The start of a region of exactly this size, now taken; None when there is none."""

    @abstractmethod
    def _give(self, start: int, blocks: int) -> None:
        """Blocks that are free again."""

    def _absorb(self, region: Region, blocks: int) -> bool:
        """Make the region `blocks` long where it lies, if the room behind it is free."""
        return False

    def open(self, tokens: int) -> Region | None:
        """A region for a sequence of this many tokens; None when there is no room (nothing was changed)."""
        blocks = self.size_for(tokens)
        start = self._take(blocks) if blocks <= self.free else None
        if start is None:
            return None
        self.free -= blocks
        return Region(start, blocks)

    def grow(self, region: Region, tokens: int) -> Growth:
        """Make room for `tokens` tokens in the region: where it lies, or elsewhere."""
        wanted, had = self.size_for(tokens), region.blocks
        if wanted <= had:
            return Growth.FITS
        if self._absorb(region, wanted):
            self.free -= wanted - had
            self.grown += 1
            return Growth.IN_PLACE
        start = self._take(wanted) if self.relocate and wanted <= self.free else None
        if start is None:
            self.refused += 1
            self.refused_by_holes += self.free >= wanted - had
            return Growth.REFUSED
        self._give(region.start, had)
        self.free -= wanted - had
        region.start, region.blocks = start, wanted
        self.moves += 1
        return Growth.MOVED

    def close(self, region: Region) -> None:
        """Give the region back.

        Raises:
            FaultyCall: it was closed before.
        """
        if region.blocks == 0:
            raise FaultyCall(f"the region at block {region.start} was given back twice")
        self._give(region.start, region.blocks)
        self.free += region.blocks
        region.blocks = 0

    def capacity(self, region: Region) -> int:
        """Tokens that the region has room for."""
        return region.blocks * self.block_size

    def could_hold(self, tokens: int) -> bool:
        """Whether a sequence of this many tokens fits when nothing else is there."""
        return self.size_for(tokens) <= self.num_blocks

    def external_fragmentation(self) -> float | None:
        """1 - largest free run / total free; None when nothing is free."""
        return 1 - self.largest_free() / self.free if self.free else None


class ReservedSpace(Space):
    """Every sequence holds room for `max_model_len` tokens from its first to its last."""

    name = "reserved"
    reserves = True

    def __init__(self, num_blocks: int, block_size: int, max_model_len: int) -> None:
        super().__init__(num_blocks, block_size)
        if max_model_len < 1:
            raise UsageError(f"max_model_len is {max_model_len}: must be at least 1")
        self.max_model_len = max_model_len
        self._each = -(-max_model_len // block_size)
        self._starts = [i * self._each for i in range(num_blocks // self._each)][::-1]  # free ones, next one last

    def size_for(self, tokens: int) -> int:
        """Always one reservation."""
        if tokens > self.max_model_len:
            return self.num_blocks + 1
        return self._each

    def largest_free(self) -> int:
        """One reservation, while one is left."""
        return self._each if self._starts else 0

    def external_fragmentation(self) -> float | None:
        """0: all reservations are alike, so any free one serves any request."""
        return 0.0

    def _take(self, blocks: int) -> int | None:
        return self._starts.pop() if self._starts else None

    def _give(self, start: int, blocks: int) -> None:
        self._starts.append(start)


def check_space(space: Space, regions: Iterable[Region]) -> None:
    """Regions lie inside the space and apart from each other, and the rest is what counts as free.

    Raises:
        FaultyCall: they do not; says where.
    """
    end, held = 0, 0
    for region in sorted(regions, key=lambda r: r.start):
        if region.start < end or region.end > space.num_blocks or region.blocks < 1:
            raise FaultyCall(f"integrity: region [{region.start}, {region.end}) overlaps another, or leaves the space")
        end, held = region.end, held + region.blocks
    if held + space.free != space.num_blocks:
        raise FaultyCall(f"integrity: {held} blocks in regions and {space.free} free are not {space.num_blocks}")
    if space.largest_free() > space.free:
        raise FaultyCall(f"integrity: the largest hole has {space.largest_free()} blocks, only {space.free} are free")
