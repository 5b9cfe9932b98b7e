"""What recording costs: `python -m kvscope.benchmarks.trace [--json] [--events N]`.

Times are ratios to a baseline measured in the same process, in short interleaved runs of which the best counts, so
that a slow or busy machine does not decide. The baseline is the simplest thing that remembers events: `list.append` of
an 8-tuple with a clock read, through a method, on a list that is kept and grows.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.benchmarks import follow
from kvscope.benchmarks.shown import positive, row
from kvscope.traces import EventSink, Kind, PoolFacts, Reason, Recorder, open_trace, pack_range
from kvscope.traces.segment import MAX_BATCH_ROWS

POOL = PoolFacts(num_blocks=65_536, block_size=16, block_bytes=1 << 20)
BATCH = 256
ROUNDS = 100


class ListRecorder:
    """The baseline."""

    def __init__(self) -> None:
        self.events: list[tuple[int, ...]] = []

    def emit(self, kind: int, reason: int, block: int, gen: int, ref_before: int, ref_after: int, fill: int) -> None:
        self.events.append((time.monotonic_ns(), kind, reason, block, gen, ref_before, ref_after, fill))


def time_ns(body: Callable[[int], None], events: int) -> float:
    """Nanoseconds of processor time per event of one run; what other processes take away does not count."""
    start = time.thread_time_ns()
    body(events)
    return (time.thread_time_ns() - start) / events


def measure(bodies: dict[str, Callable[[int], None]], events: int, rounds: int = ROUNDS) -> dict[str, float]:
    """The best of several interleaved runs of each, ns per event."""
    best = dict.fromkeys(bodies, float("inf"))
    gc.collect()
    for _ in range(rounds):
        for name, body in bodies.items():
            best[name] = min(best[name], time_ns(body, events))
    return best


def emit_rows(folder: Path, events: int) -> list[dict[str, Any]]:
    """Cost of a row on its way into the hot tail, and with its share of the sealing."""
    # Emptied between runs that fit its ring: what is timed is the emit alone.
    recorder = Recorder(folder / "emit", pool=POOL, sealing="thread", seal_after_s=3600.0)
    sealed = Recorder(folder / "sealed", pool=POOL, sealing="inline")
    numbers = np.arange(BATCH, dtype=np.int32)
    ones = np.ones(BATCH, dtype=np.int16)

    def empty(n: int) -> None:
        for _ in range(n):
            pass

    def off(n: int) -> None:
        sink: EventSink | None = None
        for _ in range(n):
            if sink is not None:
                sink.emit(0)

    kept = ListRecorder()

    def baseline(n: int) -> None:
        emit = kept.emit
        for i in range(n):
            emit(4, 2, i, 4, 5, 6, 7)

    def scalar_into(target: Recorder) -> Callable[[int], None]:
        def scalar(n: int) -> None:
            emit = target.emit
            for i in range(n):
                emit(4, 2, i, 4, 5, 6, 7, 8, 9)

        return scalar

    def bulk_into(target: Recorder) -> Callable[[int], None]:
        def bulk(n: int) -> None:
            for _ in range(n // BATCH):
                target.emit_many(4, 2, block=numbers, gen=numbers, ref_before=ones, ref_after=ones, lblock=numbers)

        return bulk

    def begin(n: int) -> None:
        for _ in range(n):
            recorder.begin()

    def detail(n: int) -> None:
        seq = recorder.emit(Kind.COW)
        for _ in range(n):
            recorder.detail(seq, (1, 2, 3, 4))

    def drain(_: int) -> None:
        recorder.seal()

    best = measure(
        {
            "empty": empty,
            "off": off,
            "baseline": baseline,
            "scalar": scalar_into(recorder),
            "drain 1": drain,
            "bulk": bulk_into(recorder),
            "begin": begin,
            "detail": detail,
            "drain 2": drain,
        },
        events,
    )
    # Long enough that each run seals two whole batches.
    best |= measure({"scalar sealed": scalar_into(sealed), "bulk sealed": bulk_into(sealed)}, 2 * MAX_BATCH_ROWS, 10)
    recorder.close()
    sealed.close()
    assert recorder.dropped == sealed.dropped == 0
    base = best["baseline"]
    return [
        row("list.append(8-tuple) and clock", base, "ns"),
        row("hook off", max(best["off"] - best["empty"], 0.0), "ns", base, 0.06),
        row("emit", best["scalar"], "ns", base, 1.6),
        row("emit with seal", best["scalar sealed"], "ns", base, 2.5),
        row(f"emit_many of {BATCH}, per event", best["bulk"], "ns", base, 0.12),
        row(f"emit_many of {BATCH} with seal, per event", best["bulk sealed"], "ns", base),
        row("begin", best["begin"], "ns", base),
        row("detail of 4 values", best["detail"], "ns", base),
    ]


def decode_load(sink: Recorder, events: int, clock_per_event: bool) -> int:
    """Decoding of 64 sequences on a pool handed out in random order; returns the number of events."""
    rng = np.random.default_rng(0)
    free = rng.permutation(POOL.num_blocks).tolist()
    gens = [0] * POOL.num_blocks
    tables: dict[int, list[int]] = {}
    lengths: dict[int, int] = {}
    limits: dict[int, int] = {}
    next_id = count = step = 0

    def emit(*values: int) -> None:
        nonlocal count
        if clock_per_event:
            sink.begin()
        sink.emit(*values)
        count += 1

    while count < events:
        sink.step = step
        step += 1
        while len(tables) < 64:
            tables[next_id], lengths[next_id] = [], 0
            limits[next_id] = int(rng.integers(100, 1000))
            next_id += 1
        for seq_id in list(tables):
            table, at = tables[seq_id], lengths[seq_id]
            sink.begin()
            if at % POOL.block_size == 0:
                block = free.pop()
                gens[block] += 1
                table.append(block)
                emit(Kind.ALLOC, Reason.DECODE, block, gens[block], 0, 1, -1, seq_id, len(table) - 1)
            slot, block = at % POOL.block_size, table[-1]
            where = pack_range(slot, slot + 1)
            emit(Kind.WRITE, Reason.DECODE, block, gens[block], 1, 1, slot + 1, seq_id, len(table) - 1, where)
            emit(Kind.COMMIT, 0, block, gens[block], -1, -1, slot + 1)
            lengths[seq_id] += 1
            if lengths[seq_id] == limits[seq_id]:
                sink.begin()
                for lblock in reversed(range(len(table))):
                    block = table[lblock]
                    emit(Kind.RELEASE, Reason.LENGTH, block, gens[block], 1, 0, POOL.block_size, seq_id, lblock)
                    emit(Kind.FREE, Reason.LENGTH, block, gens[block])
                    free.append(block)
                del tables[seq_id]
    return count


def storage_rows(folder: Path, events: int) -> list[dict[str, Any]]:
    """Bytes on disk per event, in full batches, and the time to read them."""
    rows = []
    for name, per_event, gate in (
        ("one clock read per operation", False, 5.0),
        ("one clock read per event", True, 7.0),
    ):
        with Recorder(folder / name.replace(" ", "-"), pool=POOL, sealing="inline") as recorder:
            count = decode_load(recorder, events, per_event)
        size = sum(path.stat().st_size for path in recorder.path.iterdir())
        rows.append(row(f"on disk, {name}", size / count, "bytes/event", gate=gate))
        best = min(time_ns(lambda _: open_trace(recorder.path) and None, count) for _ in range(3))
    rows.append(row("open a trace, per event", best, "ns"))
    return rows


def run(events: int = 4_096) -> list[dict[str, Any]]:
    """All rows."""
    folder = Path(tempfile.mkdtemp(prefix="kvscope-bench-"))
    try:
        return emit_rows(folder, events) + storage_rows(folder, 300_000)
    finally:
        shutil.rmtree(folder)


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.trace", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--events", type=int, default=4_096, help="events per run, below 16,384 (default 4,096)")
    parser.add_argument(
        "--follow", type=positive, metavar="SECONDS", help="only: follow a writer of 1 M events/s so long"
    )
    options = parser.parse_args(arguments)
    rows = run(options.events) if options.follow is None else follow.rows_of(options.follow, follow.RATE)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for r in rows:
            ratio = "" if r["ratio"] is None else f"{r['ratio']:8.3f} x"
            gate = "" if r["gate"] is None else f"  gate {r['gate']:g}  {'ok' if r['ok'] else 'MISSED'}"
            print(f"{r['name']:44} {r['value']:10.2f} {r['unit']:12}{ratio:10}{gate}")
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
