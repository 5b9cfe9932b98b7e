"""What looking at a long trace costs: `kvscope bench replay [--events N] [--json]`.

The trace is made first (in a temporary folder, or kept with --keep) and is the same for equal arguments: 512 sequences
decode on a pool of 65,536 blocks, half of them forks that share their prompt. Each figure is processor time of this
process, best of three, beside reading the same columns of the same trace with pyarrow alone; nothing is held in
memory between two of them. `peak memory` is that of a process of its own which opens, draws and seeks.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.benchmarks import long_trace
from kvscope.benchmarks.shown import gated, row, show
from kvscope.inspector.overview import overview
from kvscope.inspector.state import holders, sequence_blocks, state_at
from kvscope.traces import TraceReader, open_trace

EVENTS = 10_000_000
SEEKS = 40
MOST_BYTES, KEYFRAME_BYTES = 6, 160 << 20  # on disk: of an event, of keyframes and the hot tail
DRAW_S, SEEK_MS, MEMORY_MIB = 1.0, 20.0, 1024.0
COLUMNS = ("kind", "block", "gen", "ref_after", "t_ns")


def seconds(body: Callable[[], Any], times: int = 3) -> float:
    """Least processor time of some runs."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        body()
        best = min(best, time.process_time() - start)
    return best


def with_pyarrow(path: Path) -> int:
    """The same columns, read by Arrow's own reader, without checksums: the baseline."""
    import pyarrow as pa

    names = pa.ipc.open_stream(path / "events-00000.arrows").schema.names
    options = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in COLUMNS], use_threads=False)
    segments = sorted(path.glob("events-*.arrows"))
    return sum(pa.ipc.open_stream(pa.memory_map(str(name)), options=options).read_all().num_rows for name in segments)


def seek_ms(trace: TraceReader) -> float:
    """The median of some seeks to random events; what the first one prepares has been paid."""
    rng = np.random.default_rng(1)
    taken = []
    for seq in rng.integers(0, trace.rows, SEEKS).tolist():
        start = time.process_time()
        state_at(trace, seq)
        taken.append((time.process_time() - start) * 1e3)
    return float(np.median(taken))


def first_seek(path: Path) -> None:
    """A seek in a trace that nobody has sought in: all keyframes are made."""
    (path / "keyframes.bin").unlink(missing_ok=True)
    state_at(open_trace(path), 0)


def peak_mib(path: Path) -> float:
    """Peak memory of a process that opens the trace, draws it and seeks in it."""
    command = [sys.executable, "-m", "kvscope.benchmarks.replay", "--look", str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def look(path: Path) -> float:
    """Open, draw, seek; returns the peak memory of this process in MiB."""
    trace = open_trace(path)
    overview(trace)
    state_at(trace, trace.rows // 2)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rows_of(path: Path, events: int) -> list[dict[str, Any]]:
    """All figures of a trace; gates hold for 10 million events, so they are left out for a longer one."""
    gate = None if events > 1.01 * EVENTS else 1.0
    base = seconds(lambda: with_pyarrow(path))
    size = sum(file.stat().st_size for file in path.iterdir() if file.suffix in (".arrows", ".index"))
    prepare = seconds(lambda: first_seek(path), 1)
    trace = open_trace(path)
    state_at(trace, 0)
    middle = trace.rows // 2
    some = int(trace.columns(("seq_id",), middle, middle + 2000)["seq_id"].max())
    return [
        row("events", events, "events"),
        row("on disk", size / events, "bytes/event"),
        row("on disk in all, keyframes included", sum(f.stat().st_size for f in path.iterdir()) / 2**20, "MiB"),
        row("the columns drawn, by pyarrow alone", base, "s"),
        row("open, checksums checked", seconds(lambda: open_trace(path)), "s"),
        gated("open and draw occupancy, sharing, refcounts", seconds(lambda: overview(open_trace(path))), "s",
              base, gate and DRAW_S),
        row("make and keep the keyframes, once", prepare, "s"),
        gated("seek to any event, 65,536 blocks", seek_ms(trace), "ms", None, gate and SEEK_MS),
        row("holders of a block", seconds(lambda: holders(trace, 77, middle), 1) * 1e3, "ms"),
        row("blocks of a sequence", seconds(lambda: sequence_blocks(trace, some, middle), 1) * 1e3, "ms"),
        gated("peak memory", peak_mib(path), "MiB", None, gate and MEMORY_MIB),
    ]  # fmt: skip


def run(events: int = EVENTS, keep: Path | None = None) -> list[dict[str, Any]]:
    """Make the trace (unless `keep` holds it) and measure."""
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
        path = keep or Path(folder) / "long.kvtrace"
        need, there = MOST_BYTES * events + KEYFRAME_BYTES, shutil.disk_usage(path.parent).free
        if not path.exists() and need > there:
            raise SystemExit(
                f"a trace of {events:,} events takes up to {need >> 20:,} MiB: {there >> 20:,} MiB are free"
            )
        start = time.process_time()
        made = None if path.exists() else long_trace.make(path, events)
        spent = time.process_time() - start
        count = made or open_trace(path).rows
        rows = rows_of(path, count)
        if made:
            rows.insert(2, row("record it, per event", spent / made * 1e9, "ns"))
        return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.replay", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"events of the trace (default {EVENTS:,})")
    parser.add_argument("--keep", type=Path, help="where to keep the trace; used again if it is there")
    parser.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.look is not None:
        print(look(options.look))
        return 0
    rows = run(options.events, options.keep)
    show(rows, as_json=options.json)
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
