"""A long trace's rows and details as if they were there: decoded where they are looked at, a few batches at a time.

`EventsOnDemand` stands where an array of events is asked for. Whole columns (`events["kind"]`), single rows and short
runs of rows are arrays and rows of EVENT_DTYPE; a long run of rows is again an `EventsOnDemand`. It shows the rows that
were there when it was made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError
from kvscope.traces.codec import DetailColumn
from kvscope.traces.details import DetailStore, overlaid, picked
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.sealed import Columns, SealedRows, Unreadable

SHORT_ROWS = 1 << 16  # so many rows are decoded when they are sliced out; more stay where they are
_KEPT_RUNS, _KEPT_DETAILS = 64, 8
_FEW_ROWS, _KEPT_ROWS = 1024, 1 << 16
_KEPT_BYTES = 384 << 20
_KEPT_ANSWERS, _LONG_ANSWER = 64, 1 << 19
_RUN_ROWS = 1 << 14
_NAMES: tuple[str, ...] = tuple(EVENT_DTYPE.names or ())

Read = Callable[[Sequence[str], int, "int | None"], Columns]


class _Source:
    """Decoded runs of rows and whole columns of one trace, the ones used last; shared by all views of it."""

    def __init__(self, read: Read, sealed: SealedRows, rows: int) -> None:
        self._read, self._sealed, self.rows = read, sealed, rows
        self._removed = sealed.removed
        self._edges = [*(edge for edge in sealed.starts if edge < rows), rows]
        self._runs: OrderedDict[int, EventArray] = OrderedDict()
        self._rows: dict[int, bytes] = {}
        self._columns: OrderedDict[str, npt.NDArray[Any]] = OrderedDict()
        self._answers: OrderedDict[tuple[str, int], npt.NDArray[np.int64]] = OrderedDict()

    def columns(self, names: Sequence[str], lo: int, hi: int) -> Columns:
        """Columns of rows lo .. hi - 1.

        Raises:
            TraceError: the trace is not what it was when this view of it was made.
        """
        found = self._read(names, lo, hi)
        if self._sealed.removed != self._removed:
            raise TraceError("a part of the trace cannot be read any more (damaged, or let go): open it again")
        return found

    def column(self, name: str, lo: int, hi: int) -> npt.NDArray[Any]:
        """One column of rows lo .. hi - 1, read-only."""
        if name not in self._columns:
            if 2 * (hi - lo) < self.rows:
                return read_only(self.columns((name,), lo, hi)[name])
            self._columns[name] = read_only(self.columns((name,), 0, self.rows)[name])
            while len(self._columns) > 1 and sum(c.nbytes for c in self._columns.values()) > _KEPT_BYTES:
                self._columns.popitem(last=False)
        self._columns.move_to_end(name)
        return self._columns[name][lo:hi]

    def rows_with(self, name: str, value: int) -> npt.NDArray[np.int64]:
        """The rows that have a value in a column; those of the values that were asked for last are kept."""
        found = self._answers.pop((name, value), None)
        if found is None:
            found = np.flatnonzero(self.column(name, 0, self.rows) == value)
            if len(found) > _LONG_ANSWER:
                return found
        self._answers[name, value] = found
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return found

    def few(self, rows: npt.NDArray[np.int64]) -> EventArray:
        """A few rows, which may lie far apart (all of one block): asked for again, they are here."""
        out = np.empty(len(rows), EVENT_DTYPE)
        numbers = rows.tolist()
        missing = np.asarray([i for i, row in enumerate(numbers) if row not in self._rows], np.int64)
        if len(self._rows) > _KEPT_ROWS:
            missing = np.arange(len(rows))
            self._rows.clear()
        for where, events, first in self.pieces(rows[missing]):
            for i in missing[where].tolist():
                self._rows[numbers[i]] = events[numbers[i] - first].tobytes()
        out[:] = np.frombuffer(b"".join([self._rows[row] for row in numbers]), EVENT_DTYPE)
        return out

    def pieces(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[slice, EventArray, int]]:
        """For rising rows: (which of them, the run of events that they lie in, the row that it begins with)."""
        at = 0
        while at < len(rows):
            run = bisect_right(self._edges, int(rows[at])) - 1
            end = int(np.searchsorted(rows, self._edges[run + 1]))
            yield slice(at, end), self._run(run), self._edges[run]
            at = end

    def _run(self, number: int) -> EventArray:
        if number not in self._runs:
            lo, hi = self._edges[number], self._edges[number + 1]
            self._runs[number] = read_only(events_from(self.columns(_NAMES, lo, hi), hi - lo))
            if len(self._runs) > _KEPT_RUNS:
                self._runs.popitem(last=False)
        self._runs.move_to_end(number)
        return self._runs[number]


class EventsOnDemand:
    """Rows lo .. hi - 1 of a trace, in the place of an `EventArray`; read-only."""

    dtype = EVENT_DTYPE
    ndim = 1

    def __init__(self, source: _Source, lo: int, hi: int) -> None:
        self._source, self._lo, self._hi = source, lo, hi

    def __len__(self) -> int:
        return self._hi - self._lo

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self)

    @property
    def shape(self) -> tuple[int]:
        """As an array's."""
        return (len(self),)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._source.column(key, self._lo, self._hi)
        if isinstance(key, slice):
            lo, hi, step = key.indices(len(self))
            if step != 1:
                return self._gathered(np.arange(lo, hi, step))
            hi = max(lo, hi)
            if hi - lo > SHORT_ROWS:
                return EventsOnDemand(self._source, self._lo + lo, self._lo + hi)
            return self._between(self._lo + lo, self._lo + hi)
        if isinstance(key, int | np.integer):
            row = int(key) + (len(self) if key < 0 else 0)
            if not 0 <= row < len(self):
                raise IndexError(f"row {int(key)} of {len(self)} rows")
            return self._between(self._lo + row, self._lo + row + 1)[0]
        wanted = np.asarray(key)
        return self._gathered(np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted.astype(np.int64))

    def rows_with(self, name: str, value: int) -> npt.NDArray[np.int64]:
        """The rows that have a value in a column: `np.flatnonzero(events[name] == value)`, looked for once."""
        rows = self._source.rows_with(name, value)
        lo, hi = np.searchsorted(rows, (self._lo, self._hi)).tolist()
        return rows[lo:hi] - self._lo

    def __iter__(self) -> Iterator[Any]:
        for lo in range(self._lo, self._hi, _RUN_ROWS):
            yield from self._between(lo, min(lo + _RUN_ROWS, self._hi))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return events_from(self._source.columns(_NAMES, self._lo, self._hi), len(self))

    def tolist(self) -> list[tuple[int, ...]]:
        """Rows as tuples."""
        rows: list[tuple[int, ...]] = np.asarray(self).tolist()
        return rows

    def _between(self, lo: int, hi: int) -> EventArray:
        return self._picked(np.arange(lo, hi))

    def _gathered(self, rows: npt.NDArray[np.int64]) -> EventArray:
        rows = np.where(rows < 0, rows + len(self), rows)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise IndexError(f"a row outside of {len(self)} rows")
        if len(rows) and (np.diff(rows) < 0).any():
            order = np.argsort(rows, kind="stable")
            out = np.empty(len(rows), EVENT_DTYPE)
            out[order] = self._picked(rows[order] + self._lo)
            return out
        return self._picked(rows + self._lo)

    def _picked(self, rows: npt.NDArray[np.int64]) -> EventArray:
        if len(rows) <= _FEW_ROWS and len(rows) and int(rows[-1]) - int(rows[0]) > SHORT_ROWS:
            return self._source.few(rows)
        out = np.empty(len(rows), EVENT_DTYPE)
        for where, events, first in self._source.pieces(rows):
            out[where] = events[rows[where] - first]
        return out


