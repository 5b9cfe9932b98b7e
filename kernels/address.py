"""Where a token lies: the address arithmetic shared by the kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def slot_offset(block, within, block_stride, slot_stride):
    """Elements from the cache's start to slot `within` of `block`; 64 bits wide from the block id on.

    A block id times its stride passes 2**31 elements on any large card, so the id is widened before the product.
    """
    return block.to(tl.int64) * block_stride + within * slot_stride


@triton.jit
def load_ids(table, positions, end, PAGE: tl.constexpr):
    """Block ids of token positions, one per token; 0 for positions at or past `end`, whose entries are not read.

    One id per token, not one per block spread over its tokens: the compiler keeps 16-byte asynchronous loads of keys
    and values only in this form.
    """
    return tl.load(table + positions.to(tl.uint32) // PAGE, mask=positions < end, other=0)
