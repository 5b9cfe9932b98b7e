"""Faults of admission: what a request is promised and what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.tables import PrefixMatch
from kvscope.errors import OutOfBlocks
from kvscope.traces.schema import Kind


class _CountsTwice(PrefixCache):
    def match(self, tokens: Sequence[int], extras: Extras) -> PrefixMatch:
        found = super().match(tokens, extras)
        return replace(found, available=self._pool.num_available)


class EvictableCountedTwice(BlockManager):
    """Cached blocks that a prompt hits count as reused and as evictable, so more is admitted than fits."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.prefixes = _CountsTwice(self.pool, share=self.prefixes.share)


class RefusedButChanged(BlockManager):
    """A refused append keeps the token: the sequence has one more than it was given a slot for."""

    def append(self, seq_id: int, token: int) -> None:
        try:
            super().append(seq_id, token)
        except OutOfBlocks:
            self._known(seq_id).tokens.append(token)
            raise


class HitsCountedTwice(BlockManager):
    """Cached tokens are counted by the match and again by the admission: the hit rate goes beyond one."""

    def _emit(self, kind: Kind, reason: int = 0, block: int = -1, gen: int = -1, *, fill: int = -1, seq_id: int = -1,
              lblock: int = -1, aux: int = 0) -> int:  # fmt: skip
        aux = 2 * aux if kind == Kind.ADMIT else aux
        return super()._emit(kind, reason, block, gen, fill=fill, seq_id=seq_id, lblock=lblock, aux=aux)


class GrowsTwice(BlockManager):
    """A pool that grows takes twice the blocks that there is memory for."""

    def grow(self, blocks: int) -> int:
        return super().grow(2 * blocks)
