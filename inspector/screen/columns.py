"""A chunk of a trace as contiguous columns, and the details of its rows as matrices."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import Frozen, IntArray
from kvscope.traces.details import picked
from kvscope.traces.schema import EventArray, Kind

# Kinds whose details the detectors look at, and how many values of each; the others' are never read.
DETAILED = {Kind.SCHED: 2, Kind.COW: 4, Kind.LEASE: 2, Kind.WITNESS: 8, Kind.PUBLISH: 4, Kind.HIT: 4}
_DETAILED = frozenset(int(kind) for kind in DETAILED)
_EXACT = (Kind.PUBLISH, Kind.HIT)  # compared as a whole

TAKES = (Kind.ALLOC, Kind.SHARE, Kind.HIT)
BEGINS = (Kind.ADMIT, Kind.RESUME, Kind.FORK)
ENDS = (Kind.FINISH, Kind.ABORT, Kind.PREEMPT)


def table(values: dict[Kind, int], default: int = 0) -> npt.NDArray[np.int8]:
    """A 256-entry lookup table by kind."""
    out = np.full(256, default, dtype=np.int8)
    for kind, value in values.items():
        out[kind] = value
    return out


def flags(kinds: Iterable[Kind]) -> npt.NDArray[np.bool_]:
    """A 256-entry table that picks kinds."""
    return table(dict.fromkeys(kinds, 1)).astype(np.bool_)


@functools.cache
def _mask(kinds: tuple[Kind, ...]) -> npt.NDArray[np.bool_]:
    return flags(kinds)


@dataclass(frozen=True)
class Detail:
    """The details of the rows of one kind: `at[i]` is the row of `values` of the i-th row of that kind, -1 for none."""

    at: IntArray
    values: npt.NDArray[np.int64]


class DetailTables:
    """The details of a whole trace, one matrix per kind that detectors look at.

    `ragged` is set when a row has fewer values than are looked at.
    """

    def __init__(self, trace: Frozen) -> None:
        self._tables = {kind: _matrix(kind, *trace.detail_arrays(int(kind))) for kind in DETAILED}
        self.ragged = any(found is None for found in self._tables.values())

    def of(self, kind: Kind, seqs: IntArray) -> Detail:
        """The details of these rows of one kind, by their numbers (rising)."""
        return _matched(*(self._tables[kind] or _no_matrix(kind)), seqs)


class PartDetails(DetailTables):
    """The details of the events [first, first + length) alone; `kinds` are theirs."""

    def __init__(self, trace: Frozen, first: int, kinds: npt.NDArray[np.uint8]) -> None:
        seqs, offsets, values = trace.details_between(first, first + len(kinds))
        kind_of = kinds[seqs - first]
        self._tables = {}
        for kind in DETAILED:
            self._tables[kind] = _matrix(kind, *picked(seqs, offsets, values, np.flatnonzero(kind_of == kind)))
        self.ragged = any(found is None for found in self._tables.values())


def _matrix(
    kind: Kind, seqs: IntArray, offsets: IntArray, values: IntArray
) -> tuple[IntArray, npt.NDArray[np.int64]] | None:
    """(numbers, values as rows) of the details of one kind; None where they are not as wide as that kind's are."""
    width, lengths = DETAILED[kind], np.diff(offsets)
    if (lengths == width).all():
        return seqs, values.reshape(-1, width)
    if kind in _EXACT or not (lengths >= width).all():
        return None
    return seqs, values[offsets[:-1, None] + np.arange(width)]


def _no_matrix(kind: Kind) -> tuple[IntArray, npt.NDArray[np.int64]]:
    return np.empty(0, np.int64), np.empty((0, DETAILED[kind]), np.int64)


