"""Keyframes: what the rows before some row have made of the pool, so that a seek folds in a few rows and not all.

The reader makes them when it is first asked for a place in a long trace; the writer has nothing to do with them. Of a
trace that is closed they are kept beside it in `keyframes.bin`, when the folder can be written:

    "KVSKEYS1"; u32 crc32 of what follows it; u32 n; then n times: i64 row, i64 bytes, a fold (traces/fold.py);
    before the first of them u32 crc32 over the batches' first_seq, rows and crc: the trace that they are of

A file that is lost, damaged, or of another trace is made anew. Nothing else is in it than what the rows say.
"""

from __future__ import annotations

import logging
import os
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvscope.traces.fold import BLOCK_BYTES, BlockFold

log = logging.getLogger(__name__)

KEY_ROWS = 1 << 17
STALE_S = 60.0  # a file half written for so long was left behind
MAX_BYTES = 1 << 27  # of all keyframes in memory, but for a few: they then lie further apart
_LEAST = 2  # however large they are
MAGIC = b"KVSKEYS1"
_HEAD = struct.Struct("<8sIII")
_ENTRY = struct.Struct("<qq")


class Keyframes:
    """Folds by row, rising."""

    def __init__(self, start: BlockFold, rows_between: int = KEY_ROWS) -> None:
        self.rows = [0]
        self.folds = [start]
        self.rows_between = rows_between

    def rebase(self, row: int, fold: BlockFold) -> None:
        """Rows before `row` were let go: this is what they had made. (Rows before it that are left start anew.)"""
        if row == 0:
            self.folds[0] = fold
        else:
            self.add(row, fold)

    def before(self, row: int) -> tuple[int, BlockFold]:
        """(its row, the fold) of the last keyframe at or before `row`; the fold is a copy."""
        at = bisect_right(self.rows, row) - 1
        return self.rows[at], self.folds[at].copy()

    def wanted(self, rows: int) -> Iterable[int]:
        """Rows at which the next keyframes of a trace of `rows` rows are due."""
        while rows // self.rows_between > most_of(self.folds):
            self.rows_between *= 2
        return range((self.rows[-1] // self.rows_between + 1) * self.rows_between, rows + 1, self.rows_between)

    def add(self, row: int, fold: BlockFold) -> None:
        """Keep what the rows before `row` have made, unless it is none of those that are wanted any more.

        A pool that has grown takes more room: every other one behind the first two (the start, and what was let go)
        then goes.
        """
        if row % self.rows_between and len(self.rows) > 1:
            return
        self.rows.append(row)
        self.folds.append(fold.copy())
        while len(self.rows) > 2 + most_of(self.folds):
            self.rows_between *= 2
            del self.rows[2::2], self.folds[2::2]


def most_of(folds: Sequence[BlockFold]) -> int:
    """How many keyframes there may be, the first two not counted, if these are some of them."""
    return max(_LEAST, MAX_BYTES // (BLOCK_BYTES * max(1, *map(len, folds))))


def batches_key(batches: Iterable[tuple[int, int, int]]) -> int:
    """A checksum over (first_seq, rows, crc) of all batches: equal for the same sealed rows."""
    crc = 0
    for first_seq, rows, check in batches:
        crc = zlib.crc32(struct.pack("<qqI", first_seq, rows, check), crc)
    return crc


def dump_keyframes(keys: Keyframes, key: int) -> bytes:
    """The bytes of `keyframes.bin`."""
    parts = []
    for row, fold in zip(keys.rows[1:], keys.folds[1:], strict=True):
        data = fold.to_bytes()
        parts.append(_ENTRY.pack(row, len(data)) + data)
    body = struct.pack("<II", len(parts), key) + b"".join(parts)
    return MAGIC + struct.pack("<I", zlib.crc32(body)) + body


def load_keyframes(data: bytes, key: int, rows: int, keys: Keyframes) -> bool:
    """Enter the keyframes of a file; False, and nothing entered, where they are not of this trace or damaged."""
    if len(data) < _HEAD.size:
        return False
    magic, crc, count, of = _HEAD.unpack_from(data)
    if magic != MAGIC or of != key or zlib.crc32(memoryview(data)[12:]) != crc:
        return False
    at, found = _HEAD.size, list[tuple[int, BlockFold]]()
    try:
        for _ in range(count):
            row, length = _ENTRY.unpack_from(data, at)
            at += _ENTRY.size
            if not (found[-1][0] if found else 0) < row <= rows or not 0 <= length <= len(data) - at:
                return False
            found.append((row, BlockFold.from_bytes(data[at : at + length])))
            at += length
            if len(found) > 1 + most_of([fold for _, fold in found]):
                return False
    except (struct.error, ValueError):
        return False
    keys.rows += [row for row, _ in found]
    keys.folds += [fold for _, fold in found]
    return True


def save_keyframes(path: Path, data: bytes) -> bool:
    """Put the file beside the trace in one step; False where the folder cannot be written, which costs time only."""
    temporary = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        try:
            fd = os.open(temporary, flags, 0o644)
        except FileExistsError:
            if time.time() - temporary.lstat().st_mtime < STALE_S:
                raise  # another process is writing it
            temporary.unlink()  # it was killed while it did
            fd = os.open(temporary, flags, 0o644)
    except OSError as error:
        log.debug("keyframes are not kept: %s", error)
        return False
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        log.debug("keyframes are not kept: %s", error)
        temporary.unlink(missing_ok=True)
        return False
    return True
