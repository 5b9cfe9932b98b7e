"""Faults of order: something is used before the step that it depends on has completed."""

from __future__ import annotations

from collections.abc import Iterable

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import SequenceTable
from kvscope.traces.schema import Reason


class FreeWithoutFence(BlockManager):
    """A step does not mark the blocks that it uses, so what is freed meanwhile is handed out at once."""

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        number = super().begin_step(scheduled)
        self.pool.last_use_step[:] = -1
        self.pool.users.clear()
        return number


class PublishBeforeCommit(BlockManager):
    """Full blocks are entered in the prefix index as soon as their writes are scheduled."""

    def _write(self, row: SequenceTable, lo: int, hi: int, reason: Reason) -> None:
        super()._write(row, lo, hi, reason)
        full = row.blocks[row.published : hi // self.block_size]
        self.pool.state[[b for b in full if self.pool.state[b] == BlockState.WRITING]] = BlockState.COMMITTED
        computed, row.computed = row.computed, hi
        self.prefixes.publish(row)
        row.computed = computed
