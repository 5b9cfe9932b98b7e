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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.row_layout import ROW_BYTES

MAGIC = b"KVSHOT01"
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
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # it is new: a reader that looks holds it for a moment at most
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
        return details_in(self.details[slot : slot + last - first], np.arange(first, last, dtype=np.int64))

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


def details_in(
    records: npt.NDArray[np.int64], seqs: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(positions, offsets, values) of the details of rows `seqs`, in their records."""
    marks = records[:, DETAIL_VALUES]
    positions = np.flatnonzero(marks >> 4 == seqs + 1)
    counts = np.minimum(marks[positions] & 15, DETAIL_VALUES)
    held = np.arange(DETAIL_VALUES) >= DETAIL_VALUES - counts[:, None]
    offsets = np.concatenate(([0], np.cumsum(counts)))
    return positions, offsets, records[positions, :DETAIL_VALUES][held]
