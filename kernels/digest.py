"""Digest of a block's content over all layers: a sum over its 32-bit words, so in any order and slot by slot.

    digest(block) = sum over words i of mix(word[i], i)  mod 2**64,   i counts a block's words plane by plane
    mix(word, i)  = x * x,  x = y ^ (y >> 15),  y = (word ^ i * STEP) * SPREAD  mod 2**32

x is a one-to-one function of the word, so a digest never misses one changed word. Integer operations alone: bit
patterns count, NaN and -0 are values like any other, and every type of cache is read as int32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

STEP = tl.constexpr(0x9E3779B1)
SPREAD = tl.constexpr(0x85EBCA6B)
MAX_STRETCH = 2048  # words at a time


@triton.jit
def digest_kernel(
    words, units, out, plane_words, unit_words, units_per_block, STRETCH: tl.constexpr, LISTED: tl.constexpr
):
    """The share of one plane in one unit's digest; a unit is a block or a slot, a plane one layer's keys or values."""
    at, plane = tl.program_id(0), tl.program_id(1)
    unit = at.to(tl.int64)
    if LISTED:
        unit = tl.load(units + at)
        if unit < 0:
            return
    words += plane.to(tl.int64) * plane_words + unit * unit_words
    index = (plane * units_per_block + (unit % units_per_block).to(tl.int32)) * unit_words
    lane = tl.arange(0, STRETCH)
    total = tl.zeros([STRETCH], tl.uint64)
    for start in range(0, unit_words, STRETCH):
        live = start + lane < unit_words
        word = tl.load(words + start + lane, mask=live, other=0).to(tl.uint32, bitcast=True)
        y = (word ^ ((index + start + lane).to(tl.uint32) * STEP)) * SPREAD
        x = (y ^ (y >> 15)).to(tl.uint64)
        total += tl.where(live, x * x, 0)
    tl.atomic_add(out + at, tl.sum(total, 0).to(tl.int64, bitcast=True), sem="relaxed")


def _digest(kv: Tensor, units: Tensor | None, count: int, per_block: int) -> Tensor:
    layers, _, num_blocks, block_size, kv_heads, dim = kv.shape
    out = torch.zeros(count, dtype=torch.int64, device=kv.device)
    if count == 0:
        return out
    block_words = block_size * kv_heads * dim * kv.element_size() // 4
    unit_words = block_words // per_block
    words = kv.view(-1).view(torch.int32)
    stretch = min(MAX_STRETCH, triton.next_power_of_2(unit_words))
    digest_kernel[(count, 2 * layers)](
        words, words if units is None else units, out, num_blocks * block_words, unit_words, per_block,
        STRETCH=stretch, LISTED=units is not None, num_warps=8 if stretch >= 2048 else 4,
    )  # fmt: skip
    return out


def digest_blocks(kv: Tensor, blocks: Tensor | None) -> Tensor:
    """Launch the digest of whole blocks; arguments as in `integrity.digest_blocks`, already checked."""
    return _digest(kv, blocks, kv.shape[2] if blocks is None else blocks.shape[0], 1)


def digest_slots(kv: Tensor, slots: Tensor) -> Tensor:
    """Launch the digest of single slots; arguments as in `integrity.digest_slots`, already checked."""
    return _digest(kv, slots, slots.shape[0], kv.shape[3])
