"""What the pool knows of each block, as arrays; how many blocks are in which state; and the words for them."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvscope.engine.age_list import AgeList
from kvscope.engine.free_list import FreeList
from kvscope.errors import UsageError
from kvscope.traces.schema import Reason

MAX_BLOCKS = 1 << 24
MAX_BLOCK_SIZE = 1024

# The words of `BlockArrays.words`, and of `BlockArrays.lives`.
ENTRY, STATE, FILL_MASK = 1 << 32, 1 << 16, (1 << 16) - 1
NEXT_LIFE = np.array(1 << 32)  # an array: a plain number costs an operation on arrays twice as much

# The arrays of a pool, and what they hold of a block that was never handed out; `pairs` beside them.
_EMPTY = {"leases": 0, "leased_slots": 0, "last_use_step": -1}


_COUNTED = ("free", "private", "shared", "cached", "quarantined", "in_transit")


class BlockState(IntEnum):
    """Where a block is in its life (DESIGN: the life of a block)."""

    FREE = 0
    WRITING = 1
    COMMITTED = 2
    PUBLISHED = 3
    CACHED = 4
    QUARANTINED = 5
    IN_TRANSIT = 6


def check_geometry(num_blocks: int, block_size: int) -> None:
    """Raises UsageError unless a pool can have this many blocks of this many slots."""
    if not 1 <= num_blocks <= MAX_BLOCKS:
        raise UsageError(f"num_blocks is {num_blocks}: must be 1..{MAX_BLOCKS}")
    if not 1 <= block_size <= MAX_BLOCK_SIZE:
        raise UsageError(f"block_size is {block_size}: must be 1..{MAX_BLOCK_SIZE} slots")


def _pairs(lo: int, hi: int) -> npt.NDArray[np.int64]:
    """Words and lives of blocks lo..hi - 1 that were never handed out."""
    pairs = np.zeros((hi - lo, 2), dtype="<i8")
    pairs[:, 1] = np.arange(lo, hi)
    return pairs


class BlockArrays:
    """State, life, holders and fill of `num_blocks` blocks, and the lists that the unheld ones are on."""

    # In slots: CPython is quick with an instance's attributes as long as it has 30 of them at most.
    __slots__ = (
        "_cached", "_entries", "_fenced", "_fill", "_free", "_gen", "_last_use", "_leases", "_quarantined", "_state",
        "_words", "block_size", "completed_step", "entries", "fill", "gen", "last_use_step", "leased_slots", "leases",
        "lives", "newest_use", "num_blocks", "num_held", "num_shared", "open_leases", "pairs", "state", "users",
        "words",
    )  # fmt: skip

    def __init__(self, num_blocks: int, block_size: int) -> None:
        check_geometry(num_blocks, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Of each block its word, entries << 32 | state << 16 | fill: one access for all three; and its life,
        # gen << 32 | block, as a row of the trace holds both. They lie side by side: in a large pool what an operation
        # costs is how often it reaches into memory.
        self.pairs = _pairs(0, num_blocks)
        self.leases = np.zeros(num_blocks, dtype=np.int32)
        self.leased_slots = np.zeros(num_blocks, dtype=np.int16)  # leading slots that some lease covers
        # The last step that used the block, as far as its releases tell (`BlockPool.release`). Below 0: by none since
        # it was handed out while step -2 - n was the last one begun; that one does not use it.
        self.last_use_step = np.full(num_blocks, -1, dtype=np.int64)
        self._look_at_arrays()
        self.completed_step = -1
        self.newest_use = -1  # the step begun last
        self.users: list[tuple[int, frozenset[int]]] = []  # open steps, oldest first: whose tables they use
        # Counted as they change; `check_integrity` counts anew.
        self.num_held = self.num_shared = self.open_leases = 0
        self._free = FreeList(num_blocks)
        self._cached = AgeList(num_blocks)  # evictable now, least recently released first
        self._fenced: dict[int, None] = {}  # cached, but an open step reads it: not evictable yet
        self._quarantined: dict[int, Reason] = {}  # and why each was given back

    def _look_at_arrays(self) -> None:
        # Words and lives, and the parts of them, as arrays of their own (`take` of such an array copies all of it).
        pairs = self.pairs
        self.words, self.lives = pairs[:, 0], pairs[:, 1]
        self.entries, self.gen = pairs.view("<i4")[:, 1], pairs.view("<i4")[:, 3]
        self.state, self.fill = pairs.view("u1")[:, 2], pairs.view("<i2")[:, 0]
        # The same memory, one item at a time: several times as fast as an array's scalar access.
        self._words, self._state, self._gen = self.words.data, self.state.data, self.gen.data
        self._entries, self._leases = self.entries.data, self.leases.data
        self._fill, self._last_use = self.fill.data, self.last_use_step.data

    def resize(self, num_blocks: int) -> None:
        """Have blocks 0..num_blocks - 1 from now on: new ones are free, those that go were free.

        The arrays keep the lives of blocks that are gone, so that an id that comes back begins a life of its own.
        """
        added = num_blocks - len(self.words)
        if added > 0:
            for name, empty in _EMPTY.items():
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(added, empty, dtype=old.dtype)]))
            self.pairs = np.concatenate([self.pairs, _pairs(num_blocks - added, num_blocks)])
            self._look_at_arrays()
        free = [block for block in self._free.to_list() if block < num_blocks]
        self._free = FreeList.of(free + list(range(self.num_blocks, num_blocks)), num_blocks)
        self.num_blocks = num_blocks
        self._cached.resize(num_blocks)

    def keep_free(self, wanted: Callable[[int], bool]) -> None:
        """Leave only these on the free list: the others are about to go."""
        self._free = FreeList.of([block for block in self._free.to_list() if wanted(block)], self.num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Cached blocks that could be given up now."""
        return len(self._cached)

    @property
    def num_cached(self) -> int:
        """Unheld blocks that keep their content, those an open step still reads included."""
        return len(self._cached) + len(self._fenced)

    @property
    def num_quarantined(self) -> int:
        """Unheld blocks that wait for an open step."""
        return len(self._quarantined)

    @property
    def num_available(self) -> int:
        """Blocks an allocation could take now."""
        return self._free.count + self._cached.count

    def ref(self, block: int) -> int:
        """Table entries plus leases."""
        return int(self._entries[block] + self._leases[block])

    def free_list(self) -> list[int]:
        """Blocks on the free list, next one first."""
        return self._free.to_list()

    def is_evictable(self, block: int) -> bool:
        """Whether the block is cached and could be given up now."""
        return block in self._cached

    def counts(self) -> dict[str, int]:
        """The pool's own counters; they add up to `num_blocks`."""
        return dict(zip(_COUNTED, self.tally(), strict=True))

    def tally(self) -> tuple[int, int, int, int, int, int]:
        """The values of `counts`."""
        in_transit = int(np.count_nonzero(self.state == BlockState.IN_TRANSIT)) if self.open_leases else 0
        return (
            self._free.count, self.num_held - self.num_shared, self.num_shared, self._cached.count + len(self._fenced),
            len(self._quarantined), in_transit,
        )  # fmt: skip

    def name(self, block: int) -> str:
        """`b37#12`: block 37 in its twelfth life."""
        return f"b{block}#{int(self.gen[block])}"

    def state_name(self, block: int) -> str:
        """The block's state as a lower-case word."""
        return BlockState(int(self.state[block])).name.lower()

    def shortage(self, needed: int) -> str:
        """One line for an allocation that cannot be served."""
        return (
            f"pool exhausted: need {needed} blocks, {self.num_free} free of {self.num_blocks} "
            f"({self.num_evictable} cached are evictable); raise num_blocks or lower the load"
        )
