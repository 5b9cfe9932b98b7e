"""Index entries that are lost, made again from the framing of the Arrow stream itself.

An Arrow IPC stream is a row of encapsulated messages: u32 0xFFFFFFFF, i32 length of the metadata, a flatbuffer that
tells the kind and the length of the body, the body; its end is a message without metadata (Arrow's
docs/format/Columnar, "Encapsulated message format"). So a walk finds where batches lie and how many rows each has.

What it does not find is the number of the first row, which only the index has. Writers number without holes, so it
follows from the neighbours: a run of batches that fits exactly between the rows before it and those behind it has its
place. Where it does not fit, rows are numbered from the one side whose stream is unbroken up to them; else they are
left out: an event is never given a number that may be another's. Only for traces that have no writer: behind the last
entry of a growing segment lies what is being written.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvscope.traces.counted import counted
from kvscope.traces.folder import MANIFEST
from kvscope.traces.hot_tail import HotTail
from kvscope.traces.manifest import count_of
from kvscope.traces.place import Place
from kvscope.traces.retention import load_base
from kvscope.traces.segment import (
    BATCH_ENTRY,
    MAX_BATCH_ROWS,
    SCHEMA_ENTRY,
    IndexEntry,
    SegmentReader,
    segment_path,
)
from kvscope.traces.unpacked import head_of

MAX_METADATA_BYTES = 1 << 16  # of a message; ours have about 1 KiB
_FRAME = struct.Struct("<Ii")
_SCHEMA, _RECORD_BATCH = 1, 3  # of Arrow's union MessageHeader


class Lost(NamedTuple):
    """A batch that no entry names."""

    segment: SegmentReader
    offset: int
    length: int
    rows: int


Found = tuple[SegmentReader, IndexEntry]
Numbered = list[tuple[int, Lost]]  # (first_seq, batch)


def bounds(place: Place, hot: HotTail, manifest: Mapping[str, Any]) -> tuple[int | None, list[int]]:
    """(the seq with which the segments that are left begin, None for 0; those with which they may end, the likeliest
    first).
    """
    base = load_base(place)
    ends = [int(hot.seqs[0])] if len(hot.seqs) else []
    if hot.counters.sealed:
        ends.append(hot.counters.sealed)
    if not ends and manifest.get("clean") is True:
        ends.append(count_of(manifest, "events"))
    return base[0] if base is not None else None, ends


class Rebuilder:
    """Finds batches of a trace that its sidecars do not name; looks again only at what has changed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen: list[tuple[str, int, int]] = []
        self._events: dict[str, list[int]] = {}  # [events read, batches left out] of each segment that has lost entries

    def find(self, segments: Sequence[SegmentReader], hot: HotTail, manifest: Mapping[str, Any]) -> Iterator[Found]:
        """The entries that are lost, in seq order; each is found once. What was found is said in `rebuilt`.

        Args:
            segments: all of the trace, in order.
            hot: what its hot tail has. manifest: of the trace.
        """
        sizes = [_size(self._place, segment) for segment in segments]
        seen = [(s.name, size, len(s.known)) for s, size in zip(segments, sizes, strict=True)]
        if seen == self._seen:
            return
        first, ends = bounds(self._place, hot, manifest)
        at, before = first or 0, -1
        groups: list[list[Lost]] = [[]]  # batches that follow one another; between groups something is torn
        for segment, size in zip(segments, sizes, strict=True):
            number = int(segment.name[7:])
            if number != before + 1 and (before >= 0 or first is None):
                groups.append([])
            before = number
            for item in self._items(segment, size):
                if isinstance(item, Lost):
                    groups[-1].append(item)
                elif item is None:
                    groups.append([])
                else:
                    yield from self._placed(groups, at, [item.first_seq], joined=True)
                    at, groups = item.first_seq + item.rows, [[]]
        yield from self._placed(groups, at, ends, joined=False)
        self._seen = [(s.name, size, len(s.known)) for s, size in zip(segments, sizes, strict=True)]

    def _items(self, segment: SegmentReader, size: int) -> Iterator[Lost | IndexEntry | None]:
        """The batches of a segment as they lie: those with an entry, those without, None where something is torn."""
        at = 0
        for entry, _ in sorted(segment.known, key=lambda known: known[0].offset):
            yield from self._walk(segment, at, min(entry.offset, size), last=False)
            at = entry.offset + entry.length
            if entry.rows:
                yield entry
        yield from self._walk(segment, at, size, last=True)

    def _walk(self, segment: SegmentReader, at: int, end: int, last: bool) -> Iterator[Lost | None]:
        while at < end:
            try:
                frame = self._place.read(segment.file, at, min(_FRAME.size, end - at))
                mark, length = _FRAME.unpack(frame)
                if last and mark == 0xFFFFFFFF and not length:
                    return
                if mark != 0xFFFFFFFF or not 0 < length <= min(MAX_METADATA_BYTES, end - at - _FRAME.size):
                    raise ValueError("not a framed Arrow message")
                kind, body, rows = head_of(self._place.read(segment.file, at + _FRAME.size, length))
            except (OSError, struct.error, ValueError):
                yield None
                return
            whole = _FRAME.size + length + body
            if body < 0 or whole > end - at or (kind == _RECORD_BATCH and not 0 < rows <= MAX_BATCH_ROWS):
                yield None
                return
            if kind == _RECORD_BATCH:
                yield Lost(segment, at, whole, rows)
            elif kind == _SCHEMA and not at:
                self._take_schema(segment, whole)
            at += whole
        if last:
            yield None  # no end mark: more may have stood here

    def _take_schema(self, segment: SegmentReader, length: int) -> None:
        message = self._place.read(segment.file, 0, length)
        if not segment.has_schema:
            segment.adopt_schema(message)
        entry = IndexEntry(0, 0, 0, length, zlib.crc32(message), 0, 0)
        segment.known.append((entry, entry.to_bytes(SCHEMA_ENTRY)))

    def _placed(self, groups: list[list[Lost]], at: int, ends: Sequence[int], joined: bool) -> Iterator[Found]:
        numbered, left_out = place_batches(groups, at, ends, joined)
        touched = dict.fromkeys(batch.segment for batch in [lost for _, lost in numbered] + left_out)
        indexed = {segment: any(entry.rows for entry, _ in segment.known) for segment in touched}
        for first, lost in numbered:
            entry = _entry(lost, first)
            if entry is not None:
                lost.segment.known.append((entry, entry.to_bytes(BATCH_ENTRY)))
                self._events.setdefault(lost.segment.name, [0, 0])[0] += entry.rows
                yield lost.segment, entry
        for lost in left_out:
            self._events.setdefault(lost.segment.name, [0, 0])[1] += 1
        for segment in touched:
            events, batches = self._events.get(segment.name, (0, 0))
            said = [f"{counted(events, 'event was', 'events were')} read without their checksum"] if events else []
            if batches:
                many = counted(batches, "batch has", "batches have")
                said.append(f"{many} no certain number and {'is' if batches == 1 else 'are'} left out")
            how = "incomplete" if indexed[segment] else "lost"
            segment.rebuilt = f"{segment.name}.index is {how}: {', '.join(said)}" if said else ""


