"""nano-vllm's `BlockManager`, driven as its scheduler drives it.

Two generations of it are known: one whose `can_allocate` is a yes or no and which hashes while it allocates, and one
whose `can_allocate` gives the number of cached blocks and which hashes in `hash_blocks` after the step.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from typing import Any

from kvscope.errors import MissingDependency, OutOfBlocks

try:
    from nanovllm.engine.block_manager import BlockManager
    from nanovllm.engine.sequence import Sequence
except ImportError as error:
    raise MissingDependency(f"fuzzing nano-vllm needs nano-vllm: {error}") from error


class NanoVllm:
    """A `BlockManager` and the sequences it knows.

    Args:
        num_blocks, block_size: pool geometry, in blocks and tokens.
    """

    block_sizes = (2, 3, 4)  # it tells a new block by len % block_size == 1

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.manager = BlockManager(num_blocks, block_size)
        self._sequences: dict[int, Any] = {}
        self._hashes_later = hasattr(self.manager, "hash_blocks")

    def add(self, seq: int, tokens: Sequences[int]) -> int:
        """Admit a prompt. Raises: OutOfBlocks."""
        Sequence.block_size = self.block_size
        made = Sequence(list(tokens))
        cached = self.manager.can_allocate(made)
        if cached < 0 or cached is False:
            raise OutOfBlocks(
                made.num_blocks, self.num_free(), f"need {made.num_blocks} blocks, free {self.num_free()}"
            )
        if self._hashes_later:
            self.manager.allocate(made, cached)
        else:
            self.manager.allocate(made)
        self._sequences[seq] = made
        found = int(made.num_cached_tokens)
        self._computed(made, len(made) - found)
        return found

    def append(self, seq: int, token: int) -> None:
        """One decoded token. Raises: OutOfBlocks."""
        Sequence.block_size = self.block_size
        row = self._sequences[seq]
        row.append_token(token)
        if not self.manager.can_append(row):
            row.token_ids.pop()
            row.num_tokens, row.last_token = row.num_tokens - 1, row.token_ids[-1]
            raise OutOfBlocks(1, self.num_free(), "need a block, none is free")
        self.manager.may_append(row)
        self._computed(row, 1)

    def free(self, seq: int) -> None:
        """The sequence is finished."""
        self.manager.deallocate(self._sequences.pop(seq))

    preempt = free

    def table(self, seq: int) -> list[int]:
        """Physical block ids, logical order."""
        return list(self._sequences[seq].block_table)

    def num_free(self) -> int:
        """Length of the free list: what is cached lies in it, too."""
        return len(self.manager.free_block_ids)

    def refcount(self, block: int) -> int:
        """Sequences that hold the block."""
        return int(self.manager.blocks[block].ref_count)

    def _computed(self, row: Any, tokens: int) -> None:
        """The step has run: what it filled is hashed now, where that is a call of its own."""
        if self._hashes_later:
            row.num_scheduled_tokens = tokens
            self.manager.hash_blocks(row)
            row.num_cached_tokens += tokens
            row.num_scheduled_tokens = 0


factory = NanoVllm
