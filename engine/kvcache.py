"""The KV tensor: one preallocated block of memory that the tables point into."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from kvscope import kernels
from kvscope.engine.host_tier import Swap
from kvscope.engine.model.config import ModelConfig
from kvscope.engine.tables import Copy
from kvscope.errors import UsageError
from kvscope.kernels.dispatch import BLOCK_SIZES


class KVCache:
    """`kv[layers, 2, num_blocks, block_size, kv_heads, head_dim]`; index 1 is 0 for keys, 1 for values.

    In memory a block's keys and values lie side by side, [layers, num_blocks, 2, ...]: blocks at random then touch half
    as many places, which attention over them shows (`kvscope bench kernels`, rows "random blocks").

    Args:
        host_blocks: room in host memory for so many blocks, where preempted sequences wait.

    Raises:
        UsageError: the device, or the host, cannot hold it; says how many bytes were asked for.
    """

    def __init__(
        self, config: ModelConfig, num_blocks: int, block_size: int, *, dtype: torch.dtype, device: str,
        host_blocks: int = 0,
    ) -> None:  # fmt: skip
        if device.startswith("cuda") and block_size not in BLOCK_SIZES:
            raise UsageError(f"block_size is {block_size}: the GPU kernels take {', '.join(map(str, BLOCK_SIZES))}")
        shape = (config.num_layers, 2, num_blocks, block_size, config.num_kv_heads, config.head_dim)
        self.bytes_per_token = config.bytes_per_token(dtype.itemsize)
        self.block_bytes = block_size * self.bytes_per_token
        self.kv = self._zeros(shape, dtype, device)
        self.host = self._host_space(host_blocks) if host_blocks else None

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
        """Zeros, not empty: a slot that was never written must not decide a result by what lay there before."""
        total = shape[2] * self.block_bytes
        refusal = (
            f"a pool of {shape[2]} blocks of {self.block_bytes:,} bytes ({total / 2**30:.1f} GiB) does not fit on "
            f"{device}; lower num_blocks"
        )
        if device == "cpu" and total > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise UsageError(refusal)  # the system may promise memory that it does not have
        try:
            layers, sides, blocks, *rest = shape
            return torch.zeros((layers, blocks, sides, *rest), dtype=dtype, device=device).transpose(1, 2)
        except RuntimeError as error:  # torch reports exhausted memory on either device as a RuntimeError
            raise UsageError(refusal) from error

    def resize(self, num_blocks: int) -> None:
        """Hold `num_blocks` blocks from now on; those below keep their content. Old and new memory exist at once.

        Raises:
            UsageError: the device cannot hold both; nothing was changed.
        """
        old = self.kv
        layers, two, _, *rest = old.shape
        kept = min(num_blocks, old.shape[2])
        kv = self._zeros((layers, two, num_blocks, *rest), old.dtype, str(old.device))
        kv[:, :, :kept] = old[:, :, :kept]
        self.kv = kv
        if self.host is not None:
            self.host.kv = kv

    def _host_space(self, blocks: int) -> kernels.SwapSpace:
        total, memory = blocks * self.block_bytes, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if total > memory:
            raise UsageError(
                f"a host tier of {blocks} blocks of {self.block_bytes:,} bytes ({total / 2**30:.1f} GiB) does not fit: "
                f"the host has {memory / 2**30:.1f} GiB; lower the swap space"
            )
        return kernels.SwapSpace(self.kv, blocks)

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Queue transfers to and from the host tier, in order; whatever is queued afterwards comes behind them."""
        for swap in (swap for swap in swaps if swap.blocks):
            if self.host is None:
                raise UsageError("the cache has no host tier: give it host_blocks")
            run = self.host.out(swap.blocks, swap.slots) if swap.out else self.host.back(swap.slots, swap.blocks)
            run.wait()

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, each [num_blocks, block_size, kv_heads, head_dim]."""
        return self.kv[index, 0], self.kv[index, 1]

    def copy(self, copies: Sequence[Copy]) -> None:
        """Run block copies, all layers, in order of decision.

        Copies decided in one step never chain: a fresh target is private to its writer until the step has run.
        """
        if copies:
            device = self.kv.device
            source = torch.tensor([c.source for c in copies], dtype=torch.int64, device=device)
            target = torch.tensor([c.target for c in copies], dtype=torch.int64, device=device)
            kernels.copy_blocks(self.kv, source, target)
