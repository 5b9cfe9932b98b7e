"""What every step of a trace read, slot by slot: the write it found there, and the write it counted on.

A sequence counts on its own last write of a position; for positions that it got by a fork on those its parent counted
on, for a prefix hit on what was published as that prefix, after a swap on what went out. What was published before it
was written is what its publisher writes there later, if it does so before the step reads. A step that finds anything
else computes its token from foreign KV: the token, and what the step writes, are tainted, and so is every step that
reads a tainted write. Writes land in the order of their events, before the reads of their step; copies when they run.

That is what the engine said that it did. Where a checker beside the tensors has found that a step read something else
(a MISMATCH row: the worker had another table than the scheduler, a copy went elsewhere), that is what counts.
"""

from __future__ import annotations

import numpy as np

from kvscope.inspector.attended import Attended, first_write
from kvscope.inspector.findings import CheckResult
from kvscope.inspector.landing import Landing
from kvscope.inspector.read_records import (
    GIVEN_BACK,
    NEVER,
    NOWHERE,
    OTHER_PREFIX,
    UNKNOWN,
    Damage,
    Early,
    Foreign,
    Reads,
    StepRead,
    Table,
)
from kvscope.inspector.source import IntArray, TraceLike, details_map, frozen, gap_rows
from kvscope.inspector.worker_rows import WorkerRows
from kvscope.traces.schema import Kind, Reason, unpack_range

_TOLD = (Kind.PUBLISH, Kind.HIT, Kind.COW, Kind.SWAP_OUT, Kind.SCHED)
_KEPT = (Reason.COPY_ON_WRITE, Reason.RESIZED)  # the block moves under the table; what its slots should hold stays


