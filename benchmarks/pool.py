"""What the block pool costs: `python -m kvscope.benchmarks.pool [--json] [--blocks N] [--quick]`.

ns of processor time of the calling thread per block, ledger included, with recording off and on. *On* is the burst: the
ring of the recorder has room, nothing is sealed meanwhile; *sustained* is the time that passes, with sealing beside.
The baseline is vLLM's `BlockPool` in the same process (no ledger, no caching, no events), its runs interleaved with
ours; where vLLM is not installed, figures recorded once, scaled by a Python list measured now, and marked so. A ratio
is how many times as fast as the baseline; rows of growth and of bytes have an upper bound as their gate. Where the part
in C was built it runs, and what the same takes without it stands beside it ("in Python").
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.benchmarks.pool_memory import memory_rows
from kvscope.benchmarks.pool_peers import (
    BATCH,
    BULK,
    BULK_ROW,
    CALL_ROW,
    CALLS_ROW,
    ONE_ROW,
    RECORDED_LIST,
    RECORDED_VLLM,
    SHARE_ROW,
    Bodies,
    list_bodies,
    vllm_bodies,
)  # fmt: skip
from kvscope.benchmarks.pool_step import cold_rows, step_rows
from kvscope.engine.pool import BlockPool
from kvscope.traces import Kind, PoolFacts, Reason, Recorder, compiled
from kvscope.traces.segment import MAX_BATCH_ROWS

ROUNDS = 9
PREFILL, DECODE, FORK, STOP, SHARE = Reason.PREFILL, Reason.DECODE, Reason.FORK, Reason.STOP, Kind.SHARE
GATES = {BULK_ROW: (10.0, 3.0), ONE_ROW: (1.0, 0.6), SHARE_ROW: (5.0, 2.0), CALLS_ROW: (None, 8.0),
         CALL_ROW: (None, 1.5)}  # fmt: skip
SIZES = (1 << 14, 1 << 18, 1 << 20)


def pool_bodies(num_blocks: int, sink: Recorder | None) -> Bodies:
    """What our pool does, by row; each operation begins as the block manager begins it."""
    pool = BlockPool(num_blocks, 16, sink=sink)
    mine = pool.take(BULK, seq_id=2, lblock=0, reason=Reason.PREFILL)
    seq_ids, lblocks = np.arange(BATCH, dtype=np.int32), np.full(BATCH, 7, dtype=np.int32)

    begin = sink.begin if sink is not None else None

    def bulk() -> int:
        if begin is not None:
            begin()
        blocks = pool.take(BULK, seq_id=1, lblock=0, reason=PREFILL)
        if begin is not None:
            begin()
        pool.release_row(blocks, seq_id=1, lblock=0, reason=STOP)
        return BULK

    def single() -> int:
        for _ in range(BATCH):
            if begin is not None:
                begin()
            block = pool.take_one(1, 0, DECODE)
            if begin is not None:
                begin()
            pool.release(block, 1, 0, STOP)
        return BATCH

    def batch() -> int:
        if begin is not None:
            begin()
        blocks = pool.take(BATCH, seq_id=seq_ids, lblock=lblocks, reason=DECODE)
        if begin is not None:
            begin()
        pool.release_row(blocks, seq_id=seq_ids, lblock=lblocks, reason=STOP)
        return BATCH

    def share() -> int:
        if begin is not None:
            begin()
        pool.retain_row(mine, SHARE, seq_id=3, lblock=0, reason=FORK)
        if begin is not None:
            begin()
        pool.release_row(mine, seq_id=3, lblock=0, reason=STOP)
        return BULK

    return {BULK_ROW: bulk, ONE_ROW: single, SHARE_ROW: share, CALLS_ROW: batch, CALL_ROW: batch}


def burst(body: Callable[[], int], sink: Recorder | None, seconds: float = 0.004) -> float:
    """ns of this thread's processor time per block; the recorder is emptied off the clock, before it would seal."""
    blocks, spent = 0, 0
    repeat = max(1, MAX_BATCH_ROWS // (3 * body()) - 1)
    while spent < seconds * 1e9:
        start = time.thread_time_ns()
        for _ in range(repeat):
            blocks += body()
        spent += time.thread_time_ns() - start
        if sink is not None:
            sink.seal()
    return spent / blocks


def in_python(body: Callable[[], int], sink: Recorder | None) -> float:
    """`burst` without the part in C."""
    with compiled.using(False):
        return burst(body, sink)


def sustained(body: Callable[[], int], seconds: float) -> float:
    """ns that pass per block while the recorder seals in its own thread."""
    blocks, start = 0, time.perf_counter_ns()
    while time.perf_counter_ns() - start < seconds * 1e9:
        blocks += body()
    return (time.perf_counter_ns() - start) / blocks


def best_of(runs: list[Callable[[], float]], rounds: int) -> list[float]:
    """The best of several interleaved runs of each."""
    best = [float("inf")] * len(runs)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for i, run in enumerate(runs):
                best[i] = min(best[i], run())
    finally:
        gc.enable()
    return best


def entry(name: str, value: float, unit: str, baseline: float | None = None, ratio: float | None = None,
          gate: float | None = None, ok: bool | None = None) -> dict[str, Any]:  # fmt: skip
    """One line of the result."""
    return {"name": name, "value": round(value, 1), "unit": unit, "ratio": None if ratio is None else round(ratio, 3),
            "baseline": None if baseline is None else round(baseline, 1), "gate": gate, "ok": ok}  # fmt: skip


def speed_rows(num_blocks: int, rounds: int) -> list[dict[str, Any]]:
    """Each operation off, on and beside its peers."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        facts = PoolFacts(num_blocks, 16)
        ring = Recorder(Path(folder) / "burst", pool=facts, hot_rows=1 << 16, sealing="thread", seal_after_s=3600.0)
        live = Recorder(Path(folder) / "sustained", pool=facts, hot_rows=1 << 17, sealing="thread")
        lists, peers = list_bodies(num_blocks), vllm_bodies(num_blocks)
        off, on, sealed = pool_bodies(num_blocks, None), pool_bodies(num_blocks, ring), pool_bodies(num_blocks, live)
        mark = "vLLM" if peers else "vLLM as recorded, scaled"
        for name, gates in GATES.items():
            base = lists[name if name in lists else BULK_ROW]
            bodies = [(off[name], None), (on[name], ring), (base, None), *([(peers[name], None)] if peers else [])]
            runs = [lambda b=body, s=sink: burst(b, s) for body, sink in bodies]
            if compiled.used():
                runs.append(lambda n=name: in_python(on[n], ring))
            figures = best_of(runs, 3 * rounds)
            scale = RECORDED_VLLM[name] / RECORDED_LIST[name if name in RECORDED_LIST else BULK_ROW]
            peer = figures[3] if peers else figures[2] * scale
            for label, value, gate in zip((f"{name}, off", f"{name}, recording"), figures, gates, strict=False):
                ok = None if gate is None else peer / value >= gate
                rows.append(entry(f"{label} / {mark}", value, "ns/block", peer, peer / value, gate, ok))
            if compiled.used():
                value = figures[-1]
                rows.append(entry(f"{name}, recording, in Python / {mark}", value, "ns/block", peer, peer / value))
            rows.append(entry(f"{name}, Python list", figures[2], "ns/block"))
        for name in (BULK_ROW, SHARE_ROW, ONE_ROW):
            value = best_of([lambda n=name: sustained(sealed[n], 0.25)], 2)[0]
            rows.append(entry(f"{name}, sustained with sealing beside", value, "ns/block"))
        dropped = ring.dropped + live.dropped
        ring.close()
        live.close()
    rows.append(entry("events dropped", dropped, "events", gate=0, ok=dropped == 0))
    return rows


def growth_rows(sizes: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    """Cost per block by the size of the pool, recording; blocks come in an order that is not the memory's."""
    runs: list[Callable[[], float]] = []
    with tempfile.TemporaryDirectory() as folder:
        rings = []
        for size in sizes:
            ring = Recorder(Path(folder) / str(size), pool=PoolFacts(size, 16), hot_rows=1 << 16, seal_after_s=3600.0)
            rings.append(ring)
            pool = BlockPool(size, 16, sink=ring)
            shuffle(pool)
            runs.append(lambda p=pool, r=ring: burst(churn(p, r), r))
        figures = best_of(runs, 3 * rounds)
        for ring in rings:
            ring.close()
    rows = [entry(f"{BULK_ROW}, recording, {sizes[0]:,} blocks", figures[0], "ns/block")]
    for size, value in zip(sizes[1:], figures[1:], strict=True):
        ratio = value / figures[0]
        name = f"{BULK_ROW}, recording, {size:,} blocks, growth"
        rows.append(entry(name, value, "ns/block", figures[0], ratio, 1.6, ratio <= 1.6))
    return rows


def shuffle(pool: BlockPool) -> None:
    """Hand everything out and take it back in random order, unrecorded."""
    sink, pool.sink = pool.sink, None
    blocks = pool.take(pool.num_blocks, seq_id=0, lblock=0, reason=Reason.PREFILL)
    pool.release_row(np.random.default_rng(0).permutation(blocks), seq_id=0, lblock=0, reason=Reason.STOP)
    pool.sink = sink


def churn(pool: BlockPool, sink: Recorder) -> Callable[[], int]:
    """Take and give back, through the whole pool in turn."""

    def body() -> int:
        sink.begin()
        blocks = pool.take(BULK, seq_id=1, lblock=0, reason=Reason.PREFILL)
        sink.begin()
        pool.release_row(blocks, seq_id=1, lblock=0, reason=Reason.STOP)
        return BULK

    return body


def measure(num_blocks: int = 1 << 14, rounds: int = ROUNDS, sizes: tuple[int, ...] = SIZES) -> list[dict[str, Any]]:
    """All rows."""
    rows = [*speed_rows(num_blocks, rounds), *growth_rows(sizes, rounds), *memory_rows()]
    return [*rows, *step_rows(rounds), *cold_rows()]


def verdict(row: dict[str, Any]) -> str:
    """The goal of a row, in words, and whether it is met."""
    if row["gate"] is None:
        return ""
    bound, unit = ("at most", row["unit"]) if row["ratio"] is None or row["unit"] == "us" else ("at least", "x")
    if "growth" in row["name"]:
        bound, unit = "at most", "x"
    return f"goal {bound} {row['gate']:g} {unit}: {'met' if row['ok'] else 'MISSED'}"


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.pool", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--blocks", type=int, default=1 << 14, help="size of the pool (default 16,384)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args(arguments)
    rows = measure(options.blocks, 3 if options.quick else ROUNDS)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        print(f"what runs for each event and each step is in {compiled.way()}")
        for row in rows:
            ratio = "" if row["ratio"] is None else f"{row['ratio']:8.2f} x of {row['baseline']:.1f}"
            print(f"{row['name']:72} {row['value']:10.1f} {row['unit']:12}{ratio:24}{verdict(row)}")
        goals = [row for row in rows if row["gate"] is not None]
        print(f"{sum(row['ok'] for row in goals)} of {len(goals)} goals met")
    return 1 if any(row["ok"] is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
