"""Faults of admission: what a request is promised and what there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.tables import PrefixMatch
from kvscope.errors import OutOfBlocks


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
