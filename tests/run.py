"""Runs every suite in its own process and fails if one of them ran nothing.

Usage: python tests/run.py [SUITE ...] [-- PYTEST ARGUMENTS]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

TESTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Suite:
    """One pytest process: a folder, and what its environment needs."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    spread: bool = False  # over the cores; not where times are looked at


# Small tensors gain nothing from a second thread, and lose much on a machine that is busy.
SINGLE = {"OMP_NUM_THREADS": "1"}

SUITES = (
    Suite("unit", SINGLE, spread=True),
    Suite("golden", SINGLE),
    Suite("property", SINGLE, spread=True),
    Suite("races", SINGLE, spread=True),
    Suite("kernels", SINGLE, spread=True),
    Suite("quality", SINGLE, spread=True),
    Suite("cost", SINGLE),
    Suite("browser", SINGLE),
)
GPU = Suite("gpu")


def run(suite: Suite, extra: list[str]) -> tuple[int, dict[str, int]]:
    """The exit status of one suite and its counts."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", str(TESTS / suite.name), f"--junitxml={report}", *extra]
        workers = min(os.cpu_count() or 1, 4)
        if suite.spread and workers > 1:
            command += ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]
        status = subprocess.run(command, cwd=TESTS.parent, env={**os.environ, **suite.environment}, check=False)
        counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
        if report.exists():
            for element in ElementTree.parse(report).iter("testsuite"):
                for key in counts:
                    counts[key] += int(element.get(key, 0))
    return status.returncode, counts


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    wanted, extra = arguments[:split], arguments[split + 1 :]
    unknown = set(wanted) - {suite.name for suite in (*SUITES, GPU)}
    if unknown:
        print(f"no such suite: {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SUITES)}")
        return 2
    found = {folder.name for folder in TESTS.iterdir() if folder.is_dir() and any(folder.glob("test_*.py"))}
    forgotten = found - {suite.name for suite in (*SUITES, GPU)}
    if forgotten:
        print(f"test folders that no suite runs: {', '.join(sorted(forgotten))}")
        return 1
    passed = failed = skipped = 0
    bad: list[str] = []
    has_gpu = shutil.which("nvidia-smi") is not None
    for suite in (*SUITES, GPU):
        if wanted and suite.name not in wanted:
            continue
        if suite is GPU and not has_gpu:
            print("\n== gpu: not run, this machine has no NVIDIA GPU ==", flush=True)
            continue
        print(f"\n== {suite.name} ==", flush=True)
        start = time.perf_counter()
        status, counts = run(suite, extra)
        broken = counts["failures"] + counts["errors"]
        done = counts["tests"] - broken - counts["skipped"]
        print(f"== {suite.name}: {done} passed, {broken} failed in {time.perf_counter() - start:.0f} s", flush=True)
        if status != 0 or done == 0:
            bad.append(f"{suite.name} ({'no test ran' if done == 0 else f'exit {status}'})")
        passed, failed, skipped = passed + done, failed + broken, skipped + counts["skipped"]
    if bad:
        print(f"\nfailed: {', '.join(bad)}")
        failed = max(failed, 1)
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
