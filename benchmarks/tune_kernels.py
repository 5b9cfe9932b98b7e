"""Measure alternatives to the shipped kernel configurations on one GPU: `kvscope bench kernels --tune`.

Every entry of kernels/configs.json is measured beside its rivals, each over shapes that take that entry while serving.
The shipped one stays unless a rival is faster by more than `WORTH` over all shapes: a table that changes with noise
helps nobody. `--write` puts the result in its place. Compiling is shared among processes first; all entries take more
than ten minutes on 16 cores, those of `--only 'decode-*/256B'` about one.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
import triton

from kvscope.benchmarks.gpu import HEADS, KV_HEADS, rounds, time_us
from kvscope.kernels import paged_decode, paged_prefill, plan_decode, tuning
from kvscope.kernels.tuning import Config

WORTH = 0.015  # a rival replaces what is shipped when it is faster by more than this
TILE_BYTES = 2**16  # of a tile's keys: a larger one cannot be kept twice
POOL_BYTES = 6 * 2**30  # of keys and values: many times the L2 cache
BLOCK = 16
SHIPPED = Path(tuning.__file__).with_name("configs.json")
DECODE_TILES = [
    (256, 4, 3), (128, 4, 3), (128, 4, 2), (128, 8, 3), (128, 8, 2), (64, 4, 2), (64, 4, 3), (64, 4, 4), (64, 8, 3),
    (64, 8, 2), (64, 2, 3), (32, 4, 3), (32, 4, 4), (32, 8, 3), (32, 8, 2), (16, 8, 2),
]  # fmt: skip
PREFILL_TILES = [  # rows, tile, warps, stages
    (128, 64, 8, 3), (128, 64, 8, 4), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 128, 4, 3),
    (128, 32, 8, 3), (64, 32, 8, 2), (32, 32, 8, 1), (32, 16, 8, 1),
]  # fmt: skip
BATCHES = (1, 4, 8, 16, 20, 32, 40, 48, 64, 96, 128, 256)
PROMPTS = {
    "prefill": ((1, 4096, 4096), (16, 128, 2048)),
    "prefill-few": ((1, 256, 256), (1, 256, 4096)),
    "prefill-close": ((1, 4096, 4096), (16, 128, 2048), (1, 512, 8192)),
}


@dataclass(frozen=True)
class Entry:
    """One line of the table: a kernel's kind and the size of a key, as tensors that take it."""

    kind: str
    key: str

    @property
    def stored(self) -> torch.dtype:
        return {"float32": torch.float32, "fp8": torch.float8_e4m3fn}.get(self.key.partition("-")[2], torch.bfloat16)

    @property
    def queried(self) -> torch.dtype:
        return torch.bfloat16 if self.stored.itemsize == 1 else self.stored

    @property
    def dim(self) -> int:
        return int(self.key.partition("B")[0]) // self.stored.itemsize

    def rivals(self) -> list[Config]:
        """The shipped configuration first."""
        shipped = tuning.table()[self.kind][self.key]
        if self.kind.startswith("decode"):
            others = [Config(*tile) for tile in DECODE_TILES]
        else:
            others = [Config(tile, warps, stages, rows) for rows, tile, warps, stages in PREFILL_TILES]
        size = self.dim * self.stored.itemsize
        return [shipped, *(other for other in others if other != shipped and other.tile * size <= TILE_BYTES)]

    def shapes(self, device: torch.device) -> list[tuple[int, int, int]]:
        """(sequences, new tokens, context) of batches that take this entry; new is 1 for decode."""
        if not self.kind.startswith("decode"):
            return list(PROMPTS[self.kind])
        taking = [b for b in BATCHES if "decode-" + tuning.decode_split(b * KV_HEADS, device).name == self.kind]
        room = POOL_BYTES // 2 // (2 * KV_HEADS * self.dim * self.stored.itemsize)
        return [(b, 1, min(32_768 if b < 8 else 4096, room // b // 64 * 64)) for b in (taking[0], taking[-1])]


@contextmanager
def using(kind: str, config: Config) -> Iterator[None]:
    """Let every call take this configuration for a while."""
    name = "decode_config" if kind.startswith("decode") else "prefill_config"
    before = getattr(tuning, name)
    try:
        setattr(tuning, name, lambda *_, **__: config)
        yield
    finally:
        setattr(tuning, name, before)


def entry_us(entry: Entry, memory: torch.Tensor, shape: tuple[int, int, int]) -> float:
    """One layer's attention of a batch, over blocks at random."""
    rows, new, context = shape
    size = 2 * BLOCK * KV_HEADS * entry.dim
    cells = memory.view(entry.stored)
    cells = cells[: len(cells) // size * size]
    if entry.kind == "prefill":  # what is taken where a block does not hold both
        cache = cells.view(2, -1, BLOCK, KV_HEADS, entry.dim).transpose(0, 1)
    else:
        cache = cells.view(-1, 2, BLOCK, KV_HEADS, entry.dim)
    scales = {}
    if entry.stored.itemsize == 1:
        ones = torch.ones(1, device="cuda")
        scales = {"k_scale": ones, "v_scale": ones}
    lens = torch.full((rows,), context, dtype=torch.int32, device="cuda")
    q = torch.randn(rows * new, HEADS, entry.dim, device="cuda").to(entry.queried)
    need, turns = -(-context // BLOCK), rounds(rows * context * 2 * KV_HEADS * entry.dim * entry.stored.itemsize)
    tables = [
        torch.randperm(len(cache), device="cuda")[: rows * need].to(torch.int32).view(rows, need) for _ in range(turns)
    ]
    args = [(q, cache[:, 0], cache[:, 1], table, lens) for table in tables]
    scale = entry.dim**-0.5
    if entry.kind.startswith("decode"):
        plan = plan_decode(lens, KV_HEADS)
        return time_us([lambda a=a: paged_decode(*a, scale, plan=plan, **scales) for a in args])
    start = torch.arange(rows + 1, dtype=torch.int32, device="cuda") * new
    return time_us([lambda a=a: paged_prefill(*a, start, scale, **scales) for a in args])


def pool() -> torch.Tensor:
    """Random bytes of small numbers: read as any type they hold neither NaN nor infinity."""
    return torch.randint(0, 64, (POOL_BYTES,), dtype=torch.uint8, device="cuda")


def compile_some(entries: list[Entry], part: int, parts: int) -> None:
    """Compile every `parts`-th rival into the cache; what does not fit the chip is found when it is measured."""
    memory = torch.zeros(2**24, dtype=torch.uint8, device="cuda")
    rivals = [(entry, config) for entry in entries for config in entry.rivals()]
    for entry, config in rivals[part::parts]:
        new = entry.shapes(torch.device("cuda"))[0][1]
        with using(entry.kind, config):
            try:
                entry_us(entry, memory, (1, min(new, 16), 64))
            except (triton.runtime.errors.OutOfResources, RuntimeError):
                torch.cuda.synchronize()


def measure(entry: Entry, memory: torch.Tensor) -> list[dict[str, Any]]:
    """Each rival's times over the entry's shapes, and its geometric mean against the fastest of each shape."""
    found = []
    shapes = entry.shapes(torch.device("cuda"))
    for config in entry.rivals():
        with using(entry.kind, config):
            try:
                us = [entry_us(entry, memory, shape) for shape in shapes]
            except (triton.runtime.errors.OutOfResources, RuntimeError):  # too much shared memory, too many registers
                torch.cuda.synchronize()
                continue
        found.append({"kind": entry.kind, "key": entry.key, "config": asdict(config), "shapes": shapes, "us": us})
    best = [min(row["us"][i] for row in found) for i in range(len(shapes))]
    for row in found:
        slow = math.prod(us / fastest for us, fastest in zip(row["us"], best, strict=True)) ** (1 / len(best))
        row["slowdown"] = round(slow, 4)
    return found


def choose(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The shipped configuration (the first), unless another is faster by more than `WORTH`."""
    best = min(found, key=lambda row: row["slowdown"])
    return best if best["slowdown"] < found[0]["slowdown"] * (1 - WORTH) else found[0]


def entries(only: str | None) -> list[Entry]:
    """The lines of the shipped table that match a pattern, as `decode-*/256B`."""
    lines = [Entry(kind, key) for kind, keys in tuning.table().items() for key in keys]
    return [line for line in lines if fnmatch(f"{line.kind}/{line.key}", only or "*")]


def written(table: dict[str, dict[str, dict[str, int]]]) -> str:
    """The table as it is shipped: a line per entry."""
    kinds = []
    for kind, keys in table.items():
        lines = ",\n".join(f'  "{key}": {json.dumps(config)}' for key, config in keys.items())
        kinds.append(f' "{kind}": {{\n{lines}\n }}')
    return "{\n" + ",\n".join(kinds) + "\n}\n"


def tune(only: str | None, write: bool, out: Path | None) -> int:
    """Measure, print what is kept and what gives way, and write what was asked for."""
    chosen_entries = entries(only)
    if not chosen_entries:
        print(f"kvscope: error: no entry of {SHIPPED.name} matches {only!r}; try 'decode-*/256B'", file=sys.stderr)
        return 2
    parts = max(1, min(15, (os.cpu_count() or 2) - 1))
    print(f"compiling for {len(chosen_entries)} entries in {parts} processes ...", file=sys.stderr, flush=True)
    with ProcessPoolExecutor(parts, mp_context=multiprocessing.get_context("spawn")) as workers:
        for job in [workers.submit(compile_some, chosen_entries, part, parts) for part in range(parts)]:
            job.result()
    table = json.loads(SHIPPED.read_text(encoding="utf-8"))
    memory, rows, changed = pool(), [], 0
    for entry in chosen_entries:
        found = measure(entry, memory)
        best = choose(found)
        shipped, config = found[0], Config(**best["config"])
        if best is shipped:
            note = "kept"
        else:
            changed += 1
            note = f"instead of {_short(Config(**shipped['config']))}"
            table[entry.kind][entry.key] = {k: v for k, v in best["config"].items() if v or k != "rows"}
        line = f"{entry.kind:12} {entry.key:14} {_short(config):14} {note}"
        print(f"{line:62} shipped x{shipped['slowdown']:.3f} of the fastest of {len(found)}", flush=True)
        rows += found
    print(f"{changed} of {len(chosen_entries)} entries change" + ("" if write or not changed else "; --write does so"))
    if write:
        SHIPPED.write_text(written(table), encoding="utf-8")
    if out:
        device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
        out.write_text(json.dumps({**device, "table": table, "rows": rows}) + "\n", encoding="utf-8")
    return 0


def _short(config: Config) -> str:
    rows = f"{config.rows}x" if config.rows else ""
    return f"{rows}{config.tile} w{config.warps} s{config.stages}"
