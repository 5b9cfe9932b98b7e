"""Operations that hold blocks beside the tables, or let go of a table's front: leases, lookups, windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvscope.engine.leases import Holder, Lease
from kvscope.engine.prefix import Extras
from kvscope.engine.table_core import TableCore
from kvscope.engine.tables import NULL, PrefixMatch
from kvscope.engine.windows import blocks_behind
from kvscope.errors import UsageError
from kvscope.traces.schema import Reason


class Holding(TableCore):
    """Leases and windows of a block manager; each operation is one critical section."""

    def lease(
        self, blocks: Sequence[int], *, holder: str = "", seq_id: int = -1, slots: tuple[int, int] | None = None,
        ttl: int | None = None,
    ) -> Lease:  # fmt: skip
        """Keep live blocks where they are for a transfer; ended by `unlease`, or by `expire` once overdue.

        Args:
            holder: who does the work, for people; written to the facts of the trace.
            seq_id: the sequence it is for, -1 = none.
            slots: the slots [lo, hi) that are read or written; the whole block if None. Nobody writes them meanwhile.
            ttl: how long it may take, by the clock of the leases; None = as long as it likes.

        Raises:
            FaultyCall: a block is free or in quarantine; nothing was changed. UsageError: no such block, slots or ttl.
        """
        lo, hi = slots if slots is not None else (0, self.block_size)
        with self._lock:
            self._begin()
            lease = self._leases.take(
                Reason.TRANSFER, blocks, lo, hi, holder=holder, seq_id=seq_id, deadline=self._deadline(ttl)
            )  # fmt: skip
            if holder and self._sink is not None:
                self._sink.fact({"type": "lease", "lease": lease.lease_id, "holder": holder})
            return lease

    def lookup(
        self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, ttl: int | None = None
    ) -> tuple[PrefixMatch, Lease | None]:
        """`probe`, and keep what it found from eviction until this sequence is admitted; a new one replaces it.

        Returns:
            What was found, and the lease over it; None if nothing was.
        """
        with self._lock:
            self._begin(ahead=1)
            deadline, match = self._deadline(ttl), self.prefixes.match(tokens, extras)
            self._leases.end_lookup(seq_id)
            if not match.hits:
                return match, None
            return match, self._leases.take(
                Reason.LOOKUP, match.hits, 0, self.block_size, seq_id=seq_id, deadline=deadline
            )

    def unlease(self, lease_id: int) -> None:
        """The work that a lease was taken for is done.

        Raises:
            FaultyCall: it was ended, or has expired, before; both ends are named.
        """
        with self._lock:
            self._begin()
            self._check_no_copy(lease_id)
            self._end_lease(lease_id)

    def expire(self, now: int | None = None) -> list[Lease]:
        """End every lease whose deadline has passed, with reason EXPIRED; returns them: whose they were, since when.

        Args:
            now: by the clock of the leases; what the clock says if None.
        """
        with self._lock:
            self._begin()
            overdue = self._leases.overdue(self._leases.clock() if now is None else now)
            return [self._end_lease(lease.lease_id, Reason.EXPIRED) for lease in overdue]

    def leases(self) -> list[Lease]:
        """All leases that hold now, oldest first; those of waiting copies are among them."""
        with self._lock:
            return self._leases.open()

    def holders(self, block: int) -> list[Holder]:
        """Who holds a block: table entries in the order of their sequences, then leases. Looks through all tables.

        Raises:
            UsageError: no such block.
        """
        with self._lock:
            return self._holders(block)

    def slide(self, seq_id: int, first_position: int) -> int:
        """Give back the blocks wholly in front of `first_position`, which no later step attends to.

        Only what is computed goes; what an open step still reads waits in quarantine, as under `free`. The sequence's
        positions stay what they are: the entries of its table become `tables.NULL`.

        Returns:
            How many blocks were given back.

        Raises:
            FaultyCall: the sequence is unknown, or has no such position; nothing was changed.
        """
        with self._lock:
            row = self._look(seq_id)
            row.catch_up()
            if not 0 <= first_position <= row.issued:
                raise self._fault(
                    seq_id,
                    f"slide of sequence {seq_id} to position {first_position}: its KV has positions 0..{row.issued}",
                )
            behind = blocks_behind(row, first_position, self.block_size)
            if not behind:
                return 0
            self._begin(ahead=1)
            self.pool.index.track()  # the front of a row is evicted before its end from now on
            for lblock in reversed(behind):
                self._copies.cancel(row.blocks[lblock], row.gens[lblock])
            gone = np.asarray(row.blocks[behind.start : behind.stop], dtype=np.int64)
            self.pool.release_row(gone, seq_id=seq_id, lblock=behind.start, reason=Reason.WINDOW)
            row.blocks[: behind.stop] = [NULL] * behind.stop
            row.gens[: behind.stop] = [0] * behind.stop
            row.first = behind.stop
            row.changed()
            return len(behind)

    # -- inside the critical section ------------------------------------------------------------------------------

    def _deadline(self, ttl: int | None) -> int | None:
        if ttl is not None and ttl < 0:
            raise UsageError(f"ttl is {ttl}: a lease cannot be overdue when it is taken; give 0 or more")
        return None if ttl is None else self._leases.clock() + ttl

    def _check_no_copy(self, lease_id: int) -> None:
        if self._leases.kind_of(lease_id) in (Reason.COPY_ON_WRITE, Reason.RESIZED):
            raise self._fault(-1, f"lease {lease_id} is a copy's: it ends when the copy has run (copies_done)")
        if self._leases.kind_of(lease_id) == Reason.SWAPPED:
            raise self._fault(-1, f"lease {lease_id} is a swap's: it ends when the swap has run (swaps_done)")

    def _holders(self, block: int) -> list[Holder]:
        if not 0 <= block < self.pool.num_blocks:
            raise UsageError(f"block {block} does not exist: the pool has blocks 0..{self.pool.num_blocks - 1}")
        entries = [
            Holder(row.seq_id, lblock)
            for row in self._tables.values()
            for lblock, held in enumerate(row.blocks)
            if held == block
        ]
        return [*entries, *(Holder(lease.seq_id, -1, lease) for lease in self._leases.of(block))]
