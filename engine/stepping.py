"""What happens once per step, for all of its sequences: one decoded token each, the step begins, the step ends.

What many sequences do alike is counted and recorded in bulk; where they differ, each goes the way of a single call.
Both ways leave the same state and the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvscope.engine.batch import Decodes, StepRows
from kvscope.engine.lane import LEAST, Lane
from kvscope.engine.lane_move import admits
from kvscope.engine.steps import Scheduled, Write
from kvscope.engine.table_core import TableCore
from kvscope.engine.tables import SequenceTable
from kvscope.errors import UsageError
from kvscope.traces.schema import Kind, Reason, pack_range

_STEP_BEGIN, _STEP_END = int(Kind.STEP_BEGIN), int(Kind.STEP_END)
_BULK = 7  # sequences from here on are cheaper as arrays
_MAX_FILL = 2**15 - 1


class Stepping(TableCore):
    """Batched appends and the beginning and end of steps; each operation is one critical section."""

    _least_lane = LEAST  # sequences from here on decode in a lane

    def can_append_many(self, seq_ids: Sequence[int]) -> bool:
        """Whether `append_many` for these sequences would be served now."""
        with self._lock:
            lane = self._lane_of(seq_ids) or self._lane_with(seq_ids)
            if lane is not None:
                return lane.needed <= self.pool.num_available
            return self._needed([self._known(seq_id) for seq_id in seq_ids]) <= self.pool.num_available

    def append_many(self, seq_ids: Sequence[int], tokens: Sequence[int]) -> Sequence[Scheduled]:
        """`append` of one token to each of these sequences, as one operation: one lock, one moment, all or nothing.

        The events are those of the single calls. Every holder of a shared last block is counted as needing a copy, so
        a batch may be refused that single calls could just serve.

        The same batch again and again is a lane (`lane`), at a fraction of the cost; its events are grouped by kind:
        first the ALLOC rows, then the WRITE rows.

        Returns:
            What `begin_step` needs for the step that computes these tokens.

        Raises: OutOfBlocks (nothing was changed), FaultyCall (a sequence is named twice or unknown), UsageError.
        """
        if len(seq_ids) != len(tokens):
            raise UsageError(f"append_many: {len(seq_ids)} sequences and {len(tokens)} tokens")
        with self._lock:
            self._begin(ahead=1)
            lane = self._lane_of(seq_ids) or self._lane_with(seq_ids)
            if lane is None:
                rows = [self._look(seq_id) for seq_id in seq_ids]
                if len(set(seq_ids)) < len(rows):
                    raise self._fault(-1, "append_many: a sequence is named twice; it can take one token at a time")
                lane = self._lane_for(list(seq_ids), rows)
            if lane is None:
                return self._append_singly(seq_ids, tokens, rows)
            needed, available = lane.needed, self.pool.num_available
            if needed > available:
                self._refuse(seq_ids[0], needed, available)
            decodes = lane.append(tokens)
            self._steps.decoding.append(decodes)
            return decodes

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        """Open an engine step over the writes that the scheduled sequences have issued; returns its number.

        Until `end_step` the blocks in the tables of the scheduled sequences are in use: whatever is freed of
        them waits in quarantine.
        """
        with self._lock:
            self._begin(ahead=1)
            decodes, others = self._batch_in(scheduled)
            tables = [self._look(item.seq_id) for item in others] if others else []
            number = self._steps.begin(others, decodes)
            members = frozenset(item.seq_id for item in others) if others else frozenset()
            if decodes is not None:
                members = decodes.members | members if members else decodes.members
            self.pool.begin_use(number, members)
            if self._sink is not None:
                if decodes is None:
                    self._sink.emit(_STEP_BEGIN, aux=len(others))
                else:
                    decodes.lane.schedule(len(others) + len(decodes.ids))
                if others:
                    self._record_schedule(others, tables)
            return number

    def end_step(self) -> None:
        """The oldest open step has completed: commit and publish what it wrote, settle what waited for it."""
        with self._lock:
            if not self._steps.open:
                raise self._fault(-1, "end_step without an open step")
            step = self._steps.end()
            self._begin(ahead=step.number - self._steps.number)
            lane = None if step.decodes is None else step.decodes.lane
            if step.decodes is not None and lane is not None and not lane.commit(step.decodes):
                lane, step = None, step.spelled_out()
            if lane is not None and step.writes:
                lane.record_commit()
            committed = self._commit(step.writes) if step.writes else []
            if lane is not None:
                lane.publish(committed=bool(step.writes))
            for write, ok in zip(step.writes, committed, strict=True):
                if ok:
                    self._land(write)
            self.pool.settle(step.number)
            if self._sink is not None:
                self._record_end(step.tokens(), lane)

    # -- inside the critical section ------------------------------------------------------------------------------

    def _lane_of(self, seq_ids: Sequence[int]) -> Lane | None:
        """The lane that these sequences, and no others, can go on in."""
        row = self._tables.get(seq_ids[0]) if len(seq_ids) >= self._least_lane else None
        lane = None if row is None else row.lane
        if lane is None or not lane.intact or lane.ids != seq_ids:
            return None
        return None if self._steps.await_any(lane.members) or not lane.writable() else lane

    def _lane_for(self, seq_ids: list[int], rows: list[SequenceTable]) -> Lane | None:
        """A new lane for these rows, if they can be one."""
        members = frozenset(seq_ids)
        if len(rows) < self._least_lane or not self._plain or self._steps.await_any(members):
            return None
        if not admits(rows, self.pool, share=self.prefixes.share):
            return None
        lane = Lane(self.pool, self.prefixes)
        lane.have(seq_ids, members, rows)
        return lane if lane.writable() else None

    def _lane_with(self, seq_ids: Sequence[int]) -> Lane | None:
        """The lane of most of these sequences, for them alone from now on, if all of them can be in it."""
        if len(seq_ids) < self._least_lane:
            return None
        ends = (self._tables.get(seq_ids[0]), self._tables.get(seq_ids[-1]))
        lane = next((row.lane for row in ends if row is not None and row.lane is not None), None)
        if lane is None:
            return None
        ids = list(seq_ids)
        members = frozenset(ids)
        taken = lane.takes_over(ids, members)
        if taken is None or self._steps.await_any(members):
            return None
        joining = [row for seq_id in taken.new if (row := self._tables.get(seq_id)) is not None]
        if len(joining) < len(taken.new) or (joining and not admits(joining, self.pool, share=self.prefixes.share)):
            return None
        lane.have(ids, members, joining, straight=taken.straight)
        return lane if lane.writable() else None

    def _needed(self, rows: list[SequenceTable]) -> int:
        """Blocks that one more token for each of these rows may take."""
        for row in rows:
            row.catch_up()
        return self._demand_of(rows)

    def _append_singly(
        self, seq_ids: Sequence[int], tokens: Sequence[int], rows: list[SequenceTable]
    ) -> list[Scheduled]:
        """`append_many` where the rows are no lane."""
        needed, available = self._needed(rows), self.pool.num_available
        if needed > available:
            self._refuse(seq_ids[0], needed, available)
        for row in rows:
            row.step_out()
        for row, token in zip(rows, tokens, strict=True):
            row.tokens.append(token)
            self._write(row, row.issued, len(row.tokens), Reason.DECODE)
        return [Scheduled(row.seq_id, row.issued - 1, row.issued) for row in rows]

    def _batch_in(self, scheduled: Iterable[Scheduled]) -> tuple[Decodes | None, Sequence[Scheduled]]:
        """The waiting batch of appends that the rows of a step begin with, if they do, and the other rows."""
        decodes: Decodes | None = None
        rows: Sequence[Scheduled]
        if isinstance(scheduled, Decodes):
            decodes, rows = scheduled, ()
        elif isinstance(scheduled, StepRows):
            decodes, rows = scheduled.decodes, scheduled.others
        else:
            rows = list(scheduled)
            for waiting in self._steps.decoding:
                if waiting.stands_for(rows[: len(waiting)]):
                    decodes, rows = waiting, rows[len(waiting) :]
                    break
        if decodes is None:
            return None, rows
        if decodes.latest:
            for waiting in self._steps.decoding:
                if waiting is decodes:
                    return decodes, rows
        return None, [*decodes, *rows]

    def _record_end(self, tokens: int, lane: Lane | None) -> None:
        if lane is None or self._host.num_slots or not lane.record_end(tokens, len(self._tables)):
            assert self._sink is not None
            self._sink.emit(_STEP_END, aux=tokens)
            self._witness()

    def _land(self, write: Write) -> None:
        """The block of this write is committed: so much of its row is computed now, and published when it is full."""
        seq_id, lblock, block, _, position = write
        row = self._tables.get(seq_id)
        if row is not None and lblock < len(row.blocks) and row.blocks[lblock] == block:
            row.step_out()
            row.computed = max(row.computed, min(position, row.issued))
            if row.computed >= (row.published + 1) * self.block_size:
                self.prefixes.publish(row)

    def _record_schedule(self, rows: Sequence[Scheduled], tables: list[SequenceTable]) -> None:
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
