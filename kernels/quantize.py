"""Keys and values in 8 bits (float8 e4m3): stored as x / scale, one scale per KV head."""

from __future__ import annotations

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)  # of e4m3; what lies beyond is stored as this, not as NaN


@triton.jit
def to_cache(x, scale_ptr, scale_stride, head, live, like, SCALED: tl.constexpr):
    """x as the cache behind pointer `like` stores it."""
    if SCALED:
        x = x.to(tl.float32) / tl.load(scale_ptr + head * scale_stride, mask=live, other=1.0)
        x = tl.minimum(tl.maximum(x, -LARGEST), LARGEST)
    return x.to(like.dtype.element_ty)
