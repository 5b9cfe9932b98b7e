"""transformers' continuous batching: `PagedAttentionCache` with its full-attention allocator, ledger and sector pool.

Every operation goes through the calls that its scheduler makes, in that order: look for a prefix, store or evict and
store, and after the forward pass mark the blocks that it completed. Written for transformers 5.24; older releases of
the 5.x line (5.17) have another cache and are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

from kvscope.errors import MissingDependency, OutOfBlocks, UsageError
from kvscope.inspector.fuzz.protocol import Copy

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
try:
    import torch
    import transformers
    from transformers import LlamaConfig
except ImportError as error:
    raise MissingDependency(f"fuzzing transformers needs torch and transformers: {error}") from error
try:
    from transformers.generation.configuration_utils import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.cache_allocators import CachePool, FullAttentionCacheAllocator
    from transformers.generation.continuous_batching.distributed import DistributedHelper
    from transformers.generation.continuous_batching.requests import RequestState
except ImportError as error:
    raise UsageError(
        f"transformers {transformers.__version__} has another cache than the one this drives (a BlockLedger and a "
        "CachePool behind FullAttentionCacheAllocator): install transformers 5.24"
    ) from error

HEAD = 32  # elements of a head: makes a block of two bytes each a multiple of 128 bytes, so that a sector is one block


@cache
def _template(num_blocks: int, block_size: int) -> Any:
    """A cache of this size. Making one reads the machine's memory, which takes longer than a whole program."""
    config = LlamaConfig(
        hidden_size=HEAD, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4, vocab_size=8
    )
    config._attn_implementation = "sdpa"
    batching = ContinuousBatchingConfig(
        page_size=block_size, num_blocks=num_blocks, max_batch_tokens=16, max_memory_percent=0.9
    )
    return PagedAttentionCache(config, batching, "cpu", DistributedHelper(None, None), torch.float16)


def _fresh(num_blocks: int, block_size: int) -> Any:
    """A new cache: what counts blocks is its own, the tensor (nothing is written into it) and the sizes are shared."""
    made = copy(_template(num_blocks, block_size))
    made.pool = CachePool(made.num_sectors, len(made.cache_allocators))
    allocators = {name: copy(allocator) for name, allocator in made.cache_allocators.items()}
    for allocator in allocators.values():
        allocator.block_table, allocator.ledger, allocator.pool = {}, type(allocator.ledger)(), made.pool
        made.pool.set_blocks_per_sector(allocator.index, allocator.blocks_per_sector)
    made.cache_allocators = allocators
    made.layer_to_allocator = dict.fromkeys(made.layer_to_allocator, next(iter(allocators.values())))
    return made


