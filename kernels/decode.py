"""Decode attention over a paged cache: one query token per sequence, split over the context where that fills the chip.

One program takes one KV head and one chunk of one sequence's context. The G query heads that share the KV head are the
rows of one small matrix, so each key and value is loaded once. Softmax runs online in base 2 with float32 sums.
Programs of a split sequence leave a partial result and its log-sum-exp; a second kernel joins them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels.address import load_ids
from kvscope.kernels.attend import LOG2E, attend_tile
from kvscope.kernels.tuning import decode_config, decode_splits


@triton.jit
def chunk_bounds(length, split, splits, TILE: tl.constexpr):
    """Token range of one chunk: equal whole tiles, so the last chunks of a short sequence are empty (start >= end)."""
    chunk = tl.cdiv(tl.cdiv(length, splits), TILE) * TILE
    start = split * chunk
    return start, tl.minimum(start + chunk, length)


@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, partial_ptr, lse_ptr, table_ptr, lens_ptr,
    scale, splits, table_stride, q_row_stride, q_head_stride, block_stride, slot_stride, head_stride,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    kv_head, row, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    kv_heads = tl.num_programs(0)
    length = tl.load(lens_ptr + row)
    start, end = chunk_bounds(length, split, splits, TILE)
    group, dims = tl.arange(0, GP), tl.arange(0, DP)
    heads = kv_head * G + group
    live = (group < G)[:, None] & (dims < D)[None, :]
    out_rows = row * (kv_heads * G) + heads
    if start >= end:
        if not SPLIT:
            tl.store(out_ptr + out_rows[:, None] * D + dims[None, :], tl.zeros([GP, DP], tl.float32), mask=live)
        return
    q = tl.load(q_ptr + row * q_row_stride + heads[:, None] * q_head_stride + dims[None, :], mask=live, other=0.0)
    table = table_ptr + row * table_stride
    k_ptr += kv_head.to(tl.int64) * head_stride
    v_ptr += kv_head.to(tl.int64) * head_stride
    top = tl.full([GP], float("-inf"), tl.float32)
    total = tl.zeros([GP], tl.float32)
    acc = tl.zeros([GP, DP], tl.float32)
    tile = tl.arange(0, TILE)
    own = tl.zeros([GP], tl.int32) + (end - 1)
    # Block ids run one tile ahead in a loop variable: the compiler then keeps several key and value tiles in flight.
    ids = load_ids(table, start + tile, end, PAGE)
    # Every tile is masked: the test costs less than the registers of a second, unmasked copy of the loop's body.
    for first in range(start, end, TILE):
        next_ids = load_ids(table, first + TILE + tile, end, PAGE)
        acc, top, total = attend_tile(
            q, acc, top, total, k_ptr, v_ptr, ids, first + tile, end, own, scale,
            block_stride, slot_stride, dims, D, PAGE, True, PRECISION,
        )  # fmt: skip
        ids = next_ids
    acc = acc / total[:, None]
    if SPLIT:
        rows = out_rows * splits + split
        tl.store(partial_ptr + rows[:, None] * D + dims[None, :], acc, mask=live)
        tl.store(lse_ptr + rows, top + tl.log2(total), mask=group < G)
    else:
        tl.store(out_ptr + out_rows[:, None] * D + dims[None, :], acc.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def combine_kernel(
    partial_ptr, lse_ptr, out_ptr, lens_ptr, splits,
    D: tl.constexpr, DP: tl.constexpr, TILE: tl.constexpr, SP: tl.constexpr,
):  # fmt: skip
    """Join the chunks of one query head; counts them from the same formula as the programs that wrote them."""
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    out_row = row * tl.num_programs(0) + head
    length = tl.load(lens_ptr + row)
    index, dims = tl.arange(0, SP), tl.arange(0, DP)
    start, end = chunk_bounds(length, index, splits, TILE)
    used = (start < end) & (index < splits)
    lse = tl.load(lse_ptr + out_row * splits + index, mask=used, other=float("-inf"))
    # A row of length 0 has no chunk: the floor keeps -inf - -inf and 0 / 0 out, and the result is 0.
    weights = tl.exp2(lse - tl.maximum(tl.max(lse, 0), -1e30))
    mask = used[:, None] & (dims < D)[None, :]
    parts = tl.load(partial_ptr + (out_row * splits + index)[:, None] * D + dims[None, :], mask=mask, other=0.0)
    joined = tl.sum(parts * weights[:, None], 0) / tl.maximum(tl.sum(weights, 0), 1e-30)
    tl.store(out_ptr + out_row * D + dims, joined.to(out_ptr.dtype.element_ty), mask=dims < D)


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> Tensor:
    """Launch the decode kernels; arguments as in `dispatch.paged_decode`, already checked."""
    batch, heads, dim = q.shape
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    out = torch.empty((batch, heads, dim), dtype=q.dtype, device=q.device)
    if batch == 0:
        return out
    padded = triton.next_power_of_2(dim)
    config = decode_config(padded, q.element_size())
    splits = decode_splits(batch * kv_heads, block_table.shape[1] * block_size, config.tile, q.device)
    partial = lse = out
    if splits > 1:
        partial = torch.empty((batch, heads, splits, dim), dtype=torch.float32, device=q.device)
        lse = torch.empty((batch, heads, splits), dtype=torch.float32, device=q.device)
    group = heads // kv_heads
    decode_kernel[(kv_heads, batch, splits)](
        q, k_cache, v_cache, out, partial, lse, block_table, seq_lens,
        scale * LOG2E, splits, block_table.stride(0), q.stride(0), q.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2),
        G=group, GP=max(16, triton.next_power_of_2(group)), D=dim, DP=padded, PAGE=block_size, TILE=config.tile,
        SPLIT=splits > 1, PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    if splits > 1:
        combine_kernel[(heads, batch)](
            partial, lse, out, seq_lens, splits,
            D=dim, DP=padded, TILE=config.tile, SP=triton.next_power_of_2(splits), num_warps=4,
        )  # fmt: skip
    return out
