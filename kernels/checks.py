"""What the kernels' calls may be given: every refusal of `dispatch`, and the choice of a backend."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import torch
from torch import Tensor

from kvscope.errors import UsageError

BACKENDS = ("torch", "triton", "triton-interpret")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8 = torch.float8_e4m3fn
MAX_HEAD_DIM = 256
MOST_SOFT_CAP = 1000.0  # a score is the cap less a small part of it: a larger cap leaves it few digits
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)


def choose_backend(asked: str | None, tensor: Tensor) -> str:
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


def triton_module(name: str) -> ModuleType:
    """The module of a Triton kernel, imported at its first use."""
    try:
        return importlib.import_module(f"kvscope.kernels.{name}")
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise UsageError("triton is not installed; install kvscope[engine] or use backend='torch'") from error


def check_caches(q: Tensor, k_cache: Tensor, v_cache: Tensor, backend: str, name: str = "q") -> None:
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
    check_same("v_cache", v_cache, "k_cache", k_cache)
    if k_cache.dtype != FP8 or k_cache.device != q.device:
        check_same("k_cache", k_cache, name, q)
    if q.dtype not in DTYPES:
        raise UsageError(f"dtype {q.dtype} is not supported; use float32, float16 or bfloat16")
    if backend != "torch":
        check_kernel_limits(q, k_cache, v_cache, name)


def check_kernel_limits(q: Tensor, k_cache: Tensor, v_cache: Tensor, name: str) -> None:
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


def check_scales(k_scale: Tensor | None, v_scale: Tensor | None, k_cache: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both scales as [HK] float32 for an 8-bit cache, None for any other."""
    kv_heads = k_cache.shape[2]
    if k_cache.dtype != FP8:
        if k_scale is not None or v_scale is not None:
            raise UsageError(f"k_scale and v_scale are for caches of {FP8}, this one is {k_cache.dtype}")
        return None
    if k_scale is None or v_scale is None:
        raise UsageError(f"caches of {FP8} need k_scale and v_scale: float32 [1] or [{kv_heads}]")
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if tuple(scale.shape) not in ((1,), (kv_heads,)) or scale.dtype != torch.float32:
            raise UsageError(f"{name} must be float32 [1] or [{kv_heads}], got {describe(scale)}")
        if scale.device != k_cache.device:
            raise UsageError(f"{name} is on {scale.device} but the cache is on {k_cache.device}")
    return k_scale.expand(kv_heads), v_scale.expand(kv_heads)


def check_rows(
    q: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float, window: int, soft_cap: float, backend: str
) -> None:
    """What the two attention calls have in common."""
    check_window(window)
    if not 0 <= soft_cap <= MOST_SOFT_CAP:
        raise UsageError(f"soft_cap is {soft_cap}; it must be above 0 and at most {MOST_SOFT_CAP}, or 0 for none")
    if not 0 < scale < float("inf"):
        raise UsageError(f"scale must be above 0, got {scale}; it is usually head_dim ** -0.5")
    if backend == "triton-interpret" and q.dtype == torch.bfloat16:
        raise UsageError("backend 'triton-interpret' computes bfloat16 wrongly; use float16 or float32")
    if block_table.dim() != 2:
        raise UsageError(f"block_table must be [rows, max_blocks] int32, got {describe(block_table)}")
    check_ids("block_table", block_table, tuple(block_table.shape), torch.int32, q)
    check_ids("seq_lens", seq_lens, (block_table.shape[0],), torch.int32, q)


def check_window(window: int) -> None:
    if window < 0:
        raise UsageError(f"window is {window} tokens; it must be at least 1, or 0 for no window")


