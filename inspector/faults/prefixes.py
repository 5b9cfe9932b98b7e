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
        return self.entry(block).tokens == tuple(tokens)


class _Forgetful(PrefixIndex):
    def remove(self, block: int) -> None:
        """The entry stays."""


class _Untagged(PrefixIndex):
    def root(self, extras: Extras) -> bytes:
        return super().root(tuple(value[-1] if isinstance(value, tuple) else value for value in extras))


class _EpochBlind(PrefixIndex):
    def root(self, extras: Extras) -> bytes:
        return super().root(tuple(value for value in extras if not (isinstance(value, tuple) and value[0] == "epoch")))


class _LastTokenOnly(PrefixIndex):
    """Blocks of equal length and equal last token have the same hash, and nobody compares the rest."""

    def child(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        return super().child(b"block %d" % (0 if self.is_root(parent) else 1), tokens[-1:])

    def same(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        return True


class HashWithoutIdentity(_OtherIndex):
    """Requests of different adapters or tenants share blocks of equal tokens."""

    index_class = _IdentityBlind


class HashWithoutPrefix(_OtherIndex):
    """Equal tokens are taken for equal KV, whatever stands in front of them."""

    index_class = _PrefixBlind


class StaleIndex(_OtherIndex):
    """The hash of an evicted block is not removed."""

    index_class = _Forgetful


class OneNamespace(_OtherIndex):
    """An adapter and a salt of the same name are the same key."""

    index_class = _Untagged


class StaleWeights(_OtherIndex):
    """The key does not say which weights a block was computed with."""

    index_class = _EpochBlind


class WeakHash(_OtherIndex):
    """A hash that collides, and no comparison of tokens on a hit."""

    index_class = _LastTokenOnly


class HitOneTooFar(BlockManager):
    """A hit is taken for one token more than the cache holds: that position is never computed."""

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        cached = super().admit(seq_id, tokens, extras, resumed=resumed)
        if not cached or cached + 1 >= len(tokens):
            return cached
        row = self._known(seq_id)
        row.issued = row.computed = cached + 1
        return cached + 1


class SwapSlotsMixedUp(BlockManager):
    """A sequence that comes back is filled from another one's host slots."""

    def swap_in(self, seq_id: int) -> None:
        parked = self._host.parked
        other = next((s for s in parked if s != seq_id and len(parked[s].slots) == len(parked[seq_id].slots)), None)
        if other is not None:
            mine, theirs = parked[seq_id], parked[other]
            parked[seq_id] = type(mine)(mine.row, mine.size, theirs.slots)
            parked[other] = type(theirs)(theirs.row, theirs.size, mine.slots)
        super().swap_in(seq_id)
