"""What the dashboard's replay pages cost on a long trace: `kvscope bench dashboard [--events N] [--keep DIR]`.

Streamlit's own test runner runs the app, without a browser; figures are processor time of the server's script. `first
picture` is everything from opening the trace until the occupancy chart and the two measures that come with it are on
the page, of a server that has shown another trace before; what a fresh one loads once on top is told apart. `scrub` is
the median of some moves to another event, each a whole run of the script.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from kvscope.benchmarks import long_trace
from kvscope.benchmarks.shown import gated, row, show

EVENTS, SHORT = 10_000_000, 10_000
FIRST_S, SCRUB_MS = 3.0, 150.0
SCRUBBED = ("overview", "blocks", "events", "sharing", "biography")
SCRUBS = 7


def measure(path: Path, events: int) -> list[dict[str, Any]]:
    """All figures of a trace."""
    from streamlit.testing.v1 import AppTest

    from kvscope.dashboard.launch import APP

    gate = None if events > 1.01 * EVENTS else 1.0
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
        short = Path(folder) / "short.kvtrace"
        long_trace.make(short, SHORT)
        sys.argv = [str(APP), "--trace", str(short)]
        start = time.process_time()
        _run(AppTest.from_file(str(APP), default_timeout=600))
        once = time.process_time() - start
    sys.argv = [str(APP), "--trace", str(path)]
    app = AppTest.from_file(str(APP), default_timeout=600)
    first = _first_picture(app)
    rows = [row(f"a fresh server, a trace of {SHORT:,} events", once, "s"),
            gated("first picture", first, "s", None, gate and FIRST_S)]  # fmt: skip
    start = time.process_time()
    _run(app)
    rows.append(row("then all measures, filled slots included", time.process_time() - start, "s"))
    for page in SCRUBBED:
        app.query_params["page"] = page
        app.query_params["block"] = "77"
        _run(app)
        taken = []
        for i in range(SCRUBS):
            app.query_params["seq"] = str((i * 2_654_435_761 + 12_345) % events)
            start = time.process_time()
            _run(app)
            taken.append((time.process_time() - start) * 1e3)
        rows.append(gated(f"scrub, page {page}", statistics.median(taken), "ms", None, gate and SCRUB_MS))
    rows.append(row("peak memory of the server", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"))
    return rows


def _first_picture(app: Any) -> float:
    """Processor time until the overview has its picture: the run is stopped where it would go on measuring."""
    import streamlit as st

    from kvscope.dashboard.views import overview

    taken: list[float] = []

    def stop(_: Any) -> None:
        taken.append(time.process_time())
        st.stop()

    start = time.process_time()
    with mock.patch.object(overview, "measure_all", stop):
        _run(app)
    return (taken[0] if taken else time.process_time()) - start


def _run(app: Any) -> None:
    app.run()
    if app.exception or any("failed" in e.value for e in app.error):
        raise SystemExit(f"the page failed: {[e.value for e in (*app.exception, *app.error)]}")


def run(events: int = EVENTS, keep: Path | None = None) -> list[dict[str, Any]]:
    """Make the trace (unless `keep` holds it) and measure."""
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
        path = keep or Path(folder) / "long.kvtrace"
        if not path.exists():
            long_trace.make(path, events)
        return measure(path, events)


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench dashboard", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--events", type=int, default=EVENTS, help=f"events of the trace (default {EVENTS:,})")
    parser.add_argument("--keep", type=Path, help="where to keep the trace; used again if it is there")
    options = parser.parse_args(arguments)
    rows = run(options.events, options.keep)
    show(rows, as_json=options.json)
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
