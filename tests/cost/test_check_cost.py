"""Checking stays near its budget, as ratios to baselines of the same process.

The budgets themselves are the gates of `kvscope bench sanitizer` and `kvscope bench provenance`. Here the cost beside
an engine may be missed by half, and a whole trace must be checked many times as fast as it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvscope.benchmarks import provenance, sanitizer
from kvscope.traces import compiled

SLACK = 1.5


def best(measure: Callable[[], list[dict[str, Any]]], good: Callable[[float], bool]) -> list[float]:
    """The ratios of the rows: of the first of three runs in which the first is good, else of the last."""
    found: list[float] = []
    for _ in range(3):  # a busy neighbour can spoil a run, never make one
        found = [row["ratio"] for row in measure()]
        if good(found[0]):
            break
    return found


def test_a_trace_is_checked_much_faster_than_it_is_replayed() -> None:
    """5 M events a second, where a replay does 0.2 M; by columns 25 to 40 times."""
    least = 60 if compiled.used() else 12
    whole, columns = best(lambda: sanitizer.offline(60_000), lambda ratio: ratio >= least)
    assert whole >= least
    assert columns >= 12


def test_so_is_one_in_which_events_were_lost() -> None:
    if not compiled.used():
        pytest.skip("the part in C was not built here: such a trace is replayed")
    (ratio,) = best(lambda: sanitizer.offline_with("a gap", 60_000), lambda ratio: ratio >= 50)
    assert ratio >= 50


@pytest.mark.parametrize("width", [64, 1])
def test_the_sanitizer_beside_an_engine_costs_no_more_than_recording(width: int) -> None:
    if not compiled.used():
        pytest.skip("the part in C was not built here: the budget is that of the screen in C")
    steps = 150 if width == 64 else 1500
    (ratio,) = best(lambda: sanitizer.online(width, steps, every=None), lambda ratio: ratio <= SLACK)
    assert ratio <= SLACK * sanitizer.ONLINE_GATE


def test_shadow_words_are_compared_faster_than_one_by_one() -> None:
    """30 ns a slot, where a loop takes 35 to 40."""
    (ratio,) = best(lambda: provenance.per_slot()[:1], lambda ratio: ratio <= 0.85)
    assert ratio <= 0.85
