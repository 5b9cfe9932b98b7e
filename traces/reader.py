"""Reading a trace folder: finished, still being written, or left behind by a killed process.

Whatever is whole is used. What is torn, flipped or missing becomes a gap in `seqs`, a pair in `gaps` and a line in
`warnings`; it never becomes a wrong event or an exception.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.traces.codec import DetailColumn
from kvscope.traces.fold import BlockFold
from kvscope.traces.folder import BASE
from kvscope.traces.frames import frame_of
from kvscope.traces.hot_tail import NO_TAIL
from kvscope.traces.loaded import Loaded
from kvscope.traces.losses import Losses, known_losses, not_closed, notes
from kvscope.traces.manifest import count_of, load_manifest
from kvscope.traces.ondemand import DetailsOnDemand, on_demand, read_only
from kvscope.traces.place import place_of
from kvscope.traces.row_layout import events_of
from kvscope.traces.schema import EVENT_DTYPE, EventArray, Kind
from kvscope.traces.sealed import Columns, SealedRows, Unreadable, holes
from kvscope.traces.seek import Seeker, first_past, rows_where
from kvscope.traces.segment import MAX_BATCH_ROWS
from kvscope.traces.sink import Details, Site
from kvscope.traces.tables import Names

SETTLED_ROWS = 1 << 20  # a trace up to this long is decoded whole when it is looked at


def open_trace(path: str | Path) -> TraceReader:
    """Open a trace for reading: a folder, or a packed file, which is read in place.

    Raises:
        TraceError: there is no trace, or one of an unknown version.
    """
    return TraceReader(path)


class TraceReader:
    """All that a trace holds, up to the last `refresh`.

    Rows are decoded when they are asked for: `columns` and `chunks` bring a few columns of some rows, `events` brings
    everything (48 bytes a row) and keeps it.

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
        self.sealed = self._sealed = SealedRows(self._place)
        self._hot, self._hot_notes = NO_TAIL, list[str]()
        self._tail: EventArray = np.empty(0, EVENT_DTYPE)  # rows that no segment holds yet
        self._tail_seqs: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._all_seqs: tuple[tuple[int, int, int], npt.NDArray[np.int64]] = (-1, 0, 0), self._tail_seqs
        self._names = Names(self._place)
        self._loaded = Loaded(self._sealed)
        self._missing: tuple[int, int, int] = (0, 0, 0)  # rows and batches taken out when last counted, and the count
        self._beside = DetailsOnDemand(self._sealed, self._loaded.details)
        self._seeker = Seeker(self._sealed, self._place, self.chunks)
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
    def rows(self) -> int:
        """How many rows there are."""
        self._settle()
        return self._sealed.rows + len(self._tail)

    @property
    def long(self) -> bool:
        """Whether there are more rows than are decoded whole as soon as anything is asked."""
        return self._sealed.rows > SETTLED_ROWS

    @property
    def folded(self) -> bool:
        """Whether the pool at an event is not to be had from the rows alone, or not from all of them: see `fold_at`."""
        return self.long or self._place.has(BASE)

    @property
    def missing(self) -> int:
        """Events that are known to be lost: in gaps, behind the end, or dropped by the writer."""
        rows, removed, marked = self._missing
        if (rows, removed) != (self.rows, self._sealed.removed):
            parts = self.chunks(("kind", "aux"))
            marked = sum(int(part["aux"][part["kind"] == Kind.GAP].clip(min=0).sum()) for part in parts)
            self._missing = (self.rows, self._sealed.removed, marked)
        return sum(hi - lo for lo, hi in self.gaps) + max(self.dropped, marked)

    @property
    def events(self) -> EventArray:
        """All rows, in seq order; read-only. Stays as it is when `refresh` finds more."""
        return read_only(self._load().events)

    @property
    def rows_on_demand(self) -> EventArray:
        """`events`; of a long trace an `EventsOnDemand` in their place, which decodes what is looked at."""
        if not self._undecoded:
            return self.events
        return cast("EventArray", on_demand(self.columns, self._sealed, self.rows))

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """The seq of each row; rising, and dense from 0 unless events are missing."""
        self._settle()
        state = (self._sealed.rows, self._sealed.removed, id(self._tail_seqs))
        if self._all_seqs[0] != state:
            every = self._sealed.seqs(0, self._sealed.rows)
            every = np.concatenate([every, self._tail_seqs]) if len(self._tail_seqs) else every
            self._all_seqs = state, read_only(every)
        return self._all_seqs[1]

    @property
    def sites(self) -> list[Site]:
        """Call sites; the `site` column indexes them."""
        self._settle()
        return self._names.sites

    @property
    def actors(self) -> list[str]:
        """Threads and streams; the `actor` column indexes them."""
        self._settle()
        return self._names.actors

    @property
    def facts(self) -> list[dict[str, Any]]:
        """The facts of the run, in the order they came."""
        return self._names.facts

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """[lo, hi) of seqs that are missing."""
        self._settle()
        gaps = self._sealed.gaps()
        seqs = np.concatenate([[self._sealed.end - 1], self._tail_seqs])
        gaps += [(int(seqs[i]) + 1, int(seqs[i + 1])) for i in np.flatnonzero(np.diff(seqs) > 1)]
        # The writer's own count: rows that are neither sealed any more nor in the hot tail.
        end = max(self._hot.counters.sealed, count_of(self.manifest, "events") if self.clean else 0)
        return [*gaps, (self._end, end)] if end > self._end else gaps

    @property
    def damaged_records(self) -> list[str]:
        """One line for each file of facts, names and details that has lost records on the disk."""
        return [] if self.live else self._names.damage()

    @property
    def warnings(self) -> list[str]:
        """One line for each thing that makes the trace less than complete.

        Of a long trace that has not been decoded yet: what the checksums tell, which is all but a writer's own fault.
        """
        self._settle()
        found = [*self._manifest_warnings, *self._hot_notes, *self._sealed.damage()]
        if not self.live:
            found += [f"{name}.arrows: the last index entry is torn" for name in self._sealed.torn()]
            found += self.damaged_records
            if not self.clean:
                found.append(not_closed(self.losses, self.manifest))
        found += holes(self.gaps, self.let_go)
        return found + notes(self.dropped, self.losses, self.clipped, live=self.live)

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of the row `seq`, None where it has none."""
        return self._beside.get(seq) if self._undecoded else self._load().details.get(seq)

    def details_of(self, kind: int) -> Details:
        """(seqs, values) of every row of a kind that has details, in seq order."""
        seqs, offsets, values = self.detail_arrays(kind)
        flat, ends = values.tolist(), offsets.tolist()
        return seqs, [tuple(flat[lo:hi]) for lo, hi in itertools.pairwise(ends)]

    def detail_arrays(self, kind: int) -> DetailColumn:
        """`details_of` without a Python object per row: (seqs, offsets, values)."""
        if self._undecoded:
            return self._beside.of_kind(kind, self.chunks(("seq", "kind"), rows=MAX_BATCH_ROWS))
        return self._load().details.of_kind(kind, self.seqs, self.events["kind"])

    def details_between(self, lo: int, hi: int) -> DetailColumn:
        """(seqs, offsets, values) of the details of all rows from seq `lo` to below `hi`, flat: for bulk readers."""
        return self._beside.between(lo, hi) if self._undecoded else self._load().details.between(lo, hi)

    def columns(self, names: Sequence[str], lo: int = 0, hi: int | None = None) -> Columns:
        """Columns of rows lo .. hi - 1 by name, `seq` among them if asked for; no others are decompressed.

        Raises:
            UsageError: there is no such column.
        """
        wanted = [name for name in names if name != "seq"]
        if unknown := set(wanted) - set(EVENT_DTYPE.names or ()):
            known = ", ".join(EVENT_DTYPE.names or ())
            raise UsageError(f"an event has no column {sorted(unknown)[0]!r}: it has seq, {known}")
        while True:
            sealed, end = self._sealed.rows, self._sealed.rows + len(self._tail)
            first, last = min(lo, end), end if hi is None else max(min(hi, end), min(lo, end))
            try:
                out = self._sealed.columns(wanted, min(first, sealed), min(last, sealed))
            except Unreadable:
                continue
            tail = slice(max(first - sealed, 0), max(last - sealed, 0))
            if tail.stop:
                out = {name: np.concatenate([out[name], self._tail[name][tail]]) for name in wanted}
            if "seq" in names:
                seqs = self._sealed.seqs(min(first, sealed), min(last, sealed))
                out["seq"] = np.concatenate([seqs, self._tail_seqs[tail]])
            return out

    def chunks(
        self, names: Sequence[str], lo: int = 0, hi: int | None = None, rows: int = 1 << 20
    ) -> Iterator[Columns]:
        """`columns` in runs of at most `rows` rows, one after the other: a trace of any length in little memory."""
        while True:
            part = self.columns(names, lo, lo + rows if hi is None else min(lo + rows, hi))
            count = len(next(iter(part.values()))) if part else 0
            if not count:
                return
            yield part
            lo += count

    def where(self, name: str, value: int, until: int | None = None) -> tuple[npt.NDArray[np.int64], EventArray]:
        """(seqs, rows) with that value in a column, of rows numbered at most `until`; the other columns of batches
        that have none are not read.
        """
        return rows_where(self, name, value, self.rows if until is None else self.row_of(until))

    def history(self, block: int, until: int | None = None) -> tuple[npt.NDArray[np.int64], EventArray]:
        """(seqs, rows) of everything that happened to a block."""
        return self.where("block", block, until)

    def frame(self, names: Sequence[str] = (), lo: int = 0, hi: int | None = None, *, library: str = "polars") -> Any:
        """Rows lo .. hi - 1 as a polars or pandas DataFrame: `seq` and the columns named, or all."""
        return frame_of(self.columns(("seq", *(names or EVENT_DTYPE.names or ())), lo, hi), library)

    def row_of(self, seq: int) -> int:
        """How many rows have a number of at most `seq`: its row is the one before, if it is there."""
        self._settle()
        row = self._sealed.row_of(seq + 1)
        return row + int(np.searchsorted(self._tail_seqs, seq, side="right")) if row == self._sealed.rows else row

    def row_at_time(self, t_ns: int) -> int:
        """How many rows are of `t_ns` (nanoseconds since the trace began) or earlier."""
        return first_past(self.columns, self.rows, "t_ns", t_ns)

    def row_at_step(self, step: int) -> int:
        """How many rows stand before the first one of a step after `step`."""
        return first_past(self.columns, self.rows, "step", step)

    def fold_at(self, seq: int) -> BlockFold:
        """What all rows with a number of at most `seq` have made of every block; from the keyframe before it."""
        return self._seeker.fold(lambda: self.row_of(seq), lambda: BlockFold(self.num_blocks), self.clean and self.long)

    def fold_before(self) -> BlockFold | None:
        """What events that the recorder let go have made of every block; None where this trace has its first one."""
        self._settle()
        return self._seeker.before_all()

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

    @property
    def _undecoded(self) -> bool:
        return self.long and not self._loaded.rows

    @property
    def _end(self) -> int:
        return int(self._tail_seqs[-1]) + 1 if len(self._tail_seqs) else self._sealed.end

    def _read_manifest(self) -> None:
        self.manifest, self.pool, self._manifest_warnings = load_manifest(self._place)

    def _read_all(self) -> None:
        """One look at each file. The manifest has been read before: if it says closed, the rest is complete."""
        # Hot rows first: one that is sealed meanwhile is then found in a segment, the other way round in neither.
        # Names last: they are written before the rows that use them.
        try:
            self._hot, self._hot_notes = self._place.hot()
        except OSError as error:
            self._hot, self._hot_notes = NO_TAIL, [f"hot tail cannot be read: {error.strerror or error}"]
        hot = self._hot
        self.live = hot.live and not self.clean  # a writer that has closed the trace may hold its lock a little longer
        self._sealed.poll(live=hot.live)
        if not self.live:
            self._sealed.rebuild(hot, self.manifest)
        fresh = hot.seqs >= self._sealed.end
        self._tail, self._tail_seqs = events_of(hot.rows[fresh]), hot.seqs[fresh]
        self._loaded.details.set_hot(hot.details, self._sealed.end)
        self._loaded.details.add_late(self._names.poll())
        self._names.need(self._tail)
        self.dropped = max(hot.counters.dropped, count_of(self.manifest, "dropped"))

    @property
    def clipped(self) -> int:
        """Rows with a value that was cut to its column's range."""
        return max(self._hot.counters.clipped, count_of(self.manifest, "clipped"))

    @property
    def losses(self) -> Losses:
        """Facts, details and names that the writer could not put on its disk."""
        return known_losses(self._hot.counters[3:], self.manifest)

    @property
    def let_go(self) -> int:
        """Events below this seq were dropped by the recorder's own limits."""
        return self._sealed.base.let_go

    def _settle(self) -> None:
        """Decode a short trace as soon as anything is asked of it, so that all its damage is known."""
        if not self.long:
            self._load()

    def _load(self) -> Loaded:
        self._loaded.update(self._tail, self._names)
        return self._loaded
