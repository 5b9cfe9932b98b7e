"""Shapes of the kernels' tiles: chosen offline, looked up at a call; nothing is tuned while serving."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

# Programs of decode attention that should be in flight on one multiprocessor.
PROGRAMS_PER_SM = 4
MAX_SPLITS = 64
# A chunk of fewer tokens costs more in joining than it gains.
MIN_CHUNK = 128


@dataclass(frozen=True)
class Config:
    """Tokens per tile, query rows per program (prefill), warps per program, pipeline stages."""

    tile: int
    warps: int
    stages: int
    rows: int = 0


def decode_config(padded_dim: int, itemsize: int) -> Config:
    """Tile of the decode kernel for keys of `padded_dim` elements of `itemsize` bytes."""
    tile = max(16, min(64, 64 * 256 // (padded_dim * itemsize)))
    if itemsize == 4:  # exact float32 products run outside the tensor cores and need many threads
        return Config(tile=tile, warps=8, stages=2)
    return Config(tile=tile, warps=4, stages=3)


def prefill_config(padded_dim: int, itemsize: int) -> Config:
    """Tile of the prefill kernel; `rows` counts query tokens times query heads of one KV head."""
    if itemsize == 4:
        return Config(tile=32 if padded_dim <= 64 else 16, warps=8, stages=1, rows=32)
    return Config(tile=64 if padded_dim <= 128 else 32, warps=8, stages=2, rows=128)


def decode_splits(programs: int, max_tokens: int, tile: int, device: torch.device) -> int:
    """Chunks per sequence so that `programs` (sequences times KV heads) fill the chip; bounds by the table's width."""
    wanted = -(-PROGRAMS_PER_SM * multiprocessors(device) // programs)
    return max(1, min(wanted, max_tokens // max(MIN_CHUNK, tile), MAX_SPLITS))


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of the interpreter, enough that small tests split."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
