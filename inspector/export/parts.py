"""A trace in pieces: runs of rows with their details, so that an export holds one piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import numpy as np

from kvscope.errors import UsageError
from kvscope.inspector.source import IntArray, TraceLike
from kvscope.traces.schema import EventArray, Kind, Reason

PART_ROWS = 65_536
DetailRows = tuple[IntArray, IntArray, IntArray]  # seqs, offsets into values, values
Progress = Callable[[int, int], None]  # (rows done, rows in all)


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of rows, and the details among them."""

    seqs: IntArray
    events: EventArray
    detail_seqs: IntArray
    offsets: IntArray
    values: IntArray

    def details(self) -> dict[int, list[int]]:
        """The details by seq."""
        ends, flat = self.offsets.tolist(), self.values.tolist()
        return {seq: flat[ends[i] : ends[i + 1]] for i, seq in enumerate(self.detail_seqs.tolist())}


def row_range(trace: TraceLike, seqs: tuple[int, int] | None) -> range:
    """The rows whose seq lies in [lo, hi); all rows for None.

    Raises:
        UsageError: no row lies there.
    """
    count = len(events_of(trace))
    if seqs is None:
        return range(count)
    numbers = np.asarray(trace.seqs, dtype=np.int64)
    lo, hi = np.searchsorted(numbers, seqs).tolist()
    if lo >= hi:
        held = f"{int(numbers[0])}:{int(numbers[-1]) + 1}" if count else "no event"
        raise UsageError(f"no event lies in the range {seqs[0]}:{seqs[1]}: the trace holds {held}")
    return range(lo, min(hi, count))


def events_of(trace: TraceLike) -> EventArray:
    """The rows; of a long trace what decodes them where they are looked at."""
    found: EventArray = trace.rows_on_demand if hasattr(trace, "rows_on_demand") else trace.events
    return found


def parts(trace: TraceLike, rows: range, progress: Progress = no_progress, size: int = PART_ROWS) -> Iterator[Part]:
    """The rows in runs of at most `size`, in order."""
    events, seqs = events_of(trace), trace.seqs
    for lo in range(rows.start, rows.stop, size):
        hi = min(rows.stop, lo + size)
        numbers = np.asarray(seqs[lo:hi], dtype=np.int64)
        yield Part(numbers, np.asarray(events[lo:hi]), *details_of_rows(trace, numbers))
        progress(hi - rows.start, len(rows))


def details_of_rows(trace: TraceLike, seqs: IntArray) -> DetailRows:
    """The details of neighbouring rows."""
    between = getattr(getattr(trace, "source", trace), "details_between", None)  # what a folder's reader has, in bulk
    if between is not None:
        found, offsets, values = cast("DetailRows", between(int(seqs[0]), int(seqs[-1]) + 1))
        kept = np.isin(found, seqs, assume_unique=True)
        if kept.all():
            return found, offsets, values
        lengths = np.where(kept, np.diff(offsets), 0)
        return found[kept], np.append(0, np.cumsum(lengths[kept])), values[np.repeat(kept, np.diff(offsets))]
    pairs = [(seq, held) for seq in seqs.tolist() if (held := trace.detail(seq)) is not None]
    return (
        np.asarray([seq for seq, _ in pairs], np.int64),
        np.cumsum([0, *(len(held) for _, held in pairs)], dtype=np.int64),
        np.asarray([value for _, held in pairs for value in held], np.int64),
    )


def kind_names() -> list[str]:
    """The name of every number of a kind: `KIND_77` for one that this version does not know."""
    return [Kind(i).name if i in _KINDS else f"KIND_{i}" for i in range(256)]


def reason_names() -> list[str]:
    """The name of every number of a reason; `REASON_77` for one that this version does not know."""
    return [Reason(i).name if i in _REASONS else f"REASON_{i}" for i in range(256)]


_KINDS, _REASONS = frozenset(map(int, Kind)), frozenset(map(int, Reason))
