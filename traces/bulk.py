"""A trace folder written from rows that are known already (an import, a generated trace): sealed at once, no hot tail.

Unlike a `Recorder` it takes every column as it is, seqs with holes included, and it raises when the disk fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError, UsageError
from kvscope.traces.codec import NO_DETAILS, DetailColumn, encode_batch
from kvscope.traces.files import AppendFile, dump_late, dump_line
from kvscope.traces.fold import BlockFold
from kvscope.traces.folder import ACTORS, BASE, FACTS, LATE, SITES, claim_folder
from kvscope.traces.hot import DETAIL_VALUES
from kvscope.traces.manifest import write_manifest
from kvscope.traces.retention import dump_base
from kvscope.traces.schema import EVENT_DTYPE, FORMAT_VERSION, EventArray
from kvscope.traces.segment import MAX_BATCH_ROWS, SegmentWriter
from kvscope.traces.sink import Frame, PoolFacts


class BulkWriter:
    """Writes a new trace folder batch by batch; a context manager, and complete only once `close` has returned.

    Args:
        path: the folder; made, with its parents.
        pool: the geometry of the pool.
        manifest: further members of the manifest (engine, record, clock, meta, events, dropped, clipped, lost, clean).
        overwrite: replace a trace that is there.

    Raises:
        TraceError: the folder is taken or cannot be made.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        pool: PoolFacts,
        manifest: Mapping[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        self._next = 0
        self._manifest: dict[str, Any] = {
            "format": "kvtrace", "version": list(FORMAT_VERSION), "pool": pool.to_json(), "engine": "kvscope",
            "record": "trace", "clock": {"wall_ns": 0, "monotonic_ns": 0}, "meta": {}, "clean": True, "events": None,
            "dropped": 0, "clipped": 0, **(manifest or {}),
        }  # fmt: skip
        with claim_folder(self.path, overwrite):
            write_manifest(self.path, self._manifest | {"clean": False, "events": None})
            self._segments = SegmentWriter(self.path)
            self._streams = [AppendFile(self.path / name) for name in (SITES, ACTORS, FACTS, LATE)]
        self._site_file, self._actor_file, self._fact_file, self._late_file = self._streams

    def rows(self, seqs: npt.NDArray[np.int64], events: EventArray, details: DetailColumn = NO_DETAILS) -> None:
        """Append rows and the details among them.

        Args:
            seqs: rising, above all earlier ones.
            events: EVENT_DTYPE, one for each seq.
            details: (positions in `events`, offsets into values, values).

        Raises:
            UsageError: the seqs do not rise.
            OSError: the disk is full or fails.
        """
        if not len(seqs):
            return
        if int(seqs[0]) < self._next or (np.diff(seqs) < 1).any():
            raise UsageError(f"rows come in rising order: after seq {self._next - 1} came {int(seqs[0])} to {seqs[-1]}")
        positions, offsets, values = details
        ends = [*(np.flatnonzero(np.diff(seqs) > 1) + 1).tolist(), len(seqs)]  # a batch has no holes
        lo = 0
        for end in ends:
            while lo < end:
                hi = min(end, lo + MAX_BATCH_ROWS)
                a, b = np.searchsorted(positions, (lo, hi)).tolist()
                part = (positions[a:b] - lo, offsets[a : b + 1] - offsets[a], values[offsets[a] : offsets[b]])
                part = self._without_long(part, seqs[lo:hi])
                self._segments.append(encode_batch(events[lo:hi], part), int(seqs[lo]), events[lo:hi])
                lo = hi
        self._next = int(seqs[-1]) + 1

    def _without_long(self, details: DetailColumn, seqs: npt.NDArray[np.int64]) -> DetailColumn:
        """Details of more than 8 values go to the late stream, as a recorder's do: a batch stays small."""
        positions, offsets, values = details
        lengths = np.diff(offsets)
        long = lengths > DETAIL_VALUES
        if not long.any():
            return details
        for i in np.flatnonzero(long).tolist():
            held = values[offsets[i] : offsets[i + 1]].tolist()
            self._late_file.write(dump_late(int(seqs[positions[i]]), held))
        kept = np.append(0, np.cumsum(lengths[~long]))
        return positions[~long], kept, values[np.repeat(~long, lengths)]

    def site(self, number: int, frames: Iterable[Frame]) -> None:
        """Name a call site."""
        self._site_file.write(dump_line({"i": number, "frames": list(frames)}))

    def actor(self, number: int, name: str) -> None:
        """Name a thread or stream."""
        self._actor_file.write(dump_line({"i": number, "name": name}))

    def fact(self, record: Mapping[str, Any]) -> None:
        """Append a fact of the run."""
        self._fact_file.write(dump_line(record))

    def base(self, seq: int, fold: BlockFold) -> None:
        """Say what events below `seq`, which are not here, have made of the pool."""
        (self.path / BASE).write_bytes(dump_base(seq, fold))

    def note(self, **members: Any) -> None:
        """Change members of the manifest now (`dropped`); the trace goes on.

        Raises:
            OSError: the disk is full or fails.
        """
        self._manifest |= members
        write_manifest(self.path, self._manifest | {"clean": False, "events": None})

    def leave(self) -> None:
        """Close the files and nothing more: the trace counts as not closed, as when its writer was stopped."""
        for stream in self._streams:
            stream.close()
        self._segments.leave()

    def close(self) -> None:
        """Complete the folder; without it the trace counts as not closed.

        Raises:
            TraceError: the disk is full or fails.
        """
        try:
            self._segments.close()
            # (one that was not closed does not say how many events it has, and neither does what is made of it)
            unsaid = self._manifest["events"] is None and self._manifest["clean"] is True
            counted = {"events": self._next} if unsaid else {}
            write_manifest(self.path, self._manifest | counted)
        except OSError as error:
            raise TraceError(f"cannot write {self.path}: {error.strerror or error}") from error
        finally:
            for stream in self._streams:
                stream.close()

    def __enter__(self) -> BulkWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            for stream in self._streams:
                stream.close()


def empty_events(count: int) -> EventArray:
    """Rows in which nothing applies yet: -1 in signed columns, 0 in the others and in t_ns and aux."""
    events = np.zeros(count, EVENT_DTYPE)
    for name in EVENT_DTYPE.names or ():
        if EVENT_DTYPE[name].kind == "i" and name not in ("t_ns", "aux"):
            events[name] = -1
    return events
