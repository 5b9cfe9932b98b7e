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
import struct
from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kvscope.errors import UsageError

Extras = tuple[Hashable, ...]

_DIGEST_BYTES = 16
_KEY_BYTES = 7  # of a hash, in the dictionary: a number of 56 bits takes no more memory than a small one
_ROOT = b"/"
_NOWHERE, _FIRST, _BEHIND = 0, 1, 2  # not in the index; the first block of a prefix; behind another one
_NARROW = ord("i")


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


class BlockTokens(list[int]):
    """The tokens of one full block; packed at most once."""

    __slots__ = ("_packed",)

    @property
    def packed(self) -> bytes:
        """See `packed`."""
        try:
            return self._packed
        except AttributeError:
            self._packed: bytes = _pack(self)
            return self._packed


class Entry(NamedTuple):
    """What the index knows of one published block."""

    digest: bytes
    parent: bytes
    packed: bytes  # its tokens

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the block."""
        return tuple(_unpacked(self.packed))


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as bytes, equal for equal tokens: 4 bytes each, 8 if one of them needs it, behind a letter for which."""
    return tokens.packed if isinstance(tokens, BlockTokens) else _pack(tokens)


def _pack(tokens: Sequence[int]) -> bytes:
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
        # By the leading bytes of their hashes, as numbers (half as large as bytes objects). Should two hashes begin
        # alike, the second block is not entered.
        self._block_of: dict[int, int] = {}
        # By block, so many bytes each, from the highest block on that was ever published: whether it is in the index,
        # its hash, the hash in front of it, its tokens. (As objects they take four times the memory.)
        self._place = bytearray()
        self._digests = bytearray()
        self._parents = bytearray()
        self._tokens = bytearray()
        self._width = 1 + 4 * block_size  # of packed tokens
        self._expected = 0
        self._behind: dict[bytes, set[int]] | None = None  # hash -> the blocks published behind it, once tracked

    def expect(self, num_blocks: int) -> None:
        """Blocks 0..num_blocks - 1 are all that will be published."""
        self._expected = num_blocks

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
        return self._digest(parent, packed(tokens))

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
            digest = self.child(digest, BlockTokens(tokens[i * self.block_size : (i + 1) * self.block_size]))
            out.append(digest)
        return out

    def find(self, digest: bytes) -> int | None:
        """The block published under this hash; its tokens are not compared yet (see `same`)."""
        block = self._block_of.get(int.from_bytes(digest[:_KEY_BYTES], "little"))
        return block if block is not None and self.serves(block, digest) else None

    def serves(self, block: int, digest: bytes) -> bool:
        """Whether this is the block published under this hash."""
        at = block * _DIGEST_BYTES
        return self.holds(block) and self._digests[at : at + _DIGEST_BYTES] == digest

    def same(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        """Whether the published block really holds these tokens behind this parent."""
        return self._tokens_of(block) == packed(tokens) and self._parent_of(block) == parent

    def publish(self, block: int, digest: bytes, parent: bytes, tokens: Sequence[int]) -> bool:
        """Enter a block; False if another block already serves this prefix (the first one stays)."""
        key = int.from_bytes(digest[:_KEY_BYTES], "little")
        if key in self._block_of:
            return False
        if block >= len(self._place):
            self._make_room(block + 1)
        content = packed(tokens)
        if len(content) > self._width:
            self._widen(len(content))
        self._block_of[key] = block
        at, first = block * _DIGEST_BYTES, self.is_root(parent)
        self._digests[at : at + _DIGEST_BYTES] = digest
        self._parents[at : at + _DIGEST_BYTES] = parent[1:] if first else parent
        self._place[block] = _FIRST if first else _BEHIND
        at = block * self._width
        self._tokens[at : at + len(content)] = content
        if self._behind is not None:
            self._behind.setdefault(parent, set()).add(block)
        return True

    def remove(self, block: int) -> None:
        """Forget a block that is about to lose its content."""
        digest, parent, _ = self.entry(block)
        self._place[block] = _NOWHERE
        del self._block_of[int.from_bytes(digest[:_KEY_BYTES], "little")]
        if self._behind is not None:
            siblings = self._behind[parent]
            siblings.discard(block)
            if not siblings:
                del self._behind[parent]

    def entry(self, block: int) -> Entry:
        """What is known of a published block."""
        if not self.holds(block):
            raise KeyError(block)
        at = block * _DIGEST_BYTES
        return Entry(bytes(self._digests[at : at + _DIGEST_BYTES]), self._parent_of(block), self._tokens_of(block))

    def _parent_of(self, block: int) -> bytes:
        at = block * _DIGEST_BYTES
        parent = bytes(self._parents[at : at + _DIGEST_BYTES])
        return _ROOT + parent if self._place[block] == _FIRST else parent

    def _tokens_of(self, block: int) -> bytes:
        at = block * self._width
        size = 1 + (4 if self._tokens[at] == _NARROW else 8) * self.block_size
        return bytes(self._tokens[at : at + size])

    def _make_room(self, blocks: int) -> None:
        """Have room for so many blocks: all of them, once their number is known (`expect`)."""
        blocks = max(blocks, self._expected, 0 if self._expected else 2 * len(self._place))
        for name, size in (("_place", 1), ("_digests", _DIGEST_BYTES), ("_parents", _DIGEST_BYTES),
                           ("_tokens", self._width)):  # fmt: skip
            grown = bytearray(blocks * size)
            old = getattr(self, name)
            grown[: len(old)] = old
            setattr(self, name, grown)

    def _widen(self, width: int) -> None:
        """Have `width` bytes for the packed tokens of each block."""
        old, blocks = self._tokens, len(self._place)
        wide = np.zeros((blocks, width), dtype=np.uint8)
        wide[:, : self._width] = np.frombuffer(old, np.uint8).reshape(blocks, self._width)
        self._tokens, self._width = bytearray(wide.tobytes()), width

    @property
    def tracked(self) -> bool:
        """Whether the blocks behind each block are known."""
        return self._behind is not None

    def track(self) -> None:
        """Know the blocks behind each block from now on."""
        if self._behind is None:
            self._behind = {}
            for block in self._block_of.values():
                self._behind.setdefault(self._parent_of(block), set()).add(block)

    def behind(self, block: int) -> list[int]:
        """The blocks published right behind this one, lowest id first; `track` was called."""
        assert self._behind is not None
        return sorted(self._behind.get(self.entry(block).digest, ()))

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
        return block < len(self._place) and self._place[block] != _NOWHERE

    def words(self, parent: bytes, tokens: Sequence[int], digest: bytes, identity: int) -> tuple[int, ...]:
        """What a PUBLISH or HIT row says of a block (schema.DETAIL_FIELDS): keyed digests, they reveal no text.

        Writer and reader each compute them from their own tokens and identity, independently of how the index hashes,
        so that a trace shows a hit that should not have been one.

        Args:
            identity: from `identity_word`.
        """
        own = self._digest(b"tokens", packed(tokens))
        return _word(parent), _word(own), _word(digest), identity

    def identity_word(self, extras: Extras) -> int:
        """What these rows say of the identity of a request."""
        return _word(self._digest(b"identity", identity_bytes(extras)))

    def items(self) -> list[tuple[int, Entry]]:
        """All published blocks with their entries, for integrity checks."""
        return [(block, self.entry(block)) for block in self._block_of.values()]

    def _digest(self, first: bytes, second: bytes) -> bytes:
        h = self._keyed.copy()
        try:
            h.update(_LENGTHS[len(first)] + first + _LENGTHS[len(second)] + second)
        except IndexError:  # more than the table has
            h.update(_length(first) + first + _length(second) + second)
        return h.digest()


def _length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "little")


_LENGTHS = [_length(bytes(count)) for count in range(256)]
_WORD = struct.Struct("<q")


def _word(digest: bytes) -> int:
    value: int = _WORD.unpack_from(digest)[0]
    return value
