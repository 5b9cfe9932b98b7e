"""Faults of sharing and copy-on-write."""

from __future__ import annotations

from dataclasses import replace

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.pool import BlockState
from kvscope.engine.tables import Copy


class MissingCopy(BlockManager):
    """A sample appends into a block that its siblings hold too."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return bool(self.pool.state[block] == BlockState.PUBLISHED)


class WriteToPublished(BlockManager):
    """A block is copied when other tables hold it, not when only the prefix index serves it."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return bool(self.pool.entries[block] > 1)


class ShortCopy(BlockManager):
    """Copy-on-write moves one slot too few."""

    def drain_copies(self) -> list[Copy]:
        return [replace(copy, slots=max(0, copy.slots - 1)) for copy in super().drain_copies()]
