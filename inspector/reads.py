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

from kvscope.inspector.read_records import NEVER, OTHER_PREFIX, UNKNOWN, Damage, Early, Foreign, Reads, Table
from kvscope.inspector.source import IntArray, TraceLike, details_map, frozen, gap_rows
from kvscope.traces.schema import Kind, Reason, unpack_range

_KEPT = (Reason.COPY_ON_WRITE, Reason.RESIZED)  # the block moves under the table; what its slots should hold stays


class _Replay:
    """The slots of the pool and the tables, event by event."""

    def __init__(self, trace: TraceLike) -> None:
        self.trace, self.size = trace, trace.block_size
        self.end = int(max(trace.num_blocks, trace.events["block"].max(initial=-1) + 1))
        self.landed = np.full(self.end * self.size, NEVER, dtype=np.int64)
        self.tainted = np.zeros(
            len(trace.events) + 3, dtype=np.bool_
        )  # by row; NEVER, OTHER_PREFIX and UNKNOWN are the last three
        self.tables: dict[int, Table] = {}
        self.issued: dict[int, list[int]] = {}  # writes that no step has taken yet, by sequence
        self.published: dict[int, tuple[IntArray, tuple[int, ...] | None]] = {}
        self.early: dict[int, Early] = {}
        self.copies: dict[int, tuple[int, int]] = {}  # target -> source, slots
        self.host: dict[int, IntArray] = {}
        self.parked: dict[tuple[int, int], IntArray] = {}
        self.words = {kind: details_map(trace, kind) for kind in (Kind.PUBLISH, Kind.HIT, Kind.COW, Kind.SWAP_OUT)}
        self.reads = Reads({}, {}, 0, False)
        self.took: dict[int, tuple[int, list[int]]] = {}  # sequence -> its last SCHED row, and the writes it took

    def lose(self) -> None:
        """Events are missing: only what is built up again is compared."""
        self.landed[:] = UNKNOWN
        self.tables.clear()
        self.issued.clear()
        self.published.clear()
        self.early.clear()
        self.copies.clear()
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
            Kind.MISMATCH: self._mismatch,
        }  # fmt: skip
        by_kind = {int(kind): method for kind, method in apply.items()}
        self.parent: dict[int, int] = {}
        for row, (kind, reason, block, seq_id, lblock, aux, fill) in enumerate(zip(*columns, strict=True)):
            if row in gaps:
                self.lose()
            method = by_kind.get(kind)
            if method is not None and block < self.end:
                method(row, kind, reason, block, seq_id, lblock, aux, fill)
        return self.reads

    def _table(self, seq_id: int) -> Table:
        """The table of a sequence; one whose beginning is missing counts on what nobody knows."""
        table = self.tables.get(seq_id)
        if table is None:
            table = self.tables[seq_id] = Table(UNKNOWN if self.reads.lost else NEVER)
        return table

    def _slots(self, block: int) -> slice:
        return slice(block * self.size, (block + 1) * self.size)

    def _place(self, lblock: int) -> slice:
        return slice(lblock * self.size, (lblock + 1) * self.size)

    def _begin(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        self.tables[seq_id] = Table()
        self.issued.pop(seq_id, None)
        if kind == Kind.FORK:
            self.parent[seq_id] = aux

    def _enter(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        if block < 0 or lblock < 0:
            return
        table = self._table(seq_id)
        place = self._place(lblock)
        table.reserve(place.stop)
        table.slots[place] = np.arange(block * self.size, (block + 1) * self.size)
        if reason in _KEPT:
            return
        if kind == Kind.ALLOC:
            table.counts_on[place] = NEVER
            self.early.pop(block, None)
        elif kind == Kind.SHARE:
            parent = self.tables.get(self.parent.get(seq_id, -1))
            known = parent is not None and len(parent.counts_on) >= place.stop
            table.counts_on[place] = parent.counts_on[place] if known and parent else self.landed[self._slots(block)]
        else:
            found, words = self.published.get(block, (self.landed[self._slots(block)], None))
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
            table.slots[place] = -1
        if seq_id in self.issued:
            self.issued[seq_id] = [w for w in self.issued[seq_id] if self.trace.events["block"][w] != block]

    def _write(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        lo, hi = unpack_range(aux)
        if not (block >= 0 <= lblock and 0 <= lo < hi <= self.size):
            return
        self.landed[block * self.size + lo : block * self.size + hi] = row
        table = self._table(seq_id)
        table.reserve((lblock + 1) * self.size)
        table.counts_on[lblock * self.size + lo : lblock * self.size + hi] = row
        if block in self.early:
            self._catch_up(row, block, seq_id, lblock, lo, hi)
        self.issued.setdefault(seq_id, []).append(row)

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
        detail = self.words[Kind.COW].get(row_seq(self.trace, row))
        source, slots = (detail[0], detail[3]) if detail and len(detail) > 3 else (aux, fill)
        if block >= 0 and 0 <= source < self.end:
            self.copies[block] = (source, min(max(slots, 0), self.size))
            self._run_copy(block, self.copies[block][1])

    def _copied(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        source, slots = self.copies.pop(block, (-1, 0))
        if source >= 0 and 0 <= fill < slots:  # fewer slots were moved than the copy was decided for
            at = block * self.size
            moved = self.landed[at + fill : at + slots]
            moved[moved == self.landed[source * self.size + fill : source * self.size + slots]] = NEVER

    def _run_copy(self, target: int, slots: int) -> None:
        source = self.copies[target][0]
        at = source * self.size
        self.landed[target * self.size : target * self.size + slots] = self.landed[at : at + slots]

    def _publish(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        if block < 0:
            return
        table, place = self.tables.get(seq_id), self._place(lblock)
        own = table is not None and lblock >= 0 and place.stop <= len(table.counts_on)
        content = table.counts_on[place] if own and table else self.landed[self._slots(block)]
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
            if lease >= 0 or aux not in self.host:  # lease -1: that slot of the host has these bytes already
                self.host[aux] = self.landed[self._slots(block)].copy()
            self.parked[seq_id, lblock] = table.counts_on[place].copy()

    def _swap_in(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        back = self.host.get(aux)
        if block < 0 or lblock < 0 or back is None:
            return
        self.landed[self._slots(block)] = back
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
        self.reads.steps[seq_id] = self.reads.steps.get(seq_id, 0) + 1
        slots = table.slots[lo:hi]
        held = slots >= 0
        found = self.landed[slots]
        self.reads.slots += int(held.sum())
        counts_on = table.counts_on[lo : lo + len(slots)]
        known = (found != UNKNOWN) & (counts_on != UNKNOWN)
        wrong = held & known & ((found != counts_on) | (found < 0))
        taint = held & self.tainted[found]
        writes = self.issued.pop(seq_id, [])
        self.took[seq_id] = (row, writes)
        if wrong.any() or taint.any():
            self.tainted[writes] = True
            self._damage(row, seq_id, lo, slots, found, table, wrong, taint)

    def _mismatch(
        self, row: int, kind: int, reason: int, block: int, seq_id: int, lblock: int, aux: int, fill: int
    ) -> None:
        """What the step of a sequence really read, where it was looked at beside the tensors."""
        if reason != Reason.PROVENANCE or seq_id not in self.took or block < 0:
            return
        sched, writes = self.took[seq_id]
        damage = self.reads.damage.setdefault(seq_id, Damage(seq_id))
        if damage.first is not None and damage.first.row < sched:
            return
        table, told = self.tables.get(seq_id), self.trace.detail(row_seq(self.trace, row)) or ()
        expected = int(table.counts_on[aux]) if table is not None and aux < len(table.counts_on) else NEVER
        found = self._write_of(told[2], told[3], row) if len(told) > 3 and told[1] else NEVER
        damage.first = Foreign(sched, aux, block * self.size + max(fill, 0), found, expected, 1)
        damage.read[sched] = damage.first
        damage.handed.pop(sched, None)
        self.tainted[writes] = True
        if sched not in damage.steps:
            damage.steps.append(sched)
        if damage.first_row < 0 or sched <= damage.first_row:
            damage.first_row, damage.through = sched, -1

    def _write_of(self, seq_id: int, step: int, before: int) -> int:
        """The first write of a sequence in a step, as far as the trace has it; NEVER if it has none."""
        events = self.trace.events[:before]
        rows = np.flatnonzero((events["kind"] == Kind.WRITE) & (events["seq_id"] == seq_id) & (events["step"] == step))
        return int(rows[0]) if len(rows) else NEVER

    def _damage(
        self, row: int, seq_id: int, lo: int, slots: IntArray, found: IntArray, table: Table,
        wrong: np.ndarray, taint: np.ndarray,
    ) -> None:  # fmt: skip
        damage = self.reads.damage.setdefault(seq_id, Damage(seq_id))
        damage.steps.append(row)
        if wrong.any():
            at = int(np.argmax(wrong))
            damage.read[row] = Foreign(
                row, lo + at, int(slots[at]), int(found[at]), int(table.counts_on[lo + at]), int(wrong.sum())
            )
            damage.first = damage.first or damage.read[row]
        else:
            damage.handed[row] = int(self.trace.events["seq_id"][found[int(np.argmax(taint))]])
        if damage.first_row < 0:
            damage.first_row, damage.through = row, damage.handed.get(row, -1)


def row_seq(trace: TraceLike, row: int) -> int:
    """The number of a row."""
    return int(trace.seqs[row])


def reads_of(trace: TraceLike) -> Reads:
    """Compare every slot that every step of a trace read."""
    return _Replay(frozen(trace)).play()
