"""Refreshes of the live page in a real browser: `kvscope bench frames [--blocks N ...] [--seconds N] [--minutes N]`.

A writer of its own turns 64 blocks over fifty times a second; the dashboard's server follows it, and Chromium, headless
and without a graphics card, looks at its live page. A refresh counts when the map shows a later event than before. The
longest task is that of the browser's own trace which took most processor time of the page's main thread. By the clock a
task takes also what other programs take from it: that is told beside it (`PerformanceObserver`, from 50 ms on; 0 where
there was none). Bytes are those of the page's WebSocket. Beside it, on the same trace: a Plotly heatmap in a refreshing
fragment, as the shortest dashboard would have it. With `--minutes` the memory of page and server is told as it goes,
and tasks are looked at for ten seconds each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvscope.benchmarks.children import child
from kvscope.benchmarks.program import as_program
from kvscope.benchmarks.shown import gated, none_or_more, positive, row, show
from kvscope.errors import MissingDependency

BLOCKS = (1 << 17, 1 << 20)
GOALS = {1 << 17: 5.0, 1 << 20: 1.0}  # refreshes a second
LONGEST_MS, MOST_BYTES = 100.0, 300_000
TRACED_S = 10.0  # of a trace of the browser, which grows with time
SECONDS = 20.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--enable-precise-memory-info"]  # fmt: skip
PLAIN = Path(__file__).with_name("frames_plotly.py")
_SETTLE_S = 4.0
# Counts changes of the element's event, looked at whenever the page is drawn, and notes the longest task.
_WATCH = """selector => {
  const seen = { frames: 0, longest: 0, last: '' };
  window.kvSeen = seen;
  new PerformanceObserver(list => {
    for (const e of list.getEntries()) seen.longest = Math.max(seen.longest, e.duration);
  }).observe({ type: 'longtask' });
  const find = root => root.querySelector(selector)
    || [...root.querySelectorAll('*')].map(e => e.shadowRoot && find(e.shadowRoot)).find(Boolean);
  let found = null;
  const look = () => {
    if (!found || !found.isConnected) found = find(document);
    const now = found ? found.dataset.seq : '';
    if (now && now !== seen.last) { seen.last = now; seen.frames += 1; }
    requestAnimationFrame(look);
  };
  look();
}"""


@dataclass
class Seen:
    """What a page did for a while."""

    per_s: float
    longest_ms: float  # of processor time
    clock_ms: float  # the longest by the clock
    bytes_each: float
    most_bytes: float
    server_cpu: float  # cores
    memory: list[tuple[float, float, float]] = field(default_factory=list)  # (s, page MiB, server MiB)


def process(argv: list[str]) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A program that is ended with this one."""
    return child(argv, patience_s=30, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """The system's Chromium, or the one that Playwright has installed."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise MissingDependency("this benchmark looks through a browser: pip install playwright") from None
    path = next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        except Error as error:
            raise MissingDependency(f"no Chromium to look through: {str(error).splitlines()[0]}") from None
        yield browser
        browser.close()


def watch(browser: Any, argv: list[str], port: int, link: str, selector: str, seconds: float, every_s: float) -> Seen:
    """Serve, look at the page for `seconds`, and tell what was seen; memory every `every_s`, 0 for never."""
    from kvscope.dashboard.launch import wait_until_healthy

    with process(argv) as server:
        wait_until_healthy(server, "127.0.0.1", port)
        page = browser.new_page(viewport={"width": 1366, "height": 900})
        sizes: list[int] = []
        page.on("websocket", lambda ws: ws.on("framereceived", lambda data: sizes.append(len(data))))
        page.goto(link)
        page.wait_for_selector(f"{selector}[data-seq]", state="attached", timeout=120_000)
        page.wait_for_timeout(_SETTLE_S * 1e3)  # what loads once does not count
        page.evaluate(_WATCH, selector)
        sizes.clear()
        cpu, start, memory, due, longest = cpu_s(server.pid), time.monotonic(), [], 0.0, 0.0
        while (now := time.monotonic() - start) < seconds:
            if not every_s:
                longest = max(longest, traced(browser, page, min(seconds - now, TRACED_S)))
            elif now < due:
                page.wait_for_timeout(250)
            else:
                longest = max(longest, traced(browser, page, min(TRACED_S, every_s / 2)))
                page.request_gc()  # what is left then is kept
                memory.append(
                    (now, page.evaluate("performance.memory.usedJSHeapSize") / 2**20, resident_mib(server.pid))
                )
                said = f"{now / 60:6.1f} min  page {memory[-1][1]:7.1f} MiB  server {memory[-1][2]:7.1f} MiB"
                print(f"{said}  longest task so far {longest:.0f} ms", file=sys.stderr, flush=True)
                due += every_s
        took, seen = time.monotonic() - start, page.evaluate("window.kvSeen")
        used = cpu_s(server.pid) - cpu
        page.close()
    frames = max(int(seen["frames"]), 1)
    return Seen(
        seen["frames"] / took, longest, float(seen["longest"]), sum(sizes) / frames, max(sizes, default=0),
        used / took, memory,
    )  # fmt: skip


def traced(browser: Any, page: Any, seconds: float) -> float:
    """The most processor time, in ms, that one task of the page's main thread takes in so many seconds."""
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    page.wait_for_timeout(seconds * 1e3)
    return longest_task_ms(json.loads(browser.stop_tracing())["traceEvents"])


def longest_task_ms(events: list[dict[str, Any]]) -> float:
    """Of a Chromium trace: the most processor time of one task on the main thread that had most to do."""
    named = {(e["pid"], e["tid"]) for e in events if e.get("name") == "thread_name"
             and e["args"]["name"] == "CrRendererMain"}  # fmt: skip
    spent: dict[tuple[int, int], list[float]] = {}
    for e in events:
        if e.get("name", "").endswith("RunTask") and (e["pid"], e["tid"]) in named:
            spent.setdefault((e["pid"], e["tid"]), []).append(e.get("tdur", 0) / 1e3)
    return max(max(spent.values(), key=sum), default=0.0) if spent else 0.0


def ours(browser: Any, path: Path, seconds: float, every_s: float = 0.0) -> Seen:
    """The dashboard's live page."""
    from kvscope.dashboard import launch

    port = free_port()
    return watch(
        browser, launch.command(path, port=port), port, launch.url(port=port, page="live"), ".map", seconds, every_s
    )


def plain(browser: Any, path: Path, seconds: float) -> Seen:
    """A Plotly heatmap of the same trace, asked to refresh as often."""
    port = free_port()
    argv = [sys.executable, "-m", "streamlit", "run", str(PLAIN), "--server.headless=true", f"--server.port={port}",
            "--server.address=127.0.0.1", "--server.fileWatcherType=none", "--browser.gatherUsageStats=false",
            "--logger.level=warning", "--", str(path)]  # fmt: skip
    return watch(browser, argv, port, f"http://127.0.0.1:{port}/", ".kv-frame", seconds, 0.0)


def resident_mib(pid: int) -> float:
    """Memory of a process, in MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def load(blocks: int) -> Iterator[Path]:
    """A trace that is being written, its pool filled."""
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
        path = Path(folder) / "frames.kvtrace"
        with process([sys.executable, "-m", "kvscope.benchmarks.frames_load", str(path), str(blocks)]):
            time.sleep(4.0)
            yield path


def rows_of(blocks: int, seconds: float, minutes: float) -> list[dict[str, Any]]:
    """The figures of a pool of that size."""
    with chromium() as browser, load(blocks) as path:
        if minutes:
            return soak_rows(blocks, ours(browser, path, minutes * 60, max(minutes * 60 / 30, 10.0)))
        base, found = plain(browser, path, seconds), ours(browser, path, seconds)
    name, goal = f"{blocks:,} blocks", GOALS.get(blocks)
    return [
        row(f"refreshes, {name}", found.per_s, "1/s", round(base.per_s, 3)) | {"gate": goal,
            "ok": None if goal is None else found.per_s >= goal},
        gated(f"longest browser task, {name}", found.longest_ms, "ms", base.longest_ms or None, LONGEST_MS),
        row(f"the longest by the clock, {name}", found.clock_ms, "ms", base.clock_ms or None),
        gated(f"bytes of a refresh, {name}", found.bytes_each, "B", base.bytes_each or None, MOST_BYTES),
        row(f"processor of the server, {name}", found.server_cpu, "cores", base.server_cpu or None),
    ]  # fmt: skip


def soak_rows(blocks: int, seen: Seen) -> list[dict[str, Any]]:
    """Memory over time: what it is after the first fifth, and at the end."""
    name, first = f"{blocks:,} blocks", seen.memory[len(seen.memory) // 5]
    last = seen.memory[-1]
    return [
        row(f"refreshes, {name}", seen.per_s, "1/s"),
        gated(f"longest browser task, {name}", seen.longest_ms, "ms", None, LONGEST_MS),
        row(f"the longest by the clock, {name}", seen.clock_ms, "ms"),
        row(f"page's memory at the end, {name}", last[1], "MiB", round(first[1], 1)),
        row(f"server's memory at the end, {name}", last[2], "MiB", round(first[2], 1)),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench frames", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--blocks", type=int, nargs="*", default=list(BLOCKS), help="sizes of the pool")
    parser.add_argument(
        "--seconds", type=positive, default=SECONDS, help=f"how long each page is watched (default {SECONDS:g})"
    )
    parser.add_argument(
        "--minutes", type=none_or_more, default=0.0, help="a soak instead: memory of page and server over time"
    )
    options = parser.parse_args(arguments)
    rows = [found for blocks in options.blocks for found in rows_of(blocks, options.seconds, options.minutes)]
    show(rows, as_json=options.json)
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(as_program(main))
