"""Copy blocks in all layers, keys and values, in one launch; bytes are moved as 64-bit words whatever their type."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.errors import UsageError

MAX_STRETCH = 512  # words per program


@triton.jit
def copy_kernel(words, source, target, plane_words, block_words, stretches, STRETCH: tl.constexpr):
    """One stretch of one block in one plane; a plane is the keys or the values of one layer."""
    pair = tl.program_id(0) // stretches
    word = tl.program_id(0) % stretches * STRETCH + tl.arange(0, STRETCH)
    plane = words + tl.program_id(1).to(tl.int64) * plane_words
    live = word < block_words
    data = tl.load(plane + tl.load(source + pair) * block_words + word, mask=live)
    tl.store(plane + tl.load(target + pair) * block_words + word, data, mask=live)


def copy_blocks(kv: Tensor, source: Tensor, target: Tensor) -> None:
    """Launch the copy kernel; arguments as in `dispatch.copy_blocks`, already checked."""
    layers, _, num_blocks, *rest = kv.shape
    block_bytes = kv.element_size()
    for size in rest:
        block_bytes *= size
    if block_bytes % 8 != 0 or kv.data_ptr() % 8 != 0:
        raise UsageError(f"a block of {block_bytes} bytes is not a whole number of 64-bit words")
    block_words = block_bytes // 8
    words = kv.view(-1).view(torch.int64)
    stretch = min(MAX_STRETCH, triton.next_power_of_2(block_words))
    stretches = triton.cdiv(block_words, stretch)
    copy_kernel[(source.shape[0] * stretches, 2 * layers)](
        words, source, target, num_blocks * block_words, block_words, stretches, STRETCH=stretch, num_warps=8
    )
