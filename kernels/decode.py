"""Decode attention over a paged cache: one query token per sequence, split over the context where that fills the chip.

One program takes one KV head and one piece of one sequence's context (kernels/plan.py). The G query heads that share
the KV head are the rows of one small matrix, so each key and value is loaded once. Softmax runs online in base 2 with
float32 sums. A sequence of one piece is done then; of several, each program leaves a partial result with its
log-sum-exp, and whichever finishes last joins them, so there is no second launch. A sliding window is a matter of the
plan alone: the pieces cover what the query sees.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels import tuning
from kvscope.kernels.address import load_ids
from kvscope.kernels.attend import attend_tile, soft_cap_factors
from kvscope.kernels.plan import FIELDS, DecodePlan, plan_decode
from kvscope.kernels.quantize import for_cache

JOIN = 8  # pieces joined at a time
STRETCH = 512  # elements of a KV head's output joined at a time


@triton.jit
def join_pieces(
    partial_ptr, lse_ptr, out_ptr, first, count, heads_total, first_head,
    G: tl.constexpr, D: tl.constexpr, JOIN: tl.constexpr, STRETCH: tl.constexpr,
):  # fmt: skip
    """Store the weighted mean of the partial results of one row's pieces, for the G query heads of one KV head."""
    lse_ptr += first.to(tl.int64) * heads_total + first_head
    partial_ptr += (first.to(tl.int64) * heads_total + first_head) * D
    for begin in range(0, G * D, STRETCH):
        element = begin + tl.arange(0, STRETCH)
        live = element < G * D
        top = tl.full([STRETCH], -1e30, tl.float32)
        total = tl.zeros([STRETCH], tl.float32)
        acc = tl.zeros([STRETCH], tl.float32)
        for at in range(0, count, JOIN):
            for step in tl.static_range(JOIN):  # unrolled: the loads of all steps are in flight together
                mask = live & (element * 0 + (at + step) < count)
                row = (at + step) * heads_total
                # Written by programs on other multiprocessors: read past this one's own cache.
                lse = tl.load(lse_ptr + row + element // D, mask=mask, other=float("-inf"), cache_modifier=".cg")
                part = tl.load(partial_ptr + row * D + element, mask=mask, other=0.0, cache_modifier=".cg")
                new_top = tl.maximum(top, lse)
                shrink, weight = tl.exp2(top - new_top), tl.exp2(lse - new_top)
                acc = acc * shrink + part * weight
                total = total * shrink + weight
                top = new_top
        tl.store(out_ptr + element, (acc / tl.where(live, total, 1.0)).to(out_ptr.dtype.element_ty), mask=live)


# New parameters go to the end: where the others lie decides how the assembler orders the loop, and with it the time
# of small batches (measured: 12 % between two orders of the same parameters).
@triton.jit
def decode_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, partial_ptr, lse_ptr, table_ptr, pieces_ptr, arrived_ptr,
    scale, table_stride, q_row_stride, q_head_stride, block_stride, slot_stride, head_stride,
    cap, k_scale_ptr, v_scale_ptr, k_scale_stride, v_scale_stride,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
    CAPPED: tl.constexpr, SCALED: tl.constexpr, FIELDS: tl.constexpr, JOIN: tl.constexpr, STRETCH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    kv_head, kv_heads = tl.program_id(0), tl.num_programs(0)
    piece = tl.program_id(1)
    fields = pieces_ptr + piece * FIELDS
    row, start, end = tl.load(fields).to(tl.int64), tl.load(fields + 1), tl.load(fields + 2)
    first, count = tl.load(fields + 3), tl.load(fields + 4)
    if row < 0:
        return
    group, dims, tile = tl.arange(0, GP), tl.arange(0, DP), tl.arange(0, TILE)
    heads, heads_total = kv_head * G + group, kv_heads * G
    live_heads = group < G
    live = live_heads[:, None] & (dims < D)[None, :]
    out_at = out_ptr + (row * heads_total + heads)[:, None] * D + dims[None, :]
    if start >= end:  # a row without context
        tl.store(out_at, tl.zeros([GP, DP], tl.float32).to(out_ptr.dtype.element_ty), mask=live)
        return
    q = tl.load(q_ptr + row * q_row_stride + heads[:, None] * q_head_stride + dims[None, :], mask=live, other=0.0)
    table = table_ptr + row * table_stride
    k_ptr += kv_head.to(tl.int64) * head_stride
    v_ptr += kv_head.to(tl.int64) * head_stride
    top = tl.full([GP], float("-inf"), tl.float32)
    total = tl.zeros([GP], tl.float32)
    acc = tl.zeros([GP, DP], tl.float32)
    own = tl.zeros([GP], tl.int32) + (end - 1)
    q = for_cache(q, SCALED)
    if SCALED:
        scale *= tl.load(k_scale_ptr + kv_head * k_scale_stride)
    # Block ids run one tile ahead in a loop variable: the compiler then keeps several key and value tiles in flight.
    ids = load_ids(table, start + tile, end, PAGE)
    # Every tile is masked: the test costs less than the registers of a second, unmasked copy of the loop's body.
    for at in range(start, end, TILE):
        next_ids = load_ids(table, at + TILE + tile, end, PAGE)
        acc, top, total = attend_tile(
            q, acc, top, total, k_ptr, v_ptr, ids, at + tile, start, end, own, 0, scale, cap,
            block_stride, slot_stride, dims, D, PAGE, True, False, CAPPED, PRECISION, 0,
        )  # fmt: skip
        ids = next_ids
    acc = acc / total[:, None]
    if SCALED:
        acc *= tl.load(v_scale_ptr + kv_head * v_scale_stride)
    if count == 1:
        tl.store(out_at, acc.to(out_ptr.dtype.element_ty), mask=live)
        return
    rows = piece.to(tl.int64) * heads_total + heads
    tl.store(partial_ptr + rows[:, None] * D + dims[None, :], acc, mask=live)
    tl.store(lse_ptr + rows, top + tl.log2(total), mask=live_heads)
    tl.debug_barrier()  # all threads' stores come before the count that announces them
    arrived_at = arrived_ptr + row * kv_heads + kv_head
    if tl.atomic_add(arrived_at, 1, sem="acq_rel") == count - 1:
        join_pieces(
            partial_ptr, lse_ptr, out_ptr + (row * heads_total + kv_head * G) * D, first, count, heads_total,
            kv_head * G, G, D, JOIN, STRETCH,
        )  # fmt: skip
        tl.store(arrived_at, 0)  # ready for the next layer


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    plan: DecodePlan | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Launch the decode kernel; arguments as in `dispatch.paged_decode`, already checked."""
    batch, heads, dim = q.shape
    block_size, kv_heads = k_cache.shape[1], k_cache.shape[2]
    out = torch.empty((batch, heads, dim), dtype=q.dtype, device=q.device)
    if batch == 0:
        return out
    if plan is None:
        plan = plan_decode(seq_lens, kv_heads, window)
    padded = max(16, triton.next_power_of_2(dim))
    group = heads // kv_heads
    config = tuning.decode_config(padded, tuning.key_bytes(q, k_cache), group, batch * kv_heads, q.device)
    capacity = plan.pieces.shape[0]
    partial = torch.empty((capacity, heads, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((capacity, heads), dtype=torch.float32, device=q.device)
    factor, cap = soft_cap_factors(scale, soft_cap)
    k_scale, v_scale = scales or (lse, lse)  # not read without scales
    decode_kernel[(kv_heads, capacity)](
        q, k_cache, v_cache, out, partial, lse, block_table, plan.pieces, plan.arrived,
        factor, block_table.stride(0), q.stride(0), q.stride(1),
        k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), cap, k_scale, v_scale,
        k_scale.stride(0), v_scale.stride(0),
        G=group, GP=max(16, triton.next_power_of_2(group)), D=dim, DP=padded, PAGE=block_size, TILE=config.tile,
        CAPPED=soft_cap > 0, SCALED=scales is not None, FIELDS=FIELDS, JOIN=JOIN,
        STRETCH=min(STRETCH, triton.next_power_of_2(group * dim)),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=config.warps, num_stages=config.stages, enable_fp_fusion=True,
    )  # fmt: skip
    return out
