"""Faults of the prefix cache: a sequence is given the KV of another prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras, PrefixIndex


class _OtherIndex(BlockManager):
    """A block manager with a prefix index of its own."""

    index_class: type[PrefixIndex] = PrefixIndex

    def __init__(self, *args: Any, hash_key: bytes | None = None, **options: Any) -> None:
        super().__init__(*args, hash_key=hash_key, **options)
        self.pool.index = self.index_class(self.block_size, key=hash_key)


class _IdentityBlind(PrefixIndex):
    def root(self, extras: Extras) -> bytes:
        return super().root(())


class _PrefixBlind(PrefixIndex):
    def child(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        return super().child(b"", tokens)

    def same(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        return self._entry_of[block].tokens == tuple(tokens)


class _Forgetful(PrefixIndex):
    def remove(self, block: int) -> None:
        """The entry stays."""


class HashWithoutIdentity(_OtherIndex):
    """Requests of different adapters or tenants share blocks of equal tokens."""

    index_class = _IdentityBlind


class HashWithoutPrefix(_OtherIndex):
    """Equal tokens are taken for equal KV, whatever stands in front of them."""

    index_class = _PrefixBlind


class StaleIndex(_OtherIndex):
    """The hash of an evicted block is not removed."""

    index_class = _Forgetful
