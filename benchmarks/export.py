"""What exports and queries take: `python -m kvscope.benchmarks.export [--events N] [--json]`.

The trace is a real run of the block manager (admissions with shared prefixes, appends, forks with copies on write),
repeated until it has N events (1,000,000). Each format is written in a process of its own: events per second of
processor time, beside the plainest way to write the same file (`json.dumps` and `csv.writer` over plain rows, one Arrow
table written at once, numpy's count), and the peak of memory, beside that of opening the trace alone. Gates: a tenth of
the plain way's speed at least, and 1.5 GiB.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.inspector.export import export
from kvscope.inspector.query import ask
from kvscope.traces import EVENT_DTYPE, Kind, MemoryRecorder, PoolFacts, TraceReader, open_trace
from kvscope.traces.bulk import BulkWriter

SPEED_GATE, MEMORY_GATE = 0.1, 1536 << 20
POOL = PoolFacts(2048, 16, 1 << 20)
NAMES = ("open", "perfetto", "parquet", "jsonl", "csv", "ilens", "query")
SQL = "SELECT kind, count(*) FROM events GROUP BY kind"


def record(events: int) -> MemoryRecorder:
    """A run of the block manager that ends with an empty pool."""
    sink, rng = MemoryRecorder(POOL), random.Random(7)
    manager = BlockManager(POOL.num_blocks, POOL.block_size, sink=sink)
    system, live, next_id = [rng.randrange(32000) for _ in range(64)], {}, 0
    while len(live) or sink._next < events:
        while len(live) < 64 and sink._next < events:
            prompt = system + [rng.randrange(32000) for _ in range(rng.randrange(5, 60))]
            sink.begin()
            sink.emit(Kind.SUBMIT, seq_id=next_id, aux=len(prompt))
            manager.admit(next_id, prompt)
            live[next_id] = [len(prompt), rng.randrange(20, 60)]
            next_id += 1
        rows = []
        for seq, state in list(live.items()):
            if not state[1]:
                manager.free(seq, Kind.FINISH)
                del live[seq]
                continue
            manager.append(seq, rng.randrange(32000))
            rows.append(Scheduled(seq, state[0], state[0] + 1))
            state[0], state[1] = state[0] + 1, state[1] - 1
        manager.begin_step(rows)
        manager.copies_done(manager.drain_copies())
        manager.end_step()
    return sink


def make(path: Path, events: int) -> None:
    """The run, again and again, as one trace."""
    run = record(min(events, 60_000))
    rows, count = run.events, len(run.events)
    with_details = [seq for seq in range(count) if run.detail(seq) is not None]
    held = [run.detail(seq) or () for seq in with_details]
    details = (np.asarray(with_details), np.cumsum([0, *map(len, held)]), np.asarray([v for d in held for v in d]))
    steps = {name: int(rows[name].max()) + 1 for name in ("t_ns", "gen", "seq_id", "step")}
    with BulkWriter(path, pool=POOL) as writer:
        for i, site in enumerate(run.sites[1:], 1):
            writer.site(i, site.frames)
        for first in range(0, events, count):
            writer.rows(np.arange(first, first + count), rows, details)
            for name, step in steps.items():
                rows = rows.copy() if not rows.flags.writeable else rows
                rows[name][rows[name] >= 0] += step


def plain(name: str, trace: TraceReader) -> Callable[[], object] | None:
    """The plainest way to do the same."""
    columns = EVENT_DTYPE.names or ()
    rows = trace.events[:100_000]
    if name == "jsonl":
        return lambda: [json.dumps(dict(zip(columns, row, strict=True))) for row in rows.tolist()]
    if name == "csv":
        return lambda: csv.writer(io.StringIO()).writerows(rows.tolist())
    if name == "query":
        return lambda: np.unique(rows["kind"], return_counts=True)
    if name == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        return lambda: pq.write_table(pa.table({c: rows[c].copy() for c in columns}), io.BytesIO(), compression="zstd")
    return None


def one(name: str, path: Path) -> dict[str, Any]:
    """Do it here and now."""
    began = time.process_time()
    trace = open_trace(path)
    rows = len(trace.events)
    if name == "query":
        with ask(trace, SQL) as answer:
            assert sum(count for _, count in answer.rows) == rows
    elif name != "open":
        export(trace, name, path.parent / f"out.{name}")
    taken = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    baseline = None
    way = plain(name, trace)
    if way is not None:
        began = time.process_time()
        way()
        baseline = min(rows, 100_000) / (time.process_time() - began)
    return {"rate": rows / taken, "peak": peak, "baseline": baseline}


def measure(events: int) -> list[dict[str, Any]]:
    """Two rows for each: speed and memory."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.kvtrace"
        make(path, events)
        alone = 0
        for name in NAMES:
            command = [sys.executable, "-m", "kvscope.benchmarks.export", "--one", name, str(path)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            alone = alone or found["peak"]
            ratio = found["rate"] / found["baseline"] if found["baseline"] else None
            gate = SPEED_GATE if ratio and name not in ("query", "parquet") else None
            rows.append({"name": f"{name}, speed", "value": found["rate"], "unit": "events/s",
                         "baseline": found["baseline"], "ratio": ratio, "gate": gate,
                         "ok": None if gate is None or ratio is None else ratio >= gate})  # fmt: skip
            peak = found["peak"]
            rows.append({"name": f"{name}, memory", "value": peak, "unit": "bytes", "baseline": alone,
                         "ratio": peak / alone, "gate": MEMORY_GATE, "ok": peak <= MEMORY_GATE})  # fmt: skip
    return rows


def main() -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--one", nargs=2, metavar=("NAME", "TRACE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], Path(options.one[1]))))
        return 0
    rows = measure(options.events)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            ratio = f"{row['ratio']:8.2f} x" if row["ratio"] else " " * 10
            gate = "" if row["gate"] is None else f"  gate {row['gate']:g}  {'ok' if row['ok'] else 'MISSED'}"
            print(f"{row['name']:20} {row['value']:15,.0f} {row['unit']:9}{ratio}{gate}")
    return 0 if all(row["ok"] is not False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
