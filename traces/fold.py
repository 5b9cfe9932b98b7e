"""What the rows so far have made of every block: the one definition of a block's condition, run by run of rows.

A run is folded in by a last-write-wins scatter. Folding rows in one run or in many gives the same, so a fold that was
kept (a keyframe) may stand for all rows before it. No table is followed here: see `inspector/state.py`.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.schema import Kind

# Kinds that say something about one block.
BLOCK_KINDS = frozenset(
    {
        Kind.ALLOC, Kind.SHARE, Kind.RELEASE, Kind.FREE, Kind.WRITE, Kind.COMMIT, Kind.PUBLISH, Kind.UNPUBLISH,
        Kind.HIT, Kind.EVICT, Kind.COW, Kind.COPY_DONE, Kind.QUARANTINE, Kind.SETTLE, Kind.LEASE, Kind.UNLEASE,
        Kind.SWAP_OUT, Kind.SWAP_IN,
    }
)  # fmt: skip
RESIZING = (Kind.GROW, Kind.SHRINK, Kind.GAP)  # kinds that may say how large the pool is from there on
FOLD_COLUMNS = ("seq", "kind", "block", "gen", "ref_before", "ref_after", "fill", "aux")
MAX_BLOCKS = 1 << 24  # of a fold; a trace that claims more is folded up to here
_FEW_BLOCKS, _BLOCKS_A_BYTE = 1 << 20, 10  # at level 1 deflate makes a byte of 229 at most, which are 8 blocks


def kind_mask(kinds: frozenset[Kind] | tuple[Kind, ...]) -> npt.NDArray[np.bool_]:
    """A 256-entry lookup table: `mask[events["kind"]]` picks the rows of these kinds."""
    mask = np.zeros(256, dtype=np.bool_)
    mask[[int(k) for k in kinds]] = True
    return mask


def _table(values: dict[Kind, int]) -> npt.NDArray[np.int8]:
    table = np.full(256, -1, dtype=np.int8)
    for kind, value in values.items():
        table[kind] = value
    return table


# What a kind sets, -1 where it leaves it: whether the block is in the prefix index, whether it is in quarantine.
INDEX_EFFECT = _table(
    {Kind.ALLOC: 0, Kind.PUBLISH: 1, Kind.UNPUBLISH: 0, Kind.EVICT: 0, Kind.FREE: 0, Kind.SETTLE: 0, Kind.HIT: 1}
)
PLACE_EFFECT = _table({Kind.ALLOC: 0, Kind.QUARANTINE: 1, Kind.FREE: 0, Kind.SETTLE: 0, Kind.SHARE: 0, Kind.HIT: 0})
WRITE_EFFECT = _table({Kind.WRITE: 1, Kind.COMMIT: 0})
BLOCK_MASK = kind_mask(BLOCK_KINDS)

_FIELDS: tuple[tuple[str, str, int], ...] = (
    ("gen", "<i4", 0), ("ref", "<i2", 0), ("leases", "<i4", 0), ("fill", "<i2", 0),
    ("published", "u1", 0), ("quarantined", "u1", 0), ("writing", "u1", 0), ("last_seq", "<i8", -1),
)  # fmt: skip
BLOCK_BYTES = sum(np.dtype(dtype).itemsize for _, dtype, _ in _FIELDS)


def begun_anew(kind: npt.NDArray[Any], aux: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The rows at which another writer went on with the trace: pool, lives and names are new from there on."""
    return np.flatnonzero((kind == Kind.GAP) & (aux <= 0))


