"""The details of rows as matrices, one per kind: of a whole trace, of a part of it, or as a sink was given them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import Frozen, IntArray
from kvscope.traces.details import gathered
from kvscope.traces.schema import Kind

# Kinds whose details the detectors look at, and how many values of each; the others' are never read.
DETAILED = {
    Kind.SCHED: 2, Kind.COW: 4, Kind.LEASE: 2, Kind.WITNESS: 9, Kind.PUBLISH: 4, Kind.HIT: 4, Kind.SWAP_OUT: 2,
    Kind.SWAP_IN: 2,
}  # fmt: skip
_LEAST = {int(kind): 8 if kind == Kind.WITNESS else width for kind, width in DETAILED.items()}  # what is not told is -1
_DETAILED = frozenset(int(kind) for kind in DETAILED)
_WIDTH = {int(kind): width for kind, width in DETAILED.items()}
_EXACT = (int(Kind.PUBLISH), int(Kind.HIT))  # compared as a whole

# (seqs, starts, lengths, values): the details of event `seqs[i]`, rising, are `lengths[i]` of the values from
# `starts[i]` on.
Kept = tuple[IntArray, IntArray, IntArray, IntArray]

Matrix = tuple[IntArray, npt.NDArray[np.int64]]  # (numbers of events, values as rows)

_NONE: IntArray = np.empty(0, dtype=np.int64)


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
        self._keep({kind: _matrix(kind, *trace.detail_arrays(int(kind))) for kind in DETAILED})

    def _keep(self, tables: Mapping[Kind, Matrix | None]) -> None:
        self._tables = {kind: found for kind, found in tables.items() if found is not None}
        self.ragged = None in tables.values()

    def of(self, kind: Kind, seqs: IntArray) -> Detail:
        """The details of these rows of one kind, by their numbers (rising)."""
        return _matched(*self._tables[kind], seqs)


class KeptDetails(DetailTables):
    """The details of the rows from `first` on alone, as a trace keeps them.

    Args:
        kinds: of these rows. seqs, starts, lengths, values: see `Kept`.
    """

    def __init__(
        self, kinds: npt.NDArray[np.uint8], first: int, seqs: IntArray, starts: IntArray, lengths: IntArray,
        values: IntArray,
    ) -> None:  # fmt: skip
        kind_of = kinds[seqs - first]
        rows_of = {kind: np.flatnonzero(kind_of == kind) for kind in DETAILED}
        self._keep({
            kind: _matrix(kind, seqs[rows], *gathered(starts[rows], lengths[rows], values))
            for kind, rows in rows_of.items()
        })  # fmt: skip


def part_details(trace: Frozen, first: int, kinds: npt.NDArray[np.uint8]) -> KeptDetails:
    """Of a reader the details of the events [first, first + length) alone; `kinds` are theirs."""
    return KeptDetails(kinds, first, *kept_between(trace, first, first + len(kinds)))


def kept_between(trace: Frozen, lo: int, hi: int) -> Kept:
    """Of a reader the details of the events from `lo` to below `hi`."""
    seqs, offsets, values = trace.details_between(lo, hi)
    return seqs, np.ascontiguousarray(offsets[:-1]), np.diff(offsets), values


def kept_of(trace: Frozen, kinds: Iterable[Kind]) -> Kept:
    """The details of all events of some kinds."""
    every = [trace.detail_arrays(int(kind)) for kind in kinds if trace.present[kind]]
    bases = np.cumsum([0, *(len(values) for _, _, values in every)]).tolist()
    seqs = np.concatenate([_NONE, *(found[0] for found in every)])
    order = np.argsort(seqs, kind="stable")
    starts = [offsets[:-1] + base for (_, offsets, _), base in zip(every, bases[:-1], strict=True)]
    lengths = [np.diff(offsets) for _, offsets, _ in every]
    return (
        seqs[order], np.concatenate([_NONE, *starts])[order], np.concatenate([_NONE, *lengths])[order],
        np.concatenate([_NONE, *(values for _, _, values in every)]),
    )  # fmt: skip


def _matrix(kind: Kind, seqs: IntArray, offsets: IntArray, values: IntArray) -> Matrix | None:
    """(numbers, values as rows) of the details of one kind; None where they are not as wide as that kind's are."""
    width, least, lengths = DETAILED[kind], _LEAST[int(kind)], np.diff(offsets)
    if (lengths == width).all():
        return seqs, values.reshape(-1, width)
    if kind in _EXACT or not (lengths >= least).all():
        return None
    out = np.full((len(seqs), width), -1, dtype=np.int64)
    for told, columns in ((lengths >= least, np.arange(least)), (lengths >= width, np.arange(least, width))):
        out[np.ix_(told, columns)] = values[offsets[:-1][told, None] + columns]
    return seqs, out


