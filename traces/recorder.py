"""The writer of a trace folder: rows into the hot tail, the hot tail into segments, names and facts beside them.

What is promised: when `emit`, `emit_many`, `detail` or `fact` has returned, the process may be killed and a reader
will find the row. A disk that is full or fails costs events, which are counted and show as a GAP row; it never costs
the engine an exception or a wait.
"""

from __future__ import annotations

import atexit
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.traces.at_fork import silence_in_child
from kvscope.traces.codec import arrow_schema
from kvscope.traces.compiled import compile_details
from kvscope.traces.files import PWrite, dump_late, dump_line
from kvscope.traces.folder import HOT, MANIFEST, claim_folder, kept_folder
from kvscope.traces.hot import DETAIL_BYTES, DETAIL_PACK, DETAIL_VALUES, HEADER_BYTES, Counters, HotWriter
from kvscope.traces.losses import Losses, as_members, close_streams, losses_of
from kvscope.traces.manifest import finish_manifest, write_manifest
from kvscope.traces.origins import Level
from kvscope.traces.resume import Left, open_streams, take_over
from kvscope.traces.retention import retention_of
from kvscope.traces.schema import FORMAT_VERSION, Kind, to_signed
from kvscope.traces.sealing import SealingWriter
from kvscope.traces.segment import MAX_BATCH_ROWS, MAX_SEGMENT_BATCHES, SegmentWriter
from kvscope.traces.sink import PoolFacts, Site

log = logging.getLogger(__name__)

SEAL_AFTER_S = 0.25
HOT_ROWS = 4 * MAX_BATCH_ROWS


