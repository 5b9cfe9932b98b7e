"""Store new keys and values in their slots: one program per token and stretch of its heads."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels.address import slot_offset
from kvscope.kernels.quantize import to_cache

MAX_STRETCH = 1024  # elements per program


@triton.jit
def write_kernel(
    k_ptr, v_ptr, k_cache, v_cache, slots, k_scale_ptr, v_scale_ptr,
    k_row_stride, k_head_stride, v_row_stride, v_head_stride, block_stride, slot_stride, head_stride,
    k_scale_stride, v_scale_stride,
    ELEMENTS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, STRETCH: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    element = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    head, dim = (element // D).to(tl.int64), element % D  # a head's stride may be most of a cache
    live = element < ELEMENTS
    k = tl.load(k_ptr + token * k_row_stride + head * k_head_stride + dim, mask=live)
    v = tl.load(v_ptr + token * v_row_stride + head * v_head_stride + dim, mask=live)
    at = slot_offset(slot // PAGE, slot % PAGE, block_stride, slot_stride) + head * head_stride + dim
    tl.store(k_cache + at, to_cache(k, k_scale_ptr, k_scale_stride, head, live, k_cache, SCALED), mask=live)
    tl.store(v_cache + at, to_cache(v, v_scale_ptr, v_scale_stride, head, live, v_cache, SCALED), mask=live)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Launch the write kernel; arguments as in `dispatch.write_kv`, already checked."""
    tokens, kv_heads, dim = k.shape
    if tokens == 0:
        return
    elements = kv_heads * dim
    stretch = min(MAX_STRETCH, triton.next_power_of_2(elements))
    k_scale, v_scale = scales or (k, k)  # not read without scales
    write_kernel[(tokens, triton.cdiv(elements, stretch))](
        k, v, k_cache, v_cache, slot_mapping, k_scale, v_scale,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        k_scale.stride(0), v_scale.stride(0),
        ELEMENTS=elements, D=dim, PAGE=k_cache.shape[1], STRETCH=stretch,
        SCALED=scales is not None, num_warps=4,
    )  # fmt: skip
