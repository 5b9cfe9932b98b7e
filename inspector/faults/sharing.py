"""Faults of sharing and copy-on-write."""

from __future__ import annotations

from typing import Any

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.copies import CopyQueue
from kvscope.engine.tables import SequenceTable


class MissingCopy(BlockManager):
    """A sample appends into a block that its siblings hold too."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return bool(self.pool.state[block] == BlockState.PUBLISHED)


class WriteToPublished(BlockManager):
    """A block is copied when other tables hold it, not when only the prefix index serves it."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return bool(self.pool.entries[block] > 1)


class _ShortCopies(CopyQueue):
    def decide(self, row: SequenceTable, lblock: int, slots: int) -> None:
        super().decide(row, lblock, max(0, slots - 1))


class ShortCopy(BlockManager):
    """Copy-on-write moves one slot too few."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._copies = _ShortCopies(self.pool, self._leases, self._sink)
