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

import numpy as np
import numpy.typing as npt

from kvscope.engine.prefix_store import BEHIND, DIGEST_BYTES, NARROW, ROOT, Entry, PrefixStore
from kvscope.errors import UsageError

Extras = tuple[Hashable, ...]

_KEY_BYTES = 7  # of a hash, in the dictionary: a number of 56 bits takes no more memory than a small one
_TOKENS = b"tokens"
_NARROW_LETTER = bytes([NARROW])
_HALVES, _KEY_MASK = struct.Struct("<2Q"), (1 << 8 * _KEY_BYTES) - 1
# Arrays: numpy is faster with them than with numbers.
_PLACE, _LETTER = np.array(BEHIND, dtype=np.uint8), np.array(NARROW, dtype=np.uint8)


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


def packed(tokens: Sequence[int]) -> bytes:
    """Tokens as bytes, equal for equal tokens: 4 bytes each, 8 if one of them needs it, behind a letter for which."""
    return tokens.packed if isinstance(tokens, BlockTokens) else _pack(tokens)


def _pack(tokens: Sequence[int]) -> bytes:
    try:
        return b"i" + array("i", tokens).tobytes()
    except OverflowError:
        return b"q" + array("q", tokens).tobytes()


class PrefixIndex(PrefixStore):
    """Finds published blocks by the tokens and identity in front of them; not thread-safe, its owner locks."""

    __slots__ = ("_behind", "_block_of", "_key", "_keyed", "plain")  # lanes.c reads them

    def __init__(self, block_size: int, *, key: bytes | None = None) -> None:
        super().__init__(block_size)
        # Whether hashes are ours: a planted fault that makes others sees every block.
        self.plain = type(self).child is PrefixIndex.child and type(self).publish is PrefixIndex.publish
        self._key = secrets.token_bytes(32) if key is None else key
        self._keyed = hashlib.blake2b(key=self._key, digest_size=DIGEST_BYTES)
        # By the leading bytes of their hashes, as numbers (half as large as bytes objects). Should two hashes begin
        # alike, the second block is not entered.
        self._block_of: dict[int, int] = {}
        # hash -> the block published behind it, or the set of them; once tracked
        self._behind: dict[bytes, int | set[int]] | None = None

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, extras: Extras) -> bytes:
        """The hash that stands in front of the first block: the identity of the request."""
        return ROOT + self._digest(b"root", identity_bytes(extras))

    @staticmethod
    def is_root(digest: bytes) -> bool:
        """Whether this hash stands in front of a first block: it is a byte longer than a block's."""
        return len(digest) > DIGEST_BYTES

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

    def same(self, block: int, parent: bytes, tokens: Sequence[int]) -> bool:
        """Whether the published block really holds these tokens behind this parent."""
        return self._tokens_of(block) == packed(tokens) and self._parent_of(block) == parent

    def publish(self, block: int, digest: bytes, parent: bytes, tokens: Sequence[int]) -> bool:
        """Enter a block; False if another block already serves this prefix (the first one stays)."""
        key = int.from_bytes(digest[:_KEY_BYTES], "little")
        if key in self._block_of:
            return False
        self._put(block, digest, parent, packed(tokens))
        self._block_of[key] = block
        if self._behind is not None:
            self._stands_behind(self._behind, parent, block)
        return True

    def children(self, parents: bytes, content: bytes, *, own: bool) -> tuple[list[bytes], list[bytes]]:
        """The hashes of blocks with these tokens behind these blocks; and those of the tokens alone that `words` tells
        of, if `own`.

        Args:
            parents: hashes, one behind the other. content: the tokens of as many blocks, 4 bytes each.
        """
        width = 4 * self.block_size
        middle = (width + 1).to_bytes(4, "little") + _NARROW_LETTER
        chained, alone = [], []
        copy, begin = self._keyed.copy, 0
        for at in range(0, len(content), width):
            h = copy()
            h.update(_OF_A_DIGEST + parents[begin : begin + DIGEST_BYTES] + middle + content[at : at + width])
            chained.append(h.digest())
            begin += DIGEST_BYTES
        if own:
            begun = copy()
            begun.update(_OF_TOKENS + middle)
            copy = begun.copy
            for at in range(0, len(content), width):
                h = copy()
                h.update(content[at : at + width])
                alone.append(h.digest())
        return chained, alone

    def publish_alike(
        self, blocks: npt.NDArray[np.int64], digests: npt.NDArray[np.void], parents: npt.NDArray[np.void],
        content: npt.NDArray[np.void],
    ) -> bool:  # fmt: skip
        """`publish` of each of these, behind other blocks; False, and nothing done, unless all of them can be entered.

        Args:
            digests, parents: 16 bytes each. content: the tokens of each block, 4 bytes each.
        """
        arrays = self._arrays()
        room = self._expected or int(blocks.max()) + 1
        if arrays.tokens.dtype != content.dtype or len(self._place) < room:
            return False
        numbers = blocks.tolist()
        keys = [key & _KEY_MASK for key, _ in _HALVES.iter_unpack(digests.tobytes())]
        found = list(map(self._block_of.setdefault, keys, numbers))
        if found != numbers:  # some prefix is served already
            for key, block, entered in zip(keys, numbers, found, strict=True):
                if entered == block:
                    del self._block_of[key]
            return False
        arrays.digests[blocks] = digests
        arrays.parents[blocks] = parents
        arrays.letters[blocks] = _LETTER
        arrays.tokens[blocks] = content
        arrays.place[blocks] = _PLACE
        if self._behind is not None:
            in_front = parents.tobytes()
            front = [in_front[at : at + DIGEST_BYTES] for at in range(0, len(in_front), DIGEST_BYTES)]
            if list(map(self._behind.setdefault, front, numbers)) != numbers:
                for parent, block in zip(front, numbers, strict=True):
                    self._stands_behind(self._behind, parent, block)
        return True

    def remove(self, block: int) -> None:
        """Forget a block that is about to lose its content."""
        digest, parent, _ = self.entry(block)
        self._drop(block)
        del self._block_of[int.from_bytes(digest[:_KEY_BYTES], "little")]
        if self._behind is not None:
            siblings = self._behind[parent]
            if isinstance(siblings, set):
                siblings.discard(block)
            if siblings in (block, set()):
                del self._behind[parent]

    @staticmethod
    def _stands_behind(behind: dict[bytes, int | set[int]], parent: bytes, block: int) -> None:
        known = behind.setdefault(parent, block)
        if isinstance(known, set):
            known.add(block)
        elif known != block:
            behind[parent] = {known, block}

    @property
    def tracked(self) -> bool:
        """Whether the blocks behind each block are known."""
        return self._behind is not None

    def track(self) -> None:
        """Know the blocks behind each block from now on."""
        if self._behind is None:
            self._behind = {}
            for block in self._block_of.values():
                self._stands_behind(self._behind, self._parent_of(block), block)

    def behind(self, block: int) -> list[int]:
        """The blocks published right behind this one, lowest id first; `track` was called."""
        assert self._behind is not None
        known = self._behind.get(self.entry(block).digest, set())
        return sorted(known) if isinstance(known, set) else [known]

    def descendants(self, block: int) -> list[int]:
        """All blocks that are found through this one only, each behind those that are found through it."""
        order, pending = [], self.behind(block)
        while pending:
            found = pending.pop()
            order.append(found)
            pending += self.behind(found)
        return order[::-1]

    def words(self, parent: bytes, tokens: Sequence[int], digest: bytes, identity: int) -> tuple[int, ...]:
        """What a PUBLISH or HIT row says of a block (schema.DETAIL_FIELDS): keyed digests, they reveal no text.

        Writer and reader each compute them from their own tokens and identity, independently of how the index hashes,
        so that a trace shows a hit that should not have been one.

        Args:
            identity: from `identity_word`.
        """
        own = self._digest(_TOKENS, packed(tokens))
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
_OF_A_DIGEST, _OF_TOKENS = _LENGTHS[DIGEST_BYTES], _LENGTHS[len(_TOKENS)] + _TOKENS
_WORD = struct.Struct("<q")


def _word(digest: bytes) -> int:
    value: int = _WORD.unpack_from(digest)[0]
    return value