class GivenDetails:
    """The details of a few rows, as they were given to a sink. `ragged` as in `DetailTables`."""

    def __init__(self, details: Mapping[int, Sequence[int]], kinds: npt.NDArray[np.uint8], first: int) -> None:
        self.ragged = False
        self._tables: dict[Kind, tuple[list[int], list[Sequence[int]]]] = {kind: ([], []) for kind in DETAILED}
        for seq, values in sorted(details.items()):
            number = int(kinds[seq - first]) if 0 <= seq - first < len(kinds) else -1
            if number in _DETAILED:
                kind = Kind(number)
                width = DETAILED[kind]
                self.ragged |= len(values) < width or (kind in _EXACT and len(values) != width)
                self._tables[kind][0].append(seq)
                self._tables[kind][1].append(values[:width])

    def of(self, kind: Kind, seqs: IntArray) -> Detail:
        """The details of these rows of one kind, by their numbers (rising)."""
        known, values = self._tables[kind]
        matrix = np.asarray(values, dtype=np.int64).reshape(len(values), DETAILED[kind])
        return _matched(np.asarray(known, dtype=np.int64), matrix, seqs)


def _matched(known: IntArray, values: npt.NDArray[np.int64], seqs: IntArray) -> Detail:
    if not len(known):
        return Detail(np.full(len(seqs), -1, dtype=np.int64), values)
    if len(seqs):  # as a rule every row has its details, and they stand together
        lo = int(np.searchsorted(known, seqs[0]))
        if np.array_equal(known[lo : lo + len(seqs)], seqs):
            return Detail(np.arange(lo, lo + len(seqs)), values)
    at = np.searchsorted(known, seqs)
    found = known[np.minimum(at, len(known) - 1)] == seqs
    return Detail(np.where(found, at, -1), values)


class Chunk:
    """The events [first, first + length) of a trace, as columns of their own."""

    def __init__(self, events: EventArray, first: int, details: DetailTables | GivenDetails) -> None:
        self.first = first
        self.length = len(events)
        self.events = events
        self.kind = np.ascontiguousarray(events["kind"])
        self._details = details

    def __getattr__(self, name: str) -> Any:
        """A column by its name, made contiguous when first asked for."""
        if name not in ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "aux", "reason"):
            raise AttributeError(name)
        column = np.ascontiguousarray(self.events[name])
        if column.itemsize < 4:  # nothing wraps: sums of these fit
            column = column.astype(np.int32)
        setattr(self, name, column)
        return column

    @cached_property
    def range_lo(self) -> IntArray:
        """`aux` as a packed range: its lower end."""
        return np.asarray(self.aux & 0xFFFFFFFF, dtype=np.int64)

    @cached_property
    def range_hi(self) -> IntArray:
        """`aux` as a packed range: its upper end."""
        return np.asarray(self.aux >> 32, dtype=np.int64)

    def rows(self, *kinds: Kind) -> IntArray:
        """Local numbers of the rows of these kinds."""
        return np.flatnonzero(_mask(kinds)[self.kind])

    def detail(self, kind: Kind) -> tuple[IntArray, Detail]:
        """(local rows of the kind, their details)."""
        rows = self.rows(kind)
        return rows, self._details.of(kind, rows + self.first)

    @cached_property
    def copies(self) -> IntArray:
        """Per row the slots that its COW copies; -1 where it is no COW, or its details do not say."""
        out = np.full(self.length, -1, dtype=np.int64)
        rows, detail = self.detail(Kind.COW)
        whole = detail.at >= 0
        values = detail.values[detail.at[whole]]
        out[rows[whole]] = np.where(values[:, 2] == 0, values[:, 3], -1)
        return out

    @cached_property
    def starts_copy(self) -> npt.NDArray[np.bool_]:
        """Whether the row is the ALLOC of a copy-on-write: ALLOC, LEASE of the source, COW."""
        out = np.zeros(self.length, dtype=np.bool_)
        rows = self.rows(Kind.COW)
        rows = rows[rows >= 2]
        same = self.kind[rows - 2] == Kind.ALLOC
        for name in ("block", "gen", "seq_id", "lblock"):
            column = getattr(self, name)
            same &= column[rows] == column[rows - 2]
        out[rows[same] - 2] = True
        return out


# What a row adds to the number of table entries.
ENTRY_SIGN = table(dict.fromkeys(TAKES, 1) | {Kind.RELEASE: -1})
