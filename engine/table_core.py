"""What the operations of the block manager are made of: everything here runs inside its one critical section."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.copies import CopyQueue
from kvscope.engine.host_tier import HostTier, Swap
from kvscope.engine.integrity import witness
from kvscope.engine.leases import Lease, LeaseBook
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import PrefixIndex
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.steps import StepLedger
from kvscope.engine.tables import SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

_FILES = (
    "block_manager.py", "stepping.py", "holding.py", "swapping.py", "elastic.py", "table_core.py", "pool.py",
    "block_life.py", "leases.py", "lane.py", "lane_rows.py", "prefix_cache.py",
)  # fmt: skip
_WITNESS = int(Kind.WITNESS)
_OPERATIONS = [str(Path(__file__).with_name(name)) for name in _FILES]


class TableCore:
    """Tables, pool, copies and steps of one manager, and the parts of operations that change them.

    Nothing here takes the lock: `BlockManager` does, once per operation. `_needs_copy`, `_write` and `_release_tail`
    are the seams where a planted fault is put in.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        sink: EventSink | None = None,
        share_prefixes: bool = True,
        lock_factory: Callable[[], AbstractContextManager[object]] | None = None,
        hash_key: bytes | None = None,
        lease_clock: Callable[[], int] | None = None,
        host_blocks: int = 0,
    ) -> None:
        index = PrefixIndex(max(block_size, 1), key=hash_key)
        self.pool = BlockPool(num_blocks, block_size, sink=sink, index=index)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefixes = PrefixCache(self.pool, share=share_prefixes)
        self._sink = sink
        self._lock = (lock_factory or threading.Lock)()
        self._tables: dict[int, SequenceTable] = {}
        self._steps = StepLedger()
        self._stamped: int | None = None  # the step that the sink puts on its rows, as far as it was told
        # Whether writes are ours: a planted fault that replaces a part of them sees each one.
        own = type(self)._write is TableCore._write and type(self)._needs_copy is TableCore._needs_copy
        self._plain = own
        self._leases = LeaseBook(self.pool, lease_clock or (lambda: self._steps.number))
        self._copies = CopyQueue(self.pool, self._leases, sink)
        self._host = HostTier(host_blocks)
        self._swaps: list[Swap] = []  # decided, not yet handed to the device
        self._moving: list[Swap] = []  # handed to the device, not yet done
        if sink is not None:
            # The call site of an operation is who called these modules, not a line in them.
            sink.skip_frames(_OPERATIONS)

    def _write(self, row: SequenceTable, lo: int, hi: int, reason: Reason) -> None:
        if lo != row.issued or not lo < hi <= len(row.tokens):
            raise self._fault(
                row.seq_id,
                f"write of positions [{lo}, {hi}) by sequence {row.seq_id}: its KV ends at {row.issued} "
                f"and it has {len(row.tokens)} tokens",
            )
        copies, fresh = self._demand(row, lo, hi)
        if len(copies) + fresh > self.pool.num_available:
            self._refuse(row.seq_id, len(copies) + fresh, self.pool.num_available)
        size = self.block_size
        for lblock in copies:
            self._copies.decide(row, lblock, max(lo - lblock * size, 0))
        self._extend(row, fresh, reason)
        for lblock in range(lo // size, (hi - 1) // size + 1):
            block = row.blocks[lblock]
            slot_lo, slot_hi = max(lo - lblock * size, 0), min(hi - lblock * size, size)
            self.pool.write(block, slot_lo, slot_hi, seq_id=row.seq_id, lblock=lblock, reason=reason)
            self._steps.wrote((row.seq_id, lblock, block, row.gens[lblock], lblock * size + slot_hi))
        row.issued = hi

    def _demand(self, row: SequenceTable, lo: int, hi: int) -> tuple[list[int], int]:
        """What a write of [lo, hi) takes: a copy of each of these logical blocks, and so many fresh blocks."""
        size = self.block_size
        first, end = lo // size, (hi - 1) // size + 1
        held = range(first, min(end, len(row.blocks)))
        copies = [i for i in held if self._needs_copy(row.blocks[i], max(lo - i * size, 0))]
        return copies, max(0, end - len(row.blocks))

    def _demand_of(self, rows: Iterable[SequenceTable]) -> int:
        """Blocks that one more token for each of these rows may take, copies included."""
        demands = [self._demand(row, row.issued, len(row.tokens) + 1) for row in rows]
        return sum(len(copies) + fresh for copies, fresh in demands)

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
        keep = max(keep, row.first)
        self._copies.cancel_row(row, keep)
        tail = np.asarray(row.blocks[keep:], dtype=np.int64)
        self.pool.release_row(tail, seq_id=row.seq_id, lblock=keep, reason=reason)
        row.cut(keep)

    def _end_lease(self, lease_id: int, reason: Reason | None = None) -> Lease:
        """End a lease, and the waiting copies into blocks that only it still holds."""
        self._copies.cancel_held_by(lease_id)
        return self._leases.end(lease_id, reason)

    def _refuse(self, seq_id: int, needed: int, available: int, found: Sequence[int] = ()) -> None:
        """`found` are cached blocks that the operation would hold: none of them can be evicted for it."""
        seq = self._emit(Kind.REFUSED, Reason.NO_BLOCKS, seq_id=seq_id)
        if self._sink is not None:
            evictable = self.pool.num_evictable - sum(self.pool.is_evictable(block) for block in found)
            self._sink.detail(seq, (needed, self.pool.num_free, evictable))
        raise OutOfBlocks(needed, available, self.pool.shortage(needed))

    def _witness(self) -> None:
        sink = self._sink
        if sink is not None:
            counts = witness(self.pool, self._tables)
            if self._host.num_slots:
                counts = (*counts, self._host.num_slots - self._host.num_free)
            sink.detail(sink.emit(_WITNESS), counts)

    def _row(self, seq_id: int) -> SequenceTable:
        """The row that an operation is going to change; that there is none is recorded."""
        row = self._look(seq_id)
        row.step_out()
        return row

    def _look(self, seq_id: int) -> SequenceTable:
        """The row that an operation is about; that there is none is recorded. Its lane may know more of it."""
        row = self._tables.get(seq_id)
        if row is None:
            raise self._fault(seq_id, f"sequence {seq_id} holds no table: it was never admitted, or was freed")
        return row

    def _known(self, seq_id: int) -> SequenceTable:
        """The row that a query is about; its lane may know more of it."""
        row = self._tables.get(seq_id)
        if row is None:
            raise FaultyCall(f"sequence {seq_id} holds no table: it was never admitted, or was freed")
        return row

    def _fault(self, seq_id: int, message: str) -> FaultyCall:
        """The error to raise; a faulty call is recorded before it is refused."""
        self._begin()
        self._emit(Kind.REFUSED, Reason.BAD_CALL, seq_id=seq_id)
        return FaultyCall(message)

    def _begin(self, *, ahead: int = 0) -> None:
        """Start an operation of the last step begun, or of the next one (`ahead` 1: it is being planned)."""
        if self._sink is not None:
            step = self._steps.number + ahead
            if step != self._stamped:  # a sink may have to pass it on: not once for each operation
                self._sink.step = self._stamped = step
            self._sink.begin(3)  # called by whoever called the operation that calls this

    def _emit(self, kind: Kind, reason: int = 0, block: int = -1, gen: int = -1, *, fill: int = -1, seq_id: int = -1,
              lblock: int = -1, aux: int = 0) -> int:  # fmt: skip
        if self._sink is None:
            return -1
        return self._sink.emit(kind, reason, block, gen, -1, -1, fill, seq_id, lblock, aux)
