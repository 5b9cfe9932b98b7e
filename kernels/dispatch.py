"""The one door to the kernels: checks what it is given, then runs the chosen backend.

    "torch"             plain torch (kernels/reference.py), the default on the CPU
    "triton"            Triton kernels, the default on CUDA
    "triton-interpret"  the same kernels in Triton's interpreter, for tests; needs TRITON_INTERPRET=1 in the
                        environment before triton is imported; attention in float16 and float32 only

Layouts (row = last dimension contiguous; all other strides are free):
    k_cache, v_cache [num_blocks, block_size, kv_heads, head_dim]
    block_table      [rows, max_blocks] int32, entry j holds positions from j * block_size; unused entries: anything
    seq_lens         [rows] int32, tokens
Nothing here reads a tensor's values from a GPU, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels import reference

if TYPE_CHECKING:
    from kvscope.kernels.plan import DecodePlan

BACKENDS = ("torch", "triton", "triton-interpret")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    plan: DecodePlan | None = None,
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

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = _backend(backend, q)
    _check_caches(q, k_cache, v_cache, chosen)
    _check_rows(q, block_table, seq_lens, scale, chosen)
    if q.shape[0] != block_table.shape[0]:
        raise UsageError(f"q has {q.shape[0]} rows but block_table has {block_table.shape[0]}; they must be equal")
    if chosen == "torch":
        return reference.paged_decode(q, k_cache, v_cache, block_table, seq_lens, scale)
    if plan is not None and (plan.rows, plan.kv_heads) != (q.shape[0], k_cache.shape[2]):
        raise UsageError(
            f"plan is for {plan.rows} rows of {plan.kv_heads} KV heads, the call has {q.shape[0]} of {k_cache.shape[2]}"
        )
    return _triton("decode").paged_decode(q, k_cache, v_cache, block_table, seq_lens, scale, plan)


def plan_decode(seq_lens: Tensor, kv_heads: int, *, backend: str | None = None) -> DecodePlan | None:
    """How to split a decode batch of these lengths; make one per step and give it to every layer's `paged_decode`.

    Runs on the device and can be captured in the same CUDA graph. None for the torch backend, which needs no plan.

    Args:
        seq_lens: [B] int32, as for `paged_decode`.
        kv_heads: KV heads of the cache (on this device).

    Raises:
        UsageError: a shape or dtype does not fit, or the backend is not available.
    """
    chosen = _backend(backend, seq_lens)
    _check_ids("seq_lens", seq_lens, (seq_lens.numel(),), torch.int32, seq_lens)
    if kv_heads < 1:
        raise UsageError(f"kv_heads must be at least 1, got {kv_heads}")
    if chosen == "torch" or seq_lens.numel() == 0:
        return None
    return cast("DecodePlan", _triton("plan").plan_decode(seq_lens, kv_heads))


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start: Tensor,
    scale: float,
    *,
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

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = _backend(backend, q)
    _check_caches(q, k_cache, v_cache, chosen)
    _check_rows(q, block_table, seq_lens, scale, chosen)
    _check_ids("query_start", query_start, (block_table.shape[0] + 1,), torch.int32, q)
    if chosen == "torch":
        return reference.paged_prefill(q, k_cache, v_cache, block_table, seq_lens, query_start, scale)
    return _triton("prefill").paged_prefill(q, k_cache, v_cache, block_table, seq_lens, query_start, scale)


def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *, backend: str | None = None
) -> None:
    """Store the key and value of each token in its slot; a token whose slot is negative is skipped.

    Args:
        k, v: [T, HK, D], the caches' dtype; strided slices of a fused projection are fine.
        k_cache, v_cache: [N, block_size, HK, D].
        slot_mapping: [T] int64, block * block_size + offset; each slot at most once.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = _backend(backend, k_cache)
    _check_caches(k, k_cache, v_cache, chosen, name="k")
    if k.shape != v.shape or k.shape[1:] != k_cache.shape[2:]:
        raise UsageError(
            f"k {list(k.shape)} and v {list(v.shape)} must both be [tokens, {k_cache.shape[2]}, {k_cache.shape[3]}]"
        )
    _check_same("v", v, "k_cache", k_cache)
    _check_ids("slot_mapping", slot_mapping, (k.shape[0],), torch.int64, k_cache)
    if chosen == "torch":
        reference.write_kv(k, v, k_cache, v_cache, slot_mapping)
    else:
        _triton("kv_write").write_kv(k, v, k_cache, v_cache, slot_mapping)


def copy_blocks(kv: Tensor, source: Tensor, target: Tensor, *, backend: str | None = None) -> None:
    """Copy blocks source[i] to target[i] in every layer, keys and values, as one operation.

    No target may be another copy's target or any copy's source. Ids that lie on the CPU are checked for that (and for
    their range) and then sent to the cache's device; ids on the GPU are trusted.

    Args:
        kv: [L, 2, N, block_size, HK, D], contiguous.
        source, target: [P] int64 block ids.

    Raises:
        UsageError: a shape, dtype or device does not fit, copies overlap, or the backend is not available.
    """
    chosen = _backend(backend, kv)
    if kv.dim() != 6 or kv.shape[1] != 2 or not kv.is_contiguous():
        raise UsageError(
            f"kv must be contiguous [layers, 2, num_blocks, block_size, kv_heads, head_dim], got {list(kv.shape)}"
        )
    for name, ids in (("source", source), ("target", target)):
        if ids.dtype != torch.int64 or ids.dim() != 1 or ids.shape != source.shape:
            raise UsageError(f"{name} must be int64 of shape {list(source.shape[:1])}, got {_describe(ids)}")
        if ids.device.type != "cpu" and ids.device != kv.device:
            raise UsageError(f"{name} is on {ids.device} but kv is on {kv.device}; use the cache's device or the CPU")
    if source.numel() == 0:
        return
    if source.device.type == "cpu" and target.device.type == "cpu":
        _check_copies(source.tolist(), target.tolist(), kv.shape[2])
    source, target = source.to(kv.device, non_blocking=True), target.to(kv.device, non_blocking=True)
    if chosen == "torch":
        reference.copy_blocks(kv, source, target)
    else:
        _triton("block_copy").copy_blocks(kv, source, target)


