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
MAX_STRETCH = 1024  # words at a time
PLANES = 4  # per program


@triton.jit
def digest_kernel(
    words, units, out, layer_words, side_words, block_words, unit_words, units_per_block, planes,
    STRETCH: tl.constexpr, PLANES: tl.constexpr, LISTED: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The share of some planes in a unit's digest; a unit is a block or a slot, a plane one layer's keys or values."""
    at, first = tl.program_id(0), tl.program_id(1) * PLANES
    unit = at.to(tl.int64)
    if LISTED:
        unit = tl.load(units + at)
        if unit < 0:
            return
    within = (unit % units_per_block).to(tl.int32)
    lane = tl.arange(0, STRETCH)
    total = tl.zeros([STRETCH], tl.uint64)
    line = words + unit // units_per_block * block_words + within * unit_words + lane
    line += (first // 2).to(tl.int64) * layer_words  # PLANES is even
    for plane in range(first, tl.minimum(first + PLANES, planes)):
        # i * STEP of the first words; it grows by a constant from stretch to stretch.
        key = ((plane * units_per_block + within) * unit_words + lane).to(tl.uint32) * STEP
        for start in range(0, unit_words, STRETCH):
            word = tl.load(line + start) if EVEN else tl.load(line + start, mask=start + lane < unit_words, other=0)
            y = (word.to(tl.uint32, bitcast=True) ^ key) * SPREAD
            x = (y ^ (y >> 15)).to(tl.uint64)
            if EVEN:
                total += x * x
            else:
                total += tl.where(start + lane < unit_words, x * x, 0)
            key += tl.full([STRETCH], STRETCH, tl.uint32) * STEP
        line += side_words + (plane % 2) * (layer_words - 2 * side_words)  # from keys to values, then to the next layer
    tl.atomic_add(out + at, tl.sum(total, 0).to(tl.int64, bitcast=True), sem="relaxed")


def _digest(kv: Tensor, units: Tensor | None, count: int, per_block: int) -> Tensor:
    layers, words = kv.shape[0], kv.flatten(3).view(torch.int32)
    out = torch.zeros(count, dtype=torch.int64, device=kv.device)
    if count == 0:
        return out
    unit_words = words.shape[3] // per_block
    stretch = min(MAX_STRETCH, triton.next_power_of_2(unit_words))
    digest_kernel[(count, triton.cdiv(2 * layers, PLANES))](
        words, words if units is None else units, out, *words.stride()[:3], unit_words, per_block, 2 * layers,
        STRETCH=stretch, PLANES=PLANES, LISTED=units is not None, EVEN=unit_words % stretch == 0, num_warps=4,
    )  # fmt: skip
    return out


def digest_blocks(kv: Tensor, blocks: Tensor | None) -> Tensor:
    """Launch the digest of whole blocks; arguments as in `integrity.digest_blocks`, already checked."""
    return _digest(kv, blocks, kv.shape[2] if blocks is None else blocks.shape[0], 1)


def digest_slots(kv: Tensor, slots: Tensor) -> Tensor:
    """Launch the digest of single slots; arguments as in `integrity.digest_slots`, already checked."""
    return _digest(kv, slots, slots.shape[0], kv.shape[3])
