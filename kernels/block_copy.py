"""Copy blocks in all layers, keys and values, in one launch; bytes are moved as 64-bit words whatever their type."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.errors import UsageError

MAX_STRETCH = 512  # words per program
WARPS = 4


@triton.jit
def copy_kernel(
    from_words, to_words, source, target, from_plane, from_block, to_plane, to_block, block_words, stretches,
    STRETCH: tl.constexpr,
):  # fmt: skip
    """One stretch of one block in one plane; a plane is the keys or the values of one layer."""
    pair = tl.program_id(0) // stretches
    word = tl.program_id(0) % stretches * STRETCH + tl.arange(0, STRETCH)
    plane = tl.program_id(1).to(tl.int64)
    live = word < block_words
    data = tl.load(from_words + plane * from_plane + tl.load(source + pair) * from_block + word, mask=live)
    tl.store(to_words + plane * to_plane + tl.load(target + pair) * to_block + word, data, mask=live)


def copy_blocks(kv: Tensor, source: Tensor, target: Tensor) -> None:
    """Launch the copy kernel; arguments as in `dispatch.copy_blocks`, already checked."""
    _launch(kv, kv, source, target, kv, in_planes=(True, True))


def gather_blocks(kv: Tensor, blocks: Tensor, places: Tensor, staging: Tensor) -> None:
    """staging[places[i]] = block blocks[i] of all layers; staging is [P, L, 2, block_size, HK, D], contiguous."""
    _launch(kv, staging, blocks, places, kv, in_planes=(True, False))


def scatter_blocks(staging: Tensor, places: Tensor, kv: Tensor, blocks: Tensor) -> None:
    """The way back: block blocks[i] of all layers = staging[places[i]]."""
    _launch(staging, kv, places, blocks, kv, in_planes=(False, True))


def _launch(
    from_: Tensor, to: Tensor, source: Tensor, target: Tensor, kv: Tensor, in_planes: tuple[bool, bool]
) -> None:
    """in_planes: whether a side is laid out as the cache, plane by plane, or block by block."""
    layers, _, num_blocks, *rest = kv.shape
    block_bytes = kv.element_size()
    for size in rest:
        block_bytes *= size
    if block_bytes % 8 != 0 or from_.data_ptr() % 8 != 0 or to.data_ptr() % 8 != 0:
        raise UsageError(f"a block of {block_bytes} bytes is not a whole number of 64-bit words")
    block_words = block_bytes // 8
    stretch = min(MAX_STRETCH, triton.next_power_of_2(block_words))
    stretches = triton.cdiv(block_words, stretch)
    planes = 2 * layers
    strides = [
        size for whole in in_planes for size in ((num_blocks if whole else 1) * block_words,
                                                 (1 if whole else planes) * block_words)
    ]  # fmt: skip
    copy_kernel[(source.shape[0] * stretches, planes)](
        from_.view(-1).view(torch.int64), to.view(-1).view(torch.int64), source, target, *strides,
        block_words, stretches, STRETCH=stretch, num_warps=WARPS,
    )  # fmt: skip
