"""Looking at a long trace stays near its budget, as ratios within one process: `kvscope bench replay` has the budgets.

The trace is a tenth as long as there, and each ratio may be two and a half times what it is on an idle machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.benchmarks import long_trace, replay
from kvscope.inspector.measures import summary
from kvscope.inspector.overview import overview
from kvscope.traces import open_trace

EVENTS = 1_100_000  # more than are decoded whole


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("long") / "a.kvtrace"
    long_trace.make(made, EVENTS)
    return made


def test_drawing_and_seeking_are_near_their_budgets(path: Path) -> None:
    trace = open_trace(path)
    assert trace.long
    replay.seek_ms(trace)  # makes the keyframes
    drawn, sought, measured = float("inf"), float("inf"), float("inf")
    for _ in range(3):  # a busy neighbour can spoil a run, never make one
        base = replay.seconds(lambda: replay.with_pyarrow(path), 3)
        drawn = min(drawn, replay.seconds(lambda: overview(open_trace(path)), 1) / base)
        sought = min(sought, replay.seek_ms(trace) / 1e3 / base)
        measured = min(measured, replay.seconds(lambda: summary(open_trace(path)), 1) / base)
    assert drawn <= 45
    assert sought <= 4
    assert measured <= 250


def test_memory_does_not_grow_with_the_trace(path: Path) -> None:
    assert replay.peak_mib(path) <= 512
