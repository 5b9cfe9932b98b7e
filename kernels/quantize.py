"""Keys and values in 8 bits (float8 e4m3): stored as x / scale, one scale per KV head."""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)  # of e4m3; what lies beyond is stored as this, not as NaN


@triton.jit
def for_cache(q, SCALED: tl.constexpr):
    """Queries in the type the products with an 8-bit cache are computed in.

    float16 for bfloat16: it holds every e4m3 number, and the hardware widens to it in one step.
    """
    if SCALED and q.dtype == tl.bfloat16:
        q = tl.minimum(tl.maximum(q.to(tl.float32), -65504.0), 65504.0).to(tl.float16)
    return q


@triton.jit
def to_cache(x, scale_ptr, scale_stride, head, live, like, SCALED: tl.constexpr):
    """x as the cache behind pointer `like` stores it."""
    if SCALED:
        x = x.to(tl.float32) / tl.load(scale_ptr + head * scale_stride, mask=live, other=1.0)
        x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
    return x.to(like.dtype.element_ty)
