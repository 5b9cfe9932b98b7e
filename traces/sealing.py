"""Rows out of the hot tail into segments, by batches, and what happens to rows that find no room.

Sealing goes in this order: seal (write the batch, then its index entry), clear (marks in the ring to 0), publish (the
slots may be used again). Killed in between, rows lie in both places and a reader drops the second; nothing lies in
none.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.codec import encode_batch
from kvscope.traces.files import AppendFile
from kvscope.traces.hot import HotWriter
from kvscope.traces.retention import Kept, Retention
from kvscope.traces.schema import Kind
from kvscope.traces.segment import SegmentWriter
from kvscope.traces.sheet import SheetWriter

log = logging.getLogger(__name__)

_PATIENCE = 2000  # half a second


class SealingWriter(SheetWriter):
    """A `SheetWriter` whose ring is the hot tail of a trace folder; a `Recorder` makes what it works with."""

    path: Path
    dropped: int
    _hot: HotWriter
    _marks: npt.NDArray[Any]
    _segments: SegmentWriter
    _retention: Retention | None
    _streams: list[AppendFile]
    _seal_rows: int
    _seal_after_s: float
    _inline: bool  # seal within the call that fills a batch, not in a thread

    def _begin_sealing(self, first: int) -> None:
        """Rows below `first` are in segments, and none from there on."""
        self._sealed = self._sealing = first
        self._retry_at = 0.0  # no sealing before this time (time.monotonic), after a failed write
        self._unmarked = 0  # dropped since the last GAP row
        self._closed = False
        self._seal_lock = threading.Lock()
        self._wake = threading.Event()

    def seal(self) -> bool:
        """Seal all rows so far, now; True when nothing is left in the hot tail."""
        while self._seal_batch():
            pass
        return self._sealed == self._next

    def _make_room(self, rows: int) -> bool:
        """Move the limit on, sealing where it must be; False when the rows had to be dropped."""
        if self._closed:
            return False
        for _ in range(_PATIENCE):
            full = self._next >= self._sealed + self._mask + 1
            progress = True
            if self._inline or full:
                progress = self._seal_batch()
            else:
                self._wake.set()
            if self._next < self._sealed + self._mask + 1:
                break
            if self._retry_at:  # the disk fails
                self._drop(rows)
                return False
            if not progress:
                time.sleep(0.0005)  # another thread is in the middle of writing the oldest rows
        else:
            self._drop(rows)
            return False
        lost, self._unmarked = self._unmarked, 0
        self._set_limit()
        if lost:
            self.emit(Kind.GAP, aux=lost)
        return True

    def _reserve(self, rows: int) -> bool:
        hard = self._sealed + self._mask + 1
        if self._inline or self._closed or self._unmarked or self._next + rows > hard:
            return False
        whole = self._next - self._sealed >= self._seal_rows  # a batch for the thread that seals; else next time
        if whole:
            self._wake.set()
        self._limit = 0 if self._closed else hard if whole else self._next + rows
        return self._limit > 0

    def _set_limit(self) -> None:
        """The next row that needs attention: the one that fills a batch, or, where that is past, the whole ring."""
        soft, hard = self._sealed + self._seal_rows, self._sealed + self._mask + 1
        if self._next >= soft:
            # Sealing is behind (the thread has been woken) or failing (inline then tries again a batch later).
            soft = min(hard, self._next + self._seal_rows) if self._inline else hard
        self._limit = soft
        # Asked last, for they may have come in between: `close`, and rows that were dropped. The row behind those is
        # a GAP row, wherever room was made meanwhile.
        if self._closed or self._unmarked:
            self._limit = 0

    def _drop(self, rows: int) -> None:
        self.dropped += rows
        self._unmarked += rows
        self._limit = 0
        self._publish()

    def _seal_batch(self) -> bool:
        """Seal the oldest rows, one batch at most; False when there are none or they could not be written."""
        with self._seal_lock:
            if self._retry_at and time.monotonic() < self._retry_at:
                return False
            first = self._sealed
            slot = first & self._mask
            count = min(self._next - first, self._seal_rows, self._mask + 1 - slot)
            written = self._marks[slot : slot + count] == np.arange(first + 1, first + 1 + count)
            if not written.all():
                count = int(np.argmin(written))
            if not count:
                return False
            last = first + count
            self._sealing = last
            rows = self._rows[slot : slot + count]
            try:
                self._segments.append(encode_batch(rows, self._hot.take_details(first, last)), first, rows)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the engine
                if not self._retry_at:
                    log.warning("trace: %s cannot be written, keeping what fits in the hot tail: %s", self.path, error)
                self._retry_at = time.monotonic() + self._seal_after_s
                return False
            self._retry_at = 0.0
            self._hot.clear(first, last, self._marks)
            self._sealed = last
            self._set_limit()
            self._publish()
            finished, self._segments.finished = self._segments.finished, []
            if self._retention is not None:
                for segment in finished:
                    self._retention.finished(Kept(*segment), self._clock() - self._clock_start)
            return True

    def _seal_last(self) -> bool:
        """Seal everything at the end, with the GAP row for drops that have none yet; False when rows are left."""
        for _ in range(_PATIENCE):
            if self.seal() or self._retry_at:
                break
            time.sleep(0.0005)
        if self._unmarked and self._next < self._sealed + self._mask + 1:
            lost, self._unmarked = self._unmarked, 0
            self._limit = self._next + 1
            self.emit(Kind.GAP, aux=lost)
            self._limit = 0
        return self.seal()

    def _seal_in_background(self) -> None:
        self._hot.warm(lambda: self._closed)
        while not self._closed:
            woken = self._wake.wait(self._seal_after_s)
            self._wake.clear()
            while (not woken or self._next - self._sealed >= self._seal_rows) and self._seal_batch():
                pass
            if not woken:
                for stream in self._streams:
                    stream.flush()
                if self._retention is not None:
                    with self._seal_lock:
                        self._retention.aged(self._clock() - self._clock_start)

    def _publish(self) -> None:
        """Tell readers how far sealing has come, and of what was lost."""
        raise NotImplementedError
