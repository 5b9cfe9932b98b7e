"""A reader that follows a writer in another process: `kvscope bench follow [--seconds N] [--rate N]`.

The writer is paced to a million events per second; on a machine that is busy with other things it may fall behind its
pace, so the reader is judged beside what the writer did. The reader looks at every row, in the columns that it needs,
as soon as it is there; each must come once, in order, with the value that belongs to its number.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.benchmarks.shown import positive, progress_of, row, show
from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace

RATE = 1_000_000
RUN = 1_000


def write(path: Path, seconds: float, rate: int = RATE) -> float:
    """Record `seconds` of events, RUN at a time; returns how long it took until the last was acknowledged."""
    block = np.arange(RUN, dtype=np.int32) % 64
    number = np.arange(RUN, dtype=np.int64)
    with Recorder(path, pool=PoolFacts(64, 16)) as sink:
        start = time.monotonic()
        for run in range(int(seconds * rate / RUN)):
            sink.begin()
            sink.emit_many(Kind.FREE, block=block, aux=number * 7)
            number += RUN
            ahead = start + (run + 1) * RUN / rate - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)
        return time.monotonic() - start


def follow(seconds: float, rate: int = RATE, progress: Callable[[int], None] | None = None) -> dict[str, Any]:
    """Follow a writer of its own process to the end.

    Returns:
        `events` read, `wrong` ones (missing, twice, or with a foreign value), `looks`, `writer_rate` and `rate` in
        events per second of the writer and as the reader saw them, `reader_ns`, the reader's processor time per event,
        and `lag_rows`, the most rows that one look brought.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvscope-bench-"))
    path = folder / "live.kvtrace"
    child = os.fork()
    if not child:
        try:
            (folder / "took").write_text(str(write(path, seconds, rate)))
        finally:
            os._exit(0)
    try:
        while not (path / "manifest.json").exists():
            if os.waitpid(child, os.WNOHANG) != (0, 0):
                child = 0
                raise SystemExit("the writer did not come up")
            time.sleep(0.001)
        found = _follow(open_trace(path), progress)
        os.waitpid(child, 0)
        child = 0
        return found | {"writer_rate": found["events"] / float((folder / "took").read_text())}
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        shutil.rmtree(folder)


def _follow(trace: TraceReader, progress: Callable[[int], None] | None) -> dict[str, Any]:
    seen = wrong = looks = most = 0
    start, spent = time.monotonic(), time.process_time()
    while True:
        last = trace.clean
        found = trace.columns(("seq", "aux"), seen)
        fresh = len(found["seq"])
        expected = np.arange(seen, seen + fresh)
        wrong += int(np.count_nonzero((found["seq"] != expected) | (found["aux"] != expected * 7)))
        seen, looks, most = seen + fresh, looks + 1, max(most, fresh)
        if progress is not None:
            progress(seen)
        if last:
            break
        if not trace.refresh() and not trace.clean:
            time.sleep(0.002)
    took, spent = time.monotonic() - start, time.process_time() - spent
    wrong += int(trace.missing)
    return {"events": seen, "wrong": wrong, "looks": looks, "rate": seen / took, "lag_rows": most,
            "reader_ns": spent / max(seen, 1) * 1e9}  # fmt: skip


def rows_of(seconds: float, rate: int, progress: Callable[[int], None] | None = None) -> list[dict[str, Any]]:
    """The figures; nothing may be missed, repeated or changed, and one core must do for the reader."""
    found = follow(seconds, rate, progress)
    return [
        row("events followed", found["events"], "events"),
        row("events missed, repeated or changed", found["wrong"], "events", gate=0.0),
        row("events written per second", found["writer_rate"], "events/s", float(rate)),
        row("events followed per second", found["rate"], "events/s", found["writer_rate"]),
        row("reader's processor time per event", found["reader_ns"], "ns", gate=1e9 / rate),
        row("most rows of one look", found["lag_rows"], "events"),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench follow", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--seconds", type=positive, default=60.0, help="how long the writer writes (default 60)")
    parser.add_argument("--rate", type=int, default=RATE, help=f"events per second (default {RATE:,})")
    options = parser.parse_args(arguments)
    total = options.seconds * options.rate
    rows = rows_of(options.seconds, options.rate, progress_of("followed", total) if sys.stderr.isatty() else None)
    show(rows, as_json=options.json)
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