def place_batches(
    groups: Sequence[Sequence[Lost]], at: int, ends: Sequence[int], joined: bool
) -> tuple[Numbered, list[Lost]]:
    """Give a run of batches its numbers; returns also those that might have been given wrong ones.

    Batches beyond the end are in neither: somebody else has their rows.

    Args:
        groups: batches that follow one another; between two groups something is torn.
        at: the seq with which the run begins. ends: seqs with which it may end, the likeliest first.
        joined: rows that have a number follow at once; else segments behind the last one may be gone.
    """
    every = list(itertools.chain.from_iterable(groups))
    if not every or (ends and max(ends) <= at):
        return [], []
    fits = list(itertools.accumulate((lost.rows for lost in every), initial=at))
    if not groups[0] or any(groups[1:]):
        fits = fits[-1:]
    for end in ends:
        if end in fits:
            return _from(at, every, end), []
    if len(groups) == 1:  # where fewer rows are here than have room, it is not known where they belong
        return ([], every) if ends else (_from(at, every, None), [])
    behind = _until(ends[0], groups[-1], at) if joined else []
    ahead = _from(at, groups[0], min([first for first, _ in behind] + list(ends), default=None))
    placed = {id(lost) for lost in (*groups[0], *(lost for _, lost in behind))}
    return ahead + behind, [lost for lost in every if id(lost) not in placed]


def _from(at: int, batches: Sequence[Lost], end: int | None) -> Numbered:
    out: Numbered = []
    for lost in batches:
        if end is not None and at + lost.rows > end:
            break
        out.append((at, lost))
        at += lost.rows
    return out


def _until(end: int, batches: Sequence[Lost], least: int) -> Numbered:
    at = end - sum(lost.rows for lost in batches)
    return _from(at, batches, end) if at >= least else []


def _entry(lost: Lost, first_seq: int) -> IndexEntry | None:
    """The entry of a batch; None, and a line of damage, where it cannot be decoded."""
    segment, offset, length, rows = lost
    try:
        message = segment.bytes_at(offset, length)
    except OSError:
        return None
    times = segment.decode_some(message, offset, ["t_ns"], rows)
    if times is None:
        return None
    t_ns = times["t_ns"]
    return IndexEntry(first_seq, rows, offset, length, zlib.crc32(message), int(t_ns[0]), int(t_ns[-1]))


def _size(place: Place, segment: SegmentReader) -> int:
    try:
        return place.size(segment.file)
    except OSError:
        return 0


def write_indexes(folder: Path, segments: Sequence[SegmentReader]) -> None:
    """Replace the sidecars whose entries were made again, each in one step; for a writer that goes on with the trace.

    Raises:
        OSError: one cannot be written.
    """
    for segment in segments:
        if segment.rebuilt:
            path = segment_path(folder, int(segment.name[7:])).with_suffix(".index")
            beside = path.with_name(MANIFEST + ".new")  # a name that traces have: left behind, it does no harm
            beside.write_bytes(b"".join(raw for _, raw in sorted(segment.known, key=lambda known: known[0].offset)))
            os.replace(beside, path)
