"""What a prefix index knows of each published block: hash, hash in front, tokens; as arrays by block."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

DIGEST_BYTES = 16
ROOT = b"/"  # in front of a hash that stands for an identity
NOWHERE, FIRST, BEHIND = 0, 1, 2  # not in the index; the first block of a prefix; behind another one
NARROW = ord("i")  # in front of packed tokens of 4 bytes each
HASH = np.dtype(f"V{DIGEST_BYTES}")
NO_DIGEST = bytes(DIGEST_BYTES)  # of a block that is not published


class StoredArrays(NamedTuple):
    """What an index knows by block, each an element."""

    place: npt.NDArray[np.uint8]
    digests: npt.NDArray[np.void]
    parents: npt.NDArray[np.void]
    letters: npt.NDArray[np.uint8]  # in front of packed tokens
    tokens: npt.NDArray[np.void]  # behind it


class Entry(NamedTuple):
    """What the index knows of one published block."""

    digest: bytes
    parent: bytes
    packed: bytes  # its tokens

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the block."""
        return tuple(_unpacked(self.packed))


def _unpacked(packed: bytes) -> array[int]:
    tokens = array(packed[:1].decode())
    tokens.frombytes(packed[1:])
    return tokens


class PrefixStore:
    """The arrays of an index over blocks of `block_size` tokens."""

    __slots__ = (
        "_digests", "_expected", "_parents", "_place", "_tokens", "_views", "_width", "block_size",
    )  # fmt: skip

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        # By block, so many bytes each, from the highest block on that was ever published: whether it is in the index,
        # its hash, the hash in front of it, its tokens. (As objects they take four times the memory.)
        self._place = bytearray()
        self._digests = bytearray()
        self._parents = bytearray()
        self._tokens = bytearray()
        self._width = 1 + 4 * block_size  # of packed tokens
        self._expected = 0
        self._views: StoredArrays | None = None  # of the four above

    def expect(self, num_blocks: int) -> None:
        """Blocks 0..num_blocks - 1 are all that will be published."""
        self._expected = num_blocks

    def serves(self, block: int, digest: bytes) -> bool:
        """Whether this is the block published under this hash."""
        at = block * DIGEST_BYTES
        return self.holds(block) and self._digests[at : at + DIGEST_BYTES] == digest

    def serve(self, blocks: npt.NDArray[np.int64], digests: bytes) -> bool:
        """Whether each of these is the block published under its hash (one behind the other)."""
        try:
            return self._arrays().digests[blocks].tobytes() == digests
        except IndexError:  # nothing was published yet
            return False

    def entry(self, block: int) -> Entry:
        """What is known of a published block."""
        if not self.holds(block):
            raise KeyError(block)
        at = block * DIGEST_BYTES
        return Entry(bytes(self._digests[at : at + DIGEST_BYTES]), self._parent_of(block), self._tokens_of(block))

    def _parent_of(self, block: int) -> bytes:
        at = block * DIGEST_BYTES
        parent = bytes(self._parents[at : at + DIGEST_BYTES])
        return ROOT + parent if self._place[block] == FIRST else parent

    def _tokens_of(self, block: int) -> bytes:
        at = block * self._width
        size = 1 + (4 if self._tokens[at] == NARROW else 8) * self.block_size
        return bytes(self._tokens[at : at + size])

    def _make_room(self, blocks: int) -> None:
        """Have room for so many blocks: all of them, once their number is known (`expect`)."""
        blocks = max(blocks, self._expected, 0 if self._expected else 2 * len(self._place))
        self._views = None
        for name, size in (("_place", 1), ("_digests", DIGEST_BYTES), ("_parents", DIGEST_BYTES),
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
        self._tokens, self._width, self._views = bytearray(wide.tobytes()), width, None

    def holds(self, block: int) -> bool:
        """Whether this block is published."""
        return block < len(self._place) and self._place[block] != NOWHERE

    def _put(self, block: int, digest: bytes, parent: bytes, content: bytes) -> None:
        """Keep what is known of a block: `content` are its packed tokens."""
        if block >= len(self._place):
            self._make_room(block + 1)
        if len(content) > self._width:
            self._widen(len(content))
        at, first = block * DIGEST_BYTES, len(parent) > DIGEST_BYTES
        self._digests[at : at + DIGEST_BYTES] = digest
        self._parents[at : at + DIGEST_BYTES] = parent[1:] if first else parent
        self._place[block] = FIRST if first else BEHIND
        at = block * self._width
        self._tokens[at : at + len(content)] = content

    def _drop(self, block: int) -> None:
        self._place[block] = NOWHERE
        at = block * DIGEST_BYTES
        self._digests[at : at + DIGEST_BYTES] = NO_DIGEST

    def _arrays(self) -> StoredArrays:
        """What is known by block, as arrays."""
        if self._views is None:
            body = np.dtype(f"V{self._width - 1}")
            record = np.dtype([("letter", np.uint8), ("tokens", body)])
            packed = np.frombuffer(self._tokens, record)
            self._views = StoredArrays(
                np.frombuffer(self._place, np.uint8), np.frombuffer(self._digests, HASH),
                np.frombuffer(self._parents, HASH), packed["letter"], packed["tokens"],
            )  # fmt: skip
        return self._views
