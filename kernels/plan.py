"""The split of a decode batch into equal pieces of work, made on the device once per step and used by every layer.

A piece is a stretch of one sequence's context. Pieces are sized from the tokens of the whole batch, so that a long
sequence beside short ones is cut and nothing waits for it, and the number of programs is bounded by the batch alone:
one CUDA graph serves growing lengths. Nothing is read back by the host.

    pieces [P, 8] int32: row, first position, end position, the row's first piece, the row's number of pieces, 3 unused
                         row = -1: no piece (a program for it ends at once)
    arrived [B * HK] int32: pieces that have finished, per row and KV head; 0 before and after each attention call
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels import tuning

FIELDS = 8


@dataclass(frozen=True)
class DecodePlan:
    """Work pieces of one step; valid until a length changes. One call at a time may use it."""

    pieces: Tensor
    arrived: Tensor
    rows: int
    kv_heads: int
    window: int = 0


@triton.jit
def plan_kernel(
    lens_ptr, pieces_ptr, arrived_ptr, rows, capacity, arrived_size, kv_heads, even_pieces, ragged_pieces, window,
    MIN_TOKENS: tl.constexpr, ALIGN: tl.constexpr, BP: tl.constexpr, FIELDS: tl.constexpr,
):  # fmt: skip
    """One program: piece size from the batch's tokens, pieces per row, where each row's pieces stand, the pieces."""
    row = tl.arange(0, BP)
    length = tl.load(lens_ptr + row, mask=row < rows, other=0)
    # A query sees its window: everything below counts from the first position it sees.
    before = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    length -= before
    tokens, longest = tl.sum(length.to(tl.int64), 0), tl.max(length, 0)
    size = ((tokens * kv_heads + ragged_pieces - 1) // ragged_pieces).to(tl.int32)
    if longest.to(tl.int64) * rows * 4 <= tokens * 5:  # about equal rows fill the chip in even shares
        size = (longest + even_pieces - 1) // even_pieces
    size = tl.maximum(size, MIN_TOKENS)
    # To the nearest number of pieces, at least one: a row just over one size is not cut in halves.
    count = tl.where(row < rows, tl.maximum((length + size // 2) // size, 1), 0)
    share = (length + tl.maximum(count, 1) - 1) // tl.maximum(count, 1)
    share = (share + ALIGN - 1) // ALIGN * ALIGN
    count = tl.where(row < rows, tl.maximum((length + share - 1) // tl.maximum(share, 1), 1), 0)
    first = tl.cumsum(count, 0) - count
    for piece in range(tl.max(count, 0)):
        here = piece < count
        at = pieces_ptr + (first + piece) * FIELDS
        tl.store(at, row, mask=here)
        tl.store(at + 1, before + piece * share, mask=here)
        tl.store(at + 2, before + tl.minimum((piece + 1) * share, length), mask=here)
        tl.store(at + 3, first, mask=here)
        tl.store(at + 4, count, mask=here)
    for start in range(tl.sum(count, 0), capacity, BP):
        tl.store(pieces_ptr + (start + row) * FIELDS, -1, mask=start + row < capacity)
    for start in range(0, arrived_size, BP):
        tl.store(arrived_ptr + start + row, 0, mask=start + row < arrived_size)


def plan_decode(seq_lens: Tensor, kv_heads: int, window: int = 0) -> DecodePlan:
    """Launch the planner; `seq_lens` [B] int32 on the kernels' device, already checked."""
    rows = seq_lens.shape[0]
    split = tuning.decode_split(rows * kv_heads, seq_lens.device)
    ragged = max(kv_heads, split.ragged)
    # Rounding gives a row at most one piece over its share of all.
    capacity = rows + max(rows * split.even, -(-ragged // kv_heads))
    pieces = torch.empty((capacity, FIELDS), dtype=torch.int32, device=seq_lens.device)
    arrived = torch.empty(rows * kv_heads, dtype=torch.int32, device=seq_lens.device)
    plan_kernel[(1,)](
        seq_lens, pieces, arrived, rows, capacity, rows * kv_heads, kv_heads, split.even, ragged, window,
        MIN_TOKENS=tuning.MIN_PIECE, ALIGN=tuning.PIECE_ALIGN,
        BP=max(16, triton.next_power_of_2(rows)), FIELDS=FIELDS, num_warps=4,
    )  # fmt: skip
    return DecodePlan(pieces, arrived, rows, kv_heads, window)
