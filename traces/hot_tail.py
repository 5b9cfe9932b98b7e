"""Reading a hot tail (traces/hot.py), which its writer may be filling meanwhile."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.folder import is_locked, open_regular
from kvscope.traces.hot import (
    COUNTERS,
    COUNTERS_AT,
    DETAIL_BYTES,
    DETAIL_VALUES,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Counters,
    details_in,
    file_bytes,
)
from kvscope.traces.row_layout import ROW_BYTES, ROW_DTYPE

_LOOKS = 8
_PIECE, _RUN = 1 << 13, 1 << 8  # slots that are read at once; that are read again for one
_EMPTY = 2  # pieces that a batch leaves which is sealed just now


class HotTail(NamedTuple):
    """What a reader found committed in a hot tail, in seq order."""

    counters: Counters
    seqs: npt.NDArray[np.int64]
    rows: npt.NDArray[np.void]
    details: dict[int, tuple[int, ...]]
    live: bool


NO_TAIL = HotTail(Counters(0, 0, 0), np.empty(0, np.int64), np.empty(0, ROW_DTYPE), {}, False)


class _Bytes:
    """A hot tail in memory."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read(self, at: int, length: int) -> bytes:
        """A stretch of the file."""
        return self.data[at : at + length]


class _File:
    """A hot tail that may be written meanwhile; read and not mapped: to fault pages in costs many times the copying."""

    def __init__(self, fd: int) -> None:
        self._fd, self.size = fd, os.fstat(fd).st_size

    def read(self, at: int, length: int) -> bytes:
        """A stretch of the file as it is now."""
        return os.pread(self._fd, length, at)


def read_hot(path: Path) -> tuple[HotTail, list[str]]:
    """The committed rows of a hot tail, and what is wrong with it (one line each).

    Never blocks or disturbs the writer. A missing file is an empty tail.

    Raises:
        OSError: the file is there and cannot be read.
    """
    try:
        fd = open_regular(path)
    except FileNotFoundError:
        return NO_TAIL, []
    try:
        live = is_locked(fd)
        return _tail_of(_File(fd), live=live)
    finally:
        os.close(fd)


def hot_of(data: bytes, *, live: bool) -> tuple[HotTail, list[str]]:
    """As `read_hot`, of the bytes of a hot tail."""
    return _tail_of(_Bytes(data), live=live)


def _tail_of(file: _Bytes | _File, *, live: bool) -> tuple[HotTail, list[str]]:
    if file.size < HEADER_BYTES:
        return NO_TAIL._replace(live=live), [f"hot tail is torn: {file.size} bytes, unsealed events are lost"]
    head = file.read(0, HEADER_BYTES)
    magic, row_bytes, detail_bytes, capacity = HEADER.unpack_from(head)
    if magic == bytes(8):
        return NO_TAIL._replace(live=live), []  # its writer was stopped while making it
    if (
        (magic, row_bytes, detail_bytes) != (MAGIC, ROW_BYTES, DETAIL_BYTES)
        or capacity & (capacity - 1)
        or not capacity
    ):
        return NO_TAIL._replace(live=live), ["hot tail has a damaged header: unsealed events are lost"]
    counters = Counters(*struct.unpack_from(COUNTERS, head, COUNTERS_AT))
    ring = _Ring(file, capacity)
    warnings = [] if ring.details == capacity else [f"hot tail is torn: {file.size} of {file_bytes(capacity)} bytes"]
    seqs, rows = ring.committed(counters.sealed, every=not live)
    return HotTail(counters, seqs, rows, ring.details_of(seqs), live), warnings


