"""What the GPU benchmarks share: shapes, a paged pool of random data, timing by CUDA graph, the ceilings of a card."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvscope.kernels import paged_decode, paged_prefill, plan_decode

HEADS, KV_HEADS, DIM, BLOCK = 32, 8, 128, 16
SCALE = DIM**-0.5
TOKEN_BYTES = 2 * KV_HEADS * DIM * 2  # one layer's keys and values of a token in bfloat16
L2_BYTES = 60 * 2**20


@dataclass(frozen=True)
class Decode:
    """Lengths of a decode batch."""

    name: str
    lengths: tuple[int, ...]

    @property
    def kv_bytes(self) -> int:
        return sum(self.lengths) * TOKEN_BYTES


@dataclass(frozen=True)
class Prefill:
    """`rows` sequences with `new` tokens each at the end of a context of `context` tokens."""

    name: str
    rows: int
    new: int
    context: int

    @property
    def flops(self) -> int:
        seen = self.new * (self.context - self.new) + self.new * (self.new + 1) // 2
        return 4 * self.rows * seen * HEADS * DIM


def _ragged(name: str, rows: int, mean: int) -> Decode:
    """Uniform between a tenth and nineteen tenths of the mean."""
    rng = random.Random(0)
    return Decode(name, tuple(rng.randint(mean // 10, mean * 19 // 10) for _ in range(rows)))


DECODES = [
    *(
        Decode(f"{batch} x {context // 1024}k", (context,) * batch)
        for batch, contexts in ((1, (1, 6, 32)), (8, (6,)), (64, (1, 6, 32)), (256, (1, 6, 32)))
        for context in (k * 1024 for k in contexts)
    ),
    _ragged("64 ragged", 64, 6_900),
    _ragged("256 ragged", 256, 3_800),
]
PREFILLS = [
    Prefill("1 x 2k", 1, 2048, 2048),
    Prefill("1 x 8k", 1, 8192, 8192),
    Prefill("512 on 8k", 1, 512, 8192 + 512),
    Prefill("2k on 32k", 1, 2048, 32_768 + 2048),
    Prefill("16 x 128 on 4k", 16, 128, 4096 + 128),
]
WRITES = [1, 256, 16_384]


class Bench:
    """A pool of random keys and values as large as the largest shape needs, and random tables into it.

    `memory` is flat; `cache` views it as the engine's cache does (a block's keys and values side by side), `plain` as
    keys and then values of contiguous tokens, for what cannot read pages.
    """

    def __init__(self, max_tokens: int) -> None:
        self.blocks = -(-max_tokens // BLOCK)
        self.memory = torch.empty(2 * self.blocks * BLOCK * KV_HEADS * DIM, dtype=torch.bfloat16, device="cuda")
        self.memory.normal_()
        self.generator = torch.Generator(device="cuda").manual_seed(0)

    def cache(self, layers: int = 1, block: int = BLOCK, blocks: int = 0) -> Tensor:
        """[layers, 2, blocks, block, KV_HEADS, DIM]; without `blocks` as many as there is memory for."""
        size = 2 * block * KV_HEADS * DIM
        blocks = blocks or len(self.memory) // (layers * size)
        used = self.memory[: layers * blocks * size]
        return used.view(layers, blocks, 2, block, KV_HEADS, DIM).transpose(1, 2)

    @property
    def plain(self) -> Tensor:
        return self.memory.view(2, -1, KV_HEADS, DIM)

    @property
    def k(self) -> Tensor:
        return self.cache()[0, 0]

    @property
    def v(self) -> Tensor:
        return self.cache()[0, 1]

    def queries(self, tokens: int, heads: int = HEADS) -> Tensor:
        return torch.randn(tokens, heads, DIM, dtype=torch.bfloat16, device="cuda", generator=self.generator)

    def tables(self, lengths: Sequence[int], count: int, *, order: bool = False, block: int = BLOCK) -> list[Tensor]:
        """`count` block tables for the lengths: pages at random (or in order), different ones in each table."""
        need = [-(-length // block) for length in lengths]
        width = -(-max(need) // 16) * 16
        total = self.blocks * BLOCK // block
        made = []
        for index in range(count):
            if order:
                first = index * sum(need) % max(1, total - sum(need))
                ids = torch.arange(first, first + sum(need), dtype=torch.int32, device="cuda")
            else:
                ids = torch.randperm(total, device="cuda", generator=self.generator)[: sum(need)].to(torch.int32)
            table = torch.zeros(len(lengths), width, dtype=torch.int32, device="cuda")
            at = 0
            for row, blocks in enumerate(need):
                table[row, :blocks] = ids[at : at + blocks]
                at += blocks
            made.append(table)
        return made


def rounds(call_bytes: int) -> int:
    """How many different calls to rotate through so that the L2 cache holds none of the next one's data."""
    return max(2, min(24, -(-6 * L2_BYTES // max(1, call_bytes))))


def time_us(calls: Sequence[Callable[[], object]], repeats: int = 5) -> float:
    """Median time of one call in microseconds: all calls in one CUDA graph, replayed."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # what the calls read may still be in the making
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Device-to-device copy in GB/s, bytes read plus bytes written; outside a graph, where it runs as a kernel."""
    source = torch.empty(2**31, dtype=torch.bfloat16, device="cuda").normal_()
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return 2 * source.numel() * source.element_size() / statistics.median(times[2:]) / 1e6


def decode_us(
    bench: Bench, shape: Decode, *, order: bool = False, block: int = BLOCK, window: int = 0, **options: Any
) -> float:
    """One layer's decode attention; its plan was made before, as the layers of a step share it."""
    lens = torch.tensor(shape.lengths, dtype=torch.int32, device="cuda")
    plan = plan_decode(lens, KV_HEADS, window=window)
    options["window"] = window
    q = bench.queries(len(shape.lengths))
    k, v = bench.cache(block=block)[0]
    tables = bench.tables(shape.lengths, rounds(shape.kv_bytes), order=order, block=block)
    return time_us([lambda t=t: paged_decode(q, k, v, t, lens, SCALE, plan=plan, **options) for t in tables])


def prefill_us(bench: Bench, shape: Prefill, **options: Any) -> float:
    lengths = [shape.context] * shape.rows
    lens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    start = torch.arange(shape.rows + 1, dtype=torch.int32, device="cuda") * shape.new
    q = bench.queries(shape.rows * shape.new)
    tables = bench.tables(lengths, 4)
    k, v = bench.cache()[0]
    return time_us([lambda t=t: paged_prefill(q, k, v, t, lens, start, SCALE, **options) for t in tables])
