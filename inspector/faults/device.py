"""Broken managers whose device does something else than their tables say; the stage asks them what."""

from __future__ import annotations

from kvscope.engine.block_manager import BlockManager


class OtherDevice(BlockManager):
    """A block manager that answers for what its device does; by default what the tables say."""

    def device_writes(self, seq_id: int, writes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where a step puts the KV of a sequence: (position, slot) pairs, slots over the whole pool.

        Args:
            writes: where its table would have it.
        """
        return writes

    def device_end(self, seq_id: int, end: int) -> int:
        """A step of the sequence attends to the positions in front of this one, where its tokens end at `end`."""
        return end
