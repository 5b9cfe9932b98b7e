"""The sealed rows of a trace as a list of batches: found by the index, checked when found, decoded when wanted.

Nothing but the index is held in memory, so a trace of any length opens at the cost of its checksums. Files are read,
not mapped: a map over a file that somebody truncates kills its reader (SIGBUS), and the columns must be decompressed
into memory of their own anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.base import Base
from kvscope.traces.codec import DetailColumn
from kvscope.traces.folder import segments_in
from kvscope.traces.hot_tail import HotTail
from kvscope.traces.place import Place
from kvscope.traces.rebuild import Rebuilder
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.segment import MOST_LINES, SegmentReader

Columns = dict[str, npt.NDArray[Any]]
_HELD = 32  # of the oldest segments: those that a recorder with limits takes away next
_LOOKS = 8


class Batch(NamedTuple):
    """Where a run of rows lies. `skip` leading rows of the message were brought by an earlier batch."""

    segment: SegmentReader
    first_seq: int
    rows: int
    skip: int
    offset: int
    length: int
    crc: int
    t_first: int
    t_last: int


class Unreadable(Exception):
    """A batch whose checksum is right cannot be decoded; it has been taken out of the list."""


class SealedRows:
    """Batches in seq order, without overlap. Row numbers count the rows that are there."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rebuilder = Rebuilder(place)
        self.base = Base(place)
        self.segments: dict[str, SegmentReader] = {}
        self.batches: list[Batch] = []
        self.starts = [0]  # the row that each batch begins with, and the end
        self.removed = 0  # how often batches were taken out, or put between others, after they had been listed
        self.end = 0  # seq after the last row

    @property
    def rows(self) -> int:
        """Rows in all batches."""
        return self.starts[-1]

    def poll(self, *, live: bool = False) -> None:
        """List the batches that were sealed since; what fails its checksum is left out, with a line of damage.

        What is listed and `base` are of one moment: of a `live` trace the oldest segments are held until the next
        call, so that a recorder with limits takes nothing away from under its reader.
        """
        for _ in range(_LOOKS if live else 1):
            self._list(live)
            self.base.look()  # after the segments: what it holds of those that are listed is told by their rows too
            if self.base.fits(self.end, empty=not self.batches):
                break
        else:
            self.base.refuse()
        self._let_go({name for name, end in self._ends().items() if end <= self.base.seq})
        self.end = max(self.end, self.base.seq)
        first = min(self.segments, default="events-0")  # with or without its index
        self.base.settle(self.batches[0].first_seq if self.batches else 0, int(first[7:]))

    def _ends(self) -> dict[str, int]:
        """The seq after the last row of each segment."""
        return {batch.segment.name: batch.first_seq + batch.rows for batch in self.batches}

    def _list(self, live: bool) -> None:
        there = segments_in(self._place.names())
        self._let_go(self.segments.keys() - set(there))
        for name in there[:_HELD] if live else ():
            self._place.keep(name + ".arrows")
        for name in there:
            segment = self.segments.setdefault(name, SegmentReader(self._place, name))
            for entry in segment.poll():
                skip = max(self.end - entry.first_seq, 0)
                if segment.read(entry.offset, entry.length, entry.crc) is None or skip >= entry.rows:
                    continue
                first, rows = entry.first_seq + skip, entry.rows - skip
                self.batches.append(Batch(segment, first, rows, skip, *entry[2:]))
                self.starts.append(self.rows + rows)
                self.end = first + rows

    def _let_go(self, names: Set[str]) -> None:
        """Segments that are not there any more: a recorder that keeps the newest events takes the oldest away."""
        for name in names:
            segment = self.segments.pop(name)
            self._place.leave(segment.file)
            kept = [batch for batch in self.batches if batch.segment is not segment]
            self.removed += len(self.batches) - len(kept)
            self.batches[:] = kept
        if names:
            self._count()

    def _count(self) -> None:
        self.starts = [0, *np.cumsum([batch.rows for batch in self.batches]).tolist()]

    def rebuild(self, hot: HotTail, manifest: Mapping[str, Any]) -> None:
        """List also the batches of a trace without a writer whose index entries are lost: see traces/rebuild.py."""
        for segment, entry in self._rebuilder.find(list(self.segments.values()), hot, manifest):
            at = bisect_right(self.batches, entry.first_seq, key=lambda batch: batch.first_seq)
            before, after = self.batches[at - 1] if at else None, self.batches[at : at + 1]
            if before is not None and before.first_seq + before.rows > entry.first_seq:
                continue
            if after and entry.first_seq + entry.rows > after[0].first_seq:
                continue
            self.batches.insert(at, Batch(segment, entry.first_seq, entry.rows, 0, *entry[2:]))
            if after:
                self.removed += 1
            self.end = max(self.end, entry.first_seq + entry.rows)
        if len(self.starts) != len(self.batches) + 1:
            self._count()

    def gaps(self) -> list[tuple[int, int]]:
        """[lo, hi) of the seqs up to `end` that no batch has."""
        found, at = [], 0
        for batch in self.batches:
            if batch.first_seq > at:
                found.append((at, batch.first_seq))
            at = batch.first_seq + batch.rows
        return [*found, (at, self.end)] if self.end > at else found

    def row_of(self, seq: int) -> int:
        """How many rows have a smaller seq."""
        at = bisect_right(self.batches, seq, key=lambda batch: batch.first_seq) - 1
        if at < 0:
            return 0
        return self.starts[at] + min(seq - self.batches[at].first_seq, self.batches[at].rows)

    def seqs(self, lo: int, hi: int) -> npt.NDArray[np.int64]:
        """The seqs of rows lo .. hi - 1."""
        if self.end == self.rows:  # none is missing
            return np.arange(lo, hi, dtype=np.int64)
        out = np.empty(hi - lo, np.int64)
        for batch, first, last, at in self._spans(lo, hi):
            seq = batch.first_seq + first
            out[at : at + last - first] = np.arange(seq, seq + last - first)
        return out

    def columns(self, names: Sequence[str], lo: int, hi: int) -> Columns:
        """Columns of rows lo .. hi - 1, by name.

        Raises:
            Unreadable: a batch was taken out; ask again.
        """
        out = {name: np.empty(hi - lo, EVENT_DTYPE[name]) for name in names}
        if not names:
            return out
        for batch, first, last, at in self._spans(lo, hi):
            found = self._decoded(batch, lambda message, batch=batch: self._parts(batch, message, names))
            for name in names:
                out[name][at : at + last - first] = found[name][batch.skip + first : batch.skip + last]
        return out

    def batch_events(self, number: int, into: EventArray) -> DetailColumn:
        """Fill `into` with the rows of a batch; returns the details of the whole message (`skip` rows included).

        Raises:
            Unreadable: it was taken out of the list.
        """
        batch = self.batches[number]
        whole = into if not batch.skip else np.empty(batch.rows + batch.skip, EVENT_DTYPE)
        details: DetailColumn = self._decoded(batch, lambda message: batch.segment.decode(message, batch.offset, whole))
        if batch.skip:
            into[:] = whole[batch.skip :]
        return details

    def details(self, number: int) -> DetailColumn:
        """(seqs, offsets, values) of the details of a batch.

        Raises:
            Unreadable: it was taken out of the list.
        """
        batch = self.batches[number]
        rows = batch.rows + batch.skip
        at, offsets, values = self._decoded(batch, lambda m: batch.segment.decode_details(m, batch.offset, rows))
        first = int(np.searchsorted(at, batch.skip))
        return at[first:] + (batch.first_seq - batch.skip), offsets[first:], values

    def batch_of(self, row: int) -> int:
        """The number of the batch that holds a row."""
        return bisect_right(self.starts, row) - 1

    def damage(self) -> list[str]:
        """One line for each thing found wrong."""
        return [*self.base.damage, *(line for segment in self.segments.values() for line in segment.damage)]

    def torn(self) -> list[str]:
        """Segments whose index ends within an entry."""
        return [name for name, segment in self.segments.items() if segment.torn]

    def _spans(self, lo: int, hi: int) -> Iterator[tuple[Batch, int, int, int]]:
        """(batch, first and last row of it, where they belong) for rows lo .. hi - 1."""
        at = bisect_right(self.starts, lo) - 1
        while at < len(self.batches) and self.starts[at] < hi:
            start = self.starts[at]
            first, last = max(lo - start, 0), min(hi - start, self.batches[at].rows)
            yield self.batches[at], first, last, start + first - lo
            at += 1

    def _parts(self, batch: Batch, message: bytes, names: Sequence[str]) -> Columns | None:
        return batch.segment.decode_some(message, batch.offset, names, batch.rows + batch.skip)

    def _decoded(self, batch: Batch, decode: Any) -> Any:
        message = batch.segment.read(batch.offset, batch.length, batch.crc)
        found = None if message is None else decode(message)
        if found is None:
            if batch.segment.name not in segments_in(self._place.names()):
                self._let_go({batch.segment.name})
            else:
                self.batches.remove(batch)
                self.removed += 1
                self._count()
            raise Unreadable
        return found


def holes(gaps: list[tuple[int, int]], let_go: int) -> list[str]:
    """Which events are not there, for people: a line for each run of them, or one for all where there are many.

    Args:
        gaps: [lo, hi) of the seqs that are missing, in order. let_go: those below it went by the recorder's own limits.
    """
    found = []
    if gaps and gaps[0][0] == 0 and let_go >= gaps[0][1]:
        (_, hi), *gaps = gaps
        found.append(f"events 0 to {hi - 1} were let go: the recorder keeps the newest ({hi})")
    if len(gaps) > MOST_LINES:
        lost = sum(hi - lo for lo, hi in gaps)
        return [*found, f"{lost} of the events {gaps[0][0]} to {gaps[-1][1] - 1} are missing, in {len(gaps)} places"]
    return found + [f"events {lo} to {hi - 1} are missing ({hi - lo})" for lo, hi in gaps]
