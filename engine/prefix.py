"""The prefix index: which published block holds the KV of which token prefix.

A block is found by the *chained* hash of everything in front of it: hash(parent hash, its own tokens), starting
from a root that stands for the identity of the request (salt, adapter, ...). The hash is keyed with a secret of
this index and 128 bits wide, so a forged collision is not feasible; tokens and parent are compared on a hit all
the same, because a wrong hit shows one user another user's text.

As in vLLM (Kwon et al., SOSP 2023) only full blocks are shared through the index. Unlike vLLM the index holds no
reference: a block whose last holder is gone stays findable until the pool evicts it and says so here.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from kvscope.traces.schema import to_signed

Extras = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index knows of one published block."""

    digest: bytes
    parent: bytes
    tokens: tuple[int, ...]


class PrefixIndex:
    """Finds published blocks by the tokens and identity in front of them; not thread-safe, its owner locks."""

    def __init__(self, block_size: int, *, key: bytes | None = None) -> None:
        self.block_size = block_size
        self._key = secrets.token_bytes(32) if key is None else key
        self._block_of: dict[bytes, int] = {}
        self._entry_of: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, extras: Extras) -> bytes:
        """The hash that stands in front of the first block: the identity of the request."""
        return self._digest(b"root", repr(extras).encode())

    def child(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        """The hash of a block with these tokens behind the prefix that `parent` stands for."""
        return self._digest(parent, np.asarray(tokens, dtype=np.int64).tobytes())

    def chain(self, tokens: Sequence[int], extras: Extras, *, limit: int | None = None) -> list[bytes]:
        """The hashes of the full blocks of `tokens`, first to last, at most `limit` of them."""
        full = len(tokens) // self.block_size
        digest = self.root(extras)
        out = []
        for i in range(full if limit is None else min(full, limit)):
            digest = self.child(digest, tokens[i * self.block_size : (i + 1) * self.block_size])
            out.append(digest)
        return out

    def find(self, digest: bytes) -> int | None:
        """The block published under this hash; its tokens are not compared yet (see `same`)."""
        return self._block_of.get(digest)

    def same(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        """Whether the published block really holds these tokens behind this parent."""
        entry = self._entry_of[block]
        return entry.parent == parent and entry.tokens == tuple(tokens)

    def publish(self, block: int, digest: bytes, parent: bytes, tokens: Sequence[int]) -> bool:
        """Enter a block; False if another block already serves this prefix (the first one stays)."""
        if digest in self._block_of:
            return False
        self._block_of[digest] = block
        self._entry_of[block] = Entry(digest, parent, tuple(tokens))
        return True

    def remove(self, block: int) -> None:
        """Forget a block that is about to lose its content."""
        entry = self._entry_of.pop(block)
        del self._block_of[entry.digest]

    def holds(self, block: int) -> bool:
        """Whether this block is published."""
        return block in self._entry_of

    def words(self, parent: bytes, tokens: Sequence[int], digest: bytes, extras: Extras) -> tuple[int, ...]:
        """What a PUBLISH or HIT row says of a block (schema.DETAIL_FIELDS): keyed digests, they reveal no text.

        Writer and reader each compute them from their own tokens and identity, independently of how the index hashes,
        so that a trace shows a hit that should not have been one.
        """
        own = self._digest(b"tokens", np.asarray(tokens, dtype=np.int64).tobytes())
        identity = self._digest(b"identity", repr(extras).encode())
        return _word(parent), _word(own), _word(digest), _word(identity)

    def items(self) -> list[tuple[int, Entry]]:
        """All published blocks with their entries, for integrity checks."""
        return list(self._entry_of.items())

    def _digest(self, *parts: bytes) -> bytes:
        h = hashlib.blake2b(key=self._key, digest_size=16)
        for part in parts:
            h.update(len(part).to_bytes(4, "little"))
            h.update(part)
        return h.digest()


def _word(digest: bytes) -> int:
    return to_signed(int.from_bytes(digest[:8], "little"))
