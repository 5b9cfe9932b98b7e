"""Faults of order: something is used before what it depends on has completed, or held for ever."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy, SequenceTable
from kvscope.traces.schema import Reason


class FreeWithoutFence(BlockManager):
    """A step does not mark the blocks that it uses, so what is freed meanwhile is handed out at once."""

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        number = super().begin_step(scheduled)
        self.pool.last_use_step[:] = -1
        self.pool.users.clear()
        return number


class WindowWithoutFence(BlockManager):
    """Only what ends is fenced: blocks behind a sliding window are free while a step still reads them."""

    def slide(self, seq_id: int, first_position: int) -> int:
        users, self.pool.users = self.pool.users, []
        try:
            return super().slide(seq_id, first_position)
        finally:
            self.pool.users = users


class WindowTooShort(BlockManager):
    """The window is rounded up to whole blocks, so one block that the next position reads is given back."""

    def slide(self, seq_id: int, first_position: int) -> int:
        row = self._known(seq_id)
        return super().slide(seq_id, min(first_position + self.block_size, row.computed) if first_position else 0)


class StaleWindowEntry(BlockManager):
    """A window gives blocks back and leaves them in the table, as if they were still its own."""

    def slide(self, seq_id: int, first_position: int) -> int:
        row = self._known(seq_id)
        first, blocks, gens = row.first, list(row.blocks), list(row.gens)
        gone = super().slide(seq_id, first_position)
        if gone:
            row.first, row.blocks, row.gens = first, blocks, gens
            row.changed()
        return gone


class PublishBeforeCommit(BlockManager):
    """Full blocks are entered in the prefix index as soon as their writes are scheduled."""

    def _write(self, row: SequenceTable, lo: int, hi: int, reason: Reason) -> None:
        super()._write(row, lo, hi, reason)
        full = row.blocks[row.published : hi // self.block_size]
        self.pool.state[[b for b in full if self.pool.state[b] == BlockState.WRITING]] = BlockState.COMMITTED
        computed, row.computed = row.computed, hi
        self.prefixes.publish(row)
        row.computed = computed


class PublishAtAdmission(BlockManager):
    """A prompt's full blocks are entered when they are handed out; who aborts before they are computed leaves them."""

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        cached = super().admit(seq_id, tokens, extras, resumed=resumed)
        row = self._known(seq_id)
        full = row.blocks[row.published : len(tokens) // self.block_size]
        self.pool.state[[b for b in full if self.pool.state[b] == BlockState.WRITING]] = BlockState.COMMITTED
        computed, row.computed = row.computed, len(tokens)
        self.prefixes.publish(row)
        row.computed = computed
        return cached

    def _needs_copy(self, block: int, slot: int) -> bool:
        """What is in the index is never copied: it counts as written."""
        return bool(self.pool.state[block] != BlockState.PUBLISHED and super()._needs_copy(block, slot))


class CopyLeaseKept(BlockManager):
    """Who says that a copy has run never comes, so its source is held for ever."""

    def copies_done(self, copies: Iterable[Copy]) -> None:
        """The word is lost."""


class LookupLeaseKept(BlockManager):
    """What was looked up for a prompt stays held after the prompt was admitted."""

    def admit(self, *args: object, **options: object) -> int:
        lookups, self._leases.lookups = self._leases.lookups, {}
        try:
            return super().admit(*args, **options)  # type: ignore[arg-type]
        finally:
            self._leases.lookups = lookups


class SwapWithoutLease(BlockManager):
    """Blocks on their way to the host are free at once; the transfer may read what their next owner has written."""

    def swap_out(self, seq_id: int, aux: int = 0) -> None:
        super().swap_out(seq_id, aux)
        for lease_id in self._swaps[-1].leases:
            self._leases.end(lease_id)

    def swaps_done(self, swaps: Iterable[object]) -> None:
        kept = list(swaps)
        for swap in kept:
            self._moving.remove(swap)  # type: ignore[arg-type]
            if not swap.out:  # type: ignore[attr-defined]
                self._moving.append(swap)  # type: ignore[arg-type]
                super().swaps_done([swap])  # type: ignore[list-item]
            else:
                self._host.drop(swap.slots)  # type: ignore[attr-defined]


class ReadsBeforeArrival(BlockManager):
    """A block on its way back from the host counts as there; whoever needs it does not wait for the transfer."""

    def swaps_done(self, swaps: Iterable[object]) -> None:
        self.__dict__.setdefault("_late", []).extend(swaps)

    def end_step(self) -> None:
        super().end_step()
        late = self.__dict__.pop("_late", [])
        if late:
            super().swaps_done(late)
