"""Reading a trace folder: finished, still being written, or left behind by a killed process.

Whatever is whole is used. What is torn, flipped or missing becomes a gap in `seqs`, a pair in `gaps` and a line in
`warnings`; it never becomes a wrong event or an exception.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.details import DetailStore
from kvscope.traces.folder import ACTORS, FACTS, LATE, SITES, segments_in
from kvscope.traces.hot import NO_TAIL, HotTail
from kvscope.traces.manifest import count_of, load_manifest
from kvscope.traces.place import place_of
from kvscope.traces.rows import events_of
from kvscope.traces.schema import EVENT_DTYPE, EventArray, Kind
from kvscope.traces.segment import DetailColumn, SegmentReader
from kvscope.traces.sink import UNKNOWN_SITE, Details, Site
from kvscope.traces.tables import LateFile, LineFile, put_actors, put_sites


def open_trace(path: str | Path) -> TraceReader:
    """Open a trace for reading: a folder, or a packed file, which is read in place.

    Raises:
        TraceError: there is no trace, or one of an unknown version.
    """
    return TraceReader(path)


class TraceReader:
    """All that a trace holds, up to the last `refresh`.

    Args:
        path: the folder, or the packed file.

    Raises:
        TraceError: there is no trace, or one of an unknown version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._place = place_of(self.path)
        self.manifest, self.pool, self._manifest_warnings = load_manifest(self._place)
        self.live = False  # its writer was alive at the last refresh
        self.dropped = 0  # events the writer had to drop
        self.gaps: list[tuple[int, int]] = []  # [lo, hi) of seqs that are missing
        self.warnings: list[str] = []  # one line for each thing that makes the trace less than complete
        self.sites: list[Site] = [UNKNOWN_SITE]  # indexed by the `site` column
        self.actors: list[str] = ["unknown"]  # indexed by the `actor` column
        self._segments: dict[str, SegmentReader] = {}
        self._details = DetailStore()
        self._sites_file = LineFile(self._place, SITES)
        self._actors_file = LineFile(self._place, ACTORS)
        self._facts_file = LineFile(self._place, FACTS)
        self._late_file = LateFile(self._place, LATE)
        self._store: EventArray = np.empty(0, EVENT_DTYPE)
        self._store_seqs: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._sealed_count = 0
        self._sealed_end = 0  # seq after the last sealed row
        self._sealed_gaps: list[tuple[int, int]] = []
        self._sites_needed = self._actors_needed = 1
        self._count = 0
        self._end = 0
        self.refresh()

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.pool.num_blocks

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return self.pool.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes per block over all layers; 0 where only accounted for."""
        return self.pool.block_bytes

    @property
    def clean(self) -> bool:
        """Whether the writer closed the trace properly."""
        return self.manifest.get("clean") is True

    @property
    def missing(self) -> int:
        """Events that are known to be lost: in gaps, behind the end, or dropped by the writer."""
        marked = int(self.events["aux"][self.events["kind"] == Kind.GAP].clip(min=0).sum())
        return sum(hi - lo for lo, hi in self.gaps) + max(self.dropped, marked)

    @property
    def events(self) -> EventArray:
        """All rows, in seq order; read-only. Stays as it is when `refresh` finds more."""
        return _read_only(self._store[: self._count])

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """The seq of each row; rising, and dense from 0 unless events are missing."""
        return _read_only(self._store_seqs[: self._count])

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts of the run, in the order they came."""
        return self._facts_file.records

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of the row `seq`, None where it has none."""
        return self._details.get(seq)

    def details_of(self, kind: int) -> Details:
        """(seqs, values) of every row of a kind that has details, in seq order."""
        seqs, offsets, values = self.detail_arrays(kind)
        flat, ends = values.tolist(), offsets.tolist()
        return seqs, [tuple(flat[lo:hi]) for lo, hi in itertools.pairwise(ends)]

    def detail_arrays(self, kind: int) -> DetailColumn:
        """`details_of` without a Python object per row: (seqs, offsets, values)."""
        return self._details.of(self.seqs[self.events["kind"] == kind])

    def details_between(self, lo: int, hi: int) -> DetailColumn:
        """(seqs, offsets, values) of the details of all rows from seq `lo` to below `hi`, flat: for bulk readers."""
        return self._details.between(lo, hi)

    def refresh(self) -> bool:
        """Read what was written since; True when there are new events. Needs no help from the writer."""
        before = self._end
        if not self.clean:
            self._read_manifest()
        self._read_all()
        if not self.live and not self.clean:
            self._read_manifest()
            if self.clean:  # it was closed while we read
                self._read_all()
        return self._end > before

    def _read_manifest(self) -> None:
        self.manifest, self.pool, self._manifest_warnings = load_manifest(self._place)

    def _read_all(self) -> None:
        """One look at each file. The manifest has been read before: if it says closed, the rest is complete."""
        # Hot rows first: one that is sealed meanwhile is then found in a segment, the other way round in neither.
        # Names last: they are written before the rows that use them.
        try:
            hot, notes = self._place.hot()
        except OSError as error:
            hot, notes = NO_TAIL, [f"hot tail cannot be read: {error.strerror or error}"]
        self.live = hot.live
        self._read_segments(len(hot.seqs))
        fresh = hot.seqs >= self._sealed_end
        tail = events_of(hot.rows[fresh])
        self._note_names(tail)
        self._put(self._sealed_count, tail, hot.seqs[fresh])
        self._count = self._sealed_count + len(tail)
        self._end = int(self._store_seqs[self._count - 1]) + 1 if self._count else 0
        self._details.set_hot(hot.details, self._sealed_end)
        self._details.add_late(self._late_file.poll())
        put_sites(self._sites_file.poll(), self.sites, self._sites_needed)
        put_actors(self._actors_file.poll(), self.actors, self._actors_needed)
        self._facts_file.poll()
        self._find_gaps(hot)
        self.dropped = max(hot.counters.dropped, count_of(self.manifest, "dropped"))
        self.warnings = [*self._manifest_warnings, *notes, *self._describe(hot)]

    def _read_segments(self, hot_rows: int) -> None:
        """Read the batches that were sealed since."""
        found = []
        for name in segments_in(self._place.names()):
            segment = self._segments.setdefault(name, SegmentReader(self._place, name))
            found += [(segment, *batch) for batch in segment.poll()]
        self._reserve(self._sealed_count + sum(rows for _, _, rows, *_ in found) + hot_rows)
        for segment, first_seq, rows, offset, length, crc in found:
            message = segment.read(offset, length, crc)
            skip = self._sealed_end - first_seq  # rows that an earlier batch has brought
            if message is None or skip >= rows:
                continue
            events = self._store[self._sealed_count : self._sealed_count + rows]
            details = segment.decode(message, offset, events)
            if details is None:
                continue
            if skip > 0:
                self._put(self._sealed_count, events[skip:].copy(), np.arange(first_seq + skip, first_seq + rows))
            else:
                self._store_seqs[self._sealed_count : self._sealed_count + rows] = np.arange(
                    first_seq, first_seq + rows
                )
                if skip < 0:
                    self._sealed_gaps.append((self._sealed_end, first_seq))
            self._note_names(events)
            self._details.add(first_seq, details)
            self._sealed_count += rows - max(skip, 0)
            self._sealed_end = first_seq + rows

    def _reserve(self, rows: int) -> None:
        """Room for that many rows. Views handed out keep the array they were taken from."""
        if rows > len(self._store):
            size = rows if not len(self._store) else rows + rows // 4
            store, seqs = np.empty(size, EVENT_DTYPE), np.empty(size, np.int64)
            store[: self._count], seqs[: self._count] = self._store[: self._count], self._store_seqs[: self._count]
            self._store, self._store_seqs = store, seqs

    def _put(self, at: int, events: EventArray, seqs: npt.NDArray[np.int64]) -> None:
        self._store[at : at + len(events)] = events
        self._store_seqs[at : at + len(events)] = seqs

    def _note_names(self, events: EventArray) -> None:
        if len(events):
            self._sites_needed = max(self._sites_needed, int(events["site"].max()) + 1)
            self._actors_needed = max(self._actors_needed, int(events["actor"].max()) + 1)

    def _find_gaps(self, hot: HotTail) -> None:
        seqs = self._store_seqs[max(self._sealed_count - 1, 0) : self._count]
        after = np.flatnonzero(np.diff(seqs) > 1)
        gaps = [(int(seqs[i]) + 1, int(seqs[i + 1])) for i in after]
        if not self._sealed_count and len(seqs) and seqs[0] > 0:
            gaps.insert(0, (0, int(seqs[0])))
        # The writer's own count: rows that are neither sealed any more nor in the hot tail.
        end = max(hot.counters.sealed, count_of(self.manifest, "events") if self.clean else 0)
        if end > self._end:
            gaps.append((self._end, end))
        self.gaps = [*self._sealed_gaps, *gaps]

    def _describe(self, hot: HotTail) -> list[str]:
        found = [line for segment in self._segments.values() for line in segment.damage]
        if not self.live:
            found += [
                f"{name}.arrows: the last index entry is torn" for name, part in self._segments.items() if part.torn
            ]
            files = (self._sites_file, self._actors_file, self._facts_file, self._late_file)
            found += [line for file in files for line in file.damage()]
            if not self.clean:
                found.append("the trace was not closed: its writer was stopped; all that it acknowledged is here")
        found += [f"events {lo} to {hi - 1} are missing ({hi - lo})" for lo, hi in self.gaps]
        if self.dropped:
            found.append(f"{self.dropped} events were dropped by the writer: it could not write to its disk")
        clipped = max(hot.counters.clipped, count_of(self.manifest, "clipped"))
        if clipped:
            found.append(f"{clipped} events hold a value cut to its column's range")
        return found


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
