"""Bytes per block of the pool, traced by `tracemalloc`: empty, and with every block in the prefix index."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

from kvscope.engine.pool import BlockPool
from kvscope.traces.schema import Reason

BLOCKS, BLOCK_SIZE = 1 << 14, 16


def traced(build: Callable[[], object]) -> tuple[int, object]:
    """Bytes that are held once `build` has returned, and what it returned."""
    tracemalloc.start()
    try:
        built = build()
        return tracemalloc.get_traced_memory()[0], built
    finally:
        tracemalloc.stop()


def full_pool() -> BlockPool:
    """Every block published behind the one before it, in chains of 64, and cached: its holders are gone."""
    pool = BlockPool(BLOCKS, BLOCK_SIZE)
    index = pool.index
    for first in range(0, BLOCKS, 64):
        blocks = pool.take(64, seq_id=1, lblock=0, reason=Reason.PREFILL)
        parent = index.root(())
        for lblock, block in enumerate(blocks.tolist()):
            tokens = [100_000 + first * 1_000 + lblock * BLOCK_SIZE + i for i in range(BLOCK_SIZE)]
            digest = index.child(parent, tokens)
            pool.write(block, 0, BLOCK_SIZE, seq_id=1, lblock=lblock, reason=Reason.PREFILL)
            pool.commit(block, int(pool.gen[block]), seq_id=1, lblock=lblock)
            pool.publish(block, digest, parent, tokens)
            parent = digest
        pool.release_row(blocks, seq_id=1, lblock=0, reason=Reason.STOP)
    assert pool.num_evictable == BLOCKS
    return pool


def memory_rows() -> list[dict[str, Any]]:
    """Bytes per block, each with the bound it has to keep."""
    rows = []
    for name, build, gate in (
        ("memory of the pool, no prefix index", lambda: BlockPool(BLOCKS, BLOCK_SIZE), 64),
        ("memory of the pool, prefix index full", full_pool, 256),
    ):
        value = traced(build)[0] / BLOCKS
        rows.append({"name": name, "value": round(value, 1), "unit": "bytes/block", "baseline": None, "ratio": None,
                     "gate": gate, "ok": value <= gate})  # fmt: skip
    return rows
