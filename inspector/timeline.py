"""What each block is after each of its events, for all events at once: sorted by block, no loop over rows.

The rows of one block stand together, in time order. A value that only some rows set is carried forward within the
block; the difference to the block's row before is the row's *contribution*, and the running sum of contributions
in time order is the total over the pool at every event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvscope.inspector.lost import lost_moves
from kvscope.inspector.source import IntArray, TraceLike
from kvscope.inspector.state import block_rows
from kvscope.traces.fold import INDEX_EFFECT, PLACE_EFFECT
from kvscope.traces.schema import Kind


@dataclass(frozen=True)
class Timeline:
    """Per block row, in (block, time) order, the block's condition just after it."""

    rows: IntArray  # index of the row in the trace
    first: npt.NDArray[np.bool_]  # the block's first row
    length: int  # events in the trace
    entries: npt.NDArray[np.int32]  # counted as held by tables
    lost: npt.NDArray[np.int32]  # of those, by sequences that have ended
    leases: npt.NDArray[np.int32]
    fill: npt.NDArray[np.int32]
    published: npt.NDArray[np.bool_]
    quarantined: npt.NDArray[np.bool_]

    def total(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
        """The sum of `values` over all blocks, at every event of the trace; a block counts from its first row on,
        and from zero: only what it adds to the all-free pool.
        """
        now = values.astype(np.int32)
        before = np.empty_like(now)
        before[1:] = now[:-1]
        before[self.first] = 0
        change = np.bincount(self.rows, weights=now - before, minlength=self.length)
        return np.cumsum(change).astype(np.int32)

    @property
    def seen(self) -> npt.NDArray[np.int32]:
        """Blocks that have had a row, at every event."""
        return self.total(np.ones(len(self.rows), dtype=np.int32))


def timeline(trace: TraceLike, *, as_counted: bool = False) -> Timeline:
    """Sort the block rows of a trace by block and carry every condition forward.

    Args:
        as_counted: take references for what the pool counts them: none is lost.
    """
    events = trace.events
    rows = block_rows(events, trace.num_blocks)
    # A loss is a row of its own behind the others: it says nothing but that.
    lost = [] if as_counted else lost_moves(trace)
    moves = np.asarray([m for m in lost if 0 <= m.block < trace.num_blocks], np.int64).reshape(-1, 4)
    none = np.zeros(len(rows), np.int64)
    block, life, loss = (
        np.append(a, b) for a, b in zip((events["block"][rows], none - 1, none), moves.T[1:], strict=True)
    )
    rows = np.append(rows, moves[:, 0])
    order = np.lexsort((rows, block)) if len(moves) else np.argsort(block, kind="stable")
    rows, block, life, loss = rows[order], block[order], life[order], loss[order]
    kind = events["kind"][rows]
    gen = np.where(loss != 0, -1, events["gen"][rows].astype(np.int64))
    first = np.ones(len(rows), dtype=np.bool_)
    first[1:] = block[1:] != block[:-1]
    group = np.cumsum(first)

    # The current life is the greatest gen so far; rows of an older one (a stale handle) change nothing.
    newest = np.maximum.accumulate((group << 32) + np.maximum(gen, 0)) - (group << 32) if len(rows) else gen
    valid = gen >= newest
    new_life = first.copy()
    new_life[1:] |= newest[1:] != newest[:-1]

    carry = Carry(new_life)
    ref = carry(np.maximum(events["ref_after"][rows], 0), (events["ref_after"][rows] >= 0) & valid)
    leased = np.where(valid, (kind == Kind.LEASE).astype(np.int64) - (kind == Kind.UNLEASE), 0)
    unheld = (events["ref_before"][rows] == 0) & valid  # no lease can be left (its end may be among lost events)
    leases = np.clip(Carry(new_life | unheld).running(leased), 0, ref)
    gone = np.clip(Carry(new_life).running(np.where(life == newest, loss, 0)), 0, ref - leases)
    has_fill = (events["fill"][rows] >= 0) & (kind != Kind.ALLOC) & (kind != Kind.COPY_DONE)
    in_index, place = INDEX_EFFECT[kind], PLACE_EFFECT[kind]
    return Timeline(
        rows=rows, first=first, length=len(events),
        entries=(ref - leases).astype(np.int32), lost=gone.astype(np.int32), leases=leases.astype(np.int32),
        fill=carry(events["fill"][rows], has_fill & valid),
        published=carry(in_index, (in_index >= 0) & valid) == 1,
        quarantined=carry(place, (place >= 0) & valid) == 1,
    )  # fmt: skip


class Carry:
    """Carry values forward within each life of a block; every life starts from 0."""

    def __init__(self, starts: npt.NDArray[np.bool_]) -> None:
        self._index = np.arange(len(starts))
        self._start = np.maximum.accumulate(np.where(starts, self._index, 0)) if len(starts) else self._index

    def __call__(self, values: npt.NDArray[np.generic], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        source = np.maximum.accumulate(np.where(kept, self._index, -1)) if len(kept) else self._index
        out = values.astype(np.int32)[source] if len(kept) else values.astype(np.int32)
        out[source < self._start] = 0
        return out

    def running(self, moves: IntArray) -> IntArray:
        """Sum of `moves` since the start of the life."""
        total = np.cumsum(moves)
        return total - (total - moves)[self._start] if len(moves) else total
