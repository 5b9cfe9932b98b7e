"""Append-only files that survive their writer: JSON lines with a checksum, and records of late details.

A JSON line carries the crc32 of its own bytes as its last member, so it stays plain JSON:

    {"i":1,"name":"MainThread","crc":"5f3a0c21"}       crc32 of `{"i":1,"name":"MainThread"}`
"""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

PWrite = Callable[[int, bytes, int], int]
LATE_MAGIC = b"LATE"  # then crc32 of what follows it, u32 number of values, i64 seq, the values
_LATE_HEADER = 20
MAX_PENDING_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
_CRC_TAIL = len(',"crc":"00000000"}')


def _plain(value: Any) -> Any:
    """A numpy scalar or array as plain numbers; anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def dump_line(record: Mapping[str, Any]) -> bytes:
    """One checksummed JSON line.

    Raises:
        ValueError, TypeError: the record is not representable (a cycle, keys that are no text).
    """
    return _seal(json.dumps(record, separators=(",", ":"), default=_plain).encode()) + b"\n"


def _seal(body: bytes) -> bytes:
    return body[:-1] + (b"," if len(body) > 2 else b"") + b'"crc":"%08x"}' % zlib.crc32(body)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line that `dump_line` wrote (its line end taken off), without its checksum; None if damaged."""
    body = line[:-_CRC_TAIL] + b"}" if len(line) > _CRC_TAIL else b"{}"
    if _seal(body) != line:
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def read_lines(data: bytes) -> tuple[list[dict[str, Any]], int, int]:
    """(records, damaged lines, bytes used): all whole lines of `data`; an unfinished last line is left alone."""
    used = data.rfind(b"\n") + 1
    records = [parse_line(line) for line in data[:used].split(b"\n")[:-1]]
    whole = [record for record in records if record is not None]
    return whole, len(records) - len(whole), used


def dump_late(seq: int, values: Sequence[int]) -> bytes:
    """One record of the late stream: details of a row that was sealed before they came, or more than 8 of them."""
    body = struct.pack(f"<Iq{len(values)}q", len(values), seq, *values)
    return LATE_MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def read_late(data: bytes) -> tuple[dict[int, tuple[int, ...]], int, int]:
    """(details by seq, damaged places, bytes used) of a late stream; goes on at the next record after damage."""
    found: dict[int, tuple[int, ...]] = {}
    damaged = at = 0
    while at < len(data):
        unfinished = LATE_MAGIC.startswith(data[at : at + 4])
        if unfinished and at + _LATE_HEADER <= len(data):
            crc, count, seq = struct.unpack_from("<IIq", data, at + 4)
            end = at + _LATE_HEADER + 8 * count
            if end <= len(data) and zlib.crc32(memoryview(data)[at + 8 : end]) == crc:
                found[seq] = struct.unpack_from(f"<{count}q", data, at + _LATE_HEADER)
                at = end
                continue
            unfinished = end > len(data)
        following = data.find(LATE_MAGIC, at + 1)
        if following < 0 and unfinished:
            return found, damaged, at
        damaged += 1
        at = following if following >= 0 else len(data)
    return found, damaged, at


class AppendFile:
    """A file that only grows; what is handed over is in the system's hands when `append` returns True.

    Every write goes to an explicit offset, so what a failed write left behind is overwritten by the next.

    Args:
        path: created; must not exist.
        pwrite: `os.pwrite`, or a stand-in for tests of a full disk.
        at: go on with a file that may exist, from this byte; what lies behind it is dropped.
        counted: called after `missing` has changed.
    """

    def __init__(self, path: Path, pwrite: PWrite = os.pwrite, at: int | None = None,
                 counted: Callable[[], None] | None = None) -> None:  # fmt: skip
        self.path = path
        self.offset = at or 0
        self.lost = 0  # records given up because too much was pending
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._waiting = 0  # records that a failed write has left: one that is being written is not among them
        self._counted = counted
        self._pwrite = pwrite
        self._lock = threading.Lock()
        new = os.O_EXCL if at is None else os.O_NOFOLLOW
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | new | os.O_CLOEXEC, 0o644)
        if at is not None:
            self.cut()

    def write(self, data: bytes) -> None:
        """Append all of `data`.

        Raises:
            OSError: not (wholly) written; the file's offset is where it was.
        """
        done = 0
        while done < len(data):
            done += self._pwrite(self._fd, data[done:] if done else data, self.offset + done)
        self.offset += len(data)

    def append(self, data: bytes) -> bool:
        """Append one record, or keep it for the next try when the disk is full; never raises for a failed write.

        With MAX_PENDING_BYTES waiting already, and no room for them, the record is lost.
        """
        with self._lock:
            before = self.missing
            if self._pending:
                self._write_pending()
            if self._pending and self._pending_bytes + len(data) > MAX_PENDING_BYTES:
                self.lost += 1
            else:
                failing = bool(self._pending)
                self._pending.append(data)
                self._pending_bytes += len(data)
                if not failing:
                    self._write_pending()
            left = self._waiting = len(self._pending)
            after = self.missing
        self._tell(before, after)
        return not left

    def flush(self) -> bool:
        """Try to write what is pending; True when nothing is left."""
        with self._lock:
            before = self.missing
            self._write_pending()
            left = self._waiting = len(self._pending)
            after = self.missing
        self._tell(before, after)
        return not left

    @property
    def missing(self) -> int:
        """Records that could not be written: those that wait for another try, and those that were given up."""
        return self._waiting + self.lost

    def _tell(self, before: int, after: int) -> None:
        if before != after and self._counted is not None:
            self._counted()

    def _write_pending(self) -> None:
        """Write as many whole records as there is room for."""
        while self._pending:
            piece = self._piece()
            done = 0
            try:
                while done < len(piece):
                    done += self._pwrite(self._fd, piece[done:] if done else piece, self.offset + done)
            except OSError as error:
                log.debug("trace: cannot write %s: %s", self.path.name, error)
            failed = done < len(piece)
            while self._pending and len(self._pending[0]) <= done:
                record = self._pending.popleft()
                self.offset += len(record)
                self._pending_bytes -= len(record)
                done -= len(record)
            if failed:
                return

    def _piece(self) -> bytes:
        """The first of the records that wait: not all, for most tries on a full disk fail."""
        if len(self._pending) == 1:
            return self._pending[0]
        taken = size = 0
        for record in self._pending:
            size += len(record)
            taken += 1
            if size >= _PIECE_BYTES:
                break
        return b"".join(islice(self._pending, taken))

    def cut(self) -> None:
        """Drop bytes that failed writes left behind the end."""
        os.ftruncate(self._fd, self.offset)

    def close(self) -> None:
        """Close the file, without half a record at its end; a second call does nothing."""
        if self._fd >= 0:
            if self._pending:
                with suppress(OSError):
                    self.cut()
            os.close(self._fd)
            self._fd = -1
