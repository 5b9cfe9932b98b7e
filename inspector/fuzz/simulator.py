"""The reference model: the paged allocator of the textbooks, with nothing in it that could be got wrong twice.

A dictionary of blocks, a dictionary of tables and a free list; no prefix cache, no steps, no leases.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.errors import OutOfBlocks
from kvscope.inspector.fuzz.protocol import Copy


@dataclass(slots=True)
class Block:
    """A handed-out block and how many tables hold it."""

    ref_count: int = 1


class Simulator:
    """A `PagedAllocator` in its simplest form, to compare others with."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks: dict[int, Block] = {}
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self.free_list = deque(range(num_blocks))
        self.copies: list[Copy] = []

    def allocate_block(self) -> int:
        """A block from the free list, held once. Raises: OutOfBlocks."""
        self._need(1)
        block = self.free_list.popleft()
        self.blocks[block] = Block()
        return block

    def free_sequence_blocks(self, seq: int, keep: int = 0) -> None:
        """The sequence lets go of its blocks from logical block `keep` on."""
        table = self.tables[seq]
        while len(table) > keep:
            block = table.pop()
            self.blocks[block].ref_count -= 1
            if self.blocks[block].ref_count == 0:
                del self.blocks[block]
                self.free_list.append(block)

    def copy_on_write_block(self, seq: int, lblock: int, slots: int) -> None:
        """Give the sequence a copy of its own of a block that others hold too. Raises: OutOfBlocks."""
        source = self.tables[seq][lblock]
        target = self.allocate_block()
        self.blocks[source].ref_count -= 1
        self.tables[seq][lblock] = target
        self.copies.append(Copy(source, target, slots))

    def add(self, seq: int, tokens: Sequence[int]) -> None:
        """Blocks for the whole prompt. Raises: OutOfBlocks."""
        needed = -(-len(tokens) // self.block_size)
        self._need(needed)
        self.tables[seq] = [self.allocate_block() for _ in range(needed)]
        self.lengths[seq] = len(tokens)

    def append(self, seq: int, token: int) -> None:
        """One more slot: in the last block, in a copy of it if it is shared, or in a new one. Raises: OutOfBlocks."""
        table = self.tables[seq]
        lblock, slot = divmod(self.lengths[seq], self.block_size)
        if lblock == len(table):
            table.append(self.allocate_block())
        elif self.blocks[table[lblock]].ref_count > 1:
            self.copy_on_write_block(seq, lblock, slot)
        self.lengths[seq] += 1

    def fork(self, parent: int, child: int) -> None:
        """The child shares all blocks of the parent."""
        self.tables[child] = list(self.tables[parent])
        self.lengths[child] = self.lengths[parent]
        for block in self.tables[child]:
            self.blocks[block].ref_count += 1

    def truncate(self, seq: int, length: int) -> None:
        """Drop the positions from `length` on."""
        self.free_sequence_blocks(seq, keep=-(-length // self.block_size))
        self.lengths[seq] = length

    def free(self, seq: int) -> None:
        """The sequence is finished."""
        self.free_sequence_blocks(seq)
        del self.tables[seq], self.lengths[seq]

    preempt = free

    def table(self, seq: int) -> list[int]:
        """Physical block ids, logical order."""
        return list(self.tables[seq])

    def num_free(self) -> int:
        """Length of the free list."""
        return len(self.free_list)

    def refcount(self, block: int) -> int:
        """Tables that hold the block."""
        return self.blocks[block].ref_count if block in self.blocks else 0

    def drain(self) -> list[Copy]:
        """Copies since the last call."""
        copies, self.copies = self.copies, []
        return copies

    def _need(self, blocks: int) -> None:
        if blocks > len(self.free_list):
            raise OutOfBlocks(blocks, len(self.free_list), f"need {blocks} blocks, {len(self.free_list)} are free")
