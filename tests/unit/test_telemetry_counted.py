"""Counts and block times folded from a growing trace are those of the whole trace, however it is cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.inspector.measures import summary
from kvscope.inspector.telemetry.counted import Counted
from kvscope.traces import EVENT_DTYPE, Kind, open_trace

KINDS = [Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.WRITE, Kind.FREE, Kind.SETTLE, Kind.EVICT, Kind.RELEASE, Kind.COW]


def folded(events: np.ndarray, cuts: list[int]) -> Counted:
    counted = Counted()
    for part in np.split(events, sorted(min(cut, len(events)) for cut in cuts)):
        counted.add(part)
    return counted


def same(a: Counted, b: Counted) -> bool:
    return all(
        (x.counts == y.counts).all() and x.total_s == pytest.approx(y.total_s)
        for x, y in ((a.lifetime, b.lifetime), (a.idle_before_evict, b.idle_before_evict), (a.reuse_gap, b.reuse_gap))
    ) and bool((a.kinds == b.kinds).all() and (a.reasons == b.reasons).all())


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(-1, 4), st.integers(0, 10**9)), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_any_cut_folds_to_the_same(rows: list[tuple[Kind, int, int]], cuts: list[int]) -> None:
    events = np.zeros(len(rows), EVENT_DTYPE)
    for i, (kind, block, _) in enumerate(rows):
        events[i]["kind"], events[i]["block"] = kind, block
    events["t_ns"] = np.cumsum([later for _, _, later in rows]) if rows else []
    assert same(folded(events, cuts), folded(events, []))


def test_times_are_those_of_the_summary(toy_traces: dict[str, Path]) -> None:
    trace = open_trace(toy_traces["clean"])
    counted, measured = folded(trace.events, [100, 700]), summary(trace)
    for histogram, name in (
        (counted.lifetime, "lifetime_s"), (counted.idle_before_evict, "idle_before_evict_s"),
        (counted.reuse_gap, "reuse_gap_s"),
    ):  # fmt: skip
        assert int(histogram.counts.sum()) == measured[name]["count"]
        if measured[name]["count"]:
            assert histogram.total_s == pytest.approx(measured[name]["mean"] * measured[name]["count"])
