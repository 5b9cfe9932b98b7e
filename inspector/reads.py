"""What every step of a trace read, slot by slot: the write it found there, and the write it counted on.

A sequence counts on its own last write of a position; for positions that it got by a fork on those its parent counted
on, for a prefix hit on what was published as that prefix, after a swap on what went out. What was published before it
was written is what its publisher writes there later, if it does so before the step reads. A step that finds anything
else computes its token from foreign KV: the token, and what the step writes, are tainted, and so is every step that
reads a tainted write. What lands when is told in landing.py.

That is what the engine said that it did. Where a checker beside the tensors has found that a step read something else
(a MISMATCH row: the worker had another table than the scheduler, a copy went elsewhere), that is what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kvscope.inspector.attended import Attended, found_beside
from kvscope.inspector.detectors.records import Row
from kvscope.inspector.device_slots import DeviceSlots
from kvscope.inspector.findings import CheckResult
from kvscope.inspector.landing import Issued, OpenStep
from kvscope.inspector.read_records import (
    GIVEN_BACK,
    MOST_POSITIONS,
    NEVER,
    NOWHERE,
    OTHER_PREFIX,
    UNKNOWN,
    Damage,
    Early,
    Reads,
    StepRead,
    Table,
)
from kvscope.inspector.source import IntArray, TraceLike, details_map, frozen, gap_rows
from kvscope.inspector.worker_rows import WorkerRows
from kvscope.traces.schema import EventArray, Kind, Reason, unpack_range

_TOLD = (Kind.PUBLISH, Kind.HIT, Kind.SCHED)
_CHUNK = 65_536
_KEPT = (Reason.COPY_ON_WRITE, Reason.RESIZED)  # the block moves under the table; what its slots should hold stays


def rows_of(events: EventArray, only: IntArray | None = None) -> Iterator[tuple[int, Row]]:
    """Events one after another, by their row; few of them in memory at once."""
    for first in range(0, len(events) if only is None else len(only), _CHUNK):
        if only is not None:
            rows = only[first : first + _CHUNK]
            yield from zip(rows.tolist(), map(Row._make, events[rows].tolist()), strict=True)
            continue
        yield from enumerate(map(Row._make, events[first : first + _CHUNK].tolist()), first)


class Reader:
    """The slots of the pool and the tables, event by event.

    Args:
        rows: what is known of workers' table rows.
        alike: count what another sequence wrote as foreign, even where a checker has found the right prefix.
        only: play no rows but these, in order: enough to know the slots of some blocks, of which alone is told then.
    """

    def __init__(
        self, trace: TraceLike, rows: WorkerRows, *, alike: bool = False, only: IntArray | None = None
    ) -> None:
        self._only = only
        self.trace, self.size, self.alike = trace, trace.block_size, alike
        self.attended, self.rows = Attended(trace), rows
        self.device = DeviceSlots(trace)
        self.order = self.device.order
        # By row; NEVER, OTHER_PREFIX and UNKNOWN are the last three.
        self.tainted = np.zeros(len(trace.events) + 3, dtype=np.bool_)
        self.tables: dict[int, Table] = {}
        self.parent: dict[int, int] = {}
        self.published: dict[int, tuple[IntArray, tuple[int, ...] | None]] = {}
        self.early: dict[int, Early] = {}
        self.parked: dict[tuple[int, int], IntArray] = {}
        self.words = {kind: details_map(trace, kind) for kind in _TOLD}
        self.reads = Reads({}, {}, 0, False)

    def lose(self) -> None:
        """Events are missing: only what is built up again is compared."""
        self._settle(self.order.rest())
        self.device.lose()
        self.tables.clear()
        self.published.clear()
        self.early.clear()
        self.parked.clear()
        self.reads.lost = True

    def play(self) -> Reads:
        gaps = {row for row, _ in gap_rows(self.trace)}
        device = self.device
        apply = {
            Kind.ALLOC: self._enter, Kind.SHARE: self._enter, Kind.HIT: self._enter, Kind.RELEASE: self._release,
            Kind.WRITE: self._write, Kind.COW: self._copy, Kind.COPY_DONE: device.copied, Kind.PUBLISH: self._publish,
            Kind.SWAP_OUT: self._swap_out, Kind.SWAP_IN: self._swap_in, Kind.UNLEASE: device.unlease,
            Kind.ADMIT: self._begin, Kind.RESUME: self._begin, Kind.FORK: self._begin,
            Kind.FINISH: self._end, Kind.ABORT: self._end, Kind.PREEMPT: self._end, Kind.TRUNCATE: self._cut,
            Kind.STEP_BEGIN: self._step_begin, Kind.SCHED: self._sched, Kind.STEP_END: self._step_end,
            Kind.GROW: device.resized, Kind.SHRINK: device.resized,
        }  # fmt: skip
        by_kind, entries = {int(kind): method for kind, method in apply.items()}, MOST_POSITIONS // self.size
        for at, row in rows_of(self.trace.events, self._only):
            if at in gaps:
                self.lose()
            method = by_kind.get(row.kind)
            if method is not None and row.block < device.blocks and (row.lblock < entries or row.kind == Kind.SCHED):
                method(at, row)
        self._settle(self.order.rest())
        return self.reads

    def _table(self, seq_id: int) -> Table:
        """The table of a sequence; one whose beginning is missing counts on what nobody knows."""
        table = self.tables.get(seq_id)
        if table is None:
            table = self.tables[seq_id] = Table(UNKNOWN if self.reads.lost else NEVER)
        return table

    def _place(self, lblock: int) -> slice:
        return slice(lblock * self.size, (lblock + 1) * self.size)

    def _begin(self, at: int, row: Row) -> None:
        self.order.start(row.seq_id)
        if row.kind == Kind.FORK:  # it has what its parent has, until events say otherwise
            self.parent[row.seq_id] = row.aux
            self.tables[row.seq_id] = self.tables[row.aux].copy() if row.aux in self.tables else Table()
        else:
            self.tables[row.seq_id] = Table()

    def _end(self, at: int, row: Row) -> None:
        self.order.end(row.seq_id)
        if row.seq_id in self.tables:
            self.rows.note(row.seq_id, self.tables[row.seq_id].entries)

    def _cut(self, at: int, row: Row) -> None:
        self.order.cut(row.seq_id, row.aux)
        table = self._table(row.seq_id)
        table.issued_to = min(table.issued_to, row.aux)

    def _enter(self, at: int, row: Row) -> None:
        block = row.block
        if block < 0 or row.lblock < 0:
            return
        table, place = self._table(row.seq_id), self._place(row.lblock)
        if row.kind == Kind.SHARE:
            table.named()
        table.reserve(place.stop)
        table.slots[place] = np.arange(block * self.size, (block + 1) * self.size)
        if row.reason in _KEPT:
            self.rows.note(row.seq_id, table.entries)
        table.entries[row.lblock] = block, row.gen
        if row.reason in _KEPT:
            return
        if row.kind == Kind.ALLOC:
            table.counts_on[place] = NEVER
            self.early.pop(block, None)
        elif row.kind == Kind.SHARE:
            parent = self.tables.get(self.parent.get(row.seq_id, -1))
            known = parent is not None and len(parent.counts_on) >= place.stop
            table.issued_to = max(table.issued_to, min(parent.issued_to, place.stop) if parent is not None else 0)
            table.counts_on[place] = parent.counts_on[place] if known and parent else self.device.will_hold(block)
        else:
            found, words = self.published.get(block) or (self.device.will_hold(block), None)
            own = self.words[Kind.HIT].get(row_seq(self.trace, at))
            foreign = words and own and words != own
            table.counts_on[place] = OTHER_PREFIX if foreign else found
            if block in self.early and not foreign:
                self.early[block].hits.append((table, place))

    def _release(self, at: int, row: Row) -> None:
        table, place = self.tables.get(row.seq_id), self._place(row.lblock)
        known = table is not None and row.lblock >= 0 and place.stop <= len(table.slots)
        if known and table is not None and table.slots[place.start] == row.block * self.size:
            table.slots[place] = GIVEN_BACK
            table.entries.pop(row.lblock, None)
            table.issued_to = min(table.issued_to, place.start) if row.reason != Reason.WINDOW else table.issued_to
        if row.reason not in _KEPT:
            self.order.give_back(row.seq_id, row.block, row.lblock)
        if row.ref_after == 0:
            self.order.give_up((row.block, row.gen))

    def _write(self, at: int, row: Row) -> None:
        lo, hi = unpack_range(row.aux)
        if not (0 <= lo < hi <= self.size + lo and row.lblock >= 0):
            return
        table, place = self._table(row.seq_id), self._place(row.lblock)
        table.reserve(place.stop)
        own = table.slots[place][lo:hi]
        if row.block < 0:  # no memory of the pool
            own[own == -1] = NOWHERE
            return
        self.order.write(row.seq_id, Issued(at, row.block, row.lblock, lo, hi))
        if hi > self.size:
            return
        first = row.block * self.size + lo
        # Else it went elsewhere than its table says, or over what the sequence has there.
        fresh = place.start + lo >= table.issued_to or (table.counts_on[place][lo:hi] == NEVER).all()
        if own[0] in (-1, first) and fresh:
            own[:] = np.arange(first, first + hi - lo)
            table.counts_on[place][lo:hi] = at
            table.issued_to = max(table.issued_to, place.start + hi)
        if row.block in self.early:
            self._catch_up(at, row, lo, hi)

    def _catch_up(self, at: int, row: Row, lo: int, hi: int) -> None:
        """The publisher writes what it had published: that is what those count on who have hit it."""
        early = self.early[row.block]
        if (early.seq_id, early.lblock) != (row.seq_id, row.lblock):
            return
        content = self.published[row.block][0]
        tables = [
            table.counts_on[place] for table, place in early.hits if table.slots[place.start] == row.block * self.size
        ]
        for counted in (content, *tables):
            slots = counted[lo:hi]
            slots[slots == NEVER] = at

    def _copy(self, at: int, row: Row) -> None:
        self.device.copy(at, row)
        if row.reason != Reason.RESIZED:  # what it does not take along is to be written anew
            table = self._table(row.seq_id)
            table.issued_to = min(table.issued_to, row.lblock * self.size + max(row.fill, 0))

    def _publish(self, at: int, row: Row) -> None:
        if row.block < 0:
            return
        table, place = self.tables.get(row.seq_id), self._place(row.lblock)
        own = table is not None and row.lblock >= 0 and place.stop <= len(table.counts_on)
        content = table.counts_on[place] if own and table else self.device.will_hold(row.block)
        self.published[row.block] = (content.copy(), self.words[Kind.PUBLISH].get(row_seq(self.trace, at)))
        self.early.pop(row.block, None)
        if (content == NEVER).any():
            self.early[row.block] = Early(row.seq_id, row.lblock)

    def _swap_out(self, at: int, row: Row) -> None:
        table, place = self.tables.get(row.seq_id), self._place(row.lblock)
        if row.block >= 0 and table is not None and row.lblock >= 0 and place.stop <= len(table.counts_on):
            self.parked[row.seq_id, row.lblock] = table.counts_on[place].copy()
            self.device.swapped(at, row)

    def _swap_in(self, at: int, row: Row) -> None:
        if row.block >= 0 and row.lblock >= 0:
            table, place = self._table(row.seq_id), self._place(row.lblock)
            table.reserve(place.stop)
            table.counts_on[place] = self.parked.get((row.seq_id, row.lblock), UNKNOWN)
            self.device.swapped(at, row)

    def _step_begin(self, at: int, row: Row) -> None:
        self._settle(self.order.begin(row.step))

    def _step_end(self, at: int, row: Row) -> None:
        self._settle(self.order.ended(row.step))

    def _sched(self, at: int, row: Row) -> None:
        lo, hi = unpack_range(row.aux)
        if (table := self.tables.get(row.seq_id)) is None:
            return
        first, seq = self.attended.start(row.lblock, lo), row_seq(self.trace, at)
        self.reads.steps[row.seq_id] = self.reads.steps.get(row.seq_id, 0) + 1
        slots, counts_on = table.slots[first:hi].copy(), table.counts_on[first:hi].copy()
        read = StepRead(at, row.seq_id, first, lo, slots, counts_on, self.order.take(row.seq_id))
        told = self.words[Kind.SCHED].get(seq)
        read.odd = self.rows.odd(row.seq_id, seq, told[0], table.entries) if told else {}
        if read.odd is None and not self.attended.right(row.seq_id, row.step):
            self.reads.other_rows.setdefault(row.seq_id, []).append(at)
        self.order.note(row.step, read)

    def _settle(self, steps: Iterable[OpenStep[StepRead]]) -> None:
        """Steps end: their copies run, their writes land, then who read what is foreign, or what these wrote."""
        for step in steps:
            self.device.run_copies(step.copies)
            left = step.reads
            for read in left:
                self._land(read)
            for write in step.strays:
                self.device.put(write, write.block)
            for read in left:
                self.compare(read)
            while left:
                hurt = [r for r in left if r.told is not None or r.wrong.any() or self.tainted[r.found].any()]
                for read in hurt:
                    self._damage(read)
                for read in hurt:
                    self.tainted[[write.row for write in read.writes]] = True
                left = [r for r in left if r not in hurt] if hurt else []
            self.device.run_copies(step.behind)

    def _land(self, read: StepRead) -> None:
        """The writes of a sequence land; through the worker's own row where there is one, as its reads go."""
        odd = read.odd or {}
        for write in read.writes:
            self.device.put(write, odd.get(write.lblock, write.block))
        positions = np.arange(read.lo, read.lo + len(read.slots))
        for lblock, block in odd.items():
            through = positions // self.size == lblock
            read.slots[through] = block * self.size + positions[through] % self.size

    def compare(self, read: StepRead) -> None:
        """What lies in the slots of a read against what the sequence counts on there."""
        slots, step = read.slots, int(self.trace.events["step"][read.row])
        read.found = found = self.device.slots[slots]
        if len(slots) and (slots.min() < 0 or found.min() < 0 or (found != read.counts_on).any()):
            lacking = (slots == -1) & (read.counts_on >= 0)
            gone = (
                lacking
                | (slots == NOWHERE)
                | ((slots == GIVEN_BACK) & (np.arange(len(slots)) < read.table_from - read.lo))
            )
            held = slots >= 0
            found[~held] = NEVER
            self.reads.slots += int(held.sum())
            known = (found != UNKNOWN) & (read.counts_on != UNKNOWN)
            wrong = known & ((held & ((found != read.counts_on) | (found < 0))) | gone)
            read.wrong = wrong & (self.alike or not self.attended.right(read.seq_id, step))
        else:
            self.reads.slots += len(slots)
        if (mismatch := self.attended.mismatch(read.seq_id, step)) >= 0:
            read.told = found_beside(self.trace, read, mismatch, self.device.blocks, self.size)

    def _damage(self, read: StepRead) -> None:
        damage = self.reads.damage.setdefault(read.seq_id, Damage(read.seq_id))
        damage.steps.append(read.row)
        self.reads.wrong[read.row] = read.slots[read.wrong] if read.told is None else np.asarray([read.told.slot])
        if read.told is not None:
            damage.read[read.row] = read.told
        elif read.wrong.any():
            damage.read[read.row] = read.first_wrong
        else:
            taint = self.tainted[read.found]
            damage.handed[read.row] = int(self.trace.events["seq_id"][read.found[int(np.argmax(taint))]])
        damage.first = damage.first or damage.read.get(read.row)
        if damage.first_row < 0:
            damage.first_row, damage.through = read.row, damage.handed.get(read.row, -1)


def row_seq(trace: TraceLike, row: int) -> int:
    """The number of a row."""
    return int(trace.seqs[row])


def reads_of(trace: TraceLike, result: CheckResult | None = None, *, alike: bool = False) -> Reads:
    """Compare every slot that every step of a trace read.

    Args:
        result: a check of the trace; it knows where a worker's table was another than the scheduler's.
        alike: tell, too, of reads of what another sequence wrote where a checker beside the tensors has found that it
            was the right prefix all the same. No text can differ by these.
    """
    return Reader(frozen(trace), WorkerRows(result), alike=alike).play()
