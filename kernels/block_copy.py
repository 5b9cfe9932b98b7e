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
    from_words, to_words, source, target, from_layer, from_side, from_block, to_layer, to_side, to_block,
    block_words, stretches, sides,
    STRETCH: tl.constexpr,
):  # fmt: skip
    """One stretch of one block in one plane; a plane is one layer's keys or values, or both where they lie together."""
    pair = tl.program_id(0) // stretches
    word = tl.program_id(0) % stretches * STRETCH + tl.arange(0, STRETCH)
    layer, side = (tl.program_id(1) // sides).to(tl.int64), tl.program_id(1) % sides
    live = word < block_words
    from_at = from_words + layer * from_layer + side * from_side + tl.load(source + pair) * from_block
    to_at = to_words + layer * to_layer + side * to_side + tl.load(target + pair) * to_block
    tl.store(to_at + word, tl.load(from_at + word, mask=live), mask=live)


def copy_blocks(kv: Tensor, source: Tensor, target: Tensor) -> None:
    """Launch the copy kernel; arguments as in `dispatch.copy_blocks`, already checked."""
    words = _words(kv)
    _launch(words, words, source, target)


def gather_blocks(kv: Tensor, blocks: Tensor, places: Tensor, staging: Tensor) -> None:
    """staging[places[i]] = block blocks[i] of all layers; staging is [P, L, 2, block_size, HK, D], contiguous."""
    _launch(_words(kv), _words(staging.movedim(0, 2)), blocks, places)


def scatter_blocks(staging: Tensor, places: Tensor, kv: Tensor, blocks: Tensor) -> None:
    """The way back: block blocks[i] of all layers = staging[places[i]]."""
    _launch(_words(staging.movedim(0, 2)), _words(kv), places, blocks)


def _words(kv: Tensor) -> Tensor:
    """[L, 2, N, 64-bit words of a block in one plane], the same memory."""
    size = kv.flatten(3).shape[3] * kv.element_size()
    if size % 8 != 0 or kv.data_ptr() % 8 != 0:
        raise UsageError(f"a block of {size} bytes in one layer is not a whole number of 64-bit words")
    return kv.flatten(3).view(torch.int64)


def _launch(from_: Tensor, to: Tensor, source: Tensor, target: Tensor) -> None:
    layers, sides, _, words = from_.shape
    if from_.stride(1) == to.stride(1) == words:  # keys and values of a block side by side: one piece
        sides, words = 1, 2 * words
    stretch = min(MAX_STRETCH, triton.next_power_of_2(words))
    stretches = triton.cdiv(words, stretch)
    copy_kernel[(source.shape[0] * stretches, layers * sides)](
        from_, to, source, target, *from_.stride()[:3], *to.stride()[:3], words, stretches, sides,
        STRETCH=stretch, num_warps=WARPS,
    )  # fmt: skip
