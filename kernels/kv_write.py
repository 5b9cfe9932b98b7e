"""Store new keys and values in their slots: one program per token and stretch of its heads."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels.address import slot_offset

MAX_STRETCH = 1024  # elements per program


@triton.jit
def write_kernel(
    k_ptr, v_ptr, k_cache, v_cache, slots,
    k_row_stride, k_head_stride, v_row_stride, v_head_stride, block_stride, slot_stride, head_stride,
    ELEMENTS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    element = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    head, dim = element // D, element % D
    live = element < ELEMENTS
    k = tl.load(k_ptr + token * k_row_stride + head * k_head_stride + dim, mask=live)
    v = tl.load(v_ptr + token * v_row_stride + head * v_head_stride + dim, mask=live)
    at = slot_offset(slot // PAGE, slot % PAGE, block_stride, slot_stride) + head * head_stride + dim
    tl.store(k_cache + at, k, mask=live)
    tl.store(v_cache + at, v, mask=live)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Launch the write kernel; arguments as in `dispatch.write_kv`, already checked."""
    tokens, kv_heads, dim = k.shape
    if tokens == 0:
        return
    elements = kv_heads * dim
    stretch = min(MAX_STRETCH, triton.next_power_of_2(elements))
    write_kernel[(tokens, triton.cdiv(elements, stretch))](
        k, v, k_cache, v_cache, slot_mapping,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        ELEMENTS=elements, D=dim, PAGE=k_cache.shape[1], STRETCH=stretch, num_warps=4,
    )  # fmt: skip