def check_cache_tensor(kv: Tensor) -> None:
    """The whole cache of all layers: within a block contiguous, else any strides."""
    if kv.dim() != 6 or kv.shape[1] != 2:
        raise UsageError(f"kv must be [layers, 2, num_blocks, block_size, kv_heads, head_dim], got {list(kv.shape)}")
    slots, heads, dim = kv.shape[3:]
    if kv.numel() == 0:
        return
    if kv.stride()[3:] != (heads * dim, dim, 1):
        raise UsageError(f"a block of kv must be contiguous, its strides are {kv.stride()[3:]}")
    if any(size > 1 and step < slots * heads * dim for size, step in zip(kv.shape[:3], kv.stride()[:3], strict=True)):
        raise UsageError(f"blocks of kv must not overlap, its strides are {kv.stride()[:3]}")


def check_ids(name: str, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> None:
    if tuple(ids.shape) != shape or ids.dtype != dtype or ids.device != like.device:
        wanted = f"{str(dtype).removeprefix('torch.')} {list(shape)} on {like.device}"
        raise UsageError(f"{name} must be {wanted}, got {describe(ids)}")
    if ids.numel() > 0 and ids.stride(-1) != 1:
        raise UsageError(f"the last dimension of {name} must be contiguous, its stride is {ids.stride(-1)}")


def check_inside(name: str, ids: Tensor, size: int, of: str) -> None:
    """Raises UsageError unless all ids are at least 0 and below `size`; looks at the values, so for the CPU alone."""
    if ids.numel():
        low, high = (int(end) for end in torch.aminmax(ids))
        if low < 0 or high >= size:
            raise UsageError(f"{name} {low if low < 0 else high} is outside {of}")


def check_writes(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, backend: str) -> None:
    """What the calls that store keys and values have in common."""
    check_caches(k, k_cache, v_cache, backend, name="k")
    if k.shape != v.shape or k.shape[1:] != k_cache.shape[2:]:
        raise UsageError(
            f"k {list(k.shape)} and v {list(v.shape)} must both be [tokens, {k_cache.shape[2]}, {k_cache.shape[3]}]"
        )
    check_same("v", v, "k", k)
    if backend != "torch" and v.stride(-1) != 1:
        raise UsageError(f"the last dimension of v must be contiguous, its stride is {v.stride(-1)}")
    check_ids("slot_mapping", slot_mapping, (k.shape[0],), torch.int64, k_cache)


def check_rotary(cos: Tensor, sin: Tensor, positions: Tensor | None, q: Tensor) -> None:
    """Tables [P, D/2] of angles, and positions into them (without: a row per token of q)."""
    for name, table in (("cos", cos), ("sin", sin)):
        fits = table.dim() == 2 and table.shape[1] == q.shape[2] // 2 and q.shape[2] % 2 == 0
        if not fits or not table.is_floating_point() or table.device != q.device:
            raise UsageError(f"{name} must be [rows, {q.shape[2] // 2}] on {q.device}, got {describe(table)}")
        if table.stride(-1) != 1:
            raise UsageError(f"the last dimension of {name} must be contiguous, its stride is {table.stride(-1)}")
    if positions is not None:
        check_ids("positions", positions, (q.shape[0],), torch.int64, q)
    if cos.shape != sin.shape or (positions is None and cos.shape[0] < q.shape[0]):
        raise UsageError(f"cos {list(cos.shape)} and sin {list(sin.shape)} must be equal, with a row for every token")


def check_same(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.dtype != other.dtype or tensor.device != other.device:
        raise UsageError(
            f"{name} is {tensor.dtype} on {tensor.device} but {other_name} is {other.dtype} on {other.device}; "
            "dtype and device must be equal"
        )


def check_copies(source: list[int], target: list[int], num_blocks: int) -> None:
    for block in (*source, *target):
        if not 0 <= block < num_blocks:
            raise UsageError(f"block {block} is outside the cache of {num_blocks} blocks")
    targets = set(target)
    if len(targets) < len(target):
        raise UsageError("a block is the target of two copies; each target must occur once")
    both = targets.intersection(source)
    if both:
        raise UsageError(f"block {min(both)} is both source and target; copies of one call must not overlap")


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} on {tensor.device}"