class TransformersCache:
    """A `PagedAttentionCache` of one layer, driven as its scheduler drives it.

    Args:
        num_blocks, block_size: pool geometry, in blocks and tokens.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = _fresh(num_blocks, block_size)
        (self.allocator,) = self.cache.cache_allocators.values()
        if not isinstance(self.allocator, FullAttentionCacheAllocator):
            raise UsageError(f"the cache has a {type(self.allocator).__name__}: only full attention can be driven")
        self.block_size = block_size
        self.num_blocks = (self.cache.num_sectors + 2) * self.allocator.blocks_per_sector  # ids; two sectors are trash
        self._states: dict[int, Any] = {}
        self._completed: list[tuple[Any, dict[str, int]]] = []
        self._copies: list[Copy] = []

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        """Admit and compute the prompt. Raises: OutOfBlocks."""
        state = RequestState(request_id=str(seq), initial_tokens=list(tokens))
        cached = int(self.cache.search_prefix_match(state.request_id, state.initial_tokens))
        state.position_offset = cached
        try:
            self._compute(state, len(tokens) - cached)
        except OutOfBlocks:
            self.cache.free_blocks(state.request_id)
            raise
        self._states[seq] = state
        return cached

    def append(self, seq: int, token: int) -> None:
        """One decoded token. Raises: OutOfBlocks."""
        state = self._states[seq]
        self._compute(state, 1)
        state.generated_tokens.append(token)

    def fork(self, parent: int, child: int) -> None:
        """Full blocks are shared, the last one is copied. Raises: OutOfBlocks."""
        state, made = self._states[parent], RequestState(request_id=str(child), initial_tokens=[])
        moves: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in self.cache.cache_allocators}
        forked = self._fork(state, made.request_id, moves)
        if not forked and self.cache.evict_cached_blocks():
            forked = self._fork(state, made.request_id, moves)
        if not forked:
            raise OutOfBlocks(1, self.num_free(), "the fork does not fit")
        made.initial_tokens = [*state.initial_tokens, *state.generated_tokens]
        made.position_offset = state.position_offset
        self._states[child] = made
        for sources, targets in moves.values():
            self._copies += [Copy(s, t, self.block_size) for s, t in zip(sources, targets, strict=True)]

    def preempt(self, seq: int) -> None:
        """Give the blocks up and cache none, as offloading does."""
        self.cache.free_blocks(self._states.pop(seq).request_id, no_cache=True)

    def free(self, seq: int) -> None:
        """The request is finished."""
        self.cache.free_blocks(self._states.pop(seq).request_id)

    def table(self, seq: int) -> list[int]:
        """Physical block ids, logical order."""
        return list(self.allocator.block_table[str(seq)])

    def num_free(self) -> int:
        """Free blocks, blocks of free sectors, and cached ones, which are evicted when room is short."""
        pool, sectors = self.cache.pool, self.cache.pool.num_free_sectors * self.allocator.blocks_per_sector
        cached = len(self.allocator.ledger.cached_blocks)
        return int(pool.count_free_blocks(self.allocator.index) + sectors + cached)

    def refcount(self, block: int) -> int:
        """Requests that hold the block: the ledger's count, which is implicit where there is one."""
        held = any(block in table for table in self.allocator.block_table.values())
        return int(self.allocator.ledger.shared_ref_counts.get(block, int(held)))

    def drain(self) -> list[Copy]:
        """Copies since the last call. The forward pass is over now: completed blocks are marked, and deduplicated."""
        completed, self._completed = self._completed, []
        for state, blocks in completed:
            if state.request_id in self.allocator.block_table:
                self.cache.mark_complete_blocks(state, blocks)
        copies, self._copies = self._copies, []
        return copies

    def _fork(self, state: Any, child: str, moves: dict[str, tuple[list[int], list[int]]]) -> bool:
        return bool(self.cache.prepare_fork_request(state, [child], moves))

    def _compute(self, state: Any, tokens: int) -> None:
        """Store so many tokens, evicting what is cached only if they do not fit otherwise."""
        completed = self.cache.count_new_complete_blocks(state, tokens)
        fits = self.cache.can_store_request_tokens(state, tokens)
        if not fits and self.cache.evict_cached_blocks():
            fits = self.cache.can_store_request_tokens(state, tokens)
        if not fits:
            raise OutOfBlocks(1, self.num_free(), f"{tokens} tokens do not fit")
        state.position_offset += tokens
        self._completed.append((state, completed))


class TransformersAllocator(TransformersCache):
    """The same, but forks call `FullAttentionCacheAllocator.fork_blocks` without asking first whether they fit."""

    def _fork(self, state: Any, child: str, moves: dict[str, tuple[list[int], list[int]]]) -> bool:
        (sources, targets), index = moves[self.allocator.layer_type], self.allocator.index
        table = self.allocator.block_table[state.request_id]
        if self.cache.pool.count_free_blocks(index) < len(table):  # nor cached blocks: the scheduler evicts them
            self.cache.evict_cached_blocks()
        while self.cache.pool.num_free_sectors:  # `fork_blocks` takes blocks, never sectors
            self.cache.pool.allocate_sector(index)
        try:
            source, target = self.allocator.fork_blocks(state.request_id, child, state.current_len())
        except ValueError as error:
            raise OutOfBlocks(1, self.num_free(), str(error)) from error
        sources += source
        targets += target
        return True


factory = TransformersCache
unguarded = TransformersAllocator