class Recorder(SealingWriter):
    """Records into a new trace folder; a context manager.

    Args:
        path: the folder, by custom `NAME.kvtrace`; made, with its parents.
        pool: the geometry of the pool that is recorded.
        engine: who writes, for people.
        record: "trace" (one frame per call site) or "sanitize" (stacks of up to 8).
        overwrite: replace a trace that is there. Nothing but a trace is ever replaced.
        resume: go on with a trace that is there and has no writer any more, in a new segment. A GAP row of no lost
            events marks the place: what the writer before knew of its pool, and made of its size, ends there. Its
            `meta` stays.
        sealing: "thread" seals in the background; "inline" within the call that fills a batch, and at no other time:
            deterministic.
        meta: more facts for the manifest (JSON).
        hot_rows: rows of the hot tail, a power of two; memory and disk of 128 bytes each.
        seal_rows: rows of a sealed batch, at most 16,384 and half of `hot_rows`.
        seal_after_s: in "thread", the age at which rows are sealed; in both, the pause after a failed write.
        clock, wall_clock: nanoseconds; for a trace that is the same each time it is made.
        pwrite: `os.pwrite`, or a stand-in for tests of a full disk.
        max_bytes: of the segments: beyond it the oldest go, an eighth of the whole at a time.
        max_age_s: of the segments' youngest rows: older ones go.

    Raises:
        TraceError: the folder is taken or cannot be made.
        UsageError: a size is out of its range.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        pool: PoolFacts,
        engine: str = "kvscope",
        record: Level = "trace",
        overwrite: bool = False,
        resume: bool = False,
        sealing: Literal["thread", "inline"] = "thread",
        meta: Mapping[str, Any] | None = None,
        hot_rows: int = HOT_ROWS,
        seal_rows: int = MAX_BATCH_ROWS,
        seal_after_s: float = SEAL_AFTER_S,
        clock: Callable[[], int] = time.monotonic_ns,
        wall_clock: Callable[[], int] = time.time_ns,
        pwrite: PWrite = os.pwrite,
        max_batches: int = MAX_SEGMENT_BATCHES,
        max_bytes: int | None = None,
        max_age_s: float | None = None,
    ) -> None:
        if hot_rows < 2 or hot_rows & (hot_rows - 1):
            raise UsageError(f"hot_rows is a power of two, got {hot_rows}")
        if not 0 < seal_rows <= min(MAX_BATCH_ROWS, hot_rows // 2):
            raise UsageError(f"seal_rows is 1 to {min(MAX_BATCH_ROWS, hot_rows // 2)}, got {seal_rows}")
        super().__init__(record, clock)
        self.path = Path(path)
        self._retention = retention_of(self.path, pool.num_blocks, max_bytes, max_age_s)
        self.pool = pool
        self.dropped = 0
        self._lost_before = Losses()  # of the writer before
        self._seal_rows = seal_rows
        self._seal_after_s = seal_after_s
        self._begin_sealing(0)
        self._owner = os.getpid()
        self._manifest: dict[str, Any] = {
            "format": "kvtrace",
            "version": list(FORMAT_VERSION),
            "pool": pool.to_json(),
            "engine": engine,
            "record": record,
            "clock": {"wall_ns": wall_clock(), "monotonic_ns": self._clock_start},
            "meta": dict(meta or {}),
            "clean": False,
            "events": None,
            "dropped": 0,
            "clipped": 0,
        }
        arrow_schema()  # pyarrow takes a while to import: now, not when the first batch is full
        limits = (None, None) if self._retention is None else self._retention.segment_limits
        resume = resume and (self.path / MANIFEST).exists()
        with kept_folder(self.path) if resume else claim_folder(self.path, overwrite):
            left = take_over(self.path, pool, pwrite) if resume else None
            if left is not None:
                self._continue(left)
                if self._retention is not None:
                    self._retention.take_over()
            write_manifest(self.path, self._manifest)
            self._hot = HotWriter(self.path / HOT, hot_rows)
            self._segments = SegmentWriter(self.path, pwrite, max_batches, *limits, first=left.segment if left else 0)
            self._streams = open_streams(self.path, pwrite, left is not None, self._publish)
        self._site_file, self._actor_file, self._fact_file, self._late_file = self._streams
        self._attach(self._hot.map, HEADER_BYTES, hot_rows)
        self._marks = self._rows["mark"]
        self._records = self._hot.details.data
        self._inline = sealing == "inline" or self._guarded
        self._set_limit()
        self._publish()
        if left is not None:
            self.fact({"type": "writer", "seq": self.emit(Kind.GAP, aux=-pool.num_blocks)})
        silence_in_child(self)
        atexit.register(self.close)
        self._thread: threading.Thread | None = None
        if not self._inline:
            self._thread = threading.Thread(target=self._seal_in_background, name="kvscope-sealer", daemon=True)
            self._thread.start()

    def _continue(self, left: Left) -> None:
        """Take up numbers, names and clock where the writer before has left them."""
        self._next = left.end
        self._begin_sealing(left.end)
        self.dropped, self.clipped, self._lost_before = left.dropped, left.clipped, left.losses
        self._clock_start -= left.passed_ns(self._manifest["clock"]["wall_ns"])
        self._t = self._clock() - self._clock_start
        self._manifest |= {name: left.manifest[name] for name in ("clock", "meta") if name in left.manifest}
        self._site_list, self._actor_list = left.sites, left.actors
        self._site_numbers = {site.frames: number for number, site in enumerate(left.sites) if number}
        self._actor_numbers = {name: number for number, name in enumerate(left.actors) if number}

    def detail(self, seq: int, values: Sequence[int]) -> None:
        """Attach int64 values to the row `seq`; a second call for the same row replaces them."""
        values = tuple(values)
        if not 0 <= seq < self._next or self._closed:
            return
        count = len(values)
        if count <= DETAIL_VALUES:
            at = self._hot.details_at + (seq & self._mask) * DETAIL_BYTES + (DETAIL_VALUES - count) * 8
            try:
                # Nothing that may switch threads lies between this test and the store: a row's details are in their
                # slot before its sealing begins, or they go to the late stream.
                if seq >= self._sealing:
                    DETAIL_PACK[count](self._hot.map, at, *values, (seq + 1) * 16 + count)
                    return
            except (struct.error, TypeError):
                pass
        self._late_file.append(dump_late(seq, [to_signed(int(value)) for value in values]))

    def _detail_rows(self, seq: int, slot: int, values: npt.NDArray[np.int64]) -> None:
        # Their rows are not committed: no sealing can have taken them.
        self._hot.put_details(seq, slot, values)

    def fact(self, record: Mapping[str, Any]) -> None:
        """Append one JSON object to the facts of the run; what JSON cannot hold is logged and left out."""
        if self._closed:
            return
        try:
            self._fact_file.append(dump_line(record))
        except (TypeError, ValueError, RecursionError) as error:
            log.warning("trace: a fact is no JSON object and was left out: %s", error)

    def close(self) -> None:
        """Seal what is left and mark the trace as cleanly closed; never raises, a second call does nothing."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._limit = 0
        atexit.unregister(self.close)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._wake.set()
            self._thread.join()
        self._retry_at = 0.0
        complete = self._seal_last()
        try:
            self._segments.close()
        except OSError as error:
            complete = False
            log.warning("trace: %s could not be completed: %s", self.path, error)
        complete = close_streams(self._streams) and complete
        self._publish()
        self._manifest.update(clean=complete, events=self._next, dropped=self.dropped, clipped=self.clipped)
        complete = finish_manifest(self.path, self._manifest | as_members(self.losses)) and complete
        self._hot.close(remove=complete)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def losses(self) -> Losses:
        """Facts, details and names that the disk has not taken, so far or for good."""
        return losses_of(self._streams, self._lost_before)

    def _publish(self) -> None:
        self._hot.count(Counters(self._sealed, self.dropped, self.clipped, *self.losses))

    def _store_site(self, number: int, site: Site) -> None:
        self._site_file.append(dump_line({"i": number, "frames": site.frames}))

    def _store_actor(self, number: int, name: str) -> None:
        self._actor_file.append(dump_line({"i": number, "name": name}))


compile_details(Recorder)
