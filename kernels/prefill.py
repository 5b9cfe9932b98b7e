"""Prefill attention over a paged cache: the newest tokens of each sequence, causal, ragged, chunked.

One program takes one KV head and a block of query rows: BQ tokens times the G query heads that share the KV head
(padded to a power of two), so keys and values are loaded once for all of them. Tiles that every row may see run without
a mask; only those on the diagonal are masked.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels import tuning
from kvscope.kernels.address import load_ids
from kvscope.kernels.attend import attend_tile, soft_cap_factors, values_behind
from kvscope.kernels.quantize import for_cache

# Where running maxima start: finite, for a row may see nothing of the first tile its neighbours see.
LOWEST = tl.constexpr(-1e30)
EDGE_STAGES = 2  # of the loop over the diagonal: it is short, and its masks need the registers
MAX_BLOCKS = 65_535  # CUDA's limit of the grid's second axis


@triton.jit
def find_row(start_ptr, rows, block, BQ: tl.constexpr):
    """Row whose query block this is: row r owns blocks start[r] // BQ + r up to the next row's first."""
    low, high = 0, rows + 1
    while low < high:
        middle = (low + high) // 2
        if tl.load(start_ptr + middle) // BQ + middle <= block:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def prefill_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, table_ptr, lens_ptr, start_ptr,
    scale, rows, tokens, table_stride, q_row_stride, q_head_stride, block_stride, slot_stride, head_stride,
    cap, window, k_scale_ptr, v_scale_ptr, k_scale_stride, v_scale_stride,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    BQ: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr, SCALED: tl.constexpr,
    PRECISION: tl.constexpr, VALUES: tl.constexpr, EDGE_STAGES: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    heads_total = tl.num_programs(0) * G
    block = tl.num_programs(1) - 1 - tl.program_id(1)  # late queries see most: longest work first
    row = find_row(start_ptr, rows, block, BQ)
    first_token = tl.load(start_ptr + row)
    # The row after the last stands for the padding: no context, zeros out.
    last_token, length = tokens, 0
    if row < rows:
        last_token = tl.load(start_ptr + row + 1)
        length = tl.load(lens_ptr + row)
    count = last_token - first_token
    first = (block - (first_token // BQ + row)) * BQ
    if first >= count:
        return
    index, dims = tl.arange(0, BQ * GP), tl.arange(0, DP)
    query, group = first + index // GP, index % GP
    live = ((query < count) & (group < G))[:, None] & (dims < D)[None, :]
    token, head = (first_token + query).to(tl.int64), kv_head * G + group
    out_at = out_ptr + ((token * heads_total + head) * D)[:, None] + dims[None, :]
    if length < count:
        tl.store(out_at, tl.zeros([BQ * GP, DP], tl.float32).to(out_ptr.dtype.element_ty), mask=live)
        return
    q_at = q_ptr + (token * q_row_stride + head * q_head_stride)[:, None] + dims[None, :]
    q = tl.load(q_at, mask=live, other=0.0)
    own = length - count + query
    end = length - count + tl.minimum(first + BQ, count)
    full_end = (length - count + first + 1) // TILE * TILE
    table = table_ptr + row.to(tl.int64) * table_stride
    k_ptr += kv_head.to(tl.int64) * head_stride
    v_ptr += kv_head.to(tl.int64) * head_stride
    q = for_cache(q, SCALED)
    if SCALED:
        scale *= tl.load(k_scale_ptr + kv_head * k_scale_stride)
    top = tl.full([BQ * GP], LOWEST, tl.float32)
    total = tl.zeros([BQ * GP], tl.float32)
    acc = tl.zeros([BQ * GP, DP], tl.float32)
    tile = tl.arange(0, TILE)
    # Tiles before the first row's window are left out; those that cross a row's lower edge come first, masked.
    begin, edge_end = 0, 0
    if WINDOWED:
        begin = tl.maximum(length - count + first - window + 1, 0)
        edge_end = (tl.maximum(end - window, 0) + TILE - 1) // TILE * TILE
        edge_end = tl.minimum(edge_end, (end + TILE - 1) // TILE * TILE)
        full_end = tl.maximum(full_end, edge_end)
    start = begin // TILE * TILE
    ids = load_ids(table, start + tile, end, PAGE)
    if WINDOWED:
        for at in range(start, edge_end, TILE):
            next_ids = load_ids(table, at + TILE + tile, end, PAGE)
            acc, top, total = attend_tile(
                q, acc, top, total, k_ptr, v_ptr, ids, at + tile, begin, end, own, window, scale, cap,
                block_stride, slot_stride, dims, D, PAGE, True, WINDOWED, CAPPED, PRECISION, VALUES,
            )  # fmt: skip
            ids = next_ids
        start = tl.maximum(start, edge_end)
    for at in range(start, full_end, TILE):
        next_ids = load_ids(table, at + TILE + tile, end, PAGE)
        acc, top, total = attend_tile(
            q, acc, top, total, k_ptr, v_ptr, ids, at + tile, begin, end, own, window, scale, cap,
            block_stride, slot_stride, dims, D, PAGE, False, WINDOWED, CAPPED, PRECISION, VALUES,
        )  # fmt: skip
        ids = next_ids
    for at in tl.range(full_end, end, TILE, num_stages=EDGE_STAGES):
        next_ids = load_ids(table, at + TILE + tile, end, PAGE)
        acc, top, total = attend_tile(
            q, acc, top, total, k_ptr, v_ptr, ids, at + tile, begin, end, own, window, scale, cap,
            block_stride, slot_stride, dims, D, PAGE, True, WINDOWED, CAPPED, PRECISION, VALUES,
        )  # fmt: skip
        ids = next_ids
    acc = acc / total[:, None]
    if SCALED:
        acc *= tl.load(v_scale_ptr + kv_head * v_scale_stride)
    tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=live)


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Launch the prefill kernel; arguments as in `dispatch.paged_prefill`, already checked."""
    tokens, heads, dim = q.shape
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    rows = block_table.shape[0]
    out = torch.empty((tokens, heads, dim), dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    padded, group = max(16, triton.next_power_of_2(dim)), heads // kv_heads
    # A wider tile needs the registers that windows and caps take.
    behind = 0 if window or soft_cap else values_behind(k_cache, v_cache)
    config = tuning.prefill_config(padded, tuning.key_bytes(q, k_cache), tokens, heads, q.device, close=behind > 0)
    padded_group = triton.next_power_of_2(group)
    queries = max(1, config.rows // padded_group)
    blocks = tokens // queries + rows + 1
    if blocks > MAX_BLOCKS:
        raise UsageError(f"{tokens} tokens in one prefill are too many; give at most {MAX_BLOCKS * queries} a call")
    factor, cap = soft_cap_factors(scale, soft_cap)
    k_scale, v_scale = scales or (q, q)  # not read without scales
    prefill_kernel[(kv_heads, blocks)](
        q, k_cache, v_cache, out, block_table, seq_lens, query_start,
        factor, rows, tokens, block_table.stride(0), q.stride(0), q.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), cap, window, k_scale, v_scale,
        k_scale.stride(0), v_scale.stride(0),
        G=group, GP=padded_group, D=dim, DP=padded, PAGE=block_size, TILE=config.tile, BQ=queries,
        WINDOWED=window > 0, CAPPED=soft_cap > 0, SCALED=scales is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        VALUES=behind, EDGE_STAGES=min(config.stages, EDGE_STAGES),
        num_warps=config.warps, num_stages=config.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return out
