"""Faults of ownership: a block that somebody holds is freed, evicted or handed out."""

from __future__ import annotations

from typing import Any

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import SequenceTable
from kvscope.traces.schema import Kind, Reason


class OtherPool(BlockManager):
    """A block manager whose pool is a broken one."""

    pool_class: type[BlockPool] = BlockPool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.pool.__class__ = self.pool_class
        self._plain = False  # every write goes the way of a single one


class NullHandedOut(BlockManager):
    """Block 0 is kept for padding, as the trace says of the pool; it stands on the free list all the same."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._sink is not None:
            self._sink.fact({"type": "pool", "reserved": [0]})


class FreeIgnoresCount(BlockManager):
    """The first sample to end frees all of its blocks, whoever else holds them."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        held = [block for block in row.blocks[keep:] if block >= 0]
        super()._release_tail(row, keep, reason)
        for block in held:
            if keep == 0 and self.pool.entries[block] > 0:
                self.pool._free.push(block)
                self.pool._record(Kind.FREE, block, reason)


class Clamping(BlockManager):
    """Gives back what it still has a count for, and passes over the rest, as engines do that clamp counts at zero."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        keep = max(keep, row.first)
        self._copies.cancel_row(row, keep)
        for lblock in range(len(row.blocks) - 1, keep - 1, -1):
            block = row.blocks[lblock]
            if self.pool.gen[block] == row.gens[lblock] and self.pool.entries[block] > 0:
                self.pool.release(block, seq_id=row.seq_id, lblock=lblock, reason=reason)
        del row.blocks[keep:], row.gens[keep:]
        row.changed()


class EarlyFree(Clamping):
    """A fork does not count the last full block: the first sample that ends frees it for its siblings too."""

    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        row = self._known(parent)
        block = row.blocks[max(0, row.issued // self.block_size - 1)]
        self.pool.entries[block] -= 1
        if self.pool.entries[block] == 1:
            self.pool.num_shared -= 1


class _HandsOutAgain(BlockPool):
    """Every third block that is handed out alone stays on the free list, as the next one."""

    _count = 0

    def take_one(self, seq_id: int, lblock: int, reason: Reason) -> int:
        block = super().take_one(seq_id, lblock, reason)
        self._count += 1
        if self._count % 3 == 0:
            rest = [self._free.pop() for _ in range(self._free.count)]
            for free in (block, *rest):
                self._free.push(free)
        return block


class DoubleAllocation(OtherPool, Clamping):
    """Two threads read the head of the free list before either moves it: both are given the same block."""

    pool_class = _HandsOutAgain


class _EvictsHeld(BlockPool):
    """Takes the published block that entered the index first, held or not."""

    def evict(self, reason: Reason = Reason.CAPACITY) -> None:
        held = [block for block, _ in self.index.items() if self.entries[block] > 0]
        if not held:
            super().evict(reason)
            return
        block = held[0]
        self.index.remove(block)
        self._record(Kind.EVICT, block, reason)
        self.state[block] = BlockState.COMMITTED
        self._free.push(block)
        self._record(Kind.FREE, block, reason)


class EvictHeld(OtherPool):
    """Eviction looks at age alone, and takes a block that a running sequence reads."""

    pool_class = _EvictsHeld


class _FreesUnderLease(BlockPool):
    """A block whose last table entry is gone is free, whatever leases it has."""

    def _unheld(self, block: int, reason: Reason) -> None:
        if self.leases[block] > 0 and self.entries[block] == 0 and not self.index.holds(block):
            self._to_free_list(block)
            self._record(Kind.FREE, block, reason)
            return
        super()._unheld(block, reason)


class FreeUnderLease(OtherPool):
    """A sequence that ends frees its blocks while a transfer still reads them."""

    pool_class = _FreesUnderLease


class _Forgets(BlockPool):
    """An evicted block goes to the free list; that it was evicted is neither recorded nor told to the index."""

    def evict(self, reason: Reason = Reason.CAPACITY) -> None:
        block = next(iter(self._cached))
        self.index.remove(block)
        del self._cached[block]
        self._to_free_list(block)


class ReuseWithoutEvict(OtherPool):
    """A cached block is handed out with its hash still on it."""

    pool_class = _Forgets


class _NeverEvicts(BlockPool):
    """Counts free blocks alone as available."""

    @property
    def num_available(self) -> int:
        return len(self._free)


class NeverEvicts(OtherPool):
    """Allocation refuses while blocks that nobody holds could be evicted."""

    pool_class = _NeverEvicts
