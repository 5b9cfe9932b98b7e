"""Measure alternatives to the shipped kernel configurations on one GPU: `python -m kvscope.benchmarks.tune_kernels`.

Prints the fastest per shape and, for each configuration, its mean slowdown against the fastest; writes all of it as
JSON. The choice is entered in kernels/configs.json by hand, since a robust choice beats the fastest by a percent.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kvscope.benchmarks.gpu import DECODES, PREFILLS, Bench, Decode, Prefill, decode_us, prefill_us
from kvscope.kernels import tuning
from kvscope.kernels.tuning import Config, Split

DECODE_TILES = [
    (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 2, 2), (64, 2, 3), (32, 2, 3), (32, 2, 4), (32, 4, 4),
    (128, 4, 2), (128, 4, 3), (128, 8, 2), (64, 8, 3),
]  # fmt: skip
PIECES = [1, 2, 3, 4, 6, 8, 16]
PREFILL_TILES = [  # rows, tile, warps, stages
    (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 2),
    (64, 64, 4, 3), (128, 32, 8, 4), (128, 32, 8, 6), (64, 32, 4, 4), (64, 64, 4, 5),
]  # fmt: skip


@contextmanager
def using(**values: Any) -> Iterator[None]:
    """Set attributes of the tuning module for a while."""
    before = {name: getattr(tuning, name) for name in values}
    try:
        for name, value in values.items():
            setattr(tuning, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(tuning, name, value)


def sweep_decode(bench: Bench, shapes: list[Decode], tiles: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    found = []
    for shape in shapes:
        for tile in tiles:
            for pieces in PIECES:
                for minimum in (64, 256) if shape.kv_bytes < 2**28 else (256,):
                    wanted = pieces * 132
                    with using(
                        decode_config=lambda *_, t=tile: Config(*t),
                        decode_split=lambda programs, _, w=wanted: Split("mid", max(1, w // programs), w),
                        MIN_PIECE=minimum,
                    ):
                        us = decode_us(bench, shape)
                    found.append({"shape": shape.name, "tile": tile, "pieces": pieces, "min": minimum, "us": us})
    return found


def sweep_prefill(bench: Bench, shapes: list[Prefill]) -> list[dict[str, Any]]:
    found = []
    for shape in shapes:
        for rows, tile, warps, stages in PREFILL_TILES:
            config = Config(tile, warps, stages, rows)
            with using(prefill_config=lambda *_, c=config: c):
                us = prefill_us(bench, shape)
            tflops = shape.flops / us / 1e6
            found.append({"shape": shape.name, "tile": [rows, tile, warps, stages], "us": us, "tflops": tflops})
    return found


def summary(found: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    """The fastest three per shape, then each configuration's geometric mean slowdown."""
    best: dict[str, float] = {}
    for shape in dict.fromkeys(row["shape"] for row in found):
        rows = sorted((row for row in found if row["shape"] == shape), key=lambda row: row["us"])
        best[shape] = rows[0]["us"]
        print(f"{shape:16}", *(f"{row['us']:9.1f} {[row[k] for k in keys]}" for row in rows[:3]))
    slow: dict[str, dict[str, float]] = {}
    for row in found:
        ratios = slow.setdefault(json.dumps(row["tile"]), {})
        ratios[row["shape"]] = min(ratios.get(row["shape"], math.inf), row["us"] / best[row["shape"]])
    for tile, ratios in sorted(slow.items(), key=lambda item: math.prod(item[1].values())):
        mean = math.prod(ratios.values()) ** (1 / len(ratios))
        print(f"{tile:18} x{mean:.3f} ", " ".join(f"{ratio:.2f}" for ratio in ratios.values()))


def warm(part: int, parts: int) -> None:
    """Compile every `parts`-th configuration into the cache, so that several processes share the work."""
    bench = Bench(4096)
    decodes, prefills = [Decode("warm", (512,))], [Prefill("warm", 1, 64, 512)]
    for index, tile in enumerate(DECODE_TILES):
        if index % parts == part:
            with using(decode_config=lambda *_, t=tile: Config(*t)):
                decode_us(bench, decodes[0])
    for index, (rows, tile, warps, stages) in enumerate(PREFILL_TILES):
        if (index + 5) % parts == part:
            config = Config(tile, warps, stages, rows)
            with using(prefill_config=lambda *_, c=config: c):
                prefill_us(bench, prefills[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write every measurement here as JSON")
    parser.add_argument("--warm", metavar="PART/PARTS", help="only compile this share of the configurations")
    parser.add_argument("--only", choices=["decode", "prefill"], help="tune one kernel")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("tuning did not run: it needs a CUDA GPU, and this machine has none", file=sys.stderr)
        return 2
    if args.warm:
        part, parts = args.warm.split("/")
        warm(int(part), int(parts))
        return 0
    bench = Bench(max(sum(shape.lengths) for shape in DECODES))
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    if args.only != "prefill":
        result["decode"] = sweep_decode(bench, DECODES, DECODE_TILES)
        summary(result["decode"], ("tile", "pieces", "min"))
    if args.only != "decode":
        result["prefill"] = sweep_prefill(bench, PREFILLS)
        summary(result["prefill"], ("tile", "tflops"))
    if args.out:
        args.out.write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
