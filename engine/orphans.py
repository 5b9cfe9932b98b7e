"""Blocks that could not be found any more: what lies behind a block that leaves the prefix index leaves it too.

Only needed where blocks do not age in the order of their prefix (`PrefixIndex.track`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope.engine.block_arrays import BlockState
from kvscope.traces.schema import Reason

if TYPE_CHECKING:
    from kvscope.engine.block_life import BlockLife


def leaf(pool: BlockLife, block: int) -> int:
    """The block to evict for this cached one: an evictable one behind it, with none behind that, or itself."""
    while True:
        behind = [found for found in pool.index.behind(block) if pool.is_evictable(found)]
        if not behind:
            return block
        block = behind[0]


def withdraw_behind(pool: BlockLife, block: int, reason: Reason) -> None:
    """Everything behind this block leaves the index, last first: the unheld is evicted, the held stays its holders'."""
    for found in pool.index.descendants(block):
        if pool.state[found] == BlockState.CACHED:
            pool.give_up(found, reason)
        else:
            pool.unpublish(found, reason)
