"""Cells side by side, one process each."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.simulate.cells import Cell, simulate
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.tally import Outcome
from kvscope.inspector.workloads import Workload

MAX_JOBS = 256
_LOOK_S = 0.2

_workload: Workload | None = None  # of a worker process


def simulate_side_by_side(
    workload: Workload,
    cells: Sequence[tuple[Cell, Path | None]],
    settings: Settings,
    *,
    jobs: int,
    stop: Callable[[], bool],
    overwrite: bool = False,
    drive: bool = False,
) -> Iterator[Outcome]:
    """The rows of some cells (each with the folder of its trace, or None), in their order.

    Raises:
        KeyboardInterrupt: `stop` said so; the processes are ended.
        UsageError: `jobs` makes no sense, or a cell's settings do not.
    """
    if not 1 <= jobs <= MAX_JOBS:
        raise UsageError(f"jobs is {jobs}: must be 1..{MAX_JOBS}")
    # A forked process has the workload already; elsewhere than on Linux it is sent to each.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with context.Pool(min(jobs, len(cells)), initializer=_start, initargs=(workload,)) as pool:
        rows = pool.imap(partial(_run, settings=settings, overwrite=overwrite, drive=drive), cells)
        for _ in cells:
            while True:
                if stop():
                    raise KeyboardInterrupt
                try:
                    yield rows.next(timeout=_LOOK_S)
                    break
                except multiprocessing.TimeoutError:
                    continue


def _start(workload: Workload) -> None:
    global _workload
    _workload = workload
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C, and ends this process


def _run(job: tuple[Cell, Path | None], *, settings: Settings, overwrite: bool, drive: bool) -> Outcome:
    cell, trace = job
    assert _workload is not None
    return simulate(_workload, cell, settings, trace=trace, overwrite=overwrite, drive=drive)
