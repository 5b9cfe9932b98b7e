"""The one door to the kernels: checks what it is given, then runs the chosen backend.

    "torch"             plain torch (kernels/reference.py), the default on the CPU
    "triton"            Triton kernels, the default on CUDA
    "triton-interpret"  the same kernels in Triton's interpreter, for tests; needs TRITON_INTERPRET=1 in the
                        environment before triton is imported; attention in float16 and float32 only

Layouts (row = last dimension contiguous; all other strides are free):
    k_cache, v_cache [num_blocks, block_size, kv_heads, head_dim]
    block_table      [rows, max_blocks] int32, entry j holds positions from j * block_size; unused entries: anything
    seq_lens         [rows] int32, tokens
Alignment: that of an element will do; 16 bytes, which torch's own tensors have, are read fastest. `copy_blocks` moves
64-bit words: with Triton a block is a whole number of them, in every layer, and begins at one.

Nothing here reads a tensor's values from a GPU, so a call can be captured in a CUDA graph. What a value leads to is
the caller's there: a length beyond its row of the table reads the next row's blocks, an id beyond the cache whatever
lies behind it, and more queries than context give zeros. "torch" refuses all of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels import reference
from kvscope.kernels.checks import (
    BLOCK_SIZES as BLOCK_SIZES,
)
from kvscope.kernels.checks import (
    check_cache_tensor,
    check_caches,
    check_copies,
    check_ids,
    check_rotary,
    check_rows,
    check_scales,
    check_window,
    check_writes,
    choose_backend,
    describe,
    triton_module,
)

if TYPE_CHECKING:
    from kvscope.kernels.plan import DecodePlan


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    plan: DecodePlan | None = None,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attention of one query token per sequence over all `seq_lens` cached tokens; [B, HQ, D] like q.

    Args:
        q: [B, HQ, D]; HQ is a multiple of the cache's kv_heads (query head h reads KV head h // (HQ // HK)).
        k_cache, v_cache: [N, block_size, HK, D], the same dtype and device as q.
        block_table: [B, M] int32.
        seq_lens: [B] int32, the query's own token included; a row of length 0 (padding) gives zeros.
        scale: multiplies the scores, above 0, usually head_dim ** -0.5.
        plan: `plan_decode` of these lengths, shared by the layers of a step; without one the call makes its own.
        window: tokens a query sees, its own included; what lies before is not read. 0: all.
        soft_cap: above 0, scaled scores s become soft_cap * tanh(s / soft_cap). 0: none.
        k_scale, v_scale: [HK] or [1] float32, for caches of float8_e4m3fn: a key is its stored value times k_scale.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = choose_backend(backend, q)
    check_caches(q, k_cache, v_cache, chosen)
    scales = check_scales(k_scale, v_scale, k_cache)
    check_rows(q, block_table, seq_lens, scale, window, soft_cap, chosen)
    if q.shape[0] != block_table.shape[0]:
        raise UsageError(f"q has {q.shape[0]} rows but block_table has {block_table.shape[0]}; they must be equal")
    if chosen == "torch":
        return reference.paged_decode(q, k_cache, v_cache, block_table, seq_lens, scale, window, soft_cap, scales)
    call = (q.shape[0], k_cache.shape[2], window)
    if plan is not None and (plan.rows, plan.kv_heads, plan.window) != call:
        raise UsageError(
            f"plan is for {plan.rows} rows of {plan.kv_heads} KV heads and window {plan.window}, "
            f"the call has {call[0]} of {call[1]} and window {call[2]}"
        )
    return triton_module("decode").paged_decode(
        q, k_cache, v_cache, block_table, seq_lens, scale, plan, window, soft_cap, scales
    )


def plan_decode(seq_lens: Tensor, kv_heads: int, *, window: int = 0, backend: str | None = None) -> DecodePlan | None:
    """How to split a decode batch of these lengths; make one per step and give it to every layer's `paged_decode`.

    Runs on the device and can be captured in the same CUDA graph. None for the torch backend, which needs no plan.

    Args:
        seq_lens: [B] int32, as for `paged_decode`.
        kv_heads: KV heads of the cache (on this device).
        window: as for `paged_decode`; layers with different windows need different plans.

    Raises:
        UsageError: a shape or dtype does not fit, or the backend is not available.
    """
    chosen = choose_backend(backend, seq_lens)
    check_ids("seq_lens", seq_lens, (seq_lens.numel(),), torch.int32, seq_lens)
    check_window(window)
    if kv_heads < 1:
        raise UsageError(f"kv_heads must be at least 1, got {kv_heads}")
    if chosen == "torch" or seq_lens.numel() == 0:
        return None
    return cast("DecodePlan", triton_module("plan").plan_decode(seq_lens, kv_heads, window))


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start: Tensor,
    scale: float,
    *,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Causal attention of each sequence's newest tokens over its whole cached context; [T, HQ, D] like q.

    Row r's queries are q[query_start[r] : query_start[r + 1]] and stand at the last positions of its context, whose
    keys and values (the new tokens' included) are already written. One query token per row is a decode; rows may mix.

    Args:
        q: [T, HQ, D]; tokens past query_start[R] are padding and give zeros.
        k_cache, v_cache: [N, block_size, HK, D], the same dtype and device as q.
        block_table: [R, M] int32.
        seq_lens: [R] int32, context including the new tokens.
        query_start: [R + 1] int32, from 0, never falling.
        scale: multiplies the scores, above 0.
        window, soft_cap, k_scale, v_scale: as for `paged_decode`.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = choose_backend(backend, q)
    check_caches(q, k_cache, v_cache, chosen)
    scales = check_scales(k_scale, v_scale, k_cache)
    check_rows(q, block_table, seq_lens, scale, window, soft_cap, chosen)
    check_ids("query_start", query_start, (block_table.shape[0] + 1,), torch.int32, q)
    run = reference.paged_prefill if chosen == "torch" else triton_module("prefill").paged_prefill
    return run(q, k_cache, v_cache, block_table, seq_lens, query_start, scale, window, soft_cap, scales)


def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Store the key and value of each token in its slot; a token whose slot is negative is skipped.

    Args:
        k, v: [T, HK, D], the caches' dtype (or any, for 8-bit caches); strided slices of a fused projection are fine.
        k_cache, v_cache: [N, block_size, HK, D].
        slot_mapping: [T] int64, block * block_size + offset; each slot at most once.
        k_scale, v_scale: as for `paged_decode`; values past 448 scales are stored as that.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = choose_backend(backend, k_cache)
    check_writes(k, v, k_cache, v_cache, slot_mapping, chosen)
    run = reference.write_kv if chosen == "torch" else triton_module("kv_write").write_kv
    run(k, v, k_cache, v_cache, slot_mapping, check_scales(k_scale, v_scale, k_cache))


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    positions: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    backend: str | None = None,
) -> None:
    """Rotate queries in place, rotate keys, and store keys and values in their slots, as one operation.

    Dims i and i + D/2 of a head turn together, by angle i of the token's row in the tables. Angles and products are
    float32, rounded once. A token whose slot is negative (padding) is skipped whole: its query stays as it is.

    Args:
        q: [T, HQ, D], changed in place; may be a strided slice of a fused projection, as k and v.
        k, v: [T, HK, D], left as they are.
        cos, sin: [P, D/2], floating; row `positions[t]` belongs to token t, or row t without positions.
        k_cache, v_cache: [N, block_size, HK, D].
        slot_mapping: [T] int64, as for `write_kv`.
        positions: [T] int64 below P.
        k_scale, v_scale: as for `write_kv`.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = choose_backend(backend, k_cache)
    check_caches(q, k_cache, v_cache, chosen)
    check_writes(k, v, k_cache, v_cache, slot_mapping, chosen)
    if q.shape[0] != k.shape[0]:
        raise UsageError(f"q has {q.shape[0]} tokens but k has {k.shape[0]}; they must be equal")
    check_rotary(cos, sin, positions, q)
    run = reference.rope_write_kv if chosen == "torch" else triton_module("rope").rope_write_kv
    run(q, k, v, cos, sin, k_cache, v_cache, slot_mapping, positions, check_scales(k_scale, v_scale, k_cache))


