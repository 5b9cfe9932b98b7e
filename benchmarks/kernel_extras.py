"""The rest of the kernel benchmark: windows, caps, 8-bit caches, fused writes, integrity, swaps; and its table."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kvscope.benchmarks.gpu import (
    BLOCK,
    DECODES,
    DIM,
    HEADS,
    KV_HEADS,
    PREFILLS,
    Bench,
    decode_us,
    prefill_us,
    time_us,
)
from kvscope.kernels import SwapSpace, check_provenance, digest_blocks, digest_slots, rope_write_kv, write_kv

LAYERS = 32
READ_OVER_COPY = 4443 / 4241  # read over copy bandwidth of an H200


class Table:
    """Rows of the result: a value, what it is compared with, their ratio (above 1: ours is better) and its gate."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(
        self, name: str, value: float, unit: str, baseline: str = "", ratio: float | None = None, gate=None
    ) -> None:
        ok = None if gate is None or ratio is None else ratio >= gate
        self.rows.append(
            {
                "name": name,
                "value": round(value, 3),
                "unit": unit,
                "baseline": baseline or None,
                "ratio": None if ratio is None else round(ratio, 3),
                "gate": gate,
                "ok": ok,
            }
        )

    def mean(self, name: str, matching: Callable[[dict[str, Any]], bool], gate: float) -> None:
        """A row with the geometric mean of the ratios of the rows that match."""
        ratios = [row["ratio"] for row in self.rows if row["ratio"] and matching(row)]
        value = math.prod(ratios) ** (1 / len(ratios))
        self.add(name, value, "x", "geometric mean", value, gate)

    def print(self) -> None:
        for row in self.rows:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f} x {row['baseline']}"
            verdict = "" if row["ok"] is None else f"  {'ok' if row['ok'] else 'BELOW'} (gate {row['gate']})"
            print(f"{row['name']:34} {row['value']:>10,.1f} {row['unit']:8} {ratio}{verdict}")


def _shape(shapes: list[Any], name: str) -> Any:
    return next(shape for shape in shapes if shape.name == name)


def variants(bench: Bench, table: Table) -> None:
    """A window beside a full context of as many tokens; a soft cap beside none."""
    long, short = _shape(DECODES, "64 x 6k"), _shape(DECODES, "64 x 1k")
    us = decode_us(bench, long, window=1024)
    table.add("decode 64 x 6k, window 1,024", us, "us", "64 x 1k", decode_us(bench, short) / us)
    full, us = decode_us(bench, long), decode_us(bench, long, soft_cap=50.0)
    table.add("decode 64 x 6k, soft cap", us, "us", "without", full / us)
    prompt = _shape(PREFILLS, "1 x 8k")
    full = prefill_us(bench, prompt)
    for name, options in (("window 1,024", {"window": 1024}), ("soft cap", {"soft_cap": 50.0})):
        us = prefill_us(bench, prompt, **options)
        table.add(f"prefill 1 x 8k, {name}", us, "us", "without", full / us)


