"""Speed of the GPU kernels beside torch and other engines' kernels: `kvscope bench kernels [--json] [--tune]`.

Times are of one call inside a CUDA graph, over different random block tables in turn, so that the L2 cache holds
nothing of the next call. Torch's attention reads contiguous keys and values in the same run. Kernels of other projects
are taken from kernel_peers.json, scaled by the copy bandwidth measured now, and marked "scaled".
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kvscope.benchmarks.gpu import (
    BLOCK,
    DECODES,
    DIM,
    HEADS,
    KV_HEADS,
    PREFILLS,
    SCALE,
    TOKEN_BYTES,
    WRITES,
    Bench,
    copy_bandwidth,
    decode_us,
    prefill_us,
    time_us,
)
from kvscope.benchmarks.kernel_extras import Table, fp8, integrity, rope, swap, variants
from kvscope.kernels import copy_blocks, plan_decode, write_kv

PEERS: dict[str, Any] = json.loads(Path(__file__).with_name("kernel_peers.json").read_text(encoding="utf-8"))
BEST = ("FA3", "FlashInfer")
PAIRS = 25
COPIES = 12  # different copies in one graph, so that what its start costs is little of each


def peers(kind: str, name: str, copy_gbs: float, tokens: int | None = None) -> dict[str, float]:
    """Microseconds other kernels would take here."""
    scale = PEERS["copy_gbs"] / copy_gbs
    if tokens is not None and name in PEERS["tokens"]:
        scale *= tokens / PEERS["tokens"][name]
    return {peer: us * scale for peer, us in PEERS[kind].get(name, {}).items()}


def dense_us(bench: Bench, rows: int, new: int, context: int) -> dict[str, float]:
    """Torch's attention over the pool read as contiguous sequences; causal when the whole context is new."""
    q = bench.queries(rows * new).view(rows, new, HEADS, DIM).transpose(1, 2)
    k, v = (side[: rows * context].view(rows, context, KV_HEADS, DIM).transpose(1, 2) for side in bench.plain)
    found = {}
    for name, backend in (("SDPA flash", SDPBackend.FLASH_ATTENTION), ("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION)):

        def call(backend: SDPBackend = backend) -> None:
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=new > 1, scale=SCALE, enable_gqa=True)

        try:
            found[name] = time_us([call] * 3, repeats=3)
        except RuntimeError:  # this build of torch has no such kernel for these shapes
            torch.cuda.synchronize()
    return found


def decode(bench: Bench, table: Table, copy_gbs: float) -> None:
    for shape in DECODES:
        us = decode_us(bench, shape)
        name = f"decode {shape.name}"
        share = shape.kv_bytes / us / 1e3 / copy_gbs
        even = len(set(shape.lengths)) == 1
        table.add(name, us, "us", "copy bandwidth", share, 0.95 if shape.kv_bytes >= 10**9 and even else None)
        others = peers("decode", shape.name, copy_gbs, sum(shape.lengths))
        best = min((other for other in BEST if other in others), key=others.__getitem__)
        table.add(name, us, "us", f"{best} (scaled)", others[best] / us, 0.97)
        if "vLLM Triton" in others:
            table.add(name, us, "us", "vLLM Triton (scaled)", others["vLLM Triton"] / us)
        if even:
            for other, other_us in dense_us(bench, len(shape.lengths), 1, shape.lengths[0]).items():
                table.add(name, us, "us", f"{other} (contiguous)", other_us / us)
    table.mean("decode, best of FA3 and FlashInfer", lambda row: row["baseline"].split()[0] in BEST, 1.0)
    table.mean("decode, vLLM Triton", lambda row: row["baseline"].startswith("vLLM"), 1.5)


def paging(bench: Bench, table: Table) -> None:
    """The same kernel over blocks in order and at random, and over other block sizes."""
    for shape in DECODES:
        if shape.name in ("1 x 32k", "8 x 6k", "64 x 6k", "256 x 1k", "64 ragged"):
            # In turn and several times: a percent is what the card's clock moves from one moment to the next.
            pairs = [(decode_us(bench, shape, order=True), decode_us(bench, shape)) for _ in range(PAIRS)]
            scattered = statistics.median(pair[1] for pair in pairs)
            ratio = statistics.median(ordered / other for ordered, other in pairs)
            gate = 0.98 if shape.kv_bytes >= 2**28 else 0.97
            table.add(f"random blocks {shape.name}", scattered, "us", "blocks in order", ratio, gate)
    shape = next(shape for shape in DECODES if shape.name == "64 x 6k")
    sizes = {block: decode_us(bench, shape, block=block) for block in (8, 16, 32, 64)}
    for block, us in sizes.items():
        table.add(f"decode 64 x 6k, blocks of {block}", us, "us", "blocks of 16", sizes[16] / us)
    for batch in (1, 64, 256):
        lens = torch.full((batch,), 6000, dtype=torch.int32, device="cuda")
        table.add(f"plan of {batch}, once per step", time_us([lambda n=lens: plan_decode(n, KV_HEADS)] * 20), "us")


def prefill(bench: Bench, table: Table, copy_gbs: float) -> None:
    for shape in PREFILLS:
        us = prefill_us(bench, shape)
        name = f"prefill {shape.name}"
        table.add(name, us, "us")
        table.add(name, shape.flops / us / 1e6, "TFLOP/s")
        others = peers("prefill", shape.name, copy_gbs)
        table.add(name, us, "us", "FA3 (scaled)", others["FA3"] / us, 0.75)
        table.add(name, us, "us", "vLLM Triton (scaled)", others["vLLM Triton"] / us)
        if shape.new == shape.context:
            for other, other_us in dense_us(bench, shape.rows, shape.new, shape.context).items():
                table.add(name, us, "us", f"{other} (contiguous)", other_us / us)


def write(bench: Bench, table: Table, copy_gbs: float) -> None:
    """Writing new keys and values; torch's indexing does the same in the same run."""
    k_flat, v_flat = bench.plain

    def indexed(new: torch.Tensor, slots: torch.Tensor) -> None:
        k_flat.index_copy_(0, slots, new[:, :KV_HEADS])
        v_flat.index_copy_(0, slots, new[:, KV_HEADS:])

    def ours(new: torch.Tensor, slots: torch.Tensor) -> None:
        write_kv(new[:, :KV_HEADS], new[:, KV_HEADS:], k_cache, v_cache, slots)

    k_cache, v_cache = bench.cache()[0]

    for tokens in WRITES:
        slots = torch.randperm(bench.blocks * BLOCK, device="cuda")[:tokens]
        news = [bench.queries(tokens, 2 * KV_HEADS) for _ in range(4)] * 4
        us = time_us([partial(ours, new, slots) for new in news])
        name = f"write {tokens} tokens"
        torch_us = time_us([partial(indexed, new, slots) for new in news])
        table.add(name, us, "us", "torch index_copy_", torch_us / us)
        table.add(name, us, "us", "vLLM Triton (scaled)", peers("write", str(tokens), copy_gbs)["vLLM Triton"] / us)
        if tokens >= 16_384:
            table.add(name, us, "us", "copy bandwidth", 2 * tokens * TOKEN_BYTES / us / 1e3 / copy_gbs, 0.8)


def copy(bench: Bench, table: Table, copy_gbs: float) -> None:
    """Copying blocks of all layers; in the same run torch copies them by indexing, and as many bytes in one stretch."""
    layers = 32
    kv = bench.cache(layers)
    blocks = kv.shape[2]

    def indexed(source: torch.Tensor, target: torch.Tensor) -> None:
        kv[:, :, target] = kv[:, :, source]

    for pairs in (1, 16, 32, 64, 512):
        drawn = [torch.randperm(blocks, device="cuda")[: 2 * pairs].view(2, pairs) for _ in range(COPIES)]
        us = time_us([partial(copy_blocks, kv, source, target) for source, target in drawn])
        size = pairs * layers * BLOCK * TOKEN_BYTES
        name = f"copy {pairs} blocks, {layers} layers"
        table.add(name, us, "us", "torch indexing", time_us([partial(indexed, *drawn[0])] * 2) / us)
        half = bench.memory[: size // 2], bench.memory[-(size // 2) :]
        table.add(name, us, "us", "torch, one stretch", time_us([partial(half[1].copy_, half[0])] * COPIES) / us)
        gate = 0.9 if size >= 64 * 2**20 else None
        table.add(name, us, "us", "copy bandwidth", 2 * size / us / 1e3 / copy_gbs, gate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--out", type=Path, help="write the JSON here as well")
    parser.add_argument("--tune", action="store_true", help="measure rivals of the shipped configurations instead")
    parser.add_argument("--only", metavar="PATTERN", help="with --tune: entries that match, as 'decode-*/256B'")
    parser.add_argument("--write", action="store_true", help="with --tune: put the fastest into kernels/configs.json")
    args = parser.parse_args()
    if not args.tune and (args.only or args.write):
        parser.error("--only and --write belong to --tune")
    if not torch.cuda.is_available():
        print("the kernel benchmark did not run: it needs a CUDA GPU, and this machine has none", file=sys.stderr)
        return 2
    if args.tune:
        from kvscope.benchmarks.tune_kernels import tune

        return tune(args.only, args.write, args.out)
    table, copy_gbs = Table(), copy_bandwidth()
    bench = Bench(max(sum(shape.lengths) for shape in DECODES))
    table.add("copy bandwidth", copy_gbs, "GB/s")
    decode(bench, table, copy_gbs)
    paging(bench, table)
    prefill(bench, table, copy_gbs)
    write(bench, table, copy_gbs)
    copy(bench, table, copy_gbs)
    variants(bench, table)
    fp8(bench, table, copy_gbs)
    rope(bench, table, copy_gbs)
    integrity(bench, table, copy_gbs)
    swap(bench, table)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": table.rows}
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result))
    else:
        table.print()
    return 1 if any(row["ok"] is False for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
