"""Shapes of the kernels' tiles: chosen offline (configs.json), looked up at a call; nothing is tuned while serving.

A configuration is found by what bounds it: the bytes of one key (padded head size times element size), and for decode
whether the batch alone fills the chip. `python -m kvscope.benchmarks.tune_kernels` measures the alternatives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

PIECE_ALIGN = 64  # tokens: pieces of a split context start at multiples of this
MIN_PIECE = 128  # tokens: a smaller piece costs more in joining than it gains
# Pieces of work per multiprocessor: one where a small batch is cut to fill the chip with deep pipelines, more where
# a large ragged batch is evened out.
FEW_PER_SM = 1
MANY_PER_SM = 12
# Programs (sequences times KV heads) per multiprocessor from which a batch is large.
LARGE = 1.5


@dataclass(frozen=True)
class Config:
    """Tokens per tile, warps per program, pipeline stages, and for prefill the query rows per program."""

    tile: int
    warps: int
    stages: int
    rows: int = 0


@lru_cache
def table() -> dict[str, dict[str, Config]]:
    """The shipped configurations: kernel -> name -> Config."""
    read = json.loads(Path(__file__).with_name("configs.json").read_text(encoding="utf-8"))
    return {kernel: {name: Config(**value) for name, value in entries.items()} for kernel, entries in read.items()}


def is_large(programs: int, device: torch.device) -> bool:
    """Whether a decode batch of `programs` sequences times KV heads fills the chip without cutting sequences."""
    return programs >= LARGE * multiprocessors(device)


def decode_config(padded_dim: int, itemsize: int, programs: int, device: torch.device) -> Config:
    """Tile of the decode kernel for keys of `padded_dim` elements and `programs` = sequences times KV heads."""
    name = f"{padded_dim * itemsize}B" + ("-float32" if itemsize == 4 else "")
    return table()["decode-many" if is_large(programs, device) else "decode-few"][name]


def prefill_config(padded_dim: int, itemsize: int) -> Config:
    """Tile of the prefill kernel; `rows` counts query tokens times query heads of one KV head."""
    return table()["prefill"][f"{padded_dim * itemsize}B" + ("-float32" if itemsize == 4 else "")]


def pieces_wanted(programs: int, device: torch.device) -> tuple[int, bool]:
    """Pieces of work, over all KV heads, to cut a decode batch into; and whether rows of equal length stay whole."""
    large = is_large(programs, device)
    return (MANY_PER_SM if large else FEW_PER_SM) * multiprocessors(device), large


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of the interpreter, few, so that small tests split without many programs."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
