"""What the screen knows of every block between two chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.state import BlockState

# Where an unheld block is; a held one is HELD.
HELD, FREE, QUARANTINED = 0, 1, 2


class BlockStates:
    """What is known of every block between two chunks: one element per block."""

    def __init__(self, num_blocks: int) -> None:
        def zeros(dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            return np.zeros(num_blocks, dtype=dtype)

        self.gen = zeros(np.int64)
        self.ref = zeros(np.int64)
        self.leases = zeros(np.int64)
        self.place = np.full(num_blocks, FREE, dtype=np.int8)
        self.published = zeros(np.int8)
        self.unbound = zeros(np.int8)
        self.written = zeros(np.int64)  # slots [0, written)
        self.leased = zeros(np.int64)  # leases of this life cover slots below
        self.keys = zeros(np.uint64)  # sum of the keys of its table entries
        self.last_use = zeros(np.int64)  # 1 + the last step that used it
        self.state = np.full(num_blocks, BlockState.FREE, dtype=np.int8)
        self.words = np.zeros((num_blocks, 4), dtype=np.int64)  # what it was published as
        self.published_at = np.full(num_blocks, -1, dtype=np.int64)
        self.has_words = zeros(np.bool_)
        self.copied = np.full((num_blocks, 3), -1, dtype=np.int64)  # source, its life, slots of this life's COW
        self.lent = self.copying = False  # there ever was a lease, a copy
        self.ever_written = zeros(np.int64)
        self.touched = zeros(np.bool_)

    def reserve(self, count: int, most: int) -> None:
        """Room for block ids below `count`; there are `most` in all."""
        have = len(self.gen)
        if count > have:
            more = BlockStates(min(max(count, 2 * have), most) - have)
            for name, fresh in vars(more).items():
                if isinstance(fresh, np.ndarray):
                    setattr(self, name, np.concatenate([getattr(self, name), fresh]))

    def in_use_from(self, block: int, ended: int) -> bool:
        """Whether a block with this id or a greater one is held, cached, in quarantine, or used by an open step.

        Args:
            ended: steps that have ended.
        """
        held = (self.ref[block:] != 0) | (self.published[block:] != 0) | (self.place[block:] != FREE)
        return bool((held | (self.last_use[block:] > ended)).any())
