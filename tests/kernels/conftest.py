"""One suite for every backend of the kernels; where it runs decides which.

    pytest tests/kernels                      on a CPU: the torch reference; on a GPU: the Triton kernels, bfloat16 too
    TRITON_INTERPRET=1 pytest tests/kernels   the same kernels in Triton's interpreter (tests/unit runs this too)

The oracle is dense attention in float64.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from kvscope import kernels

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available() and not INTERPRET
BACKEND = "triton-interpret" if INTERPRET else ("triton" if CUDA else "torch")
DEVICE = "cuda" if CUDA else "cpu"
# The interpreter computes bfloat16 wrongly.
DTYPES = [torch.float32, torch.float16] + ([] if INTERPRET else [torch.bfloat16])
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

collect_ignore = ["test_triton_only.py"] if BACKEND == "torch" else []


def together(kv: Tensor) -> Tensor:
    """The same cache as the engine lays it out: a block's keys and values side by side in memory."""
    return kv.transpose(1, 2).contiguous().transpose(1, 2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


@dataclass
class Pool:
    """A cache full of NaN in which only the given sequences' positions are written, in random blocks."""

    lengths: list[int]
    kv_heads: int = 2
    dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    seed: int = 0
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gen = torch.Generator().manual_seed(self.seed)
        need = [-(-n // self.block_size) for n in self.lengths]
        num_blocks = sum(need) + 3
        shape = (1, 2, num_blocks, self.block_size, self.kv_heads, self.dim)
        kv = torch.full(shape, float("nan"), dtype=self.dtype)
        order = torch.randperm(num_blocks, generator=self.gen).tolist()
        # Entries past a sequence's blocks lead to NaN blocks: reading one shows in the result.
        table = torch.full((len(self.lengths), max([*need, 1]) + 1), order[-1], dtype=torch.int32)
        self.slots = []
        for row, length in enumerate(self.lengths):
            blocks = torch.tensor([order.pop(0) for _ in range(need[row])], dtype=torch.int64)
            table[row, : len(blocks)] = blocks
            position = torch.arange(length)
            slots = blocks[position // self.block_size] * self.block_size + position % self.block_size
            for store, side in ((self.k, 0), (self.v, 1)):
                store.append(self.random(length, self.kv_heads))
                kv[0, side].view(-1, self.kv_heads, self.dim)[slots] = store[-1]
            self.slots.append(slots)
        self.kv = together(kv.to(DEVICE))
        self.k_cache, self.v_cache = self.kv[0, 0], self.kv[0, 1]
        self.block_table = table.to(DEVICE)
        self.seq_lens = torch.tensor(self.lengths, dtype=torch.int32, device=DEVICE)
        self.scale = self.dim**-0.5

    def random(self, count: int, heads: int) -> Tensor:
        """[count, heads, dim] on the CPU."""
        return torch.randn(count, heads, self.dim, generator=self.gen).to(self.dtype)

    def decode(self, q: Tensor, **kwargs: Any) -> Tensor:
        args = (self.k_cache, self.v_cache, self.block_table, self.seq_lens, self.scale)
        return kernels.paged_decode(q.to(DEVICE), *args, backend=BACKEND, **kwargs).cpu()

    def prefill(self, q: Tensor, starts: list[int], **kwargs: Any) -> Tensor:
        start = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
        args = (self.k_cache, self.v_cache, self.block_table, self.seq_lens, start, self.scale)
        return kernels.paged_prefill(q.to(DEVICE), *args, backend=BACKEND, **kwargs).cpu()

    def forget(self, row: int, before: int) -> None:
        """What lies before a position is gone: its slots hold NaN, whole blocks have left the table."""
        for side in (self.k_cache, self.v_cache):
            slots = self.slots[row][:before].to(DEVICE)
            side[slots // self.block_size, slots % self.block_size] = float("nan")
        self.block_table[row, : before // self.block_size] = self.block_table[row, -1]

    def expected(self, q: Tensor, row: int, window: int = 0, soft_cap: float = 0.0) -> Tensor:
        """Causal softmax(q k^T) v in float64 for q[n, HQ, D] at the end of the row's context."""
        k, v = self.k[row].double(), self.v[row].double()
        group = q.shape[1] // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * self.scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        own = torch.arange(len(q))[:, None] + self.lengths[row] - len(q)
        position = torch.arange(self.lengths[row])
        unseen = (position > own) | ((position <= own - window) if window else False)
        scores = scores.masked_fill(unseen, float("-inf"))
        return torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)


class Lab:
    """What a kernel test needs: where it runs, pools, and the comparison."""

    backend = BACKEND
    device = DEVICE
    cuda = CUDA
    long = 200 if INTERPRET else 3000

    together = staticmethod(together)

    def pool(self, lengths: list[int], **kwargs: Any) -> Pool:
        return Pool(lengths, **kwargs)

    def close(self, out: Tensor, want: Tensor, slack: float = 1.0) -> None:
        """Relative error in norm within `slack` times the dtype's tolerance, and every element written."""
        assert torch.isfinite(out).all()
        error = float((out.double() - want).norm() / want.norm()) if want.numel() else 0.0
        assert error <= slack * TOLERANCE[out.dtype], error


@pytest.fixture(scope="session")
def lab() -> Lab:
    return Lab()
