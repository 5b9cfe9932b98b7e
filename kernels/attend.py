"""The inner step of attention, shared by decode and prefill: one tile of keys and values, softmax online in base 2."""

from __future__ import annotations

import math

import triton
import triton.language as tl

from kvscope.kernels.address import slot_offset

LOG2E = math.log2(math.e)


@triton.jit
def attend_tile(
    q, acc, top, total, k_ptr, v_ptr, ids, positions, end, own, scale,
    block_stride, slot_stride, dims, D: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Fold one tile of tokens into the running softmax (acc, top, total); returns the three.

    MASKED: row i sees up to own[i] and nothing at or past `end` is loaded; else each row sees the whole tile.
    top is the largest score so far times `scale`, which holds log2(e): weights are powers of two.
    """
    offsets = slot_offset(ids, positions & (PAGE - 1), block_stride, slot_stride)[:, None] + dims[None, :]
    # Values are masked like keys: past the end may lie NaN, and 0 * NaN is NaN.
    if MASKED:
        inside = (positions < end)[:, None] & (dims < D)[None, :]
        k = tl.load(k_ptr + offsets, mask=inside, other=0.0)
        v = tl.load(v_ptr + offsets, mask=inside, other=0.0)
    elif dims.shape[0] != D:
        k = tl.load(k_ptr + offsets, mask=(dims < D)[None, :], other=0.0)
        v = tl.load(v_ptr + offsets, mask=(dims < D)[None, :], other=0.0)
    else:
        k = tl.load(k_ptr + offsets)
        v = tl.load(v_ptr + offsets)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if MASKED:
        scores = tl.where(positions[None, :] <= own[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    shrink = tl.exp2(top - new_top)
    weights = tl.exp2(scores * scale - new_top[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_top, total
