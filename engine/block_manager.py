"""The block manager: block tables over the pool, with sharing, copy-on-write and fences, behind one lock.

    admit ---> append / write ---> begin_step ... drain_copies, copies_done ... end_step ---> free
                 fork, truncate anywhere between steps

Every public operation is one critical section over counts, free list, tables and the event append, so the order
of a trace is an order in which the operations could have happened. Every operation is all-or-nothing: what is
refused leaves no trace in the state, and a REFUSED row with what was needed and available.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import numpy as np

from kvscope.engine import pool
from kvscope.engine.block_arrays import BlockState
from kvscope.engine.copies import CopyQueue
from kvscope.engine.integrity import check_integrity, witness
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import Extras, PrefixIndex
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.steps import OpenStep, Scheduled, Write, cut
from kvscope.engine.tables import Copy, PrefixMatch, SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest
from kvscope.traces.sink import EventSink


class BlockManager:
    """Block tables of all sequences over one pool; every operation is atomic and recorded.

    Args:
        num_blocks, block_size: pool geometry, in blocks and slots.
        sink: where events go; None records nothing.
        share_prefixes: publish full blocks and look prompts up among them.
        lock_factory: makes the one lock; a race explorer passes its own.
        hash_key: key of the prefix hashes; random when None (give one for repeatable traces).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        sink: EventSink | None = None,
        share_prefixes: bool = True,
        lock_factory: Callable[[], AbstractContextManager[object]] = threading.Lock,
        hash_key: bytes | None = None,
    ) -> None:
        index = PrefixIndex(max(block_size, 1), key=hash_key)
        self.pool = BlockPool(num_blocks, block_size, sink=sink, index=index)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefixes = PrefixCache(self.pool, share=share_prefixes)
        self._sink = sink
        self._lock = lock_factory()
        self._tables: dict[int, SequenceTable] = {}
        self._writes: list[Write] = []  # issued since the last begin_step
        self._copies = CopyQueue(self.pool, sink)
        self._steps: list[OpenStep] = []  # begun, oldest first
        self._step = -1
        if sink is not None:
            # The call site of an operation is who called this module, not a line in it.
            sink.skip_frames((__file__, pool.__file__))

    # -- queries --------------------------------------------------------------------------------------------------

    def table(self, seq_id: int) -> list[int]:
        """Physical block ids of a sequence, logical order."""
        with self._lock:
            return list(self._row(seq_id).blocks)

    def length(self, seq_id: int) -> int:
        """Positions of a sequence whose KV exists or is being written."""
        with self._lock:
            return self._row(seq_id).issued

    def num_free(self) -> int:
        """Blocks that an allocation could take now, evictable ones included."""
        with self._lock:
            return self.pool.num_available

    def refcount(self, block: int) -> int:
        """Table entries that hold the block."""
        with self._lock:
            return int(self.pool.entries[block])

    def sequences(self) -> list[int]:
        """Ids of the sequences that hold a table."""
        with self._lock:
            return list(self._tables)

    def probe(self, tokens: Sequence[int], extras: Extras = ()) -> PrefixMatch:
        """What admitting this prompt would find and take; changes nothing."""
        with self._lock:
            return self.prefixes.match(tokens, extras)

    # -- a sequence's life ----------------------------------------------------------------------------------------

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        """Give a sequence the blocks of its whole prompt; returns how many leading tokens are cached already.

        Raises:
            OutOfBlocks: the blocks cannot be had; nothing was changed.
            UsageError: the prompt is empty. FaultyCall: the sequence holds a table already.
        """
        if not tokens:
            raise UsageError("the prompt is empty: a sequence needs at least one token")
        with self._lock:
            self._begin(ahead=1)
            if seq_id in self._tables:
                raise FaultyCall(f"sequence {seq_id} is admitted already: free or preempt it first")
            match = self.prefixes.match(tokens, extras)
            if not match.fits:
                self._refuse(seq_id, match.needed, match.available)
            aux = len(tokens) - match.cached_tokens if resumed else match.cached_tokens
            self._emit(Kind.RESUME if resumed else Kind.ADMIT, seq_id=seq_id, aux=aux)
            row = SequenceTable(seq_id, list(tokens), extras, hashes=list(match.hashes))
            for lblock, block in enumerate(match.hits):
                self.prefixes.hit(row, lblock, block)
            if match.stop != Reason.NONE:
                self._emit(Kind.MISS, match.stop, seq_id=seq_id, lblock=len(match.hits))
            self._extend(row, match.needed, Reason.PREFILL)
            row.issued = row.computed = match.cached_tokens
            row.published = len(match.hits)
            self._tables[seq_id] = row
            self.prefixes.announce(row)
            return match.cached_tokens

    def write(self, seq_id: int, lo: int, hi: int) -> None:
        """Reserve and record the writes of positions [lo, hi), copying shared blocks first.

        `lo` must be where the sequence's KV ends; `hi` at most its known tokens.
        Raises: OutOfBlocks (nothing was changed), FaultyCall.
        """
        with self._lock:
            self._begin(ahead=1)
            self._write(self._row(seq_id), lo, hi, Reason.PREFILL)

    def append(self, seq_id: int, token: int) -> None:
        """One more token, to be computed in the next step: its slot is reserved and the write recorded.

        Raises: OutOfBlocks (nothing was changed).
        """
        with self._lock:
            self._begin(ahead=1)
            row = self._row(seq_id)
            row.tokens.append(token)
            try:
                self._write(row, row.issued, len(row.tokens), Reason.DECODE)
            except OutOfBlocks:
                row.tokens.pop()
                raise

    def fork(self, parent: int, child: int) -> None:
        """Let `child` continue from everything `parent` has: all blocks shared, none copied yet."""
        with self._lock:
            self._begin()
            source = self._row(parent)
            if child in self._tables:
                raise FaultyCall(f"sequence {child} is admitted already: a fork needs a new id")
            self._emit(Kind.FORK, Reason.FORK, seq_id=child, aux=parent)
            row = SequenceTable(
                child, list(source.tokens), source.extras, list(source.blocks), list(source.gens), list(source.hashes),
                source.issued, source.computed, source.published,
            )  # fmt: skip
            self.pool.retain_row(np.asarray(row.blocks, dtype=np.int64), Kind.SHARE, seq_id=child, reason=Reason.FORK)
            self._tables[child] = row

    def truncate(self, seq_id: int, length: int) -> None:
        """Drop the positions from `length` on (rejected speculative tokens) and the blocks only they needed."""
        with self._lock:
            self._begin()
            row = self._row(seq_id)
            if not 1 <= length <= len(row.tokens):
                raise FaultyCall(f"truncate of sequence {seq_id} to {length}: it has {len(row.tokens)} tokens")
            self._emit(Kind.TRUNCATE, Reason.TRUNCATED, seq_id=seq_id, aux=length)
            keep = -(-length // self.block_size)
            self._release_tail(row, keep, Reason.TRUNCATED)
            self.prefixes.withdraw(row, from_block=length // self.block_size)
            del row.tokens[length:], row.hashes[length // self.block_size :]
            self._writes = [cut(write, seq_id, length) for write in self._writes]
            self._steps = [step.cut(seq_id, length) for step in self._steps]
            row.issued, row.computed = min(row.issued, length), min(row.computed, length)
            row.published = min(row.published, length // self.block_size)

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        """Give all blocks of a sequence back: it finished, was aborted, or is preempted (`kind`)."""
        with self._lock:
            self._begin(ahead=1 if kind == Kind.PREEMPT else 0)
            row = self._row(seq_id)
            self._emit(kind, reason, seq_id=seq_id, aux=aux)
            self._release_tail(row, 0, reason)
            self.prefixes.withdraw(row)
            del self._tables[seq_id]

    def record(self, kind: Kind, reason: Reason, seq_id: int, aux: int = 0, *, details: Sequence[int] = (),
               needed: int | None = None) -> None:  # fmt: skip
        """Record an event of a sequence that touches no block: submitted, waiting (for `needed`), gone."""
        if self._sink is not None:
            with self._lock:
                self._begin(ahead=1)
                seq = self._emit(kind, reason, seq_id=seq_id, aux=aux)
                if needed is not None:
                    details = (needed, self.pool.num_free, self.pool.num_evictable)
                if details:
                    self._sink.detail(seq, details)

    # -- steps ----------------------------------------------------------------------------------------------------

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        """Open an engine step over the writes issued so far; returns its number.

        Until `end_step` the blocks in the tables of the scheduled sequences are in use: whatever is freed of
        them waits in quarantine.
        """
        with self._lock:
            self._begin(ahead=1)
            rows = list(scheduled)
            tables = [self._row(item.seq_id) for item in rows]
            self._step += 1
            self._emit(Kind.STEP_BEGIN, aux=len(rows))
            for item, row in zip(rows, tables, strict=True):
                self.pool.last_use_step[row.blocks] = self._step
                seq = self._emit(Kind.SCHED, seq_id=item.seq_id, lblock=item.lo, fill=item.hi - item.lo,
                                 aux=pack_range(0, item.hi))  # fmt: skip
                if self._sink is not None:
                    self._sink.detail(seq, (table_digest(row.blocks, row.gens), len(row.blocks)))
            self._steps.append(OpenStep(self._step, tuple(rows), tuple(self._writes)))
            self._writes = []
            return self._step

    def drain_copies(self) -> list[Copy]:
        """Copies the device must run now, in order, before the writes of the step."""
        with self._lock:
            return self._copies.drain()

    def copies_done(self, copies: Iterable[Copy]) -> None:
        """These copies have run: their sources are no longer leased."""
        with self._lock:
            self._begin()
            self._copies.done(copies)

    def end_step(self) -> None:
        """The oldest open step has completed: commit and publish what it wrote, settle what waited for it."""
        with self._lock:
            if not self._steps:
                raise FaultyCall("end_step without an open step")
            step = self._steps.pop(0)
            self._begin(ahead=step.number - self._step)
            for seq_id, lblock, block, gen, position in step.writes:
                row = self._tables.get(seq_id)
                if not self.pool.commit(block, gen, seq_id=seq_id, lblock=lblock):
                    continue
                if row is not None and lblock < len(row.blocks) and row.blocks[lblock] == block:
                    row.computed = max(row.computed, min(position, row.issued))
                    self.prefixes.publish(row)
            self.pool.settle(step.number)
            self._emit(Kind.STEP_END, aux=sum(item.hi - item.lo for item in step.scheduled))
            self._witness()

    def check_integrity(self) -> None:
        """Compare counts, states, free list, index and tables with each other.

        Raises:
            FaultyCall: they disagree; says where.
        """
        with self._lock:
            check_integrity(self.pool, self._tables)

    # -- inside the critical section ------------------------------------------------------------------------------

    def _write(self, row: SequenceTable, lo: int, hi: int, reason: Reason) -> None:
        if lo != row.issued or not lo < hi <= len(row.tokens):
            raise FaultyCall(
                f"write of positions [{lo}, {hi}) by sequence {row.seq_id}: its KV ends at {row.issued} "
                f"and it has {len(row.tokens)} tokens"
            )
        size = self.block_size
        first, last = lo // size, (hi - 1) // size
        held = range(first, min(last + 1, len(row.blocks)))
        copies = [i for i in held if self._needs_copy(row.blocks[i], max(lo - i * size, 0))]
        fresh = max(0, last + 1 - len(row.blocks))
        if len(copies) + fresh > self.pool.num_available:
            self._refuse(row.seq_id, len(copies) + fresh, self.pool.num_available)
        for lblock in copies:
            self._copies.decide(row, lblock, max(lo - lblock * size, 0))
        self._extend(row, fresh, reason)
        for lblock in range(first, last + 1):
            block = row.blocks[lblock]
            slot_lo, slot_hi = max(lo - lblock * size, 0), min(hi - lblock * size, size)
            self.pool.write(block, slot_lo, slot_hi, seq_id=row.seq_id, lblock=lblock, reason=reason)
            self._writes.append((row.seq_id, lblock, block, row.gens[lblock], lblock * size + slot_hi))
        row.issued = hi

    def _needs_copy(self, block: int, slot: int) -> bool:
        """Whether a write from `slot` on must go to a copy: another table holds the block, it is published, or leased.

        A lease covers slots that were filled when it began, so an append goes behind it; only a rollback leads into it.
        """
        pool = self.pool
        return bool(
            pool.entries[block] > 1 or pool.state[block] == BlockState.PUBLISHED or slot < pool.leased_slots[block]
        )

    def _extend(self, row: SequenceTable, count: int, reason: Reason) -> None:
        lblock = len(row.blocks)
        if count == 1:
            block = self.pool.take_one(seq_id=row.seq_id, lblock=lblock, reason=reason)
            row.add(block, int(self.pool.gen[block]))
        elif count:
            blocks = self.pool.take(count, seq_id=row.seq_id, lblock=lblock, reason=reason)
            row.blocks += blocks.tolist()
            row.gens += self.pool.gen[blocks].tolist()

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        """Release the row's blocks from `keep` on, last first (so that along a prefix the leaf is evicted first)."""
        self._copies.cancel_row(row, keep)
        tail = np.asarray(row.blocks[keep:], dtype=np.int64)
        self.pool.release_row(tail, seq_id=row.seq_id, lblock=keep, reason=reason)
        del row.blocks[keep:], row.gens[keep:]

    def _refuse(self, seq_id: int, needed: int, available: int) -> None:
        seq = self._emit(Kind.REFUSED, Reason.NO_BLOCKS, seq_id=seq_id)
        if self._sink is not None:
            self._sink.detail(seq, (needed, self.pool.num_free, self.pool.num_evictable))
        raise OutOfBlocks(needed, available, self.pool.shortage(needed))

    def _witness(self) -> None:
        if self._sink is not None:
            self._sink.detail(self._emit(Kind.WITNESS), witness(self.pool, self._tables))

    def _row(self, seq_id: int) -> SequenceTable:
        row = self._tables.get(seq_id)
        if row is None:
            raise FaultyCall(f"sequence {seq_id} holds no table: it was never admitted, or was freed")
        return row

    def _begin(self, *, ahead: int = 0) -> None:
        """Start an operation of the last step begun, or of the next one (`ahead` 1: it is being planned)."""
        if self._sink is not None:
            self._sink.step = self._step + ahead
            self._sink.begin()

    def _emit(self, kind: Kind, reason: int = 0, block: int = -1, gen: int = -1, *, fill: int = -1, seq_id: int = -1,
              lblock: int = -1, aux: int = 0) -> int:  # fmt: skip
        if self._sink is None:
            return -1
        return self._sink.emit(kind, reason, block, gen, -1, -1, fill, seq_id, lblock, aux)
