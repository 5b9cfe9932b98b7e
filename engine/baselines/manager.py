"""The block manager's interface over contiguous regions: the scheduler cannot tell which of the two it drives.

Only the addresses differ. A sequence's blocks lie side by side, so its "table" is a range; nothing is shared and no
prefix is looked up. A move is recorded as what it is: new blocks, a write of what is copied, the old blocks freed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvscope.engine.baselines.spaces import Growth, Region, Space, check_space
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy, PrefixMatch
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest, to_signed
from kvscope.traces.sink import EventSink

Extras = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _Row:
    seq_id: int
    region: Region
    gens: npt.NDArray[np.int32]
    tokens: int  # known
    issued: int = 0  # positions written, those of an open step included


class RegionManager:
    """Regions of all sequences over one space; every operation is atomic and recorded, as in `BlockManager`.

    A step has to end before its sequences may grow or go: there is no quarantine.

    Args:
        space: which allocator.
        sink: where events go; None records nothing.
        lock_factory: makes the one lock.
    """

    def __init__(
        self,
        space: Space,
        *,
        sink: EventSink | None = None,
        lock_factory: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        self.space = space
        self.num_blocks = space.num_blocks
        self.block_size = space.block_size
        self.moved_tokens = 0
        self._sink = sink
        self._lock = (lock_factory or threading.Lock)()
        self._rows: dict[int, _Row] = {}
        self._gen = np.zeros(space.num_blocks, dtype=np.int32)
        self._writes: list[tuple[int, int, int]] = []  # seq_id, lo, hi since the last begin_step
        self._copies: list[Copy] = []
        self._open: tuple[list[Scheduled], list[tuple[int, int, int]]] | None = None
        self._step = -1
        if sink is not None:
            sink.skip_frames((__file__,))

    # -- queries --------------------------------------------------------------------------------------------------

    def table(self, seq_id: int) -> list[int]:
        """Blocks of a sequence, side by side."""
        with self._lock:
            region = self._row(seq_id).region
            return list(range(region.start, region.end))

    def length(self, seq_id: int) -> int:
        """Positions of a sequence whose KV exists or is being written."""
        with self._lock:
            return self._row(seq_id).issued

    def num_free(self) -> int:
        """Free blocks; they need not lie side by side."""
        with self._lock:
            return self.space.free

    def refcount(self, block: int) -> int:
        """1 for a block of a region, else 0."""
        with self._lock:
            return int(any(r.region.start <= block < r.region.end for r in self._rows.values()))

    def sequences(self) -> list[int]:
        """Ids of the sequences that hold a region."""
        with self._lock:
            return list(self._rows)

    def held(self) -> dict[int, int]:
        """Blocks in the region of each sequence."""
        with self._lock:
            return {seq_id: row.region.blocks for seq_id, row in self._rows.items()}

    def supply(self) -> tuple[int, int]:
        """Free blocks (they need not lie side by side); none can be evicted."""
        with self._lock:
            return self.space.free, 0

    def in_flight(self) -> int:
        """Steps that have begun and not ended."""
        with self._lock:
            return int(self._open is not None)

    def probe(self, tokens: Sequence[int], extras: Extras = ()) -> PrefixMatch:
        """What admitting this prompt would take; `available` is what is free, if there is a hole that fits."""
        with self._lock:
            needed, largest = self.space.size_for(len(tokens)), self.space.largest_free()
            available = self.space.free if needed <= largest else min(largest, needed - 1)
            return PrefixMatch((), (), 0, needed, available, None, Reason.NONE)

    # -- a sequence's life ----------------------------------------------------------------------------------------

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        """Give a sequence its region; nothing is ever cached, so always 0.

        Raises:
            OutOfBlocks: no hole is big enough; nothing was changed.
            UsageError: the prompt is empty. FaultyCall: the sequence holds a region already.
        """
        if not tokens:
            raise UsageError("the prompt is empty: a sequence needs at least one token")
        with self._lock:
            self._begin()
            if seq_id in self._rows:
                raise FaultyCall(f"sequence {seq_id} is admitted already: free or preempt it first")
            region = self.space.open(len(tokens))
            if region is None:
                raise self._refusal(seq_id, len(tokens))
            self._emit(Kind.RESUME if resumed else Kind.ADMIT, seq_id=seq_id, aux=len(tokens) if resumed else 0)
            row = _Row(seq_id, region, np.empty(0, dtype=np.int32), len(tokens))
            self._hand_out(row, 0, Reason.PREFILL)
            self._rows[seq_id] = row
            return 0

    def write(self, seq_id: int, lo: int, hi: int) -> None:
        """Record the writes of positions [lo, hi) of a prompt."""
        with self._lock:
            self._begin()
            row = self._row(seq_id)
            if lo != row.issued or not lo < hi <= row.tokens:
                raise FaultyCall(
                    f"write of positions [{lo}, {hi}) by sequence {seq_id}: its KV ends at {row.issued} "
                    f"and it has {row.tokens} tokens"
                )
            self._write(row, hi, Reason.PREFILL)

    def append(self, seq_id: int, token: int) -> None:
        """One more token, to be computed in the next step; the region grows or moves when it is full.

        Raises:
            OutOfBlocks: it can do neither; nothing was changed.
        """
        with self._lock:
            self._begin()
            row = self._row(seq_id)
            self._closed_step("append to", seq_id)
            self._grow(row, row.tokens + 1)
            row.tokens += 1
            self._write(row, row.tokens, Reason.DECODE)

    def can_append_many(self, seq_ids: Sequence[int]) -> bool:
        """No: regions grow and move one by one, so `append` is the only way."""
        return False

    def append_many(self, seq_ids: Sequence[int], tokens: Sequence[int]) -> Sequence[Scheduled]:
        """Refused, as `can_append_many` says."""
        raise UsageError(f"the {self.space.name} allocator appends to one sequence at a time: call append")

    def fork(self, parent: int, child: int) -> None:
        """Refused: two sequences cannot share a region. Submit the samples as sequences of their own."""
        raise UsageError(f"the {self.space.name} allocator cannot share: sequence {child} needs a region of its own")

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        """Give the region of a sequence back: it finished, was aborted, or is preempted (`kind`)."""
        with self._lock:
            self._begin()
            row = self._row(seq_id)
            self._closed_step("free of", seq_id)
            self._emit(kind, reason, seq_id=seq_id, aux=aux)
            self._take_back(row, row.region.start, row.gens, row.issued, reason)
            self.space.close(row.region)
            self._writes = [write for write in self._writes if write[0] != seq_id]
            del self._rows[seq_id]

    def record(self, kind: Kind, reason: Reason, seq_id: int, aux: int = 0, *, details: Sequence[int] = (),
               needed: int | None = None) -> None:  # fmt: skip
        """Record an event of a sequence that touches no block: submitted, waiting (for `needed`), gone."""
        if self._sink is not None:
            with self._lock:
                self._begin()
                seq = self._emit(kind, reason, seq_id=seq_id, aux=aux)
                if needed is not None:
                    details = (needed, self.space.free, 0, *details)
                if details:
                    self._sink.detail(seq, details)

    # -- steps ----------------------------------------------------------------------------------------------------

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        """Open a step over the writes issued so far; returns its number."""
        with self._lock:
            self._begin()
            if self._open is not None:
                raise FaultyCall(f"begin_step while step {self._step} is open: end it first")
            rows = list(scheduled)
            tables = [self._row(item.seq_id) for item in rows]
            self._step += 1
            if self._sink is not None:
                self._sink.step = self._step
            self._emit(Kind.STEP_BEGIN, aux=len(rows))
            for item, row in zip(rows, tables, strict=True):
                seq = self._emit(Kind.SCHED, seq_id=item.seq_id, lblock=item.lo, fill=item.hi - item.lo,
                                 aux=pack_range(0, item.hi))  # fmt: skip
                if self._sink is not None:
                    self._sink.detail(seq, (_digest(row), row.region.blocks))
            self._open, self._writes = (rows, self._writes), []
            return self._step

    def drain_copies(self) -> list[Copy]:
        """Copies of moved regions, in order; each source may be overwritten by a later one, so the order is binding."""
        with self._lock:
            copies, self._copies = self._copies, []
            return copies

    def copies_done(self, copies: Iterable[Copy]) -> None:
        """Nothing to do: no source is leased, the order of the copies protects it."""

    def end_step(self) -> None:
        """The open step has completed: what it wrote exists."""
        with self._lock:
            self._begin()
            if self._open is None:
                raise FaultyCall("end_step without an open step")
            (rows, writes), self._open = self._open, None
            for seq_id, lo, hi in writes if self._sink is not None else ():
                row, size = self._rows[seq_id], self.block_size
                for lblock in range(lo // size, (hi - 1) // size + 1):
                    self._block_event(Kind.COMMIT, Reason.NONE, row, lblock, min(hi - lblock * size, size))
            self._emit(Kind.STEP_END, aux=sum(item.hi - item.lo for item in rows))
            if self._sink is not None:
                held = self.space.held
                digest = to_signed(sum(_digest(row) for row in self._rows.values()))
                self._sink.detail(self._emit(Kind.WITNESS), (self.space.free, held, 0, 0, 0, 0, held, digest))

    def check_integrity(self) -> None:
        """Regions do not overlap, and with what is free they make up the pool.

        Raises:
            FaultyCall: they do not; says where.
        """
        with self._lock:
            check_space(self.space, [row.region for row in self._rows.values()])

    # -- inside the critical section ------------------------------------------------------------------------------

    def _grow(self, row: _Row, tokens: int) -> None:
        start, blocks = row.region.start, row.region.blocks
        growth = self.space.grow(row.region, tokens)
        if growth is Growth.REFUSED:
            raise self._refusal(row.seq_id, tokens)
        if growth is Growth.IN_PLACE:
            self._hand_out(row, blocks, Reason.DECODE)
        elif growth is Growth.MOVED:
            old, row.gens = row.gens, np.empty(0, dtype=np.int32)
            self._hand_out(row, 0, Reason.DECODE)
            self._record_writes(row, 0, row.issued, Reason.DECODE)
            self._writes.append((row.seq_id, 0, row.issued))
            self._take_back(row, start, old, row.issued, Reason.DECODE)
            self.moved_tokens += row.issued
            for lblock in range(self._filled(row.issued)):
                slots = min(row.issued - lblock * self.block_size, self.block_size)
                target = row.region.start + lblock
                self._copies.append(Copy(start + lblock, target, int(row.gens[lblock]), slots, -1))

    def _hand_out(self, row: _Row, first: int, reason: Reason) -> None:
        """Blocks of the region from `first` on begin a life."""
        ids = np.arange(row.region.start + first, row.region.end)
        self._gen[ids] += 1
        row.gens = np.concatenate([row.gens[:first], self._gen[ids]])
        if self._sink is not None:
            self._sink.emit_many(
                Kind.ALLOC, reason, block=ids, gen=self._gen[ids], ref_before=0, ref_after=1, fill=0,
                seq_id=row.seq_id, lblock=np.arange(first, row.region.blocks),
            )  # fmt: skip

    def _take_back(self, row: _Row, start: int, gens: npt.NDArray[np.int32], filled: int, reason: Reason) -> None:
        """Lives of the blocks from `start` on end, last first."""
        if self._sink is None:
            return
        for lblock in range(len(gens) - 1, -1, -1):
            block, gen = start + lblock, int(gens[lblock])
            fill = min(max(filled - lblock * self.block_size, 0), self.block_size)
            self._sink.emit(Kind.RELEASE, reason, block, gen, 1, 0, fill, row.seq_id, lblock)
            self._sink.emit(Kind.FREE, reason, block, gen, 0, 0, 0)

    def _write(self, row: _Row, hi: int, reason: Reason) -> None:
        self._record_writes(row, row.issued, hi, reason)
        self._writes.append((row.seq_id, row.issued, hi))
        row.issued = hi

    def _record_writes(self, row: _Row, lo: int, hi: int, reason: Reason) -> None:
        if self._sink is None or lo == hi:
            return
        size = self.block_size
        for lblock in range(lo // size, (hi - 1) // size + 1):
            slots = pack_range(max(lo - lblock * size, 0), min(hi - lblock * size, size))
            self._block_event(Kind.WRITE, reason, row, lblock, min(hi - lblock * size, size), slots)

    def _block_event(self, kind: Kind, reason: Reason, row: _Row, lblock: int, fill: int, aux: int = 0) -> None:
        if self._sink is not None:
            block = row.region.start + lblock
            self._sink.emit(kind, reason, block, int(row.gens[lblock]), 1, 1, fill, row.seq_id, lblock, aux)

    def _filled(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _closed_step(self, what: str, seq_id: int) -> None:
        if self._open is not None and any(item.seq_id == seq_id for item in self._open[0]):
            raise FaultyCall(f"{what} sequence {seq_id} while step {self._step} uses it: end the step first")

    def _refusal(self, seq_id: int, tokens: int) -> OutOfBlocks:
        needed, free, largest = self.space.size_for(tokens), self.space.free, self.space.largest_free()
        seq = self._emit(Kind.REFUSED, Reason.NO_BLOCKS, seq_id=seq_id)
        if self._sink is not None:
            self._sink.detail(seq, (needed, free, 0, largest))
        return OutOfBlocks(needed, largest, (
            f"no region of {needed} blocks: {free} free of {self.num_blocks}, at most {largest} side by side; "
            "raise num_blocks or lower the load"
        ))  # fmt: skip

    def _row(self, seq_id: int) -> _Row:
        row = self._rows.get(seq_id)
        if row is None:
            raise FaultyCall(f"sequence {seq_id} holds no region: it was never admitted, or was freed")
        return row

    def _begin(self) -> None:
        if self._sink is not None:
            self._sink.begin()

    def _emit(self, kind: Kind, reason: int = 0, *, fill: int = -1, seq_id: int = -1, lblock: int = -1,
              aux: int = 0) -> int:  # fmt: skip
        if self._sink is None:
            return -1
        return self._sink.emit(kind, reason, -1, -1, -1, -1, fill, seq_id, lblock, aux)


def _digest(row: _Row) -> int:
    return table_digest(np.arange(row.region.start, row.region.end), row.gens)
