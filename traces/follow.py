"""A growing trace as those follow it who want each row once: nothing is held but where its batches lie.

A `TraceReader` keeps what it decodes, which is right for somebody who looks around in a trace. A server that tells
others about its own trace for weeks must not: here rows are read when they are asked for, and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.codec import DetailColumn
from kvscope.traces.fold import BlockFold
from kvscope.traces.folder import LATE
from kvscope.traces.hot_tail import NO_TAIL
from kvscope.traces.manifest import count_of, load_manifest
from kvscope.traces.place import place_of
from kvscope.traces.row_layout import events_of
from kvscope.traces.schema import DETAIL_FIELDS, EVENT_DTYPE, EventArray
from kvscope.traces.sealed import SealedRows, Unreadable
from kvscope.traces.tables import LateFile

_LATE_KEPT = 1 << 14


class Part(NamedTuple):
    """A run of rows. `details` are (positions among these rows, offsets, values)."""

    seqs: npt.NDArray[np.int64]
    events: EventArray
    details: DetailColumn


class Follower:
    """Rows of a trace by number, as far as it has grown; in memory there is never more than one batch of them.

    Args:
        path: the folder.

    Raises:
        TraceError: there is no trace, or one of an unknown version.
    """

    def __init__(self, path: str | Path) -> None:
        self._place = place_of(path)
        self.manifest, self.pool, _ = load_manifest(self._place)
        self.dropped = 0  # events the writer had to drop
        self._sealed = SealedRows(self._place)
        self._late_file, self._late = LateFile(self._place, LATE), dict[int, tuple[int, ...]]()
        self._hot = NO_TAIL
        self.refresh()

    @property
    def live(self) -> bool:
        """Whether its writer was alive at the last refresh."""
        return self._hot.live

    @property
    def first(self) -> int:
        """The lowest seq that is there; `end` where there is none."""
        if self._sealed.batches:
            return self._sealed.batches[0].first_seq
        return int(self._hot.seqs[0]) if len(self._hot.seqs) else self.end

    @property
    def end(self) -> int:
        """The seq after the last row, as of the last refresh."""
        tail = int(self._hot.seqs[-1]) + 1 if len(self._hot.seqs) else 0
        return max(tail, self._sealed.end)

    @property
    def let_go(self) -> int:
        """Events below this seq went by the recorder's own limits, as of the last refresh."""
        return min(self._sealed.base.let_go, self.first)

    @property
    def base(self) -> BlockFold | None:
        """What the events that were let go had made of the pool; None where none were, or it is not known."""
        fold = self._sealed.base.fold
        return None if fold is None else fold.copy()

    @property
    def missing(self) -> int:
        """Events that are known to be lost, as of the last refresh: those that the recorder let go are not."""
        end = max(self.end, self._hot.counters.sealed, count_of(self.manifest, "events") if not self.live else 0)
        return end - self.let_go - self._sealed.rows - int((self._hot.seqs >= self._sealed.end).sum())

    def refresh(self) -> None:
        """See what was written since. A row that is sealed meanwhile is found in a segment, not in neither."""
        self._hot, _ = self._place.hot()
        self._sealed.poll(live=self._hot.live)
        self._late.update(self._late_file.poll())
        for seq in list(self._late)[: len(self._late) - _LATE_KEPT]:  # the oldest go; the reader of a file has all
            del self._late[seq]
        self.dropped = max(self.dropped, self._hot.counters.dropped)

    def rows(self, from_seq: int = 0, limit: int | None = None) -> Iterator[Part]:
        """The rows numbered `from_seq` on in seq order, `limit` of them at most, batch by batch."""
        left = limit if limit is not None else 1 << 62
        number = self._batch_of(from_seq)
        while left > 0 and number < len(self._sealed.batches):
            batch = self._sealed.batches[number]
            events = np.empty(batch.rows, EVENT_DTYPE)
            try:
                details = self._sealed.batch_events(number, events)
            except Unreadable:
                continue  # it is out of the list
            seqs = np.arange(batch.first_seq, batch.first_seq + batch.rows, dtype=np.int64)
            if batch.skip:
                details = _cut(details, batch.skip, batch.skip + batch.rows)
            yield from self._picked(Part(seqs, events, details), from_seq, left)
            left -= min(left, batch.first_seq + batch.rows - max(from_seq, batch.first_seq))
            number += 1
        fresh = self._hot.seqs >= max(self._sealed.end, from_seq)
        fresh[len(fresh) - self._unfinished() :] = False
        if left > 0 and fresh.any():
            seqs = self._hot.seqs[fresh]
            found = [self._hot.details.get(seq) for seq in seqs.tolist()]
            yield from self._picked(Part(seqs, events_of(self._hot.rows[fresh]), column_of(found)), from_seq, left)

    def _unfinished(self) -> int:
        """1 where the newest row has no details yet and may be about to get them: they follow their row, and come
        before the next one.
        """
        hot = self._hot
        if not hot.live or not len(hot.seqs) or int(hot.seqs[-1]) in hot.details:
            return 0
        return int(int(hot.rows["kind"][-1]) in DETAIL_FIELDS)

    def _batch_of(self, seq: int) -> int:
        """The first batch with a row of that number or a higher one."""
        ends = [batch.first_seq + batch.rows for batch in self._sealed.batches]
        return int(np.searchsorted(ends, seq, side="right"))

    def _picked(self, part: Part, from_seq: int, limit: int) -> Iterator[Part]:
        """What of a part is numbered `from_seq` on, with the details that came late."""
        lo = int(np.searchsorted(part.seqs, from_seq))
        hi = min(len(part.seqs), lo + limit)
        if lo >= hi:
            return
        seqs, details = part.seqs[lo:hi], _cut(part.details, lo, hi)
        late = {seq: self._late[seq] for seq in seqs.tolist() if seq in self._late} if self._late else {}
        if late:
            found: list[tuple[int, ...] | None] = [None] * len(seqs)
            positions, offsets, values = details
            for i, at in enumerate(positions.tolist()):
                found[at] = tuple(values[offsets[i] : offsets[i + 1]].tolist())
            for seq, given in late.items():
                found[int(np.searchsorted(seqs, seq))] = given
            details = column_of(found)
        yield Part(seqs, part.events[lo:hi], details)


def column_of(found: list[tuple[int, ...] | None]) -> DetailColumn:
    """Details row by row as a column; None where a row has none."""
    positions = [at for at, values in enumerate(found) if values is not None]
    flat = [value for values in found if values is not None for value in values]
    lengths = [len(found[at] or ()) for at in positions]
    return np.asarray(positions, np.int64), np.cumsum([0, *lengths], dtype=np.int64), np.asarray(flat, np.int64)


def _cut(details: DetailColumn, lo: int, hi: int) -> DetailColumn:
    """The details of rows lo .. hi - 1, counted from lo."""
    positions, offsets, values = details
    a, b = np.searchsorted(positions, (lo, hi)).tolist()
    return positions[a:b] - lo, offsets[a : b + 1] - offsets[a], values[offsets[a] : offsets[b]]
