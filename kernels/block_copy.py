"""Copy blocks in all layers, keys and values, in one launch; bytes are moved as 64-bit words whatever their type."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels import tuning

MAX_STRETCH = 512  # words per program
WARPS = 1
AHEAD = 1056  # programs that fetch before the kernel before them has ended: 8 for each of the 132 multiprocessors


@triton.jit
def _fetch(words, ids, pair, blocks, layer, side, stride_layer, stride_side, stride_block, word, WORDS: tl.constexpr):
    """Bring one stretch of a source block into the L2 cache; a hint, which no later write can make stale.

    The id is read past the L1 cache, and may be what the kernel before this one is about to replace: then another
    block of the pool is fetched, for nothing.
    """
    block = tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.s64 $0, [$1];", "=l,l", [ids + pair], dtype=tl.int64, is_pure=False, pack=1
    )
    block = tl.minimum(tl.maximum(block, 0), blocks - 1)
    at = words + layer * stride_layer + side * stride_side + block * stride_block + word
    tl.inline_asm_elementwise(
        """{
            .reg .pred first;
            mov.u32 $0, %tid.x;
            setp.eq.u32 first, $0, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
        }""",
        "=r,l,r", [at, tl.full([], WORDS * 8, tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def copy_kernel(
    from_words, to_words, source, target, from_layer, from_side, from_block, to_layer, to_side, to_block, from_blocks,
    BLOCK_WORDS: tl.constexpr, STRETCH: tl.constexpr, PLANES: tl.constexpr, SIDES: tl.constexpr,
    OVERLAP: tl.constexpr, FETCHING: tl.constexpr,
):  # fmt: skip
    """One stretch of one block in one plane; a plane is one layer's keys or values, or both where they lie together.

    OVERLAP: the launch may begin while the kernel before it ends (programmatic dependent launch): nothing is read
    before that one's writes are there. The first FETCHING programs use the wait to have their words fetched.
    """
    stretches: tl.constexpr = (BLOCK_WORDS + STRETCH - 1) // STRETCH
    piece, part = tl.program_id(0) // stretches, tl.program_id(0) % stretches
    pair, plane = piece // PLANES, piece % PLANES
    layer, side = (plane // SIDES).to(tl.int64), plane % SIDES
    if OVERLAP:
        if tl.program_id(0) < FETCHING:
            _fetch(
                from_words, source, pair, from_blocks, layer, side, from_layer, from_side, from_block, part * STRETCH,
                STRETCH,
            )  # fmt: skip
        tl.extra.cuda.gdc_wait()
    word = part * STRETCH + tl.arange(0, STRETCH)
    live = word < BLOCK_WORDS
    from_at = from_words + layer * from_layer + side * from_side + tl.load(source + pair) * from_block
    to_at = to_words + layer * to_layer + side * to_side + tl.load(target + pair) * to_block
    words = tl.load(from_at + word, mask=live)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    tl.store(to_at + word, words, mask=live)


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
    layers, sides, blocks, words = from_.shape
    if from_.stride(1) == to.stride(1) == words:  # keys and values of a block side by side: one piece
        sides, words = 1, 2 * words
    stretch = min(MAX_STRETCH, triton.next_power_of_2(words))
    overlap = tuning.launches_overlap(from_.device)
    copy_kernel[(source.shape[0] * layers * sides * triton.cdiv(words, stretch),)](
        from_, to, source, target, *from_.stride()[:3], *to.stride()[:3], blocks,
        BLOCK_WORDS=words, STRETCH=stretch, PLANES=layers * sides, SIDES=sides,
        OVERLAP=overlap, FETCHING=AHEAD if _fetchable(from_, words, stretch) else 0,
        num_warps=WARPS, **({"launch_pdl": True} if overlap else {}),
    )  # fmt: skip


def _fetchable(from_: Tensor, words: int, stretch: int) -> bool:
    """A fetch takes whole 16 bytes, and only what is in the block."""
    return words % stretch == 0 and stretch % 2 == 0 and from_.data_ptr() % 16 == 0 and _even(from_.stride()[:3])


def _even(strides: tuple[int, ...]) -> bool:
    return all(stride % 2 == 0 for stride in strides)
