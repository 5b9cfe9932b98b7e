"""A chunk of a trace as contiguous columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.screen.details import Detail, DetailTables, GivenDetails
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import EventArray, Kind

# A column of kinds is compared with one of these: with a `Kind` numpy takes ten times as long.
NUMBERS = {kind: np.uint8(kind) for kind in Kind}
NO_ROWS: IntArray = np.empty(0, dtype=np.int64)

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


# A row's columns, some of them side by side as one word: (gen, seq_id) and (lblock, ref_before, ref_after).
_SWEPT = ("block", "seq_id", "lblock", "aux", "holder", "place")
_SWEEP = 4096
_ODD = np.int64(0x5851F42D4C957F2D)


@functools.cache
def _words(rows: np.dtype[Any]) -> np.dtype[Any]:
    """How to see them in rows of this type: EVENT_DTYPE, or the ROW_DTYPE of a recorder's buffer."""
    fields: Any = rows.fields
    layout: Any = {
        "names": _SWEPT,
        "formats": [*(fields[name][0] for name in _SWEPT[:4]), "<i8", "<i8"],
        "offsets": [*(fields[name][1] for name in _SWEPT[:4]), fields["gen"][1], fields["lblock"][1]],
        "itemsize": rows.itemsize,
    }
    words: np.dtype[Any] = np.dtype(layout)
    return words


class Chunk:
    """The events [first, first + length) of a trace, as columns of their own.

    Args:
        kinds: their column, where it is at hand. present: a kind of which it counts none has no row here.
    """

    def __init__(
        self,
        events: EventArray,
        first: int,
        details: DetailTables | GivenDetails,
        kinds: npt.NDArray[np.uint8] | None = None,
        present: IntArray | None = None,
    ) -> None:
        self.first = first
        self.length = len(events)
        self.events = np.ascontiguousarray(events)
        self.kind: npt.NDArray[np.uint8] = np.ascontiguousarray(events["kind"]) if kinds is None else kinds
        self.present = np.bincount(self.kind, minlength=256) if present is None else present
        self._details = details
        self._rank: npt.NDArray[np.int32] | None = None
        self._found: dict[Kind, tuple[IntArray, Detail]] = {}
        words = _words(events.dtype)
        self.block, self.seq_id, self.lblock, self.aux, self.holder, self.place = (
            np.empty(self.length, dtype=words[name]) for name in _SWEPT
        )
        for lo in range(0, self.length, _SWEEP):  # rows that are in the cache give all of their columns
            part = slice(lo, lo + _SWEEP)
            swept = self.events[part].view(words)
            self.block[part], self.seq_id[part], self.lblock[part] = swept["block"], swept["seq_id"], swept["lblock"]
            self.aux[part], self.holder[part], self.place[part] = swept["aux"], swept["holder"], swept["place"]

    def picked(self, rows: IntArray) -> EventArray:
        """Some rows as a whole; many times faster than numpy's own way with structures."""
        dtype = self.events.dtype
        words = self.events.view(np.int64).reshape(-1, dtype.itemsize // 8)
        out: EventArray = words.take(rows, axis=0).reshape(-1).view(dtype)
        return out

    def at(self, name: str, rows: IntArray) -> npt.NDArray[Any]:
        """A column at some rows."""
        return self.events[name][rows]

    def rows(self, *kinds: Kind) -> IntArray:
        """Local numbers of the rows of these kinds."""
        there = [kind for kind in kinds if self.present[kind]]
        if not there:
            return NO_ROWS
        if len(there) == 1:
            return np.flatnonzero(self.kind == NUMBERS[there[0]])
        return np.flatnonzero(_mask(kinds).take(self.kind))

    def detail(self, kind: Kind) -> tuple[IntArray, Detail]:
        """(local rows of the kind, their details)."""
        if kind not in self._found:
            rows = self.rows(kind)
            self._found[kind] = rows, self._details.of(kind, rows + self.first)
        return self._found[kind]

    def detail_at(self, kind: Kind, rows: IntArray) -> IntArray:
        """Where the details of these rows of one kind are among all of the kind; -1 for none."""
        every, detail = self.detail(kind)
        if self._rank is None:
            self._rank = np.empty(self.length, dtype=np.int32)
        self._rank[every] = detail.at
        return self._rank[rows].astype(np.int64)

    def ranges(self, rows: IntArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """`aux` of some rows as a packed range, (lower, upper) end; one that is not below 2**31 is negative."""
        halves = self.aux.take(rows).view(np.int32)
        return halves[::2], halves[1::2]

    @cached_property
    def tables(self) -> IntArray:
        """Of each SCHED row one word for the digest and the length that its details tell; 0 where nothing is told.

        Different ones have different words, as surely as different tables have different digests.
        """
        rows, detail = self.detail(Kind.SCHED)
        out, whole = np.zeros(self.length, dtype=np.int64), detail.at >= 0
        told = detail.values[detail.at[whole]]
        out[rows[whole]] = told[:, 0] + told[:, 1] * _ODD
        return out

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
        same = self.kind[rows - 2] == NUMBERS[Kind.ALLOC]
        for name in ("block", "gen", "seq_id", "lblock"):
            column = self.events[name]
            same &= column[rows] == column[rows - 2]
        out[rows[same] - 2] = True
        return out


# What a row adds to the number of table entries.
ENTRY_SIGN = table(dict.fromkeys(TAKES, 1) | {Kind.RELEASE: -1})
