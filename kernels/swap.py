"""Blocks of a preempted sequence wait in host memory: copies out and back on a stream of their own.

A block of the cache is in as many pieces as there are planes (layers times keys and values); in host memory it is one
piece, so that a block, and blocks that lie side by side, are one transfer. Between the two lies a staging buffer on the
device, filled and emptied by one launch per group of blocks.

Order: a transfer starts after all work queued before it on the caller's stream. A block may be reused, or read after
its way back, only after `Transfer.wait` (on the stream that does so) or `Transfer.finish` (on the host).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels.checks import check_cache_tensor, check_copies, choose_backend, triton_module

STAGING_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Transfer:
    """A copy under way; on a CPU it is over when it is returned."""

    event: torch.cuda.Event | None

    def done(self) -> bool:
        """Whether it is over, without waiting."""
        return self.event is None or self.event.query()

    def wait(self) -> None:
        """Hold back what is queued from here on the current stream; the host goes on."""
        if self.event is not None:
            self.event.wait()

    def finish(self) -> None:
        """Hold back the host."""
        if self.event is not None:
            self.event.synchronize()


class SwapSpace:
    """Room for blocks of one cache in host memory, pinned if the cache is on a GPU.

    Args:
        kv: [L, 2, N, block_size, HK, D], contiguous within a block; must outlive this.
        places: how many blocks fit.
        backend: as in `dispatch`.

    Raises:
        UsageError: the cache has another shape, or the host cannot pin that much memory.
    """

    def __init__(self, kv: Tensor, places: int, *, backend: str | None = None) -> None:
        check_cache_tensor(kv)
        self.backend = choose_backend(backend, kv)
        self.kv = kv
        layers, two, _, *rest = kv.shape
        shape = (layers, two, *rest)
        on_gpu = kv.device.type == "cuda"
        try:
            self.host = torch.empty(places, *shape, dtype=kv.dtype, pin_memory=on_gpu)
        except RuntimeError as error:
            raise UsageError(f"{places} blocks do not fit in this host's memory; lower the swap space") from error
        self.stream = torch.cuda.Stream(kv.device) if on_gpu else None
        block_bytes = kv[:, :, :1].numel() * kv.element_size()
        self.group = max(1, min(places, STAGING_BYTES // max(1, block_bytes)))
        self.staging = torch.empty(self.group, *shape, dtype=kv.dtype, device=kv.device)
        self.index = torch.arange(self.group, device=kv.device)
        self._filled: set[int] = set()  # places that something was copied to

    def out(self, blocks: Sequence[int], places: Sequence[int]) -> Transfer:
        """Copy each block of all layers to its place in host memory, over what was there."""
        self._check(blocks, places)
        self._filled.update(places)
        with torch.cuda.stream(self._after_caller()):
            for near, far in self._groups(blocks, places):
                self._move(near, to_staging=True)
                for first, count, at in _runs(far):
                    self.host[at : at + count].copy_(self.staging[first : first + count], non_blocking=True)
            return self._transfer()

    def back(self, places: Sequence[int], blocks: Sequence[int]) -> Transfer:
        """Copy each place to its block of all layers; it keeps what it has."""
        self._check(blocks, places)
        if empty := [place for place in places if place not in self._filled]:
            raise UsageError(f"place {empty[0]} of {len(self.host)} holds nothing: no block was copied out to it")
        with torch.cuda.stream(self._after_caller()):
            for near, far in self._groups(blocks, places):
                for first, count, at in _runs(far):
                    self.staging[first : first + count].copy_(self.host[at : at + count], non_blocking=True)
                self._move(near, to_staging=False)
            return self._transfer()

    def _check(self, blocks: Sequence[int], places: Sequence[int]) -> None:
        if len(blocks) != len(places):
            raise UsageError(f"{len(blocks)} blocks but {len(places)} places; they must be equal")
        check_copies([], list(blocks), self.kv.shape[2])
        if len(set(places)) < len(places) or not all(0 <= place < len(self.host) for place in places):
            raise UsageError(f"places {list(places)[:8]} must be different ones below {len(self.host)}")

    def _after_caller(self) -> torch.cuda.Stream | None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.kv.device))
        return self.stream

    def _transfer(self) -> Transfer:
        return Transfer(None if self.stream is None else self.stream.record_event())

    def _groups(self, blocks: Sequence[int], places: Sequence[int]) -> Iterator[tuple[Tensor, list[int]]]:
        """As many blocks as the staging buffer holds at a time, by place: ids on the device, places."""
        order = sorted(range(len(places)), key=places.__getitem__)
        for start in range(0, len(order), self.group):
            some = order[start : start + self.group]
            ids = torch.tensor([blocks[i] for i in some], dtype=torch.int64)
            if self.stream is not None:  # from pinned memory, or the host would wait for the transfers before
                ids = ids.pin_memory().to(self.kv.device, non_blocking=True)
            yield ids, [places[i] for i in some]

    def _move(self, blocks: Tensor, *, to_staging: bool) -> None:
        index, staging = self.index[: len(blocks)], self.staging
        if self.backend == "torch":
            if to_staging:
                staging[: len(blocks)] = self.kv[:, :, blocks].movedim(2, 0)
            else:
                self.kv[:, :, blocks] = staging[: len(blocks)].movedim(0, 2)
        elif to_staging:
            triton_module("block_copy").gather_blocks(self.kv, blocks, index, staging)
        else:
            triton_module("block_copy").scatter_blocks(staging, index, self.kv, blocks)


def _runs(places: list[int]) -> Iterator[tuple[int, int, int]]:
    """Stretches of neighbouring places: index of the first, how many, the first place."""
    first = 0
    for index in range(1, len(places) + 1):
        if index == len(places) or places[index] != places[index - 1] + 1:
            yield first, index - first, places[first]
            first = index