def on_demand(read: Read, sealed: SealedRows, rows: int) -> EventsOnDemand:
    """The first `rows` rows of a trace, of which `read` brings columns."""
    return EventsOnDemand(_Source(read, sealed, rows), 0, rows)


class DetailsOnDemand:
    """The details of a long trace by batch; those of the hot tail and late ones are in `beside`."""

    def __init__(self, sealed: SealedRows, beside: DetailStore) -> None:
        self._sealed, self._beside = sealed, beside
        self._kept: OrderedDict[tuple[int, int], DetailColumn] = OrderedDict()

    def get(self, seq: int) -> tuple[int, ...] | None:
        """The values of a seq, None where it has none."""
        _, offsets, values = self.between(seq, seq + 1)
        return tuple(values.tolist()) if len(offsets) > 1 else None

    def between(self, lo: int, hi: int) -> DetailColumn:
        """(seqs, offsets, values) of everything that seqs from `lo` to below `hi` have."""
        while True:
            sealed = self._sealed
            first, last = sealed.row_of(lo), sealed.row_of(hi)
            numbers = range(sealed.batch_of(first), sealed.batch_of(last - 1) + 1) if last > first else range(0)
            try:
                seqs, offsets, values = joined([self._batch(number) for number in numbers])
                break
            except Unreadable:
                continue
        a, b = np.searchsorted(seqs, (lo, hi)).tolist()
        found = seqs[a:b], offsets[a : b + 1] - offsets[a], values[offsets[a] : offsets[b]]
        beside = self._beside.beside(lo, hi)
        return overlaid(*found, beside) if beside else found

    def of_kind(self, kind: int, parts: Iterator[Columns]) -> DetailColumn:
        """The details of all events of a kind; `parts` are runs of the columns `seq` and `kind`."""
        found = []
        for part in parts:
            wanted = part["seq"][part["kind"] == kind]
            if len(wanted):
                seqs, offsets, values = self.between(int(wanted[0]), int(wanted[-1]) + 1)
                found.append(picked(seqs, offsets, values, np.flatnonzero(np.isin(seqs, wanted, assume_unique=True))))
        return joined(found)

    def _batch(self, number: int) -> DetailColumn:
        batch = self._sealed.batches[number]
        key = (batch.first_seq, batch.rows)
        if key not in self._kept:
            self._kept[key] = self._sealed.details(number)
            if len(self._kept) > _KEPT_DETAILS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def joined(parts: Sequence[DetailColumn]) -> DetailColumn:
    """Details of runs of rows that follow one another, as those of one run."""
    if not parts:
        return np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64)
    values = [part[2][part[1][0] : part[1][-1]] for part in parts]
    lengths = np.concatenate([np.diff(part[1]) for part in parts])
    return (
        np.concatenate([part[0] for part in parts]),
        np.append(0, np.cumsum(lengths)),
        np.concatenate(values),
    )


def events_from(columns: Columns, rows: int) -> EventArray:
    """Rows of EVENT_DTYPE from their columns."""
    out = np.empty(rows, EVENT_DTYPE)
    for name in _NAMES:
        out[name] = columns[name]
    return out


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array; who writes into it gets an error."""
    array.flags.writeable = False
    return array
