"""Which steps read slots of a block that hold another write than the reader counts on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from kvscope.inspector.landing import Issued, OpenStep, Order
from kvscope.inspector.source import TraceLike, named_detail
from kvscope.traces.schema import Kind, unpack_range

_ENTERS = (Kind.ALLOC, Kind.SHARE, Kind.HIT)
_BEGINS = (Kind.FORK, Kind.ADMIT, Kind.RESUME)
_ENDS = (Kind.FINISH, Kind.ABORT, Kind.PREEMPT)
_OF_SEQUENCE = (*_BEGINS, *_ENDS, Kind.TRUNCATE, Kind.SCHED)
_OF_STEP = (Kind.STEP_BEGIN, Kind.STEP_END)

Slots = dict[int, int]  # slot -> row of what filled it


class _Read(NamedTuple):
    row: int  # of the SCHED event
    lo: int  # slots of the block
    hi: int
    counts_on: Slots
    writes: list[Issued]


def foreign_reads(trace: TraceLike, block: int, slot_lo: int, slot_hi: int) -> dict[int, tuple[int, int]]:
    """SCHED row -> [lo, hi) of the slots whose last landed write is not the one that the reading sequence counts on.

    A sequence counts on its own last write of a slot; for slots that it got by a fork, on the one its parent counted
    on then, and for slots of a prefix hit on what was published. What lands when is told in landing.py.

    Args:
        slot_lo, slot_hi: the slots to look at.
    """
    return _Block(trace, block, slot_lo, slot_hi).play()


class _Block:
    """The slots of one block, and what its holders count on there."""

    def __init__(self, trace: TraceLike, block: int, slot_lo: int, slot_hi: int) -> None:
        self.trace, self.block, self.lo, self.hi = trace, block, slot_lo, slot_hi
        self.events = trace.events
        self.order = Order[_Read](trace)
        self.landed: Slots = {}
        self.published: Slots | None = None
        self.counts_on: dict[int, Slots] = {}  # by sequence
        self.place: dict[int, int] = {}  # sequence -> logical block that it has the block at
        self.parent: dict[int, int] = {}
        self.found: dict[int, tuple[int, int]] = {}

    def play(self) -> dict[int, tuple[int, int]]:
        events, kinds = self.events, self.events["kind"]
        here = events["block"] == self.block
        seq_ids = np.unique(events["seq_id"][here & np.isin(kinds, (*_ENTERS, Kind.WRITE))])
        about = np.isin(kinds, _OF_SEQUENCE) & np.isin(events["seq_id"], seq_ids)
        copied = (kinds == Kind.COW) & (events["aux"] == self.block)
        for row in np.flatnonzero(here | about | copied | np.isin(kinds, _OF_STEP)).tolist():
            self._row(row)
        self._settle(self.order.rest())
        return self.found

    def _row(self, row: int) -> None:
        event, order = self.events[row], self.order
        kind, seq_id, lblock, aux = (int(event[name]) for name in ("kind", "seq_id", "lblock", "aux"))
        life = int(event["block"]), int(event["gen"])
        if kind in _ENTERS:
            self._enter(kind, seq_id, lblock)
        elif kind in _BEGINS or kind in _ENDS:
            order.end(seq_id)
            if kind == Kind.FORK:
                self.parent[seq_id] = aux
        elif kind == Kind.TRUNCATE:
            order.cut(seq_id, aux)
        elif kind == Kind.PUBLISH:
            self.published = dict(self.counts_on.get(seq_id, self.landed))
        elif kind == Kind.WRITE:
            order.write(seq_id, Issued(row, self.block, lblock, *unpack_range(aux)))
            self._count_on(seq_id, row)
        elif kind == Kind.COW:
            order.copy(row, life, seq_id, lblock, aux)
            if life[0] == self.block:
                self._count_on(seq_id, row)
        elif kind == Kind.COPY_DONE:
            self._land(order.copied(life, int(event["fill"])))
        elif kind == Kind.SWAP_IN:
            self._count_on(seq_id, row)
            lease = named_detail(self.trace, int(self.trace.seqs[row]), Kind.SWAP_IN).get("lease", -1)
            if not order.move(row, lease, self.block):
                self._land(row)
        elif kind == Kind.UNLEASE:
            self._land(order.moved(aux, self.block))
        elif kind == Kind.STEP_BEGIN:
            self._settle(order.begin(int(event["step"])))
        elif kind == Kind.SCHED:
            self._sched(row, seq_id, aux)
        elif kind == Kind.STEP_END:
            self._settle(order.ended(int(event["step"])))

    def _enter(self, kind: int, seq_id: int, lblock: int) -> None:
        self.place[seq_id] = lblock
        if kind == Kind.ALLOC:
            self.counts_on[seq_id], self.published = {}, None
        elif kind == Kind.SHARE:
            self.counts_on[seq_id] = dict(self.counts_on.get(self.parent.get(seq_id, -1), self.landed))
        else:
            self.counts_on[seq_id] = dict(self.landed if self.published is None else self.published)

    def _sched(self, row: int, seq_id: int, aux: int) -> None:
        writes, lo, hi = self.order.take(seq_id), 0, 0
        if seq_id in self.place:
            first = self.place[seq_id] * self.trace.block_size
            lo, hi = (at - first for at in unpack_range(aux))
        own = dict(self.counts_on.get(seq_id, {}))
        self.order.note(int(self.events["step"][row]), _Read(row, lo, hi, own, writes))

    def _settle(self, steps: Iterable[OpenStep[_Read]]) -> None:
        for step in steps:
            for row in step.copies:
                self._land(row)
            for write in [*(write for read in step.reads for write in read.writes), *step.strays]:
                if write.block == self.block:
                    self.landed |= dict.fromkeys(self._within(write.lo, write.hi), write.row)
            for read in step.reads:
                slots = self._within(read.lo, read.hi)
                wrong = [slot for slot in slots if self.landed.get(slot) != read.counts_on.get(slot)]
                if wrong:
                    self.found[read.row] = (wrong[0], wrong[-1] + 1)
            for row in step.behind:
                self._land(row)

    def _within(self, lo: int, hi: int) -> range:
        return range(max(lo, self.lo), min(hi, self.hi))

    def _count_on(self, seq_id: int, row: int) -> None:
        self.counts_on.setdefault(seq_id, {}).update(dict.fromkeys(self._within(*self._slots(row)), row))

    def _land(self, row: int) -> None:
        """A copy or a transfer into the block has run."""
        if row >= 0 and self.events["block"][row] == self.block and self.events["kind"][row] != Kind.SWAP_OUT:
            self.landed |= dict.fromkeys(self._within(*self._slots(row)), row)

    def _slots(self, row: int) -> tuple[int, int]:
        """[lo, hi) that a WRITE, COW or SWAP_IN row fills."""
        event = self.events[row]
        if event["kind"] == Kind.SWAP_IN:
            return 0, int(event["fill"])
        if event["kind"] == Kind.WRITE:
            return unpack_range(int(event["aux"]))
        detail = named_detail(self.trace, int(self.trace.seqs[row]), Kind.COW)
        return detail.get("slot_lo", 0), detail.get("slot_hi", int(event["fill"]))
