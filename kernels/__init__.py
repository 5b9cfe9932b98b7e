"""Attention, memory and integrity operations over a paged KV cache, one door for CPU and GPU.

    kv[layers, 2, num_blocks, block_size, kv_heads, head_dim]     one preallocated tensor
    k_cache = kv[layer, 0], v_cache = kv[layer, 1]                 what attention reads
    slot = block * block_size + offset                             where a token's key and value lie

Importing this package does not import torch; the first use of a function does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.kernels.dispatch import (
        copy_blocks,
        paged_decode,
        paged_prefill,
        plan_decode,
        rope_write_kv,
        write_kv,
    )
    from kvscope.kernels.integrity import check_provenance, digest_blocks, digest_slots, write_words
    from kvscope.kernels.swap import SwapSpace

__all__ = [
    "SwapSpace",
    "check_provenance",
    "copy_blocks",
    "digest_blocks",
    "digest_slots",
    "paged_decode",
    "paged_prefill",
    "plan_decode",
    "rope_write_kv",
    "write_kv",
    "write_words",
]

_ELSEWHERE = {
    "SwapSpace": "swap",
    "check_provenance": "integrity",
    "digest_blocks": "integrity",
    "digest_slots": "integrity",
    "write_words": "integrity",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"kvscope.kernels.{_ELSEWHERE.get(name, 'dispatch')}"), name)