class _Ring:
    """The rows of a hot tail and their details; `rows` and `details` of them are there, fewer than `capacity` if torn.

    Mark, row, mark: a row whose slot is cleared or used again while it is copied is not taken (it has been sealed).
    A row that was written behind the copying hand, while later ones lay before it, is missing among them: those are
    looked at again, and what is missing then is sealed, or was never written.
    """

    def __init__(self, file: _Bytes | _File, capacity: int) -> None:
        self._file, self._capacity = file, capacity
        self._details_at = HEADER_BYTES + capacity * ROW_BYTES
        self.rows = min(capacity, (file.size - HEADER_BYTES) // ROW_BYTES)
        self.details = max(0, min(capacity, (file.size - self._details_at) // DETAIL_BYTES))

    def committed(self, sealed: int, *, every: bool) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """(seqs, rows) that are there, in seq order.

        Args:
            sealed: rows below it are in segments.
            every: look at all slots; else at those from that of row `sealed` on, until more pieces are empty than a
                batch leaves: what lies behind as many slots that are not written yet is found by a later look.
        """
        found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]] = []
        start = sealed & self._capacity - 1
        start, empty = start if 0 <= start < self.rows else 0, 0
        for at in (*range(start, self.rows, _PIECE), *range(0, start, _PIECE)):
            piece = self._piece(at, min(at + _PIECE, self.rows if at >= start else start))
            empty = 0 if len(piece[0]) else empty + 1
            if empty > _EMPTY and not every:
                break
            found.append(piece)
        seqs, rows = _in_order(found)
        for _ in range(_LOOKS):
            first = min(sealed, int(seqs[0])) if len(seqs) else 0  # rows before `sealed` were in segments at the start
            if not len(seqs) or not len(seqs) < int(seqs[-1]) + 1 - first <= 2 * self._capacity:
                break
            absent = np.setdiff1d(np.arange(first, int(seqs[-1]) + 1), seqs, assume_unique=True)
            again = self._again(absent)
            if not len(again[0]):
                break
            seqs, rows = _in_order([(seqs, rows), again])
        return seqs, rows

    def details_of(self, seqs: npt.NDArray[np.int64]) -> dict[int, tuple[int, ...]]:
        """The details of rows that were found, by seq."""
        out: dict[int, tuple[int, ...]] = {}
        slots = seqs & self._capacity - 1
        for number in np.unique(slots // _PIECE).tolist():
            lo, hi = number * _PIECE, min((number + 1) * _PIECE, self.details)
            inside = seqs[(slots >= lo) & (slots < hi)]
            if not len(inside):
                continue
            where = inside & self._capacity - 1
            lo, hi = int(where.min()), int(where.max()) + 1
            raw = self._file.read(self._details_at + lo * DETAIL_BYTES, (hi - lo) * DETAIL_BYTES)
            records = np.frombuffer(raw, "<i8", len(raw) // DETAIL_BYTES * (DETAIL_VALUES + 1))
            records = records.reshape(-1, DETAIL_VALUES + 1)
            where -= lo
            inside, where = inside[where < len(records)], where[where < len(records)]
            positions, offsets, values = details_in(records[where], inside)
            ends, flat = offsets.tolist(), values.tolist()
            for i, position in enumerate(positions.tolist()):
                out[int(inside[position])] = tuple(flat[ends[i] : ends[i + 1]])
        return out

    def _piece(self, lo: int, hi: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """(seqs, rows) of the slots lo .. hi - 1 that hold a committed row throughout."""
        before, rows, after = self._slots(lo, hi), self._slots(lo, hi), self._slots(lo, hi)
        count = min(len(before), len(rows), len(after))
        before, rows, after = before[:count], rows[:count], after[:count]
        marks = rows["mark"].astype(np.int64)
        slots = np.arange(lo, lo + count)
        good = (before["mark"] == marks) & (after["mark"] == marks) & (marks > 0)
        good &= (marks - 1) & (self._capacity - 1) == slots
        return marks[good] - 1, rows[good]

    def _slots(self, lo: int, hi: int) -> npt.NDArray[np.void]:
        raw = self._file.read(HEADER_BYTES + lo * ROW_BYTES, (hi - lo) * ROW_BYTES)
        return np.frombuffer(raw, ROW_DTYPE, len(raw) // ROW_BYTES)

    def _again(self, wanted: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """Those of some rows that are there now."""
        slots = wanted & self._capacity - 1
        runs = np.unique(slots[slots < self.rows] // _RUN).tolist()
        seqs, rows = _in_order([self._piece(run * _RUN, min((run + 1) * _RUN, self.rows)) for run in runs])
        kept = np.isin(seqs, wanted, assume_unique=True)
        return seqs[kept], rows[kept]


def _in_order(
    found: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    if not found:
        return NO_TAIL.seqs, NO_TAIL.rows
    seqs, rows = (np.concatenate([part[i] for part in found]) for i in (0, 1))
    if len(seqs) > 1 and (np.diff(seqs) < 0).any():
        order = np.argsort(seqs, kind="stable")
        seqs, rows = seqs[order], rows[order]
    return seqs, rows


def hot_image(tail: HotTail) -> bytes:
    """A hot tail with the same rows, details and counters, of the least capacity that holds them."""
    span = int(tail.seqs[-1] - tail.seqs[0]) + 1 if len(tail.seqs) else 1
    capacity = max(2, 1 << (span - 1).bit_length())
    rows = np.zeros(capacity, ROW_DTYPE)
    rows[tail.seqs & capacity - 1] = tail.rows
    records = np.zeros((capacity, DETAIL_VALUES + 1), "<i8")
    for seq, values in tail.details.items():
        record = records[seq & capacity - 1]
        record[DETAIL_VALUES - len(values) : DETAIL_VALUES] = values
        record[DETAIL_VALUES] = (seq + 1) * 16 + len(values)
    head = HEADER.pack(MAGIC, ROW_BYTES, DETAIL_BYTES, capacity) + struct.pack(COUNTERS, *tail.counters)
    return head.ljust(HEADER_BYTES, b"\0") + rows.tobytes() + records.tobytes()
