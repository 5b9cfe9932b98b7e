"""The hot tail `hot.bin`: rows that no segment holds yet, in a file mapped by the writer.

    0       header, 4096 bytes: magic "KVSHOT01", u32 row bytes (56), u32 detail bytes (72), u64 capacity C,
            a power of two; i64 sealed (rows below are in segments), dropped, clipped, facts, details, names (lost)
    4096    C rows, as row_layout.py lays them out; row `seq` in slot seq % C, committed by its mark seq + 1
    then    C detail records: 8 int64 values, right-aligned, and a mark (seq + 1) * 16 + number of values

A store into a shared mapping belongs to the system at once: it outlives a killed process (not a power cut). The
file's blocks are allocated when it is made, because a store into a hole on a full disk kills the process (SIGBUS).
The writer holds an flock on the file, which is how readers tell a live trace from a dead one.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.folder import is_locked, open_regular
from kvscope.traces.row_layout import ROW_BYTES, ROW_DTYPE

MAGIC = b"KVSHOT01"
_LOOKS = 8
_PIECE, _RUN = 1 << 13, 1 << 8  # slots that are read at once; that are read again for one
_EMPTY = 2  # pieces that a batch leaves which is sealed just now
HEADER = struct.Struct("<8sIIQ")
COUNTERS, COUNTERS_AT = "<6q", HEADER.size
HEADER_BYTES = 4096
DETAIL_VALUES = 8
DETAIL_BYTES = (DETAIL_VALUES + 1) * 8
# By number of values: writes them and then their mark, so that they end where the record ends.
DETAIL_PACK = tuple(struct.Struct(f"<{count + 1}q").pack_into for count in range(DETAIL_VALUES + 1))
_POPULATE_WRITE = 23  # of Linux; Python names it from 3.14 on
_WARMED = 1 << 17  # bytes at once: no other thread runs meanwhile
_SIXTEENS = np.arange(16, (1 << 17) + 16, 16, dtype=np.int64)


class Counters(NamedTuple):
    """What the header counts."""

    sealed: int
    dropped: int
    clipped: int
    facts: int = 0  # from here on: not in their files
    details: int = 0
    names: int = 0


class HotTail(NamedTuple):
    """What a reader found committed in a hot tail, in seq order."""

    counters: Counters
    seqs: npt.NDArray[np.int64]
    rows: npt.NDArray[np.void]
    details: dict[int, tuple[int, ...]]
    live: bool


NO_TAIL = HotTail(Counters(0, 0, 0), np.empty(0, np.int64), np.empty(0, ROW_DTYPE), {}, False)


def file_bytes(capacity: int) -> int:
    """Size of a hot tail of `capacity` rows."""
    return HEADER_BYTES + capacity * (ROW_BYTES + DETAIL_BYTES)


class HotWriter:
    """Makes the file, maps it and gives out its parts: `map`, `marks`, `detail_marks`.

    Args:
        path: created; must not exist.
        capacity: rows, a power of two.

    Raises:
        OSError: it cannot be made or its blocks cannot be allocated.
    """

    def __init__(self, path: Path, capacity: int) -> None:
        self.path = path
        self.capacity = capacity
        size = file_bytes(capacity)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._fd, 0, size)
            # Every page is there from the start: to fault one in costs as much as packing ten rows into it.
            self.map = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        except BaseException:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise
        self.details_at = HEADER_BYTES + capacity * ROW_BYTES
        self.details = np.frombuffer(self.map, "<i8", capacity * (DETAIL_VALUES + 1), self.details_at)
        self.details = self.details.reshape(capacity, DETAIL_VALUES + 1)
        self._last = [_last_values(self.details, count) for count in range(1, DETAIL_VALUES + 1)]
        self._detail_marks = self.details[:, DETAIL_VALUES]
        self._made = [(0, _SIXTEENS[:0])] * (DETAIL_VALUES + 1)  # by number of values: marks made ahead, from which row
        HEADER.pack_into(self.map, 0, MAGIC, ROW_BYTES, DETAIL_BYTES, capacity)

    def warm(self, stop: Callable[[], bool]) -> None:
        """Take the fault of the first store into each page (3 us; to map it in is not enough) ahead; asks to `stop`."""
        if sys.platform == "linux":
            for at in range(0, len(self.map), _WARMED):
                if stop():
                    break
                try:
                    self.map.madvise(_POPULATE_WRITE, at, min(_WARMED, len(self.map) - at))
                except (OSError, ValueError):  # a kernel before 5.14
                    break

    def put_details(self, seq: int, slot: int, values: npt.NDArray[np.int64]) -> None:
        """Store the details [rows, values] of rows that lie side by side from `slot` on; `seq` is the first."""
        rows, count = values.shape
        end = slot + rows
        if rows > len(_SIXTEENS) or not values.flags.c_contiguous:
            self.details[slot:end, DETAIL_VALUES - count : DETAIL_VALUES] = values
            self._detail_marks[slot:end] = np.arange(seq + 1, seq + rows + 1) * 16 + count
            return
        column = self._last[count - 1]
        column[slot:end] = values.reshape(-1).view(column.dtype)
        first, marks = self._made[count]
        at = seq - first
        if at < 0 or at + rows > len(marks):
            at, marks = 0, _SIXTEENS + (seq * 16 + count)
            self._made[count] = seq, marks
        self._detail_marks[slot:end] = marks[at : at + rows]

    def count(self, counters: Counters) -> None:
        """Publish the counters."""
        struct.pack_into(COUNTERS, self.map, COUNTERS_AT, *counters)

    def take_details(
        self, first: int, last: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(positions, offsets, values) of the details of rows first .. last - 1, which do not wrap."""
        slot = first & self.capacity - 1
        return _details_in(self.details[slot : slot + last - first], np.arange(first, last, dtype=np.int64))

    def clear(self, first: int, last: int, marks: npt.NDArray[np.int64]) -> None:
        """Forget rows first .. last - 1, which do not wrap: their slots may be used again."""
        slot = first & self.capacity - 1
        marks[slot : slot + last - first] = 0
        self.details[slot : slot + last - first, DETAIL_VALUES] = 0

    def close(self, remove: bool) -> None:
        """Let go of the file (the mapping goes when the last view of it does); `remove` it when all is sealed."""
        if self._fd >= 0:
            if remove:
                self.path.unlink(missing_ok=True)
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # the mapping, which may live on, would hold it
            os.close(self._fd)
            self._fd = -1


def _last_values(details: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.void]:
    """The places of the last `count` values of each record, one element each."""
    place = np.dtype({"names": ["at"], "formats": [f"V{8 * count}"], "offsets": [8 * (DETAIL_VALUES - count)],
                      "itemsize": DETAIL_BYTES})  # fmt: skip
    return details.reshape(-1).view(place)["at"]


def _details_in(
    records: npt.NDArray[np.int64], seqs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    marks = records[:, DETAIL_VALUES]
    positions = np.flatnonzero(marks >> 4 == seqs + 1)
    counts = np.minimum(marks[positions] & 15, DETAIL_VALUES)
    held = np.arange(DETAIL_VALUES) >= DETAIL_VALUES - counts[:, None]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return positions, offsets, records[positions, :DETAIL_VALUES][held]


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
            positions, offsets, values = _details_in(records[where], inside)
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