def _backend(asked: str | None, tensor: Tensor) -> str:
    """The backend to run on, after checking that it can."""
    on_gpu = tensor.device.type == "cuda"
    chosen = asked if asked is not None else ("triton" if on_gpu else "torch")
    if chosen not in BACKENDS:
        raise UsageError(f"backend {chosen!r} is not known; choose one of {', '.join(BACKENDS)}")
    if chosen == "triton" and not on_gpu:
        raise UsageError(f"backend 'triton' needs tensors on CUDA, these are on {tensor.device}; use 'torch' here")
    if chosen == "triton-interpret" and os.environ.get("TRITON_INTERPRET") != "1":
        raise UsageError("backend 'triton-interpret' needs TRITON_INTERPRET=1 set before triton is imported")
    return chosen


def _triton(name: str) -> ModuleType:
    """The module of a Triton kernel, imported at its first use."""
    import importlib

    try:
        return importlib.import_module(f"kvscope.kernels.{name}")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UsageError("triton is not installed; install kvscope[engine] or use backend='torch'") from error


def _check_caches(q: Tensor, k_cache: Tensor, v_cache: Tensor, backend: str, name: str = "q") -> None:
    if q.dim() != 3 or k_cache.dim() != 4 or k_cache.shape != v_cache.shape:
        raise UsageError(
            f"{name} must be [tokens, heads, head_dim] and both caches [blocks, block_size, kv_heads, head_dim], got "
            f"{list(q.shape)}, {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
    dim, kv_heads = k_cache.shape[3], k_cache.shape[2]
    if q.shape[2] != dim or kv_heads == 0 or q.shape[1] % kv_heads != 0:
        raise UsageError(
            f"{name} has {q.shape[1]} heads of {q.shape[2]}, the cache {kv_heads} of {dim}: "
            "head_dim must be equal and query heads a multiple of KV heads"
        )
    _check_same("k_cache", k_cache, name, q)
    _check_same("v_cache", v_cache, name, q)
    if q.dtype not in DTYPES:
        raise UsageError(f"dtype {q.dtype} is not supported; use float32, float16 or bfloat16")
    if backend != "torch":
        _check_kernel_limits(q, k_cache, v_cache, name)


def _check_kernel_limits(q: Tensor, k_cache: Tensor, v_cache: Tensor, name: str) -> None:
    """What only the Triton kernels require."""
    if k_cache.shape[3] > MAX_HEAD_DIM or k_cache.shape[3] % 8 != 0:
        raise UsageError(f"head_dim {k_cache.shape[3]} is not a multiple of 8 up to {MAX_HEAD_DIM}")
    if k_cache.shape[1] not in BLOCK_SIZES:
        raise UsageError(f"block_size {k_cache.shape[1]} is not one of {', '.join(map(str, BLOCK_SIZES))}")
    for label, tensor in ((name, q), ("k_cache", k_cache), ("v_cache", v_cache)):
        if tensor.stride(-1) != 1:
            raise UsageError(f"the last dimension of {label} must be contiguous, its stride is {tensor.stride(-1)}")
    if k_cache.stride() != v_cache.stride():
        raise UsageError(f"k_cache and v_cache differ in strides: {k_cache.stride()} and {v_cache.stride()}")


def _check_rows(q: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float, backend: str) -> None:
    """What the two attention calls have in common."""
    if not scale > 0:
        raise UsageError(f"scale must be above 0, got {scale}; it is usually head_dim ** -0.5")
    if backend == "triton-interpret" and q.dtype == torch.bfloat16:
        raise UsageError("backend 'triton-interpret' computes bfloat16 wrongly; use float16 or float32")
    if block_table.dim() != 2:
        raise UsageError(f"block_table must be [rows, max_blocks] int32, got {_describe(block_table)}")
    _check_ids("block_table", block_table, tuple(block_table.shape), torch.int32, q)
    _check_ids("seq_lens", seq_lens, (block_table.shape[0],), torch.int32, q)


def _check_ids(name: str, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> None:
    if tuple(ids.shape) != shape or ids.dtype != dtype or ids.device != like.device:
        wanted = f"{str(dtype).removeprefix('torch.')} {list(shape)} on {like.device}"
        raise UsageError(f"{name} must be {wanted}, got {_describe(ids)}")
    if ids.numel() > 0 and ids.stride(-1) != 1:
        raise UsageError(f"the last dimension of {name} must be contiguous, its stride is {ids.stride(-1)}")


def _check_same(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.dtype != other.dtype or tensor.device != other.device:
        raise UsageError(
            f"{name} is {tensor.dtype} on {tensor.device} but {other_name} is {other.dtype} on {other.device}; "
            "dtype and device must be equal"
        )


def _check_copies(source: list[int], target: list[int], num_blocks: int) -> None:
    for block in (*source, *target):
        if not 0 <= block < num_blocks:
            raise UsageError(f"block {block} is outside the cache of {num_blocks} blocks")
    targets = set(target)
    if len(targets) < len(target):
        raise UsageError("a block is the target of two copies; each target must occur once")
    both = targets.intersection(source)
    if both:
        raise UsageError(f"block {min(both)} is both source and target; copies of one call must not overlap")


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
