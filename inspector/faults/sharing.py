"""Faults of sharing and copy-on-write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.copies import CopyQueue
from kvscope.engine.tables import Copy, SequenceTable
from kvscope.traces.schema import Kind, Reason


class MissingCopy(BlockManager):
    """A sample appends into a block that its siblings hold too."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return bool(self.pool.state[block] == BlockState.PUBLISHED)


class WriteToPublished(BlockManager):
    """A block is copied when other tables hold it, not when only the prefix index serves it."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return bool(self.pool.entries[block] > 1)


class _OtherCopies(BlockManager):
    """A block manager with copies of its own."""

    queue_class: type[CopyQueue] = CopyQueue

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._copies = self.queue_class(self.pool, self._leases, self._sink)


class _ShortCopies(CopyQueue):
    def decide(self, row: SequenceTable, lblock: int, slots: int) -> None:
        super().decide(row, lblock, max(0, slots - 1))


class ShortCopy(_OtherCopies):
    """Copy-on-write moves one slot too few."""

    queue_class = _ShortCopies


class _KeepsSource(CopyQueue):
    def decide(self, row: SequenceTable, lblock: int, slots: int) -> None:
        source = row.blocks[lblock]
        release, self._pool.release = self._pool.release, lambda *_args, **_more: None  # type: ignore[method-assign]
        try:
            super().decide(row, lblock, slots)
        finally:
            self._pool.release = release  # type: ignore[method-assign]
        assert self._pool.entries[source] > 0


class CopyKeepsSource(_OtherCopies):
    """The writer is given its copy and stays counted as a holder of the source."""

    queue_class = _KeepsSource


class CopyIntoNeighbour(BlockManager):
    """The copy that the device runs goes one block too far."""

    def drain_copies(self) -> list[Copy]:
        return [replace(copy, target=self._neighbour(copy)) for copy in super().drain_copies()]

    def copies_done(self, copies: Any) -> None:
        known = self.__dict__.pop("_true", {})
        super().copies_done([replace(copy, target=known[copy.lease_id]) for copy in copies])

    def _neighbour(self, copy: Copy) -> int:
        self.__dict__.setdefault("_true", {})[copy.lease_id] = copy.target
        return (copy.target + 1) % self.num_blocks


class CopyNeverRuns(BlockManager):
    """The list of copies is cleared before the device has seen it: a sequence goes on in a fresh, empty block."""

    def drain_copies(self) -> list[Copy]:
        self.copies_done(super().drain_copies())
        return []


class SharedTailHit(BlockManager):
    """A prompt is given the half-filled last block of a live sequence that begins alike, to write into."""

    def admit(self, seq_id: int, tokens: Any, extras: Any = (), *, resumed: bool = False) -> int:
        cached = super().admit(seq_id, tokens, extras, resumed=resumed)
        row, size = self._known(seq_id), self.block_size
        if cached:
            return cached
        for donor in self._tables.values():
            same = next((i for i, pair in enumerate(zip(donor.tokens, tokens, strict=False)) if pair[0] != pair[1]), 0)
            usable = min(same, donor.issued, len(row.tokens) - 1)
            if donor is row or usable < 1 or usable // size >= len(donor.blocks) or donor.first:
                continue
            if row.extras != donor.extras:
                continue
            self._take_over(row, donor, usable)
            return usable
        return cached

    def _take_over(self, row: SequenceTable, donor: SequenceTable, usable: int) -> None:
        self._release_tail(row, 0, Reason.NONE)
        end = -(-usable // self.block_size)
        for lblock in range(end):
            block = donor.blocks[lblock]
            self.pool.retain(block, Kind.SHARE, seq_id=row.seq_id, lblock=lblock, reason=Reason.FORK)
            row.add(block, donor.gens[lblock])
        self._extend(row, -(-len(row.tokens) // self.block_size) - end, Reason.PREFILL)
        row.issued = row.computed = usable

    def _needs_copy(self, block: int, slot: int) -> bool:
        return False