def copy_blocks(kv: Tensor, source: Tensor, target: Tensor, *, backend: str | None = None) -> None:
    """Copy blocks source[i] to target[i] in every layer, keys and values, as one operation.

    No target may be another copy's target or any copy's source. Ids that lie on the CPU are checked for that (and for
    their range) and then sent to the cache's device; ids on the GPU are trusted.

    Args:
        kv: [L, 2, N, block_size, HK, D], contiguous within a block.
        source, target: [P] int64 block ids.

    Raises:
        UsageError: a shape, dtype or device does not fit, copies overlap, or the backend is not available.
    """
    chosen = choose_backend(backend, kv)
    check_cache_tensor(kv)
    for name, ids in (("source", source), ("target", target)):
        if ids.dtype != torch.int64 or ids.dim() != 1 or ids.shape != source.shape:
            raise UsageError(f"{name} must be int64 of shape {list(source.shape[:1])}, got {describe(ids)}")
        if ids.device.type != "cpu" and ids.device != kv.device:
            raise UsageError(f"{name} is on {ids.device} but kv is on {kv.device}; use the cache's device or the CPU")
    if source.numel() == 0:
        return
    if source.device.type == "cpu" and target.device.type == "cpu":
        check_copies(source.tolist(), target.tolist(), kv.shape[2])
    source, target = source.to(kv.device, non_blocking=True), target.to(kv.device, non_blocking=True)
    if chosen == "torch":
        reference.copy_blocks(kv, source, target)
    else:
        triton_module("block_copy").copy_blocks(kv, source, target)
