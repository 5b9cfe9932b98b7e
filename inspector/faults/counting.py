"""Faults of counts: what is freed twice, never, or counted wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.tables import Copy, SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.schema import Kind, Reason


class DoubleFree(BlockManager):
    """The free path runs twice over the first block of a sequence; nobody looks whether it is free already."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        first = row.blocks[0]
        super()._release_tail(row, keep, reason)
        if keep == 0 and first >= 0 and self.pool.state[first] == BlockState.FREE:
            self.pool._to_free_list(first)
            self.pool._record(Kind.FREE, first, reason)


class WindowFreesTwice(BlockManager):
    """What a sliding window gave back is given back again when the sequence ends."""

    def slide(self, seq_id: int, first_position: int) -> int:
        front = self.table(seq_id)
        gone = super().slide(seq_id, first_position)
        if gone:
            self.__dict__.setdefault("_slid", {}).setdefault(seq_id, []).extend(b for b in front[:gone] if b >= 0)
        return gone

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        super().free(seq_id, kind, reason, aux)
        for block in self.__dict__.get("_slid", {}).pop(seq_id, []):
            self.pool._to_free_list(block)
            self.pool._record(Kind.FREE, block, reason)


class LeakOnPreempt(BlockManager):
    """Preemption gives back all blocks but the first."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        super()._release_tail(row, 1 if reason == Reason.CAPACITY else keep, reason)


class LeakOnAbort(BlockManager):
    """An abort forgets the table, and with it everything that the sequence held."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        if reason not in (Reason.ABORTED, Reason.DRAINED):
            super()._release_tail(row, keep, reason)


class LeakOnRollback(BlockManager):
    """A rollback shortens the table without giving back the blocks that it drops."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        if reason != Reason.TRUNCATED:
            super()._release_tail(row, keep, reason)
            return
        del row.blocks[keep:], row.gens[keep:]
        row.changed()


class HitTakenTwice(BlockManager):
    """The lookup holds the cached blocks of a prompt, the admission takes them again: its end gives back one each."""

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        hits = self.probe(tokens, extras).hits
        found = super().admit(seq_id, tokens, extras, resumed=resumed)
        for lblock, block in enumerate(hits[: found // self.block_size]):
            self.pool.retain(block, Kind.HIT, seq_id=seq_id, lblock=lblock, reason=Reason.PREFIX_HIT)
        return found


class HalfDoneAdmission(BlockManager):
    """Cached blocks are taken before it is known whether the rest fits, and kept when it does not."""

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        hits = self.probe(tokens, extras).hits
        try:
            return super().admit(seq_id, tokens, extras, resumed=resumed)
        except OutOfBlocks:
            for lblock, block in enumerate(hits):
                self.pool.retain(block, Kind.HIT, seq_id=seq_id, lblock=lblock, reason=Reason.PREFIX_HIT)
            raise


class ReleaseTwice(BlockManager):
    """A sample that ends gives its first block back twice: once for itself, once for a sibling."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        first = row.blocks[0] if keep == 0 and row.first == 0 and row.blocks else -1
        super()._release_tail(row, keep, reason)
        if first >= 0 and self.pool.entries[first] > 0:
            self.pool.release(first, seq_id=row.seq_id, lblock=0, reason=reason)


class CopyEndsTwice(BlockManager):
    """A copy's lease is ended by the copy and by the step; the count goes below zero and is put back to it."""

    def copies_done(self, copies: Iterable[Copy]) -> None:
        copies = list(copies)
        super().copies_done(copies)
        for copy in copies:
            with suppress(FaultyCall):
                self.pool.unlease(copy.source, copy.lease_id, reason=Reason.COPY_ON_WRITE, seq_id=-1)


class TransferEndsAll(BlockManager):
    """The first of two transfers of a sequence that is done ends the leases of both."""

    def unlease(self, lease_id: int) -> None:
        lease = next((held for held in self.leases() if held.lease_id == lease_id), None)
        super().unlease(lease_id)
        for other in self.leases():
            if lease is not None and other.seq_id == lease.seq_id >= 0:
                super().unlease(other.lease_id)


class SilentDuplicate(BlockManager):
    """A freed block is put on the free list twice, and only once written down."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        last = row.blocks[-1] if row.blocks else -1
        super()._release_tail(row, keep, reason)
        if last >= 0 and self.pool.state[last] == BlockState.FREE and keep == 0:
            self.pool._free.push(last)


class CounterDrift(BlockManager):
    """The number of shared blocks is raised by a fork and never lowered by what ends it."""

    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        self.pool.num_shared += 1


class UncountedShare(BlockManager):
    """A fork copies the table and counts nothing: the child's blocks are the parent's alone."""

    def fork(self, parent: int, child: int) -> None:
        source = self._known(parent)
        self._begin()
        self._emit(Kind.FORK, Reason.FORK, seq_id=child, aux=parent)
        self._tables[child] = SequenceTable(
            child, list(source.tokens), source.extras, list(source.blocks), list(source.gens), list(source.hashes),
            source.issued, source.computed, source.published, source.first,
        )  # fmt: skip


class LostUpdate(BlockManager):
    """Two forks read the same count of the first block, and both write it raised by one."""

    def fork(self, parent: int, child: int) -> None:
        first = self._known(parent).blocks[0]
        if self.pool.entries[first] > 1:
            self.pool.entries[first] -= 1
        super().fork(parent, child)
