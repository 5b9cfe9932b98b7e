"""A pool that changes its size while it runs.

Growing adds ids at the end. Shrinking takes the last ids away: free ones go at once, cached ones are evicted, held
ones are moved in front - copied under a lease, every table that holds them led to the copy - or the call refuses and
says who holds them. Both are one critical section and all-or-nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvscope.engine.block_arrays import BlockState, check_geometry
from kvscope.engine.holding import Holding
from kvscope.engine.leases import Holder
from kvscope.engine.orphans import withdraw_behind
from kvscope.engine.tables import Copy, SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.traces.schema import Kind, Reason

Entries = list[tuple[SequenceTable, int]]  # rows that hold a block, and as which logical block


class Elastic(Holding):
    """`grow` and `shrink` of a block manager."""

    def grow(self, blocks: int) -> int:
        """Add free blocks to the pool; returns its new size. The KV memory must be there before (`KVCache.resize`).

        Raises:
            UsageError: that is no number of blocks, or more than a pool can have.
        """
        if blocks < 1:
            raise UsageError(f"grow by {blocks} blocks: must be 1 or more (shrink takes blocks away)")
        with self._lock:
            before = self.pool.num_blocks
            check_geometry(before + blocks, self.block_size)
            self._begin()
            self._emit(Kind.GROW, Reason.RESIZED, lblock=before, aux=before + blocks)
            return self._set_size(before + blocks)

    def shrink(self, blocks: int, *, move: Callable[[Sequence[Copy]], object] | None = None) -> int:
        """Take the last `blocks` blocks out of the pool; returns its new size. Their KV memory may go afterwards.

        Args:
            move: runs the block copies that this takes, and returns when they have run; None where there is no memory
                behind the pool. When it raises, no block has moved.

        Raises:
            UsageError: that is no number of blocks, or none would be left.
            OutOfBlocks: what must move finds no room in front.
            FaultyCall: a block that goes is in use just now: by an open step, a waiting write or copy, or a lease.
            In all cases nothing was changed.
        """
        with self._lock:
            self._begin()
            before = self.pool.num_blocks
            if not 1 <= blocks < before:
                raise UsageError(f"shrink by {blocks} blocks: the pool has {before}, and at least 1 must stay")
            size = before - blocks
            moving = self._to_move(size)
            self._make_way(size, len(moving))
            if moving and move is not None:
                move(self._copies_of(moving, size))
            self.pool.keep_free(lambda block: block < size)
            entries = self._entries_from(size)
            for source in moving:
                self._move(source, entries[source])
            self._emit(Kind.SHRINK, Reason.RESIZED, lblock=before, aux=size)
            return self._set_size(size)

    # -- inside the critical section ------------------------------------------------------------------------------

    def _set_size(self, num_blocks: int) -> int:
        self.pool.resize(num_blocks)
        self.num_blocks = num_blocks
        return num_blocks

    def _copies_of(self, moving: list[int], size: int) -> list[Copy]:
        """Each block with the free one in front that `_move` will take for it."""
        pool, front = self.pool, (block for block in self.pool.free_list() if block < size)
        return [
            Copy(source, target, int(pool.gen[target]) + 1, int(pool.fill[source]), -1)
            for source, target in zip(moving, front, strict=False)
        ]

    def _to_move(self, size: int) -> list[int]:
        """The held blocks from `size` on, if all of them can move now and there is room for them."""
        pool = self.pool
        going = (np.flatnonzero(pool.state[size : pool.num_blocks] != BlockState.FREE) + size).tolist()
        moving = [block for block in going if pool.entries[block] > 0]
        for block in going:
            why = self._in_use(block)
            if why:
                self._emit(Kind.REFUSED, Reason.BAD_CALL, block, int(pool.gen[block]), aux=size)
                raise FaultyCall(
                    f"shrink to {size} of {pool.num_blocks} blocks: block {pool.name(block)} {why}; end that first"
                )
        evictable = pool.num_evictable - sum(pool.is_evictable(block) for block in going)
        free = sum(block < size for block in pool.free_list())
        room = free + evictable
        if len(moving) > room:
            seq = self._emit(Kind.REFUSED, Reason.NO_BLOCKS, aux=size)
            if self._sink is not None:
                self._sink.detail(seq, (len(moving), free, evictable))
            raise OutOfBlocks(len(moving), room, self._no_room(size, moving, room))
        return moving

    def _in_use(self, block: int) -> str:
        """Why a block cannot go or move now; empty if it can."""
        pool = self.pool
        if pool.leases[block] > 0:
            return f"is held by {'; '.join(map(str, self._leases.of(block)))}"
        holders = self._holders(block)
        used = max([int(pool.last_use_step[block]), *(pool.used_by(block, holder.seq_id) for holder in holders)])
        if used > pool.completed_step:
            held = "; ".join(map(str, holders))
            return f"is used by step {used}, which is open" + (f" ({held})" if held else "")
        if pool.entries[block] > 0 and (waiting := self._steps.writer_of(block, int(pool.gen[block]))) is not None:
            return f"is to be written by sequence {waiting} in the next step"
        if pool.entries[block] > 0 and (copy := self._copies.into(block)) is not None:
            return f"waits for a copy out of block {copy.source}"
        return ""

    def _no_room(self, size: int, moving: list[int], room: int) -> str:
        holders: list[Holder] = [holder for block in moving for holder in self._holders(block)]
        who = ", ".join(str(seq_id) for seq_id in dict.fromkeys(holder.seq_id for holder in holders))
        return (
            f"shrink to {size} of {self.pool.num_blocks} blocks: {len(moving)} held blocks must move, {room} of the "
            f"first {size} can be had; held by sequences {who}; end or preempt some of them, or shrink by less"
        )

    def _make_way(self, size: int, needed: int) -> None:
        """Evict what is cached from `size` on, and of the rest until `needed` blocks in front are free."""
        pool = self.pool
        pool.index.track()  # what is evicted here is not the oldest, and moved blocks do not age in order
        for block in (np.flatnonzero(pool.state[size : pool.num_blocks] == BlockState.CACHED) + size).tolist():
            if pool.state[block] == BlockState.CACHED:  # it may have gone with one in front of it
                withdraw_behind(pool, block, Reason.RESIZED)
                pool.give_up(block, Reason.RESIZED)
        free = sum(block < size for block in pool.free_list())
        while free < needed:
            free -= pool.num_free
            pool.evict(Reason.RESIZED)
            free += pool.num_free

    def _entries_from(self, size: int) -> dict[int, Entries]:
        found: dict[int, Entries] = {}
        for row in self._tables.values():
            for lblock, block in enumerate(row.blocks):
                if block >= size:
                    found.setdefault(block, []).append((row, lblock))
        return found

    def _move(self, source: int, entries: Entries) -> None:
        """Lead every table that holds `source` to a copy of it, in as many events as holders."""
        pool, sink = self.pool, self._sink
        (row, lblock), others = entries[0], entries[1:]
        state, fill = int(pool.state[source]), int(pool.fill[source])
        published = pool.index.holds(source)
        target = pool.take_one(seq_id=row.seq_id, lblock=lblock, reason=Reason.RESIZED)
        gen = int(pool.gen[target])
        pool.fill[target] = fill
        lease = self._leases.take(Reason.RESIZED, [source], 0, fill, seq_id=row.seq_id)
        seq = self._emit(Kind.COW, Reason.RESIZED, target, gen, fill=fill, seq_id=row.seq_id, lblock=lblock, aux=source)
        if sink is not None:
            sink.detail(seq, (source, int(pool.gen[source]), 0, fill))
        self._lead(row, lblock, source, target)
        for row, lblock in others:
            pool.retain(target, Kind.SHARE, seq_id=row.seq_id, lblock=lblock, reason=Reason.RESIZED)
            self._lead(row, lblock, source, target)
        pool.state[target] = state
        if published:
            pool.move_entry(source, target, entries[0][0].extras, seq_id=row.seq_id, lblock=lblock)
        self._emit(Kind.COPY_DONE, Reason.RESIZED, target, gen, aux=source)
        self._leases.end(lease.lease_id)

    def _lead(self, row: SequenceTable, lblock: int, source: int, target: int) -> None:
        row.replace(lblock, target, int(self.pool.gen[target]))
        self.pool.release(source, seq_id=row.seq_id, lblock=lblock, reason=Reason.RESIZED)
