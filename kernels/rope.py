"""Rotary embedding fused with the write of keys and values: one program per token, all its heads, one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels.address import slot_offset
from kvscope.kernels.quantize import to_cache


@triton.jit
def rotate(low, high, cos, sin):
    """Turn the pairs (low, high); float32 in and out."""
    low, high = low.to(tl.float32), high.to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def rope_kernel(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, positions, k_cache, v_cache, slots, k_scale_ptr, v_scale_ptr,
    q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride, cos_stride, sin_stride,
    block_stride, slot_stride, head_stride, k_scale_stride, v_scale_stride,
    HQ: tl.constexpr, HQP: tl.constexpr, HK: tl.constexpr, HKP: tl.constexpr, HALF: tl.constexpr, HALFP: tl.constexpr,
    PAGE: tl.constexpr, INDEXED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    row = token
    if INDEXED:
        row = tl.load(positions + token)
    pair = tl.arange(0, HALFP)
    cos = tl.load(cos_ptr + row * cos_stride + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + row * sin_stride + pair, mask=pair < HALF, other=0.0).to(tl.float32)[None, :]
    head = tl.arange(0, HKP)[:, None].to(tl.int64)  # a head's stride may be most of a cache
    live = (head < HK) & (pair < HALF)[None, :]
    k_at = k_ptr + token * k_row_stride + head * k_head_stride + pair[None, :]
    v_at = v_ptr + token * v_row_stride + head * v_head_stride + pair[None, :]
    low, high = rotate(tl.load(k_at, mask=live), tl.load(k_at + HALF, mask=live), cos, sin)
    v_low, v_high = tl.load(v_at, mask=live), tl.load(v_at + HALF, mask=live)
    at = slot_offset(slot // PAGE, slot % PAGE, block_stride, slot_stride) + head * head_stride + pair[None, :]
    low = to_cache(low, k_scale_ptr, k_scale_stride, head, head < HK, k_cache, SCALED)
    high = to_cache(high, k_scale_ptr, k_scale_stride, head, head < HK, k_cache, SCALED)
    v_low = to_cache(v_low, v_scale_ptr, v_scale_stride, head, head < HK, v_cache, SCALED)
    v_high = to_cache(v_high, v_scale_ptr, v_scale_stride, head, head < HK, v_cache, SCALED)
    tl.store(k_cache + at, low, mask=live)
    tl.store(k_cache + at + HALF, high, mask=live)
    tl.store(v_cache + at, v_low, mask=live)
    tl.store(v_cache + at + HALF, v_high, mask=live)
    head = tl.arange(0, HQP)[:, None].to(tl.int64)
    live = (head < HQ) & (pair < HALF)[None, :]
    q_at = q_ptr + token * q_row_stride + head * q_head_stride + pair[None, :]
    low, high = rotate(tl.load(q_at, mask=live), tl.load(q_at + HALF, mask=live), cos, sin)
    tl.store(q_at, low.to(q_ptr.dtype.element_ty), mask=live)
    tl.store(q_at + HALF, high.to(q_ptr.dtype.element_ty), mask=live)


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    positions: Tensor | None = None,
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Launch the fused kernel; arguments as in `dispatch.rope_write_kv`, already checked."""
    tokens, heads, dim = q.shape
    if tokens == 0:
        return
    kv_heads = k.shape[1]
    k_scale, v_scale = scales or (k, k)  # not read without scales
    rope_kernel[(tokens,)](
        q, k, v, cos, sin, slot_mapping if positions is None else positions, k_cache, v_cache, slot_mapping,
        k_scale, v_scale,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), cos.stride(0), sin.stride(0),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), k_scale.stride(0), v_scale.stride(0),
        HQ=heads, HQP=triton.next_power_of_2(heads), HK=kv_heads, HKP=triton.next_power_of_2(kv_heads),
        HALF=dim // 2, HALFP=triton.next_power_of_2(dim // 2), PAGE=k_cache.shape[1], INDEXED=positions is not None,
        SCALED=scales is not None,
        num_warps=8 if heads * dim > 2048 else 4,
    )  # fmt: skip
