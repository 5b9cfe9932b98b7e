"""`kvscope serve` as a process of its own, for benchmarks: on a free port, ended with the block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kvscope.benchmarks.children import child
from kvscope.errors import KVScopeError


class BenchmarkFailed(KVScopeError):
    """What was to be measured did not run."""


class Served:
    """A running server: where it is, and what it says of itself."""

    def __init__(self, process: subprocess.Popen[str], base: str) -> None:
        self.process, self.base = process, base

    def get(self, path: str) -> Any:
        """The JSON of a route."""
        with urllib.request.urlopen(f"{self.base}{path}", timeout=60) as answer:
            return json.loads(answer.read())

    def idle(self, seconds: float = 120) -> dict[str, Any]:
        """The pool's state once nothing runs."""
        end = time.monotonic() + seconds
        while True:
            state: dict[str, Any] = self.get("/debug/kv/state")
            if not state["requests"] and self.get("/healthz")["requests"] == 0:
                return state
            if time.monotonic() > end:
                raise BenchmarkFailed(
                    f"the server is still busy after {seconds:g} s: {len(state['requests'])} requests"
                )
            time.sleep(0.05)

    def resident_bytes(self) -> int:
        """Memory of the process."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Processor time of the process so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: object, *options: object, environ: dict[str, str] | None = None) -> Iterator[Served]:
    """Start it and wait until it answers; SIGTERM at the end, and what it says then goes to standard error."""
    start = [sys.executable, "-c", "from kvscope.inspector.cli import main; main()"]
    command = [*start, "serve", str(model), "--port", "0", "--debug-routes", *map(str, options)]
    environment = {**os.environ, **(environ or {})}
    said: list[str] = []
    with child(command, patience_s=120, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        line = ""
        while "http://" not in line:
            line = process.stderr.readline()
            said.append(line)
            if not line:
                raise BenchmarkFailed(f"the server did not start: {' '.join(''.join(said).split())}")
        base = line.split(" on ")[1].split("/v1")[0]
        threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True).start()
        yield Served(process, base)


def said_no_finding(paths: Sequence[Any]) -> list[str]:
    """What a check of these traces finds, one line each."""
    from kvscope.inspector.findings import check
    from kvscope.traces import open_trace

    return [f"{path}: {f.code} {f.title}" for path in paths for f in check(open_trace(path)).findings]
