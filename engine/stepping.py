"""What happens once per step, for all of its sequences: one decoded token each, the step begins, the step ends.

What many sequences do alike is counted and recorded in bulk; where they differ, each goes the way of a single call.
Both ways leave the same state and the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.engine.free_list import IntArray
from kvscope.engine.steps import Scheduled, Write
from kvscope.engine.table_core import TableCore
from kvscope.engine.tables import SequenceTable
from kvscope.errors import UsageError
from kvscope.traces.schema import Kind, Reason, pack_range

_BULK = 7  # sequences from here on are cheaper as arrays
_MAX_FILL = 2**15 - 1


class _Appends(NamedTuple):
    """One more slot for each of many rows, none of which needs a copy: where it lies; tail -1 = in a fresh block."""

    lblocks: IntArray
    slots: IntArray
    tails: IntArray
    fresh: list[int]  # positions in these arrays


class Stepping(TableCore):
    """Batched appends and the beginning and end of steps; each operation is one critical section."""

    def can_append_many(self, seq_ids: Sequence[int]) -> bool:
        """Whether `append_many` for these sequences would be served now."""
        with self._lock:
            rows = [self._known(seq_id) for seq_id in seq_ids]
            plan = self._alike(rows)
            needed = self._demand_of(rows) if plan is None else len(plan.fresh)
            return needed <= self.pool.num_available

    def append_many(self, seq_ids: Sequence[int], tokens: Sequence[int]) -> None:
        """`append` of one token to each of these sequences, as one operation: one lock, one moment, all or nothing.

        The events are those of the single calls; where no sequence needs a copy they are grouped by kind: first the
        ALLOC rows, then the WRITE rows. Every holder of a shared last block is counted as needing a copy, so a batch
        may be refused that single calls could just serve.

        Raises: OutOfBlocks (nothing was changed), FaultyCall (a sequence is named twice or unknown), UsageError.
        """
        if len(seq_ids) != len(tokens):
            raise UsageError(f"append_many: {len(seq_ids)} sequences and {len(tokens)} tokens")
        with self._lock:
            self._begin(ahead=1)
            rows = [self._row(seq_id) for seq_id in seq_ids]
            if len(set(seq_ids)) < len(rows):
                raise self._fault(-1, "append_many: a sequence is named twice; it can take one token at a time")
            plan = self._alike(rows)
            needed, available = self._demand_of(rows) if plan is None else len(plan.fresh), self.pool.num_available
            if needed > available:
                self._refuse(seq_ids[0], needed, available)
            if plan is not None:
                self._append_alike(seq_ids, tokens, rows, plan)
                return
            for row, token in zip(rows, tokens, strict=True):
                row.tokens.append(token)
                self._write(row, row.issued, len(row.tokens), Reason.DECODE)

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        """Open an engine step over the writes that the scheduled sequences have issued; returns its number.

        Until `end_step` the blocks in the tables of the scheduled sequences are in use: whatever is freed of
        them waits in quarantine.
        """
        with self._lock:
            self._begin(ahead=1)
            rows = list(scheduled)
            tables = [self._row(item.seq_id) for item in rows]
            number = self._steps.begin(rows)
            self.pool.begin_use(number, {item.seq_id for item in rows})
            self._emit(Kind.STEP_BEGIN, aux=len(rows))
            if self._sink is not None:
                self._record_schedule(rows, tables)
            return number

    def end_step(self) -> None:
        """The oldest open step has completed: commit and publish what it wrote, settle what waited for it."""
        with self._lock:
            if not self._steps.open:
                raise self._fault(-1, "end_step without an open step")
            step = self._steps.end()
            self._begin(ahead=step.number - self._steps.number)
            committed = self._commit(step.writes)
            for (seq_id, lblock, block, _, position), ok in zip(step.writes, committed, strict=True):
                row = self._tables.get(seq_id) if ok else None
                if row is not None and lblock < len(row.blocks) and row.blocks[lblock] == block:
                    row.computed = max(row.computed, min(position, row.issued))
                    if row.computed >= (row.published + 1) * self.block_size:
                        self.prefixes.publish(row)
            self.pool.settle(step.number)
            self._emit(Kind.STEP_END, aux=sum(item.hi - item.lo for item in step.scheduled))
            self._witness()

    # -- inside the critical section ------------------------------------------------------------------------------

    def _alike(self, rows: list[SequenceTable]) -> _Appends | None:
        """Where the next slot of each row is; None if they have to be taken one by one."""
        if len(rows) < _BULK or not self._plain:
            return None
        size = self.block_size
        lblocks, slots, tails, fresh = [], [], [], []
        for i, row in enumerate(rows):
            issued, blocks = row.issued, row.blocks
            lblock = issued // size
            if issued != len(row.tokens):
                return None
            if lblock < len(blocks):
                tails.append(blocks[lblock])
            else:
                tails.append(-1)
                fresh.append(i)
            lblocks.append(lblock)
            slots.append(issued - lblock * size)
        plan = _Appends(np.array(lblocks), np.array(slots), np.array(tails), fresh)
        held = plan.tails >= 0
        if self.pool.needs_copies(plan.tails[held], plan.slots[held]):
            return None
        return plan

    def _append_alike(
        self, seq_ids: Sequence[int], tokens: Sequence[int], rows: list[SequenceTable], plan: _Appends
    ) -> None:
        ids, tails = np.array(seq_ids), plan.tails
        if plan.fresh:
            at = np.array(plan.fresh)
            blocks = self.pool.take(len(at), seq_id=ids[at], lblock=plan.lblocks[at], reason=Reason.DECODE)
            tails[at] = blocks
            for i, block, gen in zip(plan.fresh, blocks.tolist(), self.pool.gen[blocks].tolist(), strict=True):
                rows[i].add(block, gen)
        self.pool.write_many(tails, plan.slots, seq_id=ids, lblock=plan.lblocks, reason=Reason.DECODE)
        wrote = self._steps.wrote
        for row, token, lblock in zip(rows, tokens, plan.lblocks.tolist(), strict=True):
            row.tokens.append(token)
            row.issued += 1
            wrote((row.seq_id, lblock, row.blocks[lblock], row.gens[lblock], row.issued))

    def _record_schedule(self, rows: list[Scheduled], tables: list[SequenceTable]) -> None:
        """A SCHED row per sequence, with the digest of the table row that the worker will use."""
        sink, size = self._sink, self.block_size
        assert sink is not None
        if len(rows) < _BULK or max(item.hi - item.lo for item in rows) > _MAX_FILL:
            for item, row in zip(rows, tables, strict=True):
                seq = self._emit(Kind.SCHED, seq_id=item.seq_id, lblock=item.lo, fill=item.hi - item.lo,
                                 aux=pack_range(row.first * size, item.hi))  # fmt: skip
                sink.detail(seq, (row.table_digest(), len(row.blocks)))
            return
        lo, hi = np.array([item.lo for item in rows]), np.array([item.hi for item in rows])
        first = np.array([row.first for row in tables])
        details = np.array([(row.table_digest(), len(row.blocks)) for row in tables], dtype=np.int64)
        sink.emit_many(
            Kind.SCHED, seq_id=np.array([item.seq_id for item in rows]), lblock=lo, fill=hi - lo,
            aux=first * size | hi << 32, details=details,
        )  # fmt: skip

    def _commit(self, writes: Sequence[Write]) -> list[bool]:
        """Commit the blocks of these writes; which of them are still in the life that was written."""
        blocks = [write[2] for write in writes]
        if len(blocks) < _BULK or len(set(blocks)) < len(blocks):
            return [self.pool.commit(write[2], write[3], seq_id=write[0], lblock=write[1]) for write in writes]
        columns: list[npt.NDArray[np.int64]] = [np.array(column) for column in list(zip(*writes, strict=True))[:4]]
        seq_ids, lblocks, held, gens = columns
        return self.pool.commit_many(held, gens, seq_id=seq_ids, lblock=lblocks)
