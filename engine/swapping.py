"""Preemption by swap: the blocks of a sequence wait in host memory and come back, under leases while they move.

    swap_out      the table is released, what moves is held by leases alone
    swap_in       fresh blocks, or hits where the prefix is still found on the device; leased until they are filled
    drain_swaps   the device runs the transfers, in order
    swaps_done    the leases end: blocks that went are free again, blocks that came exist and can be published

A block that moved out is free only when its transfer has run; a slot is free only when nobody is parked on it and no
transfer reads or writes it. So a sequence may be aborted at any moment, a swap in flight included.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.host_tier import Parked, Swap
from kvscope.engine.table_core import TableCore
from kvscope.engine.tables import NULL, PrefixMatch, SequenceTable
from kvscope.errors import OutOfBlocks
from kvscope.traces.schema import Kind, Reason

HOST = 1  # the tier's number in details


class Swapping(TableCore):
    """Swap operations of a block manager; each is one critical section."""

    def host_free(self) -> int:
        """Slots of the host tier that nobody holds."""
        with self._lock:
            return self._host.num_free

    def swap_cost(self, seq_ids: Sequence[int]) -> int | None:
        """Slots that swapping these sequences out takes; None if one cannot be moved now: it has nothing, or moves."""
        with self._lock:
            rows = [self._look(seq_id) for seq_id in seq_ids]
            for row in rows:
                row.catch_up()
            if not self._host.num_slots or any(self._unmovable(row) for row in rows):
                return None
            return self._host.missing(self._digest(row, lblock) for row in rows for lblock in self._filled(row))

    def swap_out(self, seq_id: int, aux: int = 0) -> None:
        """Preempt a sequence; what its blocks hold goes to the host tier. `aux` as in `free`.

        Raises:
            OutOfBlocks: the host tier has no room; nothing was changed. FaultyCall: bytes are still being written.
        """
        with self._lock:
            self._begin(ahead=1)
            row = self._row(seq_id)
            why = self._unmovable(row)
            if why:
                raise self._fault(seq_id, f"swap_out of sequence {seq_id}: {why}")
            needed = self._host.missing(self._digest(row, lblock) for lblock in self._filled(row))
            if needed > self._host.num_free:
                self._refuse_host(seq_id, needed)
            self._emit(Kind.PREEMPT, Reason.SWAPPED, seq_id=seq_id, aux=aux)
            held = [self._host.hold(self._digest(row, lblock)) for lblock in self._filled(row)]
            slots = tuple(slot for slot, _ in held)
            moved = [lblock for lblock, (_, known) in zip(self._filled(row), held, strict=True) if not known]
            swap = self._transfer(row, moved, tuple(slot for slot, known in held if not known), out=True)
            for lblock, (slot, known) in zip(self._filled(row), held, strict=True):
                self._say(Kind.SWAP_OUT, row, lblock, slot, None if known else swap)
            size = len(row.blocks)
            self._release_tail(row, 0, Reason.SWAPPED)
            self.prefixes.withdraw(row)
            self.pool.forget_user(seq_id)
            del self._tables[seq_id]
            self._host.parked[seq_id] = Parked(row, size, slots)

    def probe_swap_in(self, seq_id: int, length: int) -> PrefixMatch:
        """What bringing the sequence back would find and take, with room for `length` tokens; changes nothing."""
        with self._lock:
            return self._back(self._parked(seq_id), length)

    def swap_in(self, seq_id: int) -> None:
        """Give a parked sequence blocks again; the blocks that are not found on the device are filled from host slots.

        It may be computed further, on the same stream, once the transfer has been queued (`drain_swaps`).

        Raises:
            OutOfBlocks: the blocks cannot be had; nothing was changed.
        """
        with self._lock:
            self._begin(ahead=1)
            parked = self._parked(seq_id)
            match = self._back(parked, 0)
            if not match.fits:
                self._refuse(seq_id, match.needed, match.available, match.hits)
            del self._host.parked[seq_id]
            self._emit(Kind.RESUME, Reason.SWAPPED, seq_id=seq_id)
            row, found = parked.row, len(match.hits)
            row.blocks, row.gens = [NULL] * row.first, [0] * row.first
            row.changed()
            for lblock, block in enumerate(match.hits):
                self.prefixes.hit(row, lblock, block)
            self._extend(row, match.needed, Reason.SWAPPED)
            row.published, row.computed = found, found * self.block_size
            moved = list(self._filled(row))[found:]
            swap = self._transfer(row, moved, parked.slots[found:], out=False)
            for lblock, slot in zip(moved, swap.slots, strict=True):
                self.pool.fill[row.blocks[lblock]] = self._fill_of(row, lblock)
                self._say(Kind.SWAP_IN, row, lblock, slot, swap)
            self._host.drop(parked.slots)  # the transfer holds those that it reads
            self._tables[seq_id] = row
            self.prefixes.announce(row)

    def forget_swapped(self, seq_id: int, kind: Kind, reason: Reason, aux: int = 0) -> None:
        """A parked sequence ends (`kind`): its slots are given back, once no transfer uses them."""
        with self._lock:
            self._begin()
            parked = self._parked(seq_id)
            self._emit(kind, reason, seq_id=seq_id, aux=aux)
            self._host.drop(parked.slots)
            del self._host.parked[seq_id]

    def swapped(self) -> dict[int, int]:
        """Host slots of each parked sequence; a slot may serve several."""
        with self._lock:
            return {seq_id: len(parked.slots) for seq_id, parked in self._host.parked.items()}

    def drain_swaps(self) -> list[Swap]:
        """Transfers that the device must run now, in order, before anything else is written."""
        with self._lock:
            swaps, self._swaps = self._swaps, []
            self._moving += swaps
            return swaps

    def swaps_done(self, swaps: Iterable[Swap]) -> None:
        """These transfers have run, or all later work is queued behind them.

        Raises:
            FaultyCall: one of them is not under way.
        """
        with self._lock:
            self._begin()
            swaps = list(swaps)
            for i, swap in enumerate(swaps):
                if swap not in self._moving or swap in swaps[:i]:
                    why = "is not under way: it was never drained, or is done"
                    raise self._fault(swap.seq_id, f"the swap of sequence {swap.seq_id} {why}")
            for swap in swaps:
                self._moving.remove(swap)
                self._arrived(swap)

    # -- inside the critical section ------------------------------------------------------------------------------

    def _arrived(self, swap: Swap) -> None:
        row = None if swap.out else self._tables.get(swap.seq_id)
        if row is not None:
            row.step_out()
            for block, gen, lblock in zip(swap.blocks, swap.gens, swap.lblocks, strict=True):
                self.pool.commit(block, gen, seq_id=swap.seq_id, lblock=lblock)
        for lease_id in swap.leases:
            self._end_lease(lease_id)
        self._host.drop(swap.slots)
        if row is not None and self._still(row, swap):
            end = (swap.lblocks[-1] + 1) * self.block_size
            row.computed = max(row.computed, min(end, row.issued))
            self.prefixes.publish(row)

    @staticmethod
    def _still(row: SequenceTable, swap: Swap) -> bool:
        """Whether the row holds what was moved for it: it may have gone, and another come under its id."""
        entries = zip(swap.lblocks, swap.gens, strict=True)
        return any(lblock < len(row.gens) and row.gens[lblock] == gen for lblock, gen in entries)

    def _transfer(self, row: SequenceTable, moved: list[int], slots: tuple[int, ...], *, out: bool) -> Swap:
        """Queue the transfer of these logical blocks, under leases.

        On the way out all blocks are leased, also those whose bytes the tier has already: so all of them age together,
        and along a prefix the leaf is still evicted first. The lease of a partial last block leaves its empty slots
        alone: another holder may append behind the others.
        """
        leased = list(self._filled(row)) if out else moved
        full = [row.blocks[lblock] for lblock in leased if self._fill_of(row, lblock) == self.block_size]
        leases = []
        if full:
            leases.append(self._leases.take(Reason.SWAPPED, full, 0, self.block_size, seq_id=row.seq_id))
        if len(full) < len(leased):
            fill, last = self._fill_of(row, leased[-1]), row.blocks[leased[-1] :][:1]
            leases.append(self._leases.take(Reason.SWAPPED, last, 0, fill, seq_id=row.seq_id))
        blocks, gens = tuple(row.blocks[i] for i in moved), tuple(row.gens[i] for i in moved)
        swap = Swap(out, row.seq_id, blocks, gens, tuple(moved), slots, tuple(lease.lease_id for lease in leases))
        self._host.hold_again(slots)
        if leases:
            self._swaps.append(swap)
        return swap

    def _back(self, parked: Parked, length: int) -> PrefixMatch:
        row, size, index = parked.row, self.block_size, self.pool.index
        hits: list[int] = []
        parent = index.root(row.extras)
        for i, digest in enumerate(row.hashes[: 0 if row.first else min(row.published, row.issued // size)]):
            block = index.find(digest)
            if block is None or not index.same(block, parent, row.tokens[i * size : (i + 1) * size]):
                break
            hits.append(block)
            parent = digest
        needed = max(parked.size, -(-length // size)) - row.first - len(hits)
        available = self.pool.num_available - sum(self.pool.is_evictable(block) for block in hits)
        return PrefixMatch(tuple(hits), (), len(hits) * size, needed, available, None, Reason.NONE)

    def _unmovable(self, row: SequenceTable) -> str:
        """Why the row's bytes cannot be moved now; empty if they can."""
        if row.issued <= row.first * self.block_size:
            return "it holds nothing yet; free it"
        lives = set(zip(row.blocks, row.gens, strict=True))
        if any(write[2:4] in lives for write in self._steps.all_writes()):
            return "a step still writes its blocks; end the step first"
        if any(swap.seq_id == row.seq_id and not swap.out for swap in (*self._swaps, *self._moving)):
            return "its blocks are still on their way in"
        return ""

    def _filled(self, row: SequenceTable) -> range:
        """Logical blocks that hold tokens."""
        return range(row.first, -(-row.issued // self.block_size))

    def _fill_of(self, row: SequenceTable, lblock: int) -> int:
        return min(row.issued - lblock * self.block_size, self.block_size)

    def _digest(self, row: SequenceTable, lblock: int) -> bytes | None:
        """The prefix hash of a published block of the row."""
        published = lblock < row.published and self.pool.state[row.blocks[lblock]] == BlockState.PUBLISHED
        return row.hashes[lblock] if published else None

    def _say(self, kind: Kind, row: SequenceTable, lblock: int, slot: int, swap: Swap | None) -> None:
        block = row.blocks[lblock]
        full = self._fill_of(row, lblock) == self.block_size
        lease_id = -1 if swap is None else swap.leases[0 if full else -1]
        fill = int(self.pool.fill[block])
        seq = self._emit(kind, Reason.SWAPPED, block, row.gens[lblock], fill=fill, seq_id=row.seq_id, lblock=lblock,
                         aux=slot)  # fmt: skip
        if self._sink is not None:
            self._sink.detail(seq, (HOST, lease_id))

    def _parked(self, seq_id: int) -> Parked:
        parked = self._host.parked.get(seq_id)
        if parked is None:
            raise self._fault(
                seq_id, f"sequence {seq_id} is not in the host tier: it was never swapped out, or is back"
            )
        return parked

    def _refuse_host(self, seq_id: int, needed: int) -> None:
        free = self._host.num_free
        seq = self._emit(Kind.REFUSED, Reason.NO_HOST, seq_id=seq_id)
        if self._sink is not None:
            self._sink.detail(seq, (needed, free, 0))
        raise OutOfBlocks(needed, free, (
            f"host tier exhausted: need {needed} blocks, {free} free of {self._host.num_slots}; enlarge the swap space "
            "or preempt by recompute"
        ))  # fmt: skip
