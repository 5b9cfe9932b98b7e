"""Keeping the newest part of a trace: the oldest segments go when it is too large or too old.

Before a segment goes, its rows are folded into `base.bin`, so that the state of the pool at any event that is left is
what it was: "KVSBASE1", u32 crc32 of what follows, i64 seq (the fold holds all rows below it), a fold (traces/fold.py).
Then the index goes, then the rows: a reader sees whole segments or none. Sites, actors, facts and late details stay.
Nothing here raises into the engine; what fails is tried again when the next segment is full.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvscope.errors import UsageError
from kvscope.traces.fold import FOLD_COLUMNS, BlockFold
from kvscope.traces.folder import BASE, segments_in
from kvscope.traces.keyframes import save_keyframes
from kvscope.traces.place import FolderPlace, Place
from kvscope.traces.segment import SegmentReader

log = logging.getLogger(__name__)

MAGIC = b"KVSBASE1"
PARTS = 8  # segments that a full trace consists of: what goes at once is an eighth of it
_HEAD = struct.Struct("<8sI")
MIN_BYTES = 1 << 16


class Kept(NamedTuple):
    """A segment that is finished."""

    name: str
    size: int
    t_last: int


class Retention:
    """What a recorder does about its oldest segments.

    Args:
        folder: the trace.
        num_blocks: of its pool.
        max_bytes: of all segments together.
        max_age_s: of their youngest row, seconds; the newest full segment and the one that is being written stay.

    Raises:
        UsageError: a limit is too small to keep anything.
    """

    def __init__(self, folder: Path, num_blocks: int, max_bytes: int | None, max_age_s: float | None) -> None:
        if max_bytes is not None and max_bytes < MIN_BYTES:
            raise UsageError(f"max_bytes is at least {MIN_BYTES}, got {max_bytes}")
        if max_age_s is not None and not max_age_s > 0:
            raise UsageError(f"max_age_s is more than 0, got {max_age_s}")
        self.max_bytes, self.max_age_ns = max_bytes, None if max_age_s is None else int(max_age_s * 1e9)
        self.segment_bytes = None if max_bytes is None else max_bytes // PARTS
        self.segment_ns = None if self.max_age_ns is None else max(self.max_age_ns // PARTS, 1)
        self._place = FolderPlace(folder)
        self._fold = BlockFold(num_blocks)
        self._kept: list[Kept] = []
        self._failed = False  # the oldest one could not be let go

    @property
    def segment_limits(self) -> tuple[int | None, int | None]:
        """(bytes, ns) at which a segment is full."""
        return self.segment_bytes, self.segment_ns

    def take_over(self) -> None:
        """Segments that writers before have left count as well, and what they let go stays known.

        A writer that was killed while it let one go has left the rows without their index: they go now.
        """
        (self._place.path / f"{BASE}.new").unlink(missing_ok=True)  # half written by one that was killed
        base, end = load_base(self._place), -1
        if base is not None:
            end, self._fold = base
        for name in segments_in(os.listdir(self._place.path)):
            batches = SegmentReader(self._place, name).poll()
            t_last, gone = 0, not self._kept and base is not None and not self._place.has(name + ".index")
            if batches:
                t_last, gone = batches[-1].t_last, batches[-1].first_seq + batches[-1].rows <= end
            if gone:
                self._remove(name)
            elif self._place.has(name + ".arrows"):
                self._kept.append(Kept(name, self._place.size(name + ".arrows"), t_last))

    def finished(self, segment: Kept, now_ns: int) -> None:
        """A segment is full: let the oldest ones go while there is too much."""
        self._kept.append(segment)
        self._failed = False
        self._let_go(now_ns)

    def aged(self, now_ns: int) -> None:
        """Time has passed: let go what is too old. (What failed is tried again when a segment is full.)"""
        if self.max_age_ns is not None and not self._failed:
            self._let_go(now_ns)

    def _let_go(self, now_ns: int) -> None:
        while len(self._kept) > 1 and self._too_much(now_ns):
            if not self._drop(self._kept[0]):
                self._failed = True
                return
            del self._kept[0]

    def _too_much(self, now_ns: int) -> bool:
        room = self.segment_bytes or 0  # for the one that is being written
        if self.max_bytes is not None and sum(kept.size for kept in self._kept) > self.max_bytes - room:
            return True
        return self.max_age_ns is not None and self._kept[0].t_last < now_ns - self.max_age_ns

    def _drop(self, segment: Kept) -> bool:
        fold = self._fold.copy()
        try:
            end = fold_segment(self._place, segment.name, fold)
            if end is not None and not save_keyframes(self._place.path / BASE, dump_base(end, fold)):
                return False
            self._remove(segment.name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the engine
            log.warning("trace: %s keeps its oldest segment: %s", self._place.path, error)
            return False
        self._fold = fold
        return True

    def _remove(self, name: str) -> None:
        for ending in (".index", ".arrows"):
            (self._place.path / (name + ending)).unlink(missing_ok=True)


def retention_of(folder: Path, num_blocks: int, max_bytes: int | None, max_age_s: float | None) -> Retention | None:
    """What keeps to these limits; None where there is none."""
    limited = max_bytes is not None or max_age_s is not None
    return Retention(folder, num_blocks, max_bytes, max_age_s) if limited else None


def fold_segment(place: Place, name: str, fold: BlockFold) -> int | None:
    """Fold in all rows of a segment; returns the seq after the last, None where it has none that can be read."""
    reader, end = SegmentReader(place, name), None
    for entry in reader.poll():
        message = reader.read(entry.offset, entry.length, entry.crc)
        columns = [column for column in FOLD_COLUMNS if column != "seq"]
        found = None if message is None else reader.decode_some(message, entry.offset, columns, entry.rows)
        if found is not None:
            end = entry.first_seq + entry.rows
            fold.apply({**found, "seq": np.arange(entry.first_seq, end)})
    return end


def dump_base(seq: int, fold: BlockFold) -> bytes:
    """The bytes of `base.bin`."""
    body = struct.pack("<q", seq) + fold.to_bytes()
    return _HEAD.pack(MAGIC, zlib.crc32(body)) + body


def load_base(place: Place) -> tuple[int, BlockFold] | None:
    """(seq, what all rows below it have made of the pool); None where there is none, or it is damaged."""
    try:
        return parse_base(place.read(BASE))
    except OSError:
        return None


def parse_base(data: bytes) -> tuple[int, BlockFold] | None:
    """What the bytes of `base.bin` say; None where they are damaged."""
    try:
        magic, crc = _HEAD.unpack_from(data)
        if magic != MAGIC or zlib.crc32(memoryview(data)[_HEAD.size :]) != crc:
            return None
        (seq,) = struct.unpack_from("<q", data, _HEAD.size)
        return seq, BlockFold.from_bytes(data[_HEAD.size + 8 :])
    except (struct.error, ValueError):
        return None