class GivenDetails:
    """The details of a few rows, as they were given to a sink. `ragged` as in `DetailTables`.

    Args:
        singles: by the number of the event. bulk: (number of the first, values) of rows of one kind side by side.
        kinds: of the rows from `first` on; details of other rows are passed over.
    """

    def __init__(
        self,
        singles: Mapping[int, Sequence[int]],
        bulk: Sequence[tuple[int, npt.NDArray[np.int64]]],
        kinds: npt.NDArray[np.uint8],
        first: int,
    ) -> None:
        self.ragged = False
        self._singles, self._bulk = singles, bulk
        numbers, end = kinds.tobytes(), first + len(kinds)
        found: dict[int, list[tuple[int, npt.NDArray[np.int64]]]] = {number: [] for number in _DETAILED}
        for seq, values in bulk:
            if not first <= seq < end or not len(values):
                continue
            kind = numbers[seq - first : seq - first + len(values)]
            self.ragged |= kind.count(kind[:1]) != len(kind)
            number = kind[0]
            if number in _DETAILED:
                self._fits(number, values.shape[1])
                found[number].append((seq, values))
        alone: dict[int, tuple[list[int], list[Sequence[int]]]] = {number: ([], []) for number in _DETAILED}
        for seq, told in sorted(singles.items()):
            number = numbers[seq - first] if first <= seq < end else -1
            if number in _DETAILED:
                self._fits(number, len(told))
                alone[number][0].append(seq)
                alone[number][1].append([*told, -1][: _WIDTH[number]])
        self._tables = {}
        if not self.ragged:
            self._tables = {number: _together(found[number], *alone[number], _WIDTH[number]) for number in _DETAILED}

    def _fits(self, number: int, values: int) -> None:
        self.ragged |= values < _LEAST[number] or (number in _EXACT and values != _WIDTH[number])

    def of(self, kind: Kind, seqs: IntArray) -> Detail:
        """The details of these rows of one kind, by their numbers (rising)."""
        return _matched(*self._tables[int(kind)], seqs)

    def get(self, seq: int) -> Sequence[int] | None:
        """All that was told of one event."""
        told = self._singles.get(seq)
        if told is not None:
            return told
        for first, values in self._bulk:
            if first <= seq < first + len(values):
                return values[seq - first].tolist()  # type: ignore[no-any-return]
        return None


def _together(
    parts: list[tuple[int, npt.NDArray[np.int64]]], seqs: list[int], told: list[Sequence[int]], width: int
) -> tuple[IntArray, npt.NDArray[np.int64]]:
    """(numbers, values) of one kind, rising; what was told alone came later than what was told with others."""
    known, values = np.asarray(seqs, dtype=np.int64), np.asarray(told, dtype=np.int64).reshape(len(told), width)
    if not parts:
        return known, values
    numbers: IntArray = np.concatenate([np.arange(seq, seq + len(part), dtype=np.int64) for seq, part in parts])
    matrix = np.full((len(numbers), width), -1, dtype=np.int64)
    end = 0
    for _, part in parts:
        begin, end = end, end + len(part)
        matrix[begin:end, : part.shape[1]] = part[:, :width]
    if not len(known):
        return numbers, matrix
    again = np.isin(numbers, known)
    numbers, matrix = np.concatenate([numbers[~again], known]), np.concatenate([matrix[~again], values])
    order = np.argsort(numbers, kind="stable")
    return numbers[order], matrix[order]


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