class _Replay:
    """The slots of the pool and the tables, event by event.

    Args:
        rows: what is known of workers' table rows.
        alike: count what another sequence wrote as foreign, even where a checker has found the right prefix.
    """

    def __init__(self, trace: TraceLike, rows: WorkerRows, *, alike: bool) -> None:
        self.trace, self.size, self.alike = trace, trace.block_size, alike
        self.attended, self.rows = Attended(trace), rows
        self.end = int(max(trace.num_blocks, trace.events["block"].max(initial=-1) + 1))
        self.landing = Landing(self.end, self.size)
        # By row; NEVER, OTHER_PREFIX and UNKNOWN are the last three.
        self.tainted = np.zeros(len(trace.events) + 3, dtype=np.bool_)
        self.tables: dict[int, Table] = {}
        self.issued: dict[int, list[int]] = {}  # writes that no step has taken yet, by sequence
        self.published: dict[int, tuple[IntArray, tuple[int, ...] | None]] = {}
        self.early: dict[int, Early] = {}
        self.parked: dict[tuple[int, int], IntArray] = {}
        self.words = {kind: details_map(trace, kind) for kind in _TOLD}
        self.reads = Reads({}, {}, 0, False)
        self.step: list[StepRead] = []  # of the step whose rows are being read

    def lose(self) -> None:
        """Events are missing: only what is built up again is compared."""
        self.landing.lose()
        self.tables.clear()
        self.issued.clear()
        self.published.clear()
        self.early.clear()
        self.reads.lost = True

    def play(self) -> Reads:
        gaps = {row for row, _ in gap_rows(self.trace)}
        names = ("kind", "reason", "block", "seq_id", "lblock", "aux", "fill")
        columns = [self.trace.events[name].tolist() for name in names]
        apply = {
            Kind.ALLOC: self._enter, Kind.SHARE: self._enter, Kind.HIT: self._enter, Kind.RELEASE: self._release,
            Kind.WRITE: self._write, Kind.COW: self._copy, Kind.COPY_DONE: self._copied, Kind.PUBLISH: self._publish,
            Kind.SWAP_OUT: self._swap_out, Kind.SWAP_IN: self._swap_in, Kind.ADMIT: self._begin,
            Kind.RESUME: self._begin, Kind.FORK: self._begin, Kind.SCHED: self._sched,
            Kind.FINISH: self._end, Kind.ABORT: self._end, Kind.PREEMPT: self._end,
            Kind.TRUNCATE: self._end,
        }  # fmt: skip
        by_kind = {int(kind): method for kind, method in apply.items()}
        self.parent: dict[int, int] = {}
        for row, (kind, reason, block, seq_id, lblock, aux, fill) in enumerate(zip(*columns, strict=True)):
            if self.step and kind != Kind.SCHED:
                self._settle()
            if row in gaps:
                self.lose()
            method = by_kind.get(kind)
            if method is not None and block < self.end:
                method(row, kind, reason, block, seq_id, lblock, aux, fill)
        self._settle()
        return self.reads

    def _table(self, seq_id: int) -> Table:
        """The table of a sequence; one whose beginning is missing counts on what nobody knows."""
        table = self.tables.get(seq_id)
        if table is None:
            table = self.tables[seq_id] = Table(UNKNOWN if self.reads.lost else NEVER)
        return table

    def _place(self, lblock: int) -> slice:
        return slice(lblock * self.size, (lblock + 1) * self.size)

    def _begin(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        self.issued.pop(seq_id, None)
        if kind == Kind.FORK:  # it has what its parent has, until events say otherwise
            self.parent[seq_id] = aux
            self.tables[seq_id] = self.tables[aux].copy() if aux in self.tables else Table()
        else:
            self.tables[seq_id] = Table()

    def _end(self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int) -> None:
        """What no step has taken of its writes, of those behind the cut of a rollback, is never written."""
        rows, events = self.issued.get(seq_id, []), self.trace.events
        if kind == Kind.TRUNCATE:
            starts = [int(events["lblock"][w]) * self.size + unpack_range(int(events["aux"][w]))[0] for w in rows]
            rows = [w for w, start in zip(rows, starts, strict=True) if start >= aux]
        self._drop(seq_id, rows)

    def _drop(self, seq_id: int, rows: list[int]) -> None:
        """No step will take these writes of the sequence."""
        self.landing.drop(rows)
        self.issued[seq_id] = [w for w in self.issued.get(seq_id, []) if w not in rows]

    def _enter(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        if block < 0 or lblock < 0:
            return
        table = self._table(seq_id)
        place = self._place(lblock)
        table.reserve(place.stop)
        table.slots[place] = np.arange(block * self.size, (block + 1) * self.size)
        table.entries[lblock] = block, int(self.trace.events["gen"][row])
        if reason in _KEPT:
            return
        if kind == Kind.ALLOC:
            table.counts_on[place] = NEVER
            self.early.pop(block, None)
        elif kind == Kind.SHARE:
            parent = self.tables.get(self.parent.get(seq_id, -1))
            known = parent is not None and len(parent.counts_on) >= place.stop
            table.counts_on[place] = parent.counts_on[place] if known and parent else self.landing.block(block)
        else:
            found, words = self.published.get(block, (self.landing.block(block), None))
            own = self.words[Kind.HIT].get(row_seq(self.trace, row))
            foreign = words and own and words != own
            table.counts_on[place] = OTHER_PREFIX if foreign else found
            if block in self.early and not foreign:
                self.early[block].hits.append((table, place))

    def _release(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        table, place = self.tables.get(seq_id), self._place(lblock)
        known = table is not None and lblock >= 0 and place.stop <= len(table.slots)
        if known and table is not None and table.slots[place.start] == block * self.size:
            table.slots[place] = GIVEN_BACK
            table.entries.pop(lblock, None)
        if seq_id in self.issued and reason not in _KEPT:
            self._drop(seq_id, [w for w in self.issued[seq_id] if self.trace.events["block"][w] == block])

    def _write(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        lo, hi = unpack_range(aux)
        if not (0 <= lo < hi <= self.size + lo and lblock >= 0):
            return
        table, place = self._table(seq_id), self._place(lblock)
        table.reserve(place.stop)
        own = table.slots[place][lo:hi]
        if block < 0:  # no memory of the pool
            own[own == -1] = NOWHERE
            return
        at = block * self.size + lo
        self.landing.write(row, at, hi - lo)
        self.issued.setdefault(seq_id, []).append(row)
        if hi > self.size:
            return
        if own[0] in (-1, at):  # else it went elsewhere than its table says
            own[:] = np.arange(at, at + hi - lo)
            table.counts_on[place][lo:hi] = row
        if block in self.early:
            self._catch_up(row, block, seq_id, lblock, lo, hi)

    def _catch_up(self, row: int, block: int, seq_id: int, lblock: int, lo: int, hi: int) -> None:
        """The publisher writes what it had published: that is what those count on who have hit it."""
        early = self.early[block]
        if (early.seq_id, early.lblock) != (seq_id, lblock):
            return
        content = self.published[block][0]
        tables = [
            table.counts_on[place] for table, place in early.hits if table.slots[place.start] == block * self.size
        ]
        for counted in (content, *tables):
            slots = counted[lo:hi]
            slots[slots == NEVER] = row

    def _copy(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        detail = self.words[Kind.COW].get(row_seq(self.trace, row)) or ()
        source, slots = (detail[0], detail[3]) if len(detail) > 3 else (aux, fill)
        if block >= 0 and 0 <= source < self.end:
            self.landing.copy(source, block, slots)

    def _copied(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        self.landing.copied(block, fill)

    def _publish(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        if block < 0:
            return
        table, place = self.tables.get(seq_id), self._place(lblock)
        own = table is not None and lblock >= 0 and place.stop <= len(table.counts_on)
        content = table.counts_on[place] if own and table else self.landing.block(block)
        self.published[block] = (content.copy(), self.words[Kind.PUBLISH].get(row_seq(self.trace, row)))
        self.early.pop(block, None)
        if (content == NEVER).any():
            self.early[block] = Early(seq_id, lblock)

    def _swap_out(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        table, place = self.tables.get(seq_id), self._place(lblock)
        if block >= 0 and table is not None and lblock >= 0 and place.stop <= len(table.counts_on):
            _, lease = (self.words[Kind.SWAP_OUT].get(row_seq(self.trace, row)) or (0, 0))[:2]
            if lease >= 0 or aux not in self.landing.host:  # lease -1: that slot of the host has these bytes already
                self.landing.host[aux] = self.landing.block(block).copy()
            self.parked[seq_id, lblock] = table.counts_on[place].copy()

    def _swap_in(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        back = self.landing.host.get(aux)
        if block < 0 or lblock < 0 or back is None:
            return
        self.landing.block(block)[:] = back
        table, place = self._table(seq_id), self._place(lblock)
        table.reserve(place.stop)
        table.counts_on[place] = self.parked.get((seq_id, lblock), back)

    def _sched(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        lo, hi = unpack_range(aux)
        table = self.tables.get(seq_id)
        if table is None:
            return
        first = self.attended.start(lblock, lo)
        self.reads.steps[seq_id] = self.reads.steps.get(seq_id, 0) + 1
        slots, counts_on = table.slots[first:hi].copy(), table.counts_on[first:hi].copy()
        read = StepRead(row, seq_id, first, lo, slots, counts_on, self.issued.pop(seq_id, []))
        told = self.words[Kind.SCHED].get(row_seq(self.trace, row))
        read.odd = self.rows.odd(seq_id, row_seq(self.trace, row), told[0], table.entries) if told else None
        self.step.append(read)

    def _settle(self) -> None:
        """The rows of a step are known: its writes land, then who read what is foreign, or what these wrote."""
        left, self.step = self.step, []
        writes = [row for read in left for row in read.writes]
        if any(read.odd is not None for read in left) or self.landing.overlap(writes):
            self._land_again(left)
        for read in left:
            self.landing.keep(read.writes)
            self._compare(read)
        while left:
            hurt = [r for r in left if r.told is not None or r.wrong.any() or self.tainted[r.found].any()]
            for read in hurt:
                self._damage(read)
            for read in hurt:
                self.tainted[read.writes] = True
            left = [r for r in left if r not in hurt] if hurt else []

    def _land_again(self, reads: list[StepRead]) -> None:
        """All writes land in the order of the rows; through a worker's own row where there is one, as its reads go."""
        events = self.trace.events
        for read in reads:
            lblock, block = read.odd if read.odd is not None else (-1, -1)
            for row in read.writes:
                other = events["lblock"][row] == lblock
                to = block if other else int(events["block"][row])
                self.landing.move(row, to * self.size + unpack_range(int(events["aux"][row]))[0])
            positions = np.arange(read.lo, read.lo + len(read.slots))
            through = positions // self.size == lblock
            read.slots[through] = block * self.size + positions[through] % self.size

    def _compare(self, read: StepRead) -> None:
        """What lies in the slots of a read against what the sequence counts on there."""
        slots, step = read.slots, int(self.trace.events["step"][read.row])
        read.found = found = self.landing.slots[slots]
        if len(slots) and (slots.min() < 0 or found.min() < 0 or (found != read.counts_on).any()):
            gone = (slots == NOWHERE) | ((slots == GIVEN_BACK) & (np.arange(len(slots)) < read.table_from - read.lo))
            held = slots >= 0
            found[~held] = NEVER
            self.reads.slots += int(held.sum())
            known = (found != UNKNOWN) & (read.counts_on != UNKNOWN)
            wrong = known & ((held & ((found != read.counts_on) | (found < 0))) | gone)
            read.wrong = wrong & (self.alike or not self.attended.right(read.seq_id, step))
        else:
            self.reads.slots += len(slots)
        if (mismatch := self.attended.mismatch(read.seq_id, step)) >= 0:
            read.told = self._mismatch(read, mismatch)

    def _mismatch(self, read: StepRead, row: int) -> Foreign | None:
        """What a step really read, where it was looked at beside the tensors; None: what the table has."""
        event = self.trace.events[row]
        block, position, fill = int(event["block"]), int(event["aux"]), int(event["fill"])
        if block >= self.end:
            return None
        told = self.trace.detail(row_seq(self.trace, row)) or ()
        found = first_write(self.trace, told[2], told[3], row) if len(told) > 3 and told[1] else NEVER
        at = position - read.lo
        expected = int(read.counts_on[at]) if 0 <= at < len(read.counts_on) else NEVER
        slot = block * self.size + max(fill, 0) if block >= 0 else GIVEN_BACK
        return Foreign(read.row, position, slot, found, expected, 1)

    def _damage(self, read: StepRead) -> None:
        damage = self.reads.damage.setdefault(read.seq_id, Damage(read.seq_id))
        damage.steps.append(read.row)
        if read.told is not None:
            damage.read[read.row] = read.told
        elif read.wrong.any():
            at = int(np.argmax(read.wrong))
            damage.read[read.row] = Foreign(
                read.row, read.lo + at, int(read.slots[at]), int(read.found[at]), int(read.counts_on[at]),
                int(read.wrong.sum()),
            )  # fmt: skip
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
    return _Replay(frozen(trace), WorkerRows(result), alike=alike).play()