def resizings(kind: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The rows that may say how large the pool is from there on: `resized` of their kind and aux."""
    return np.flatnonzero(functools.reduce(np.logical_or, (kind == np.uint8(of) for of in RESIZING)))


def resized(kind: npt.NDArray[Any], aux: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Blocks of the pool after each of these rows; -1 where they do not say, or what is damaged or made up."""
    gap = kind == Kind.GAP
    sizes = np.where(gap, np.where(aux < 0, -np.maximum(aux, -MAX_BLOCKS - 1), -1), aux)
    told = (gap | (kind == Kind.GROW) | (kind == Kind.SHRINK)) & (sizes >= 0) & (sizes <= MAX_BLOCKS)
    return np.where(told, sizes, -1)


def believed(size_bytes: int) -> int:
    """Blocks that a fold in so many bytes may be of, whatever it says: a few bytes are no reason to hold millions."""
    return min(max(_FEW_BLOCKS, _BLOCKS_A_BYTE * size_bytes), MAX_BLOCKS)


class BlockFold:
    """Blocks `first` .. `first + count - 1` after some rows; all free and never handed out before any.

    Args:
        size: blocks of the pool, `GROW` and `SHRINK` rows change it.
        first: the block that the arrays begin with.
        count: how many blocks are followed; all that there ever are if left out.
        most: of all that there ever are, no more than these.
    """

    gen: npt.NDArray[np.int32]  # the life: the greatest seen; rows of an older one, or of a stale handle, say nothing
    ref: npt.NDArray[np.int16]
    leases: npt.NDArray[np.int32]  # taken less ended, in this life and since it was last unheld
    fill: npt.NDArray[np.int16]
    published: npt.NDArray[np.uint8]
    quarantined: npt.NDArray[np.uint8]
    writing: npt.NDArray[np.uint8]
    last_seq: npt.NDArray[np.int64]  # the last row of any life

    def __init__(self, size: int, first: int = 0, count: int | None = None, most: int = MAX_BLOCKS) -> None:
        self.size, self.first, self._bound, self._most = size, first, count, most
        for name, dtype, default in _FIELDS:
            setattr(self, name, np.full(0, default, dtype))
        self._grow(size - first if count is None else count)

    def __len__(self) -> int:
        return len(self.gen)

    def copy(self) -> BlockFold:
        """A fold that goes its own way."""
        other = BlockFold(self.size, self.first, 0, self._most)
        other._bound = self._bound
        for name, _, _ in _FIELDS:
            setattr(other, name, getattr(self, name).copy())
        return other

    def begin_as(self, other: BlockFold) -> None:
        """Take over what another fold of the same pool knows of these blocks."""
        lo, hi = max(self.first, other.first), min(self.first + len(self), other.first + len(other))
        if hi > lo:
            to, of = slice(lo - self.first, hi - self.first), slice(lo - other.first, hi - other.first)
            for name, _, _ in _FIELDS:
                getattr(self, name)[to] = getattr(other, name)[of]

    def apply(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Fold in a run of rows: FOLD_COLUMNS, in seq order."""
        kind = columns["kind"]
        told = resizings(kind)
        for size in resized(kind[told], columns["aux"][told]).tolist():
            if size >= 0:
                self.size = size
                if self._bound is None:
                    self._grow(self.size - self.first)
        anew = begun_anew(kind, columns["aux"])
        if len(anew):
            for name, _, default in _FIELDS:
                getattr(self, name).fill(default)
            columns = {name: columns[name][int(anew[-1]) :] for name in FOLD_COLUMNS}
            kind = columns["kind"]
        block = columns["block"]
        rows = np.flatnonzero(BLOCK_MASK[kind] & (block >= self.first) & (block < self.first + len(self)))
        if not len(rows):
            return
        at, gen = block[rows].astype(np.intp) - self.first, columns["gen"][rows]
        self.last_seq[at] = columns["seq"][rows]
        newest = self.gen.copy()
        np.maximum.at(newest, at, gen)
        for name in ("ref", "leases", "fill", "published", "quarantined", "writing"):
            getattr(self, name)[newest > self.gen] = 0
        self.gen = newest
        alive = gen >= newest[at]
        if not alive.all():
            rows, at = rows[alive], at[alive]
        self._conditions(columns, rows, at, kind[rows])

    def _conditions(self, columns: Mapping[str, Any], rows: Any, at: Any, kind: Any) -> None:
        before, after, fill = columns["ref_before"][rows], columns["ref_after"][rows], columns["fill"][rows]
        counted = after >= 0
        self.ref[at[counted]] = after[counted]
        taken = kind == Kind.LEASE
        moves = np.flatnonzero(taken | (kind == Kind.UNLEASE))
        unheld = np.flatnonzero(before == 0)  # no lease can be left (its end may be among lost events)
        self.leases[at[unheld]] = 0
        if len(moves):
            since = np.full(len(self), -1, np.int64)
            since[at[unheld]] = unheld
            moves = moves[moves >= since[at[moves]]]
            np.add.at(self.leases, at[moves], np.where(taken[moves], 1, -1).astype(np.int32))
        starts = kind == Kind.ALLOC
        filled = starts | ((fill >= 0) & (kind != Kind.COPY_DONE))
        self.fill[at[filled]] = np.where(starts, 0, fill)[filled]
        for name, effects in (("published", INDEX_EFFECT), ("quarantined", PLACE_EFFECT), ("writing", WRITE_EFFECT)):
            effect = effects[kind]
            known = effect >= 0
            getattr(self, name)[at[known]] = effect[known]

    def to_bytes(self) -> bytes:
        """All of it: size, number of blocks, and the arrays, deflated."""
        arrays = b"".join(getattr(self, name).tobytes() for name, _, _ in _FIELDS)
        return np.asarray([self.size, len(self)], "<i8").tobytes() + zlib.compress(arrays, 1)

    @classmethod
    def from_bytes(cls, data: bytes) -> BlockFold:
        """What `to_bytes` wrote (a checksum around it is the caller's business).

        Raises:
            ValueError: it is not that.
        """
        if len(data) < 16:
            raise ValueError("a keyframe is torn")
        size, count = np.frombuffer(data, "<i8", 2).tolist()
        if not 0 <= size <= MAX_BLOCKS or not 0 <= count <= MAX_BLOCKS:
            raise ValueError(f"a keyframe of {count} blocks")
        if count > believed(len(data)):
            raise ValueError(f"a keyframe of {count} blocks in {len(data)} bytes")
        inflate = zlib.decompressobj()
        try:
            arrays = inflate.decompress(data[16:], count * BLOCK_BYTES + 1)
        except zlib.error as error:
            raise ValueError(f"a keyframe that cannot be inflated: {error}") from error
        if len(arrays) != count * BLOCK_BYTES:
            raise ValueError(f"a keyframe of {len(arrays)} bytes for {count} blocks")
        fold, offset = cls(size, 0, 0), 0
        fold._bound = None
        for name, dtype, _ in _FIELDS:
            setattr(fold, name, np.frombuffer(arrays, dtype, count, offset).copy())
            offset += count * np.dtype(dtype).itemsize
        return fold

    def _grow(self, count: int) -> None:
        count, known = min(count, self._most), len(self)
        if count > known:
            for name, dtype, default in _FIELDS:
                grown = (
                    np.full(count, default, dtype) if default else np.zeros(count, dtype)
                )  # zeros cost no memory yet
                grown[:known] = getattr(self, name)
                setattr(self, name, grown)


def events_columns(events: npt.NDArray[np.void], seqs: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
    """FOLD_COLUMNS of whole rows."""
    return {name: seqs if name == "seq" else events[name] for name in FOLD_COLUMNS}
