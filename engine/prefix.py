"""The prefix index: which published block holds the KV of which token prefix.

A block is found by the *chained* hash of everything in front of it: hash(parent hash, its own tokens), starting
from a root that stands for the identity of the request (salt, adapter, ...). The hash is keyed with a secret of
this index and 128 bits wide, so a forged collision is not feasible; tokens and parent are compared on a hit all
the same, because a wrong hit shows one user another user's text.

As in vLLM (Kwon et al., SOSP 2023) only full blocks are shared through the index. Unlike vLLM the index holds no
reference: a block whose last holder is gone stays findable until the pool evicts it and says so here.

The index is closed under prefixes: a block is in it only while the block in front of it is, so whatever is in it can
be found. Tables see to that by themselves (a row is published in order, and released last block first), but for two
things that take a block out of the middle: a sliding window and a lease. From the first of these on the index knows
the blocks behind each block (`track`).
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kvscope.errors import UsageError
from kvscope.traces.schema import to_signed

Extras = tuple[Hashable, ...]

_DIGEST_BYTES = 16
_ROOT = b"/"


def identity(
    *, adapter: Hashable = None, tenant: Hashable = None, inputs: Sequence[Hashable] = (), epoch: Hashable = None
) -> Extras:
    """The extras of a request: everything beside its tokens that its KV depends on, or that must keep it apart.

    Args:
        adapter: the LoRA adapter and its version. tenant: the salt of those who may share. inputs: digests of images
        and other embedded inputs, with their positions. epoch: which weights and which numeric format.
    """
    parts = (("adapter", adapter), ("tenant", tenant), ("inputs", tuple(inputs) or None), ("epoch", epoch))
    return tuple((name, value) for name, value in parts if value is not None)


def identity_bytes(value: object) -> bytes:
    """Extras as bytes: equal for equal values of equal type, different for any others.

    Raises:
        UsageError: a value is neither text, bytes, a number, None nor a tuple of these, so nothing tells it apart.
    """
    if isinstance(value, tuple):
        inner = [identity_bytes(item) for item in value]
        return b"(%d:" % len(inner) + b"".join(b"%d:" % len(part) + part for part in inner) + b")"
    if isinstance(value, bytes):
        return b"b" + value
    if value is None or type(value) in (bool, int, float, str):
        return type(value).__name__.encode() + repr(value).encode()
    raise UsageError(f"an identity holds {value!r:.60}: use text, bytes, numbers, None, or tuples of them")


class Tokens(list[int]):
    """Tokens of one sequence, only ever appended to; an index keeps the hashes of their full blocks here.

    A queued sequence is looked up in every step: so its prompt is hashed once.
    """

    __slots__ = ("extras", "hashed_by", "hashes")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        super().__init__(tokens)
        self.hashes: list[bytes] = []
        self.hashed_by: PrefixIndex | None = None
        self.extras: Extras = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index knows of one published block."""

    digest: bytes
    parent: bytes
    packed: bytes  # its tokens

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the block."""
        return tuple(_unpacked(self.packed))


def _packed(tokens: Sequence[int]) -> bytes:
    """Tokens as bytes, equal for equal tokens: as numbers in a tuple they would take six times the memory."""
    try:
        return b"i" + array("i", tokens).tobytes()
    except OverflowError:
        return b"q" + array("q", tokens).tobytes()


def _unpacked(packed: bytes) -> array[int]:
    tokens = array(packed[:1].decode())
    tokens.frombytes(packed[1:])
    return tokens


class PrefixIndex:
    """Finds published blocks by the tokens and identity in front of them; not thread-safe, its owner locks."""

    def __init__(self, block_size: int, *, key: bytes | None = None) -> None:
        self.block_size = block_size
        self._key = secrets.token_bytes(32) if key is None else key
        self._keyed = hashlib.blake2b(key=self._key, digest_size=_DIGEST_BYTES)
        self._block_of: dict[bytes, int] = {}
        self._entry_of: dict[int, Entry] = {}
        self._behind: dict[bytes, set[int]] | None = None  # hash -> the blocks published behind it, once tracked

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, extras: Extras) -> bytes:
        """The hash that stands in front of the first block: the identity of the request."""
        return _ROOT + self._digest(b"root", identity_bytes(extras))

    @staticmethod
    def is_root(digest: bytes) -> bool:
        """Whether this hash stands in front of a first block: it is a byte longer than a block's."""
        return len(digest) > _DIGEST_BYTES

    def child(self, parent: bytes, tokens: Sequence[int]) -> bytes:
        """The hash of a block with these tokens behind the prefix that `parent` stands for."""
        return self._digest(parent, np.asarray(tokens, dtype=np.int64).tobytes())

    def chain(self, tokens: Sequence[int], extras: Extras, *, limit: int | None = None) -> list[bytes]:
        """The hashes of the full blocks of `tokens`, first to last, at most `limit` of them."""
        full = len(tokens) // self.block_size
        out: list[bytes] = []
        if isinstance(tokens, Tokens) and limit is None:
            if tokens.hashed_by is not self or tokens.extras != extras:
                tokens.hashes, tokens.hashed_by, tokens.extras = [], self, extras
            out = tokens.hashes
        digest = out[-1] if out else self.root(extras)
        for i in range(len(out), full if limit is None else min(full, limit)):
            digest = self.child(digest, tokens[i * self.block_size : (i + 1) * self.block_size])
            out.append(digest)
        return out

    def find(self, digest: bytes) -> int | None:
        """The block published under this hash; its tokens are not compared yet (see `same`)."""
        return self._block_of.get(digest)

    def same(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        """Whether the published block really holds these tokens behind this parent."""
        entry = self._entry_of[block]
        return entry.parent == parent and entry.packed == _packed(tokens)

    def publish(self, block: int, digest: bytes, parent: bytes, tokens: Sequence[int]) -> bool:
        """Enter a block; False if another block already serves this prefix (the first one stays)."""
        if digest in self._block_of:
            return False
        self._block_of[digest] = block
        self._entry_of[block] = Entry(digest, parent, _packed(tokens))
        if self._behind is not None:
            self._behind.setdefault(parent, set()).add(block)
        return True

    def remove(self, block: int) -> None:
        """Forget a block that is about to lose its content."""
        entry = self._entry_of.pop(block)
        del self._block_of[entry.digest]
        if self._behind is not None:
            siblings = self._behind[entry.parent]
            siblings.discard(block)
            if not siblings:
                del self._behind[entry.parent]

    def entry(self, block: int) -> Entry:
        """What is known of a published block."""
        return self._entry_of[block]

    @property
    def tracked(self) -> bool:
        """Whether the blocks behind each block are known."""
        return self._behind is not None

    def track(self) -> None:
        """Know the blocks behind each block from now on."""
        if self._behind is None:
            self._behind = {}
            for block, entry in self._entry_of.items():
                self._behind.setdefault(entry.parent, set()).add(block)

    def behind(self, block: int) -> list[int]:
        """The blocks published right behind this one, lowest id first; `track` was called."""
        assert self._behind is not None
        return sorted(self._behind.get(self._entry_of[block].digest, ()))

    def descendants(self, block: int) -> list[int]:
        """All blocks that are found through this one only, each behind those that are found through it."""
        order, pending = [], self.behind(block)
        while pending:
            found = pending.pop()
            order.append(found)
            pending += self.behind(found)
        return order[::-1]

    def holds(self, block: int) -> bool:
        """Whether this block is published."""
        return block in self._entry_of

    def words(self, parent: bytes, tokens: Sequence[int], digest: bytes, extras: Extras) -> tuple[int, ...]:
        """What a PUBLISH or HIT row says of a block (schema.DETAIL_FIELDS): keyed digests, they reveal no text.

        Writer and reader each compute them from their own tokens and identity, independently of how the index hashes,
        so that a trace shows a hit that should not have been one.
        """
        own = self._digest(b"tokens", np.asarray(tokens, dtype=np.int64).tobytes())
        identity = self._digest(b"identity", identity_bytes(extras))
        return _word(parent), _word(own), _word(digest), _word(identity)

    def items(self) -> list[tuple[int, Entry]]:
        """All published blocks with their entries, for integrity checks."""
        return list(self._entry_of.items())

    def _digest(self, *parts: bytes) -> bytes:
        h = self._keyed.copy()
        for part in parts:
            h.update(len(part).to_bytes(4, "little"))
            h.update(part)
        return h.digest()


def _word(digest: bytes) -> int:
    return to_signed(int.from_bytes(digest[:8], "little"))
