"""The simulator with all that our block manager does beside tables: steps, copies under way, leases, windows, rollback,
and a pool that changes its size. Dictionaries and loops; the same ids, counts and refusals. It has no prefix cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.fuzz.simulator import Simulator

NULL = -1
Written = tuple[int, int, int]  # block, its life, end position


@dataclass(slots=True)
class HeldBlock:
    """A live block: table entries, leases, and how many leading slots the leases cover."""

    ref_count: int = 1
    leases: int = 0
    leased_slots: int = 0


@dataclass(slots=True)
class Row:
    """How far a sequence has got: positions known, issued to a step or not, and computed."""

    length: int = 0
    issued: int = 0
    computed: int = 0
    first: int = 0  # leading entries of its table that are NULL


@dataclass(slots=True)
class Moving:
    """A swap under way: its leases with their blocks, its host slots, and what a sequence gets back at its end."""

    seq: int
    leases: list[tuple[int, list[int]]]
    slots: list[int]
    lives: list[tuple[int, int, int]]  # of a way back: logical block, block, life
    end: int = 0


class Reference(Simulator):
    """A pool by the book. Copies go to the device as soon as they are decided; steps end in the order they began."""

    def __init__(self, num_blocks: int, block_size: int, host_blocks: int = 0) -> None:
        super().__init__(num_blocks, block_size)
        self.host_blocks = host_blocks
        self.slot_holders: Counter[int] = Counter()  # of host slots, numbered as they are taken
        self.slots_taken = 0
        self.parked: dict[int, tuple[Row, int, list[int]]] = {}  # sequence -> its row, entries of its table, slots
        self.moving: list[Moving] = []
        self.held: dict[int, HeldBlock] = {}
        self.rows: dict[int, Row] = {}
        self.lives: Counter[int] = Counter()  # how often each block was handed out
        self.pending: dict[int, list[Written]] = {}  # sequence -> writes in no step yet
        self.steps: list[dict[int, list[Written]]] = []  # open ones, oldest first: the writes of each sequence
        self.begun = self.completed = -1
        self.last_use: Counter[int] = Counter()  # block -> 1 + the last step that used it
        self.quarantine: dict[int, None] = {}
        self.transfers: dict[int, tuple[list[int], int | None]] = {}  # lease -> blocks, deadline
        self.leases_taken = 0
        self.running: list[tuple[int, int]] = []  # copies under way: lease, source

    # -- blocks ---------------------------------------------------------------------------------------------------

    def allocate_block(self) -> int:
        """A block from the free list, held once. Raises: OutOfBlocks."""
        self._need(1)
        block = self.free_list.popleft()
        self.held[block] = HeldBlock()
        self.lives[block] += 1
        return block

    def drop_entry(self, block: int) -> None:
        """One table entry less; who goes last sends the block away."""
        self.held[block].ref_count -= 1
        self._settle_block(block)

    def _settle_block(self, block: int) -> None:
        state = self.held[block]
        if state.ref_count or state.leases:
            return
        del self.held[block]
        if self.last_use[block] > self.completed + 1:
            self.quarantine[block] = None
        else:
            self.free_list.append(block)

    def counts(self) -> dict[str, int]:
        """Blocks by state, in the words of the pool."""
        entries = [state.ref_count for state in self.held.values()]
        return {
            "free": len(self.free_list), "private": entries.count(1), "shared": sum(n > 1 for n in entries),
            "cached": 0, "quarantined": len(self.quarantine), "in_transit": entries.count(0),
        }  # fmt: skip

    # -- sequences ------------------------------------------------------------------------------------------------

    def add(self, seq: int, tokens: Sequence[int]) -> None:
        """Blocks for the whole prompt; nothing is written yet. Raises: OutOfBlocks."""
        needed = -(-len(tokens) // self.block_size)
        self._need(needed)
        self.tables[seq] = [self.allocate_block() for _ in range(needed)]
        self.rows[seq] = Row(length=len(tokens))

    def write(self, seq: int, hi: int) -> None:
        """Positions up to `hi` are issued: shared and leased blocks are copied first. Raises: OutOfBlocks."""
        row, table, size = self.rows[seq], self.tables[seq], self.block_size
        lo = row.issued
        touched = range(lo // size, (hi - 1) // size + 1)
        copies = [i for i in touched if i < len(table) and self._shared(table[i], max(lo - i * size, 0))]
        fresh = max(0, touched.stop - len(table))
        self._need(len(copies) + fresh)
        for lblock in copies:
            self.copy_on_write_block(seq, lblock, max(lo - lblock * size, 0))
        table += [self.allocate_block() for _ in range(fresh)]
        writes = self.pending.setdefault(seq, [])
        writes += [(table[i], self.lives[table[i]], min(hi, (i + 1) * size)) for i in touched]
        row.issued = hi

    def append(self, seq: int, token: int) -> None:
        """One more token, issued at once. Raises: OutOfBlocks."""
        self.rows[seq].length += 1
        try:
            self.write(seq, self.rows[seq].length)
        except OutOfBlocks:
            self.rows[seq].length -= 1
            raise

    def _shared(self, block: int, slot: int) -> bool:
        return self.held[block].ref_count > 1 or slot < self.held[block].leased_slots

    def copy_on_write_block(self, seq: int, lblock: int, slots: int) -> None:
        """Give the sequence a copy of its own; the source is leased until the copy has run."""
        source = self.tables[seq][lblock]
        target = self.allocate_block()
        self.running.append((self._lease([source], slots, None), source))
        self.tables[seq][lblock] = target
        self.drop_entry(source)

    def fork(self, parent: int, child: int) -> None:
        """The child shares all blocks of the parent."""
        self.tables[child] = list(self.tables[parent])
        row = self.rows[parent]
        self.rows[child] = Row(row.length, row.issued, row.computed, row.first)
        for block in self.tables[child][row.first :]:
            self.held[block].ref_count += 1

    def free_sequence_blocks(self, seq: int, keep: int = 0) -> None:
        """The sequence lets go of its blocks from logical block `keep` on, last first."""
        table = self.tables[seq]
        while len(table) > max(keep, self.rows[seq].first):
            self.drop_entry(table.pop())

    def truncate(self, seq: int, length: int) -> None:
        """Drop the positions from `length` on."""
        row = self.rows[seq]
        self.free_sequence_blocks(seq, keep=-(-length // self.block_size))
        row.length, row.issued, row.computed = length, min(row.issued, length), min(row.computed, length)
        for writes in (self.pending, *self.steps):
            if seq in writes:
                writes[seq] = [(*written[:2], min(written[2], length)) for written in writes[seq]]

    def slide(self, seq: int, position: int) -> int:
        """Let go of the computed blocks wholly in front of a position; returns how many."""
        row, table = self.rows[seq], self.tables[seq]
        end = max(row.first, min(position, row.computed) // self.block_size)
        for lblock in range(end - 1, row.first - 1, -1):
            self.drop_entry(table[lblock])
            table[lblock] = NULL
        gone, row.first = end - row.first, end
        return gone

    def free(self, seq: int) -> None:
        """The sequence is finished, aborted or preempted."""
        self.free_sequence_blocks(seq)
        self.pending.pop(seq, None)
        del self.tables[seq], self.rows[seq]

    preempt = free

    # -- the host tier --------------------------------------------------------------------------------------------

    def host_free(self) -> int:
        """Slots that nobody is parked on and no transfer uses."""
        return self.host_blocks - len(self.slot_holders)

    def swap_out(self, seq: int) -> None:
        """The blocks that hold tokens move to the host. Raises: OutOfBlocks, FaultyCall (bytes are on their way)."""
        row, table, size = self.rows[seq], self.tables[seq], self.block_size
        lives = {(block, self.lives[block]) for block in table[row.first :]}
        written = (write[:2] for ws in (self.pending, *self.steps) for writes in ws.values() for write in writes)
        coming = any(swap.seq == seq and swap.lives for swap in self.moving)
        if row.issued <= row.first * size or coming or not lives.isdisjoint(written):
            raise FaultyCall(f"sequence {seq} cannot move now")
        filled = range(row.first, -(-row.issued // size))
        if len(filled) > self.host_free():
            raise OutOfBlocks(len(filled), self.host_free(), "no room")
        slots = list(range(self.slots_taken, self.slots_taken + len(filled)))
        self.slots_taken += len(filled)
        self.slot_holders.update(slots + slots)  # who is parked, and the transfer
        self.moving.append(Moving(seq, self._lease_filled(row, table, filled), slots, []))
        self.parked[seq] = (row, len(table), slots)
        self.free_sequence_blocks(seq)
        self.pending.pop(seq, None)
        del self.tables[seq], self.rows[seq]

    def swap_in(self, seq: int) -> None:
        """Fresh blocks, to be filled from the host. Raises: OutOfBlocks."""
        row, entries, slots = self.parked[seq]
        self._need(entries - row.first)
        del self.parked[seq]
        table = [NULL] * row.first + [self.allocate_block() for _ in range(entries - row.first)]
        filled = range(row.first, -(-row.issued // self.block_size))
        lives = [(lblock, table[lblock], self.lives[table[lblock]]) for lblock in filled]
        leases = self._lease_filled(row, table, filled)
        self.moving.append(Moving(seq, leases, slots, lives, filled.stop * self.block_size))
        row.computed = 0
        self.rows[seq], self.tables[seq] = row, table

    def forget_swapped(self, seq: int) -> None:
        """A parked sequence ends."""
        self._drop_slots(self.parked.pop(seq)[2])

    def swaps_done(self) -> None:
        """All swaps under way have run."""
        for swap in self.moving:
            for lease, blocks in swap.leases:
                self._end_lease(lease, blocks)
            self._drop_slots(swap.slots)
            row, table = self.rows.get(swap.seq), self.tables.get(swap.seq, [])
            there = any(
                lblock < len(table) and table[lblock] == block and self.lives[block] == life
                for lblock, block, life in swap.lives
            )
            if row is not None and there:
                row.computed = max(row.computed, min(swap.end, row.issued))
        self.moving = []

    def _lease_filled(self, row: Row, table: list[int], filled: range) -> list[tuple[int, list[int]]]:
        """One lease over the full blocks, one over the filled slots of the last."""
        size = self.block_size
        full = [table[i] for i in filled if (i + 1) * size <= row.issued]
        leases = [(self._lease(full, size, None), full)] if full else []
        if len(full) < len(filled):
            last = [table[filled[-1]]]
            leases.append((self._lease(last, row.issued - filled[-1] * size, None), last))
        return leases

    def _drop_slots(self, slots: list[int]) -> None:
        self.slot_holders.subtract(slots)
        self.slot_holders = +self.slot_holders

    # -- steps and leases -----------------------------------------------------------------------------------------

    def begin_step(self, seqs: Sequence[int]) -> None:
        """A step over these sequences: it uses their blocks and lands what they have issued."""
        self.begun += 1
        self.steps.append({seq: self.pending.pop(seq, []) for seq in seqs})
        for seq in seqs:
            for block in self.tables[seq][self.rows[seq].first :]:
                self.last_use[block] = self.begun + 1

    def end_step(self) -> None:
        """The oldest step has completed."""
        self.completed += 1
        for seq, writes in self.steps.pop(0).items():
            row = self.rows.get(seq)
            if row is not None:
                ends = [end for block, life, end in writes if block in self.tables[seq] and self.lives[block] == life]
                row.computed = max([row.computed, *(min(end, row.issued) for end in ends)])
        for block in [b for b in self.quarantine if self.last_use[b] <= self.completed + 1]:
            del self.quarantine[block]
            self.free_list.append(block)

    def copies_done(self) -> None:
        """All copies under way have run."""
        for lease, source in self.running:
            self._end_lease(lease, [source])
        self.running = []

    def lease(self, blocks: Sequence[int], slots: int, deadline: int | None) -> int:
        """A transfer holds these live blocks; returns the lease's id."""
        lease = self._lease(blocks, slots, deadline)
        self.transfers[lease] = (list(blocks), deadline)
        return lease

    def unlease(self, lease: int) -> None:
        """The transfer is done."""
        self._end_lease(lease, self.transfers.pop(lease)[0])

    def expire(self, now: int) -> list[int]:
        """End what is overdue; returns the ids."""
        overdue = [i for i, (_, deadline) in self.transfers.items() if deadline is not None and now > deadline]
        for lease in overdue:
            self.unlease(lease)
        return overdue

    def _lease(self, blocks: Sequence[int], slots: int, deadline: int | None) -> int:
        for block in blocks:
            self.held[block].leases += 1
            self.held[block].leased_slots = max(self.held[block].leased_slots, slots)
        self.leases_taken += 1
        return self.leases_taken - 1

    def _end_lease(self, lease: int, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.held[block].leases -= 1
            if not self.held[block].leases:
                self.held[block].leased_slots = 0
            self._settle_block(block)

    # -- size -----------------------------------------------------------------------------------------------------

    def grow(self, blocks: int) -> None:
        """More free blocks, at the end."""
        self.free_list.extend(range(self.num_blocks, self.num_blocks + blocks))
        self.num_blocks += blocks

    def shrink(self, blocks: int) -> None:
        """The last blocks go; held ones move in front. Raises: OutOfBlocks, FaultyCall (one is in use)."""
        size = self.num_blocks - blocks
        written = {block for ws in self.pending.values() for block, life, _ in ws if self.lives[block] == life}
        for block in range(size, self.num_blocks):
            state = self.held.get(block)
            used = (state is not None or block in self.quarantine) and self.last_use[block] > self.completed + 1
            if used or (state is not None and (state.leases or block in written)):
                raise FaultyCall(f"block {block} is in use")
        moving = [block for block in range(size, self.num_blocks) if block in self.held]
        front = [block for block in self.free_list if block < size]
        if len(moving) > len(front):
            raise OutOfBlocks(len(moving), len(front), "no room")
        self.free_list.clear()
        self.free_list.extend(front)
        for source in moving:
            target = self.free_list.popleft()
            self.held[target] = self.held.pop(source)
            self.lives[target] += 1
            self.leases_taken += 1
            for table in self.tables.values():
                table[:] = [target if block == source else block for block in table]
        self.num_blocks = size