def fp8(bench: Bench, table: Table, copy_gbs: float) -> None:
    """The same shapes over a cache of 8-bit keys and values."""
    scales = torch.full((KV_HEADS,), 0.02, device="cuda")
    options = {"k_scale": scales, "v_scale": scales}
    wide = {shape: decode_us(bench, shape) for shape in DECODES if shape.name in ("1 x 32k", "64 x 6k", "256 x 6k")}
    prompt = _shape(PREFILLS, "1 x 8k")
    full = prefill_us(bench, prompt)
    kept, bench.memory = bench.memory, torch.empty_like(bench.memory, dtype=torch.float8_e4m3fn)
    for source, target in zip(kept.split(2**28), bench.memory.split(2**28), strict=True):
        target.copy_(source / 0.02)
    for shape, wide_us in wide.items():
        us = decode_us(bench, shape, **options)
        table.add(f"decode {shape.name}, fp8", us, "us", "bfloat16", wide_us / us)
        share = shape.kv_bytes / 2 / us / 1e3 / copy_gbs
        table.add(f"decode {shape.name}, fp8", us, "us", "copy bandwidth", share)
    us = prefill_us(bench, prompt, **options)
    table.add("prefill 1 x 8k, fp8", us, "us", "bfloat16", full / us)
    bench.memory = kept


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rope(bench: Bench, table: Table, copy_gbs: float) -> None:
    """Rotation of queries and keys with the write of keys and values, beside torch's rotation and then the write."""
    cos, sin = (torch.rand(8192, DIM // 2, device="cuda") for _ in range(2))
    both = [torch.cat((x, x), -1).to(torch.bfloat16) for x in (cos, sin)]

    def fused(qkv: Tensor, positions: Tensor, slots: Tensor) -> None:
        q, k, v = qkv.split((HEADS, KV_HEADS, KV_HEADS), 1)
        rope_write_kv(q, k, v, cos, sin, *cache, slots, positions=positions)

    def apart(qkv: Tensor, angles: list[Tensor], slots: Tensor) -> None:
        turned = _rotated(qkv[:, : HEADS + KV_HEADS], *angles)
        write_kv(turned[:, HEADS:], qkv[:, HEADS + KV_HEADS :], *cache, slots)

    cache = bench.k, bench.v

    for tokens in (1, 64, 256, 16_384):
        slots = torch.randperm(bench.blocks * BLOCK, device="cuda")[:tokens]
        positions = torch.randint(0, 8192, (tokens,), device="cuda")
        angles = [x[positions][:, None] for x in both]
        inputs = [bench.queries(tokens, HEADS + 2 * KV_HEADS) for _ in range(4)] * 4
        us = time_us([partial(fused, qkv, positions, slots) for qkv in inputs])
        other = time_us([partial(apart, qkv, angles, slots) for qkv in inputs])
        name = f"rope and write {tokens} tokens"
        table.add(name, us, "us", "torch, then write_kv", other / us, 1.5 if tokens <= 256 else None)
        if tokens >= 16_384:
            moved = 2 * tokens * (HEADS + 2 * KV_HEADS) * DIM * 2
            table.add(name, us, "us", "copy bandwidth", moved / us / 1e3 / copy_gbs, 0.8)


def integrity(bench: Bench, table: Table, copy_gbs: float) -> None:
    """Digests of the whole pool and of a step's new slots; the provenance check beside a step's attention."""
    kv = bench.cache(LAYERS)
    blocks = kv.shape[2]
    size = kv.numel() * kv.element_size()
    us = time_us([lambda: digest_blocks(kv)])
    words = bench.memory[: kv.numel()].view(torch.float32)
    summed = time_us([words.sum])
    read_gbs = max(size / summed / 1e3, copy_gbs * READ_OVER_COPY)
    table.add(f"digest of {size / 1e9:.0f} GB", us, "us", "read bandwidth", size / us / 1e3 / read_gbs, 0.85)
    table.add(f"digest of {size / 1e9:.0f} GB", us, "us", "torch sum", summed / us)
    slots = torch.randperm(blocks * BLOCK, device="cuda")[:256]
    us = time_us([lambda: digest_slots(kv, slots)] * 4)
    table.add(f"digest of 256 slots, {LAYERS} layers", us, "us")
    shape = _shape(DECODES, "256 x 6k")
    lens = torch.tensor(shape.lengths, dtype=torch.int32, device="cuda")
    shadow = torch.randint(-(2**62), 2**62, (bench.blocks, BLOCK), device="cuda")
    tables = bench.tables(shape.lengths, 4)
    place = torch.arange(max(shape.lengths), device="cuda")
    wanted = [shadow[t.long()[:, place // BLOCK], place % BLOCK] for t in tables]
    us = time_us([partial(check_provenance, shadow, t, lens, w) for t, w in zip(tables, wanted, strict=True)])
    attention = LAYERS * decode_us(bench, shape)
    name = "provenance of 256 x 6k"
    table.add(name, us, "us", f"0.1 % of attention in {LAYERS} layers", attention / 1000 / us, 1.0)


def swap(bench: Bench, table: Table) -> None:
    """Blocks of all layers to host memory and back, beside one plain copy of as many pinned bytes."""
    blocks = 512
    kv = bench.cache(LAYERS, blocks=blocks)
    space, ids = SwapSpace(kv, blocks), torch.randperm(blocks).tolist()
    flat, places = bench.memory[: kv.numel()].view(space.host.shape), list(range(blocks))
    ways: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        ("out", lambda: space.out(ids, places).wait(), lambda: space.host.copy_(flat, non_blocking=True)),
        ("back", lambda: space.back(places, ids).wait(), lambda: flat.copy_(space.host, non_blocking=True)),
    ]
    for name, ours, plain in ways:
        gbs = [flat.numel() * flat.element_size() / _host_us(call) / 1e3 for call in (ours, plain)]
        table.add(f"swap {name} {blocks} blocks, {LAYERS} layers", gbs[0], "GB/s", "one pinned copy", gbs[0] / gbs[1])


def _host_us(call: Callable[[], object]) -> float:
    """Fastest of five calls in microseconds; not in a graph, for the host takes part."""
    times = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return min(times)
