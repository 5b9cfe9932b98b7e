"""A growing trace, followed: the same pool and the same measures as looking at it whole, and a past of bounded size."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.inspector.following import POINTS, Follower, thinned
from kvscope.inspector.measures import MEASURES, series
from kvscope.inspector.state import state_at
from kvscope.traces import PoolFacts, Recorder, open_trace
from kvscope.traces.schema import Kind


def _same(moment: Any, path: Path) -> None:
    trace = open_trace(path)
    state, measured = state_at(trace, moment.seq), series(trace)
    for name in ("state", "gen", "entries", "lost", "leases", "fill", "published", "writing", "last_seq"):
        assert np.array_equal(getattr(moment.pool, name), getattr(state, name)), name
    for name in set(MEASURES) & set(moment.past):
        last = float(getattr(measured, name)[-1])
        assert moment.now(name) == (None if np.isnan(last) else pytest.approx(last)), name
    assert moment.cow_copies == measured.cow_copies[-1]
    assert moment.hit_tokens == measured.prefix_hit_tokens[-1]
    assert moment.query_tokens == measured.prefix_query_tokens[-1]


def test_every_look_is_what_the_whole_trace_says(toy_engine: Any, tmp_path: Path) -> None:
    path = tmp_path / "live.kvtrace"
    with Recorder(path, pool=PoolFacts(32, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=32, block_size=16)
        toy_engine.workload(engine)
        reader = open_trace(path)
        follower = Follower(reader)
        assert follower.look().rows == reader.rows
        while engine.scheduler.has_work:
            engine.step()
            reader.refresh()
            moment = follower.look()
            _same(moment, path)
            assert moment.running == len(engine.scheduler.running)
    assert moment.counts["finish"] == 11
    assert (np.diff(moment.past["seq"]) >= 0).all()
    assert len(moment.past["seq"]) <= POINTS


def test_nothing_new_changes_nothing(toy_traces: dict[str, Path]) -> None:
    follower = Follower(open_trace(toy_traces["clean"]))
    first, second = follower.look(), follower.look()
    assert first.rows == second.rows
    assert np.array_equal(first.past["seq"], second.past["seq"])
    _same(second, toy_traces["clean"])


def test_empty_trace_has_nothing_to_show(tmp_path: Path) -> None:
    with Recorder(tmp_path / "empty.kvtrace", pool=PoolFacts(8, 4)):
        moment = Follower(open_trace(tmp_path / "empty.kvtrace")).look()
    assert (moment.rows, moment.seq, moment.now("free")) == (0, -1, None)


def test_past_of_the_run_before_stays_behind_a_gap(toy_traces: dict[str, Path]) -> None:
    first = Follower(open_trace(toy_traces["missing-copy"]), 10**9)
    before = first.look()
    second = Follower(open_trace(toy_traces["clean"]), 3 * 10**9, before=first)
    moment = second.look()
    (gap,) = np.flatnonzero(np.isnan(moment.past["seq"]))
    assert np.array_equal(moment.past["wall_s"][:gap][:5], before.past["wall_s"][:5])
    assert moment.past["wall_s"][gap + 1] >= 3.0
    assert moment.restarts == 1
    _same(moment, toy_traces["clean"])


def test_lost_events_are_a_gap_in_the_curves(tmp_path: Path) -> None:
    path = tmp_path / "gap.kvtrace"
    with Recorder(path, pool=PoolFacts(8, 4)) as sink:
        sink.begin()
        sink.emit(Kind.ALLOC, block=0, gen=1, ref_before=0, ref_after=1, fill=0, seq_id=1, lblock=0)
        sink.emit(Kind.GAP, aux=5)
        sink.emit(Kind.ALLOC, block=1, gen=1, ref_before=0, ref_after=1, fill=0, seq_id=1, lblock=1)
        moment = Follower(open_trace(path)).look()
    assert np.isnan(moment.past["seq"]).sum() == 1
    assert moment.now("private") == 2


def _held(past: dict[str, np.ndarray], name: str, at: np.ndarray) -> np.ndarray:
    """A curve at some times: each value stands until the next point."""
    return past[name][np.searchsorted(past["wall_s"], at, side="right") - 1]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 60)), min_size=60, max_size=120),
    st.sampled_from([1, 4, 30]),
    st.integers(0, 9),
)
def test_what_stood_is_drawn_as_it_stood(bursts: list[tuple[float, int]], parts: int, seed: int) -> None:
    """Bursts with quiet times between them, thinned again and again: no long quiet time shows a value that passed."""
    begins = np.cumsum([wait + 1e-3 for wait, _ in bursts])
    wall_s = np.repeat(begins, [40 * count for _, count in bursts])
    values = np.random.default_rng(seed).integers(0, 50, len(wall_s)).astype(float)
    whole = dict.fromkeys(("free", "shared", "sharing_factor", "tail_waste", "private"), values)
    whole |= {"wall_s": wall_s, "seq": np.arange(len(wall_s), dtype=float)}
    small = {name: column[:0] for name, column in whole.items()}
    for rows in np.array_split(np.arange(len(wall_s)), parts):
        small = thinned({name: np.append(small[name], column[rows]) for name, column in whole.items()})
    assert len(small["seq"]) <= POINTS
    total = begins[-1] - begins[0]
    quiet = np.flatnonzero(np.diff(begins) > total / 100)
    middle = (begins[quiet] + begins[quiet + 1]) / 2
    for name in ("private", "free"):
        np.testing.assert_array_equal(_held(small, name, middle), _held(whole, name, middle))


def test_speed_of_an_engine_that_rests_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(open_trace(Path(__file__).parents[2] / "traces/samples/leak.kvpack"))
    moment = follower.look()
    assert moment.tokens_per_s is not None
    assert moment.tokens_per_s > 0
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    moment = follower.look()
    assert (moment.tokens_per_s, moment.idle_s > 50) == (0.0, True)


def test_thinning_keeps_peaks_ends_and_gaps() -> None:
    count = 20_000
    chance = np.random.default_rng(3)
    past = {name: chance.random(count) for name in ("free", "shared", "sharing_factor", "tail_waste")}
    past["seq"], past["wall_s"] = np.arange(count, dtype=float), np.arange(count) * 0.01
    for name in past:
        past[name][7_777] = np.nan
    past["free"][12_345], past["tail_waste"][54] = 9.0, -3.0
    small = thinned(past)
    assert len(small["seq"]) <= POINTS
    assert {0, 54, 12_345, count - 1} <= set(np.nan_to_num(small["seq"], nan=-1).astype(int).tolist())
    assert np.isnan(small["seq"]).sum() == 1
    again = thinned({name: np.concatenate([values, values]) for name, values in small.items()})
    assert again["free"][~np.isnan(again["free"])].max() == 9.0
