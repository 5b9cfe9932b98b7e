"""Going on with a trace whose writer is gone: what it left in its hot tail is sealed, and a new segment begins.

Nothing that a segment holds is touched. The order is that of sealing (seal, then let the hot tail go), so a writer that
is killed while taking over leaves rows in both places, and a reader drops the second.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvscope.errors import TraceError
from kvscope.traces.codec import encode_batch
from kvscope.traces.files import AppendFile, PWrite, read_late, read_lines
from kvscope.traces.folder import ACTORS, FACTS, HOT, LATE, SITES, segments_in
from kvscope.traces.hot_tail import HotTail
from kvscope.traces.losses import Losses
from kvscope.traces.manifest import count_of
from kvscope.traces.place import FolderPlace
from kvscope.traces.reader import TraceReader
from kvscope.traces.rebuild import write_indexes
from kvscope.traces.segment import MAX_BATCH_ROWS, SegmentWriter
from kvscope.traces.sink import PoolFacts, Site


class Left(NamedTuple):
    """What the writer before has left."""

    manifest: dict[str, Any]
    end: int  # the next seq
    t_ns: int  # of its last row
    segment: int  # the number that the next segment gets
    sites: list[Site]
    actors: list[str]
    dropped: int
    clipped: int
    losses: Losses

    def passed_ns(self, wall_ns: int) -> int:
        """How long ago the trace began, by the wall clock; times never go back, whatever that clock says."""
        anchor = self.manifest.get("clock")
        began = anchor.get("wall_ns") if isinstance(anchor, dict) else None
        return max(wall_ns - began if type(began) is int else 0, self.t_ns)


def take_over(path: Path, pool: PoolFacts, pwrite: PWrite) -> Left:
    """Seal what lies in the hot tail of a trace that has no writer any more, and take the hot tail away.

    Raises:
        TraceError: there is no trace, it has a writer, it is of another pool, or it cannot be written.
    """
    trace = TraceReader(path)
    if trace.live:
        raise TraceError(f"cannot go on with {path}: it is being written right now")
    if trace.pool != pool:
        raise TraceError(f"cannot go on with {path}: it is of another pool ({trace.pool} there, {pool} here)")
    place = FolderPlace(path)
    tail, _ = place.hot()
    rows = trace.rows
    last = int(trace.columns(("seq",), rows - 1)["seq"][0]) if rows else -1
    end = max(last + 1, tail.counters.sealed, count_of(trace.manifest, "events") if trace.clean else 0)
    t_ns = int(trace.columns(("t_ns",), rows - 1)["t_ns"][0]) if rows else 0
    names = segments_in(os.listdir(path))
    number = int(names[-1][7:]) + 1 if names else 0
    try:
        write_indexes(path, list(trace.sealed.segments.values()))
        if _seal(path, trace, tail, number, pwrite):
            number += 1
        (path / HOT).unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"cannot go on with {path}: {error.strerror or error}") from error
    return Left(
        trace.manifest, end, t_ns, number, list(trace.sites), list(trace.actors), trace.dropped,
        trace.clipped, trace.losses,
    )  # fmt: skip


def _seal(path: Path, trace: TraceReader, tail: HotTail, number: int, pwrite: PWrite) -> bool:
    """Write the rows that only the hot tail has as a segment of their own; False where there are none."""
    fresh = tail.seqs >= trace.sealed.end
    seqs, rows = tail.seqs[fresh], tail.rows[fresh]
    if not len(seqs):
        return False
    writer = SegmentWriter(path, pwrite, first=number)
    cuts = [0, *(np.flatnonzero(np.diff(seqs) > 1) + 1).tolist(), len(seqs)]
    for start, stop in itertools.pairwise(cuts):
        for lo in range(start, stop, MAX_BATCH_ROWS):
            part = slice(lo, min(lo + MAX_BATCH_ROWS, stop))
            held = [(i, tail.details[seq]) for i, seq in enumerate(seqs[part].tolist()) if seq in tail.details]
            column = (
                np.asarray([i for i, _ in held], np.int64),
                np.cumsum([0, *(len(values) for _, values in held)]),
                np.asarray([value for _, values in held for value in values], np.int64),
            )
            writer.append(encode_batch(rows[part], column), int(seqs[lo]), rows[part])
    writer.close()
    return True


def open_streams(path: Path, pwrite: PWrite, resumed: bool, counted: Callable[[], None]) -> list[AppendFile]:
    """The files beside the events: new ones, or each from the end of its last whole record on."""
    place, streams = FolderPlace(path), []
    for name in (SITES, ACTORS, FACTS, LATE):
        used = None
        if resumed:
            data = place.read(name) if place.has(name) else b""
            used = read_late(data)[2] if name == LATE else read_lines(data)[2]
        streams.append(AppendFile(path / name, pwrite, at=used, counted=counted))
    return streams
