"""Shapes of the kernels' tiles: chosen offline (configs.json), looked up at a call; nothing is tuned while serving.

There is one per key size (padded head size times element size); for prefill a second where a small one pays when the
programs are few, and a third where a wider one pays when keys and values lie side by side. Decode has three, which
differ in how many programs one multiprocessor holds at a time; a batch takes the one that fills whole waves of the chip
best:

    few    1 per multiprocessor, deepest pipeline: batches that must be cut to fill the chip
    mid    3
    many   4

`kvscope bench kernels --tune` measures the alternatives and `--write` regenerates the table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

PIECE_ALIGN = 64  # tokens: pieces of a split context start at multiples of this
MIN_PIECE = 128  # tokens: a smaller piece costs more in joining than it gains
RESIDENT = {"few": 1, "mid": 3, "many": 4}
# Pieces per multiprocessor that even out a ragged batch: one that must be cut anyway, and a large one.
CUT_RAGGED = {"few": 2, "mid": 3}
LARGE_RAGGED = {"mid": 12, "many": 24}
FULL = 0.85  # share of the chip's places that makes a single wave good
LARGE = 1.9  # programs per multiprocessor from which even batches are not cut


@dataclass(frozen=True)
class Config:
    """Tokens per tile, warps per program, pipeline stages, and for prefill the query rows per program."""

    tile: int
    warps: int
    stages: int
    rows: int = 0


@dataclass(frozen=True)
class Split:
    """How a decode batch is cut: the configuration's name, pieces per row if rows are even, pieces in all if not."""

    name: str
    even: int
    ragged: int


@lru_cache
def table() -> dict[str, dict[str, Config]]:
    """The shipped configurations: kernel -> key size -> Config."""
    read = json.loads(Path(__file__).with_name("configs.json").read_text(encoding="utf-8"))
    return {kernel: {name: Config(**value) for name, value in entries.items()} for kernel, entries in read.items()}


def key_size(padded_dim: int, itemsize: int) -> str:
    """Name of a key's size in the table."""
    return f"{padded_dim * itemsize}B" + {4: "-float32", 1: "-fp8"}.get(itemsize, "")


def key_bytes(q: Tensor, k_cache: Tensor) -> int:
    """Bytes of a key's element as far as tiles go: float32 queries decide by their own, whatever the cache holds."""
    return q.element_size() if q.element_size() == 4 else k_cache.element_size()


def decode_split(programs: int, device: torch.device) -> Split:
    """How to cut a decode batch of `programs` = sequences times KV heads; nothing here needs their lengths."""
    chip = multiprocessors(device)
    if programs >= LARGE * chip:
        waves = {name: -(-programs // (RESIDENT[name] * chip)) * RESIDENT[name] for name in ("mid", "many")}
        # Places taken in whole waves; a single wave is good however full it is.
        small = {name: 1 if programs <= RESIDENT[name] * chip else count for name, count in waves.items()}
        name = min(small, key=small.__getitem__)
        return Split(name, 1, LARGE_RAGGED[name] * chip)
    few = RESIDENT["few"] * chip // programs
    if few * programs >= FULL * RESIDENT["few"] * chip:
        return Split("few", few, CUT_RAGGED["few"] * chip)
    return Split("mid", max(1, RESIDENT["mid"] * chip // programs), CUT_RAGGED["mid"] * chip)


def decode_config(padded_dim: int, itemsize: int, group: int, programs: int, device: torch.device) -> Config:
    """Tile of the decode kernel for keys of `padded_dim` elements and `programs` = sequences times KV heads."""
    name = decode_split(programs, device).name
    if group > 16:  # more query heads than one matrix instruction has rows: the results need the registers
        return replace(table()["decode-mid"][key_size(padded_dim, itemsize)], warps=8)
    return table()["decode-" + name][key_size(padded_dim, itemsize)]


def prefill_config(
    padded_dim: int, itemsize: int, tokens: int, heads: int, device: torch.device, *, close: bool = False
) -> Config:
    """Tile of the prefill kernel for `tokens` queries of `heads` heads; `rows` counts tokens times heads.

    close: a block holds its keys and values (`attend.values_behind`), which leaves registers for a wider tile.
    """
    name, configs = key_size(padded_dim, itemsize), table()
    few = configs["prefill-few"].get(name)
    if few is not None and tokens * heads < LARGE * multiprocessors(device) * configs["prefill"][name].rows:
        return few
    wide = configs["prefill-close"].get(name) if close else None
    return wide or configs["prefill"][name]


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of the interpreter, few, so that small tests split without many programs."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@lru_cache
def launches_overlap(device: torch.device) -> bool:
    """Whether a launch may begin while the one before it ends, as Hopper and what came after it can."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
