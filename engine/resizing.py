"""The pool of a running engine made larger or smaller, memory and accounting together, between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvscope.engine.block_arrays import check_geometry
from kvscope.engine.limits import blocks_needed
from kvscope.engine.tables import Copy
from kvscope.errors import UsageError

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine


def resize(engine: Engine, num_blocks: int) -> int:
    """Give the engine a pool of `num_blocks` blocks; returns that number.

    The KV tensor is one piece of memory with the blocks in its middle, so it is made anew and what stays is copied:
    for a moment both are there, and the copy moves every byte of the smaller one once.

    Raises:
        UsageError: a pool cannot have that size, the device cannot hold both, or a live request would not fit alone.
        OutOfBlocks, FaultyCall: what is held cannot move in front now (`BlockManager.shrink`). Nothing was changed.
    """
    manager, cache = engine.manager, engine.cache
    check_geometry(num_blocks, manager.block_size)
    more = num_blocks - manager.num_blocks
    moved: list[Copy] = []

    def move(copies: Sequence[Copy]) -> None:
        moved.extend(copies)
        cache.copy(copies)

    if more > 0:
        cache.resize(num_blocks)
        manager.grow(more)
    elif more < 0:
        _check_live(engine, num_blocks)
        manager.shrink(-more, move=move)
        cache.resize(num_blocks)
    for hook in engine.hooks:
        hook.on_resize(num_blocks, moved)
    return num_blocks


def _check_live(engine: Engine, num_blocks: int) -> None:
    for request in engine.live():
        needed = blocks_needed(
            len(request.prompt), request.params, context=engine.loaded.config.max_model_len,
            block_size=engine.manager.block_size, share_prefixes=engine.config.share_prefixes,
        )  # fmt: skip
        if needed > num_blocks:
            raise UsageError(
                f"shrink to {num_blocks} blocks: request {request.name} may need {needed} to end; abort it, wait for "
                f"it, or keep at least {needed}"
            )
