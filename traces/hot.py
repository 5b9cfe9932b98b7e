"""The hot tail `hot.bin`: rows that no segment holds yet, in a file mapped by the writer.

    0       header, 4096 bytes: magic "KVSHOT01", u32 row bytes (56), u32 detail bytes (72), u64 capacity C,
            a power of two; i64 sealed (rows below it are in segments), i64 dropped, i64 clipped
    4096    C rows, as rows.py lays them out; row `seq` in slot seq % C, committed by its mark seq + 1
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
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.folder import is_locked, open_regular
from kvscope.traces.rows import ROW_BYTES, ROW_DTYPE

MAGIC = b"KVSHOT01"
_LOOKS = 8
HEADER = struct.Struct("<8sIIQ")
COUNTERS_AT = HEADER.size
HEADER_BYTES = 4096
DETAIL_VALUES = 8
DETAIL_BYTES = (DETAIL_VALUES + 1) * 8
# By number of values: writes them and then their mark, so that they end where the record ends.
DETAIL_PACK = tuple(struct.Struct(f"<{count + 1}q").pack_into for count in range(DETAIL_VALUES + 1))


class Counters(NamedTuple):
    """What the header counts."""

    sealed: int
    dropped: int
    clipped: int


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
        HEADER.pack_into(self.map, 0, MAGIC, ROW_BYTES, DETAIL_BYTES, capacity)

    def count(self, counters: Counters) -> None:
        """Publish the counters."""
        struct.pack_into("<3q", self.map, COUNTERS_AT, *counters)

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
            os.close(self._fd)
            self._fd = -1


def _details_in(
    records: npt.NDArray[np.int64], seqs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    marks = records[:, DETAIL_VALUES]
    positions = np.flatnonzero(marks >> 4 == seqs + 1)
    counts = np.minimum(marks[positions] & 15, DETAIL_VALUES)
    held = np.arange(DETAIL_VALUES) >= DETAIL_VALUES - counts[:, None]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return positions, offsets, records[positions, :DETAIL_VALUES][held]


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
        size = os.fstat(fd).st_size
        if size < HEADER_BYTES:
            return hot_of(b"", live=live, size=size)
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as view:
            return hot_of(view, live=live)
    finally:
        os.close(fd)


def hot_of(view: mmap.mmap | bytes, *, live: bool, size: int | None = None) -> tuple[HotTail, list[str]]:
    """As `read_hot`, of the bytes of a hot tail."""
    size = len(view) if size is None else size
    if size < HEADER_BYTES:
        return NO_TAIL._replace(live=live), [f"hot tail is torn: {size} bytes, unsealed events are lost"]
    magic, row_bytes, detail_bytes, capacity = HEADER.unpack_from(view)
    if magic == bytes(8):
        return NO_TAIL._replace(live=live), []  # its writer was stopped while making it
    if (
        (magic, row_bytes, detail_bytes) != (MAGIC, ROW_BYTES, DETAIL_BYTES)
        or capacity & (capacity - 1)
        or not capacity
    ):
        return NO_TAIL._replace(live=live), ["hot tail has a damaged header: unsealed events are lost"]
    warnings = []
    rows_there = min(capacity, (size - HEADER_BYTES) // ROW_BYTES)
    details_there = max(0, min(capacity, (size - HEADER_BYTES - capacity * ROW_BYTES) // DETAIL_BYTES))
    if details_there < capacity:
        warnings.append(f"hot tail is torn: {size} of {file_bytes(capacity)} bytes")
    counters = Counters(*struct.unpack_from("<3q", view, COUNTERS_AT))
    seqs, rows = _committed(view, rows_there, capacity, counters.sealed)
    where = seqs % capacity
    details: dict[int, tuple[int, ...]] = {}
    if details_there:
        at = HEADER_BYTES + capacity * ROW_BYTES
        records = np.frombuffer(view, "<i8", details_there * (DETAIL_VALUES + 1), at).copy()
        records = records.reshape(details_there, DETAIL_VALUES + 1)
        inside = where[where < details_there]
        inside_seqs = seqs[where < details_there]
        positions, offsets, values = _details_in(records[inside], inside_seqs)
        ends = offsets.tolist()
        flat = values.tolist()
        for i, position in enumerate(positions.tolist()):
            details[int(inside_seqs[position])] = tuple(flat[ends[i] : ends[i + 1]])
    return HotTail(counters, seqs, rows, details, live), warnings


def _committed(
    view: mmap.mmap | bytes, rows_there: int, capacity: int, sealed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """(seqs, rows) that are there, in seq order, of a ring that may be written meanwhile.

    Mark, row, mark: a row whose slot is cleared or used again while it is copied is not taken (it has been sealed).
    A row that was written behind the copying hand, while later ones lay before it, is missing among them: those are
    looked at again, and what is missing then is sealed, or was never written.
    """
    ring = np.frombuffer(view, ROW_DTYPE, rows_there, HEADER_BYTES)
    marks = ring["mark"].copy()
    rows = ring.copy()
    good = (marks == ring["mark"]) & (marks > 0) & ((marks - 1) % capacity == np.arange(rows_there))
    where = np.flatnonzero(good)
    where = where[np.argsort(marks[where], kind="stable")]
    seqs, rows = marks[where] - 1, rows[where]
    for _ in range(_LOOKS):
        first = min(sealed, int(seqs[0])) if len(seqs) else 0  # rows before `sealed` were in segments at the start
        if not len(seqs) or not len(seqs) < int(seqs[-1]) + 1 - first <= 2 * capacity:
            break
        absent = np.setdiff1d(np.arange(first, int(seqs[-1]) + 1), seqs, assume_unique=True)
        absent = absent[absent % capacity < rows_there]
        slots = absent % capacity
        again = ring[slots]
        there = (again["mark"] == absent + 1) & (ring["mark"][slots] == absent + 1)
        if not there.any():
            break
        seqs, rows = np.concatenate([seqs, absent[there]]), np.concatenate([rows, again[there]])
        order = np.argsort(seqs, kind="stable")
        seqs, rows = seqs[order], rows[order]
    del ring
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
    head = HEADER.pack(MAGIC, ROW_BYTES, DETAIL_BYTES, capacity) + struct.pack("<3q", *tail.counters)
    return head.ljust(HEADER_BYTES, b"\0") + rows.tobytes() + records.tobytes()
