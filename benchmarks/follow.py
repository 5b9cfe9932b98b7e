"""A reader that follows a writer in another process: `python -m kvscope.benchmarks.trace --follow SECONDS`.

The writer is paced to a million events per second. The reader looks at every row, in the columns that it needs, as soon
as it is there; each must come once, in order, with the value that belongs to its number.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace

RATE = 1_000_000
RUN = 1_000


def write(path: Path, seconds: float, rate: int = RATE) -> None:
    """Record `seconds` of events, RUN at a time."""
    block = np.arange(RUN, dtype=np.int32) % 64
    number = np.arange(RUN, dtype=np.int64)
    start = time.monotonic()
    with Recorder(path, pool=PoolFacts(64, 16)) as sink:
        for run in range(int(seconds * rate / RUN)):
            sink.begin()
            sink.emit_many(Kind.FREE, block=block, aux=number * 7)
            number += RUN
            ahead = start + (run + 1) * RUN / rate - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)


def follow(seconds: float, rate: int = RATE) -> dict[str, Any]:
    """Follow a writer of its own process to the end.

    Returns:
        `events` read, `wrong` ones (missing, twice, or with a foreign value), `looks`, `rate` in events per second as
        the reader saw them, and `lag_rows`, the most rows that one look brought.
    """
    folder = Path(tempfile.mkdtemp(prefix="kvscope-bench-"))
    path = folder / "live.kvtrace"
    child = os.fork()
    if not child:
        try:
            write(path, seconds, rate)
        finally:
            os._exit(0)
    try:
        while not (path / "manifest.json").exists():
            time.sleep(0.001)
        return _follow(open_trace(path))
    finally:
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        shutil.rmtree(folder)


def _follow(trace: TraceReader) -> dict[str, Any]:
    seen = wrong = looks = most = 0
    start = time.monotonic()
    while True:
        last = trace.clean
        found = trace.columns(("seq", "aux"), seen)
        fresh = len(found["seq"])
        expected = np.arange(seen, seen + fresh)
        wrong += int(np.count_nonzero((found["seq"] != expected) | (found["aux"] != expected * 7)))
        seen, looks, most = seen + fresh, looks + 1, max(most, fresh)
        if last:
            break
        if not trace.refresh() and not trace.clean:
            time.sleep(0.002)
    wrong += int(trace.missing)
    took = time.monotonic() - start
    return {"events": seen, "wrong": wrong, "looks": looks, "rate": seen / took, "lag_rows": most}
