"""The inner step of attention, shared by decode and prefill: one tile of keys and values, softmax online in base 2."""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels.address import slot_offset

LOG2E = math.log2(math.e)


def soft_cap_factors(scale: float, soft_cap: float) -> tuple[float, float]:
    """What `attend_tile` takes as `scale` and `cap`: without a cap the scale in base 2, with one 2x and the cap."""
    if not soft_cap:
        return scale * LOG2E, 0.0
    return 2.0 * scale * LOG2E / soft_cap, soft_cap * LOG2E


def values_behind(k_cache: Tensor, v_cache: Tensor) -> int:
    """Elements from a key to its value where a block holds both, else 0.

    The kernel takes it as a constant: half of the addresses are then no work, and their registers hold a wider tile.
    """
    between = (v_cache.data_ptr() - k_cache.data_ptr()) // k_cache.element_size()
    together = k_cache.stride() == v_cache.stride() and 0 < between < k_cache.stride(0)
    return between if together else 0


@triton.jit
def attend_tile(
    q, acc, top, total, k_ptr, v_ptr, ids, positions, begin, end, own, window, scale, cap,
    block_stride, slot_stride, dims, D: tl.constexpr, PAGE: tl.constexpr, MASKED: tl.constexpr,
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Fold one tile of tokens into the running softmax (acc, top, total); returns the three.

    MASKED: row i sees up to own[i] and nothing at or past `end` is loaded; else each row sees the whole tile.
    WINDOWED, with MASKED: row i sees `window` tokens, and nothing before `begin` is loaded.
    top is the largest score so far times `scale`, which holds log2(e): weights are powers of two.
    CAPPED: `scale` and `cap` are those of `soft_cap_factors`.
    VALUES: elements from a key to its value, as `values_behind` found it; 0: they are at v_ptr, wherever that is.
    """
    offsets = slot_offset(ids, positions & (PAGE - 1), block_stride, slot_stride)[:, None] + dims[None, :]
    k_at = k_ptr + offsets
    v_at = k_at + VALUES if VALUES else v_ptr + offsets
    # Values are masked like keys: past the end may lie NaN, and 0 * NaN is NaN.
    if MASKED:
        inside = (positions < end)[:, None] & (dims < D)[None, :]
        if WINDOWED:
            inside &= (positions >= begin)[:, None]
        k = tl.load(k_at, mask=inside, other=0.0)
        v = tl.load(v_at, mask=inside, other=0.0)
    elif dims.shape[0] != D:
        k = tl.load(k_at, mask=(dims < D)[None, :], other=0.0)
        v = tl.load(v_at, mask=(dims < D)[None, :], other=0.0)
    else:
        k = tl.load(k_at)
        v = tl.load(v_at)
    k, v = k.to(q.dtype), v.to(q.dtype)  # an 8-bit cache is widened; its scales are the caller's
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if CAPPED:  # cap * tanh(score): 1 - 2 / (exp(2 x) + 1) is right at both ends, where exp2 is 0 or infinite
        scores = cap - 2.0 * cap / (tl.exp2(scores * scale) + 1.0)
        scale = 1.0
    if MASKED:
        seen = positions[None, :] <= own[:, None]
        if WINDOWED:
            seen &= positions[None, :] > own[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    shrink = tl.exp2(top - new_top)
    weights = tl.exp2(scores * scale - new_top[:, None])
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_top, total
