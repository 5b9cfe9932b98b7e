"""Copy-on-write: decided with the table update, run by the device before the step's writes, leased in between."""

from __future__ import annotations

from collections.abc import Iterable

from kvscope.engine.leases import LeaseBook
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import Copy, SequenceTable
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink


class CopyQueue:
    """Copies that are decided and have not run; its owner locks.

    The copied slots of a source are leased from the decision until the copy has run. That forbids freeing and
    reusing the source, not another holder's append behind them: n samples of one prompt make n - 1 copies.
    """

    def __init__(self, pool: BlockPool, leases: LeaseBook, sink: EventSink | None) -> None:
        self._pool = pool
        self._leases = leases
        self._sink = sink
        self._waiting: list[Copy] = []

    def decide(self, row: SequenceTable, lblock: int, slots: int) -> None:
        """Move the row's entry to a private block that will hold the first `slots` slots of the shared one."""
        pool, source, source_gen = self._pool, row.blocks[lblock], row.gens[lblock]
        target = pool.take_one(seq_id=row.seq_id, lblock=lblock, reason=Reason.COPY_ON_WRITE)
        gen = int(pool.gen[target])
        pool.fill[target] = slots
        lease_id = self._leases.take_copy(source, slots, row.seq_id)
        if self._sink is not None:
            seq = self._sink.emit(
                Kind.COW, Reason.COPY_ON_WRITE, target, gen, -1, -1, slots, row.seq_id, lblock, source
            )  # fmt: skip
            self._sink.detail(seq, (source, source_gen, 0, slots))
        row.replace(lblock, target, gen)
        pool.release(source, seq_id=row.seq_id, lblock=lblock, reason=Reason.COPY_ON_WRITE)
        self._waiting.append(Copy(source, target, gen, slots, lease_id))

    def cancel(self, target: int, gen: int) -> None:
        """A copy whose target is about to be given up is not run: its block may serve someone else by then.

        A target that is held otherwise is still filled: by another table, or by a lease, for a copy out of it.
        """
        if self._pool.ref(target) != 1:
            return
        for copy in [c for c in self._waiting if c.target == target and c.target_gen == gen]:
            self._waiting.remove(copy)
            self.cancel(copy.source, int(self._pool.gen[copy.source]))  # its lease may be all that holds the source
            self._leases.end(copy.lease_id)

    def cancel_row(self, row: SequenceTable, keep: int) -> None:
        """Cancel the copies into the row's blocks from logical block `keep` on, which are about to be given up."""
        if self._waiting:
            for lblock in range(len(row.blocks) - 1, max(keep, row.first) - 1, -1):
                self.cancel(row.blocks[lblock], row.gens[lblock])

    def cancel_held_by(self, lease_id: int) -> None:
        """Cancel the copies into blocks that nobody holds once this lease has ended."""
        if self._waiting:
            for block, gen in self._leases.lives_of(lease_id):
                self.cancel(block, gen)

    def into(self, block: int) -> Copy | None:
        """The copy into this block that has not been handed to the device."""
        return next((copy for copy in self._waiting if copy.target == block), None)

    def drain(self) -> list[Copy]:
        """Hand the copies to the device, in order of decision."""
        copies, self._waiting = self._waiting, []
        return copies

    def done(self, copies: Iterable[Copy]) -> None:
        """These copies have run: their sources are no longer leased."""
        copies = list(copies)
        self._leases.check_open([copy.lease_id for copy in copies])
        for copy in copies:
            if self._sink is not None:
                self._sink.emit(Kind.COPY_DONE, 0, copy.target, copy.target_gen, aux=copy.source)
            self._leases.end(copy.lease_id)
