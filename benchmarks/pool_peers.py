"""What the pool is compared with: a plain Python-list allocator, and vLLM's `BlockPool` where it can be imported."""

from __future__ import annotations

from collections.abc import Callable

Bodies = dict[str, Callable[[], int]]

BULK, BATCH = 2048, 256
BULK_ROW, ONE_ROW, SHARE_ROW = "allocate+free 2048", "allocate+free one at a time", "share+unshare 2048"
CALLS_ROW, CALL_ROW = "decode batch of 256, single calls", "decode batch of 256, one call"

# ns per block of vLLM 0.33 and of the list on one machine (2-core AMD EPYC, Python 3.11): for where vLLM is missing.
RECORDED_VLLM = {BULK_ROW: 123.0, ONE_ROW: 575.0, SHARE_ROW: 54.0, CALLS_ROW: 575.0, CALL_ROW: 123.0}
RECORDED_LIST = {BULK_ROW: 31.0, ONE_ROW: 500.0}


class ListPool:
    """The baseline: a free list and a list of counts; no ledger, no events."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.count = [0] * num_blocks

    def take(self, count: int) -> list[int]:
        blocks = self.free[-count:]
        del self.free[-count:]
        for block in blocks:
            self.count[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.count[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.count[block] -= 1
            if self.count[block] == 0:
                self.free.append(block)


def list_bodies(num_blocks: int) -> Bodies:
    """What the list does, by row; each body returns how many blocks it handled."""
    pool = ListPool(num_blocks)
    mine = pool.take(BULK)

    def bulk() -> int:
        pool.release(pool.take(BULK))
        return BULK

    def single() -> int:
        for _ in range(BATCH):
            pool.release(pool.take(1))
        return BATCH

    def share() -> int:
        pool.share(mine)
        pool.release(mine)
        return BULK

    return {BULK_ROW: bulk, ONE_ROW: single, SHARE_ROW: share}


def vllm_bodies(num_blocks: int) -> Bodies:
    """What vLLM's pool does, without prefix caching and events; empty where vLLM cannot be imported."""
    try:
        from vllm.v1.core.block_pool import BlockPool
    except ImportError:
        return {}
    pool = BlockPool(num_blocks + 1, enable_caching=False, hash_block_size=16)
    mine = pool.get_new_blocks(BULK)
    take, free = pool.get_new_blocks, pool.free_blocks

    def bulk() -> int:
        free(take(BULK))
        return BULK

    def single() -> int:
        for _ in range(BATCH):
            free(take(1))
        return BATCH

    def calls() -> int:
        for blocks in [take(1) for _ in range(BATCH)]:
            free(blocks)
        return BATCH

    def call() -> int:
        free(take(BATCH))
        return BATCH

    def share() -> int:
        pool.touch(mine)
        free(mine)
        return BULK

    return {BULK_ROW: bulk, ONE_ROW: single, SHARE_ROW: share, CALLS_ROW: calls, CALL_ROW: call}
