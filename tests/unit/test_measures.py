"""The measures, computed by hand for small traces."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.measures import COUNT_NAMES, decimate, series, summary
from kvscope.inspector.spans import block_times, mean_over_time, sequence_lengths, spread
from kvscope.inspector.state import state_at
from kvscope.traces.schema import Kind, Reason


def shared_tail() -> HandTrace:
    """Two sequences over one block of three tokens, then a copy on write."""
    trace = HandTrace(num_blocks=4, block_size=4, block_bytes=64)
    trace.alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).share(0, seq_id=2)
    trace.copy_on_write(0, 1, 3, seq_id=2).write(1, 3, 4, seq_id=2).copy_done(0, 1)
    return trace.release(1, seq_id=2).free(1)


def test_series_by_hand() -> None:
    s = series(shared_tail())
    # event        ALLOC WRITE SHARE | ALLOC LEASE COW RELEASE | WRITE DONE UNLEASE | RELEASE FREE
    assert s.private.tolist() == [1, 1, 0, 1, 1, 1, 2, 2, 2, 2, 1, 1]
    assert s.shared.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert s.free.tolist() == [3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 3, 3]
    assert s.table_entries.tolist() == [1, 1, 2, 3, 3, 3, 2, 2, 2, 2, 1, 1]
    assert s.filled_slots.tolist() == [0, 3, 3, 3, 3, 6, 6, 7, 7, 7, 3, 3]
    assert s.held_slots.tolist() == [4, 4, 4, 8, 8, 8, 8, 8, 8, 8, 4, 4]
    assert s.saved_blocks.tolist() == [0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert s.saved_bytes.max() == 64
    assert s.cow_copies.tolist() == [0] * 5 + [1] * 7
    assert s.tail_waste[[0, 1, 5, 7]].tolist() == [1.0, 0.25, 0.25, 0.125]
    assert s.utilization[7] == 7 / 8
    assert s.pool_utilization[7] == 7 / 16
    assert s.sharing_factor[[2, 5, 6]].tolist() == [2.0, 1.5, 1.0]


def test_the_states_add_up_and_agree_with_state_at() -> None:
    trace = shared_tail().alloc(1, seq_id=3).write(1, 0, 4, seq_id=3).publish(1).release(1, seq_id=3)
    trace.hit(1, seq_id=4).lease(1, 2, 0, 4).release(1, seq_id=4).unlease(1, 2).evict(1)
    trace.release(0, seq_id=1).quarantine(0).settle(0)
    s = series(trace)
    total = sum(getattr(s, name) for name in COUNT_NAMES)
    assert total.tolist() == [4] * len(s)
    assert s.in_transit.max() == s.cached.max() == s.quarantined.max() == 1
    for i, seq in enumerate(s.seq.tolist()):
        assert state_at(trace, seq).counts == {name: getattr(s, name)[i] for name in state_at(trace, seq).counts}


def test_empty_denominators_are_absent() -> None:
    trace = HandTrace().alloc(0, seq_id=1).release(0, seq_id=1).free(0)
    s = series(trace)
    assert math.isnan(s.tail_waste[2])
    assert math.isnan(s.sharing_factor[2])
    m = summary(trace)
    assert m["tail_waste"]["last"] is None
    assert m["prefix_hit_rate"] is None
    assert m["benefit_ratio"] is None
    assert m["reservation_waste"] is None
    assert m["external_fragmentation"] == 0.0
    assert "NaN" not in json.dumps(m)


def test_an_empty_trace_has_a_summary() -> None:
    m = summary(HandTrace())
    assert m["events"] == 0
    assert m["utilization"] == {"peak": None, "mean": None, "last": None}
    json.dumps(m, allow_nan=False)


def test_prefix_hit_rate_is_in_tokens_of_first_admissions() -> None:
    trace = HandTrace()
    trace.event(Kind.SUBMIT, seq_id=1, aux=30).event(Kind.ADMIT, seq_id=1, aux=0)
    trace.event(Kind.SUBMIT, seq_id=2, aux=20).event(Kind.ADMIT, seq_id=2, aux=16)
    trace.event(Kind.RESUME, seq_id=2, aux=4)
    m = summary(trace)
    assert (m["prefix_hit_tokens"], m["prefix_query_tokens"], m["prefix_hit_rate"]) == (16, 50, 0.32)


def test_counts_of_pressure() -> None:
    trace = HandTrace().event(Kind.REFUSED, reason=Reason.NO_BLOCKS).event(Kind.REFUSED, reason=Reason.TOO_LONG)
    trace.event(Kind.PREEMPT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).publish(0)
    trace.release(0, seq_id=1).evict(0)
    m = summary(trace)
    assert (m["refusals"], m["oom_events"], m["preemptions"], m["evictions"]) == (2, 1, 1, 1)


def test_block_times_by_hand() -> None:
    trace = HandTrace(num_blocks=2)  # one event per microsecond
    trace.alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).publish(0).release(0, seq_id=1)  # t = 0..3
    trace.hit(0, seq_id=2).share(0, seq_id=3).release(0, seq_id=3).release(0, seq_id=2)  # t = 4..7
    trace.evict(0)  # t = 8, 9
    trace.alloc(0, seq_id=4)  # a second life, not over
    times = block_times(trace)
    assert times["lifetime"].tolist() == [9000]
    assert times["idle_before_evict"].tolist() == [3000]
    assert times["reuse_gap"].tolist() == [1000]
    assert summary(trace)["lifetime_s"] == {"count": 1, "mean": 9e-6, "p50": 9e-6, "p99": 9e-6}


def test_block_times_as_the_document_defines_them() -> None:
    trace = HandTrace(num_blocks=2)  # one event per microsecond
    trace.alloc(0, seq_id=1).release(0, seq_id=1).quarantine(0).settle(0)  # t = 0..3: the quarantine is lived in
    trace.alloc(1, seq_id=2).publish(1).hit(1, seq_id=3)  # t = 4..6: one taking after the hand-out is no gap
    trace.release(1, seq_id=2).release(1, seq_id=3).evict(1)  # t = 7..10: held until 8, idle since the hit at 6
    times = block_times(trace)
    assert times["lifetime"].tolist() == [3000, 6000]
    assert times["idle_before_evict"].tolist() == [3000]
    assert times["reuse_gap"].tolist() == []


def test_benefit_ratio_is_the_limit_over_the_median_length() -> None:
    trace = HandTrace(facts=[{"type": "model", "name": "m", "max_model_len": 2048}])
    trace.request(0, "a", [1], prompt_tokens=450).request(1, "b", [2], prompt_tokens=30)
    trace.facts.append({"type": "sample", "request": 0, "sample": 1, "seq_id": 3})
    trace.facts.append({"type": "output", "request": 0, "seq_id": 3, "tokens": 62})
    trace.event(Kind.FINISH, seq_id=1, aux=120).event(Kind.ABORT, seq_id=2, aux=2)
    assert sequence_lengths(trace) == {1: 570, 2: 32, 3: 512}
    assert summary(trace)["benefit_ratio"] == 4.0
    assert summary(trace)["requests"]["length_tokens"]["p50"] == 512


def test_lengths_from_events_alone() -> None:
    trace = HandTrace().event(Kind.SUBMIT, seq_id=1, aux=10).event(Kind.FORK, seq_id=2, aux=1)
    trace.event(Kind.FINISH, seq_id=2, aux=5)
    assert sequence_lengths(trace) == {2: 15}


def test_means_are_time_weighted() -> None:
    t = np.asarray([0, 10, 30, 30])
    assert mean_over_time(np.asarray([3.0, 6.0, 9.0, 9.0]), t) == pytest.approx((3 * 10 + 6 * 20) / 30)
    assert mean_over_time(np.asarray([np.nan, 6.0, np.nan, 1.0]), t) == 6.0
    assert mean_over_time(np.asarray([1.0, 3.0]), np.asarray([5, 5])) == 2.0
    assert mean_over_time(np.asarray([np.nan]), np.asarray([5])) is None


def test_spread() -> None:
    assert spread(np.asarray([1, 2, 3]), 2.0) == {"count": 3, "mean": 4.0, "p50": 4.0, "p99": pytest.approx(5.96)}
    assert spread(np.asarray([], dtype=np.int64), 1.0)["mean"] is None


def test_decimation_keeps_peaks_and_order() -> None:
    y = np.zeros(10_000)
    y[777], y[5_001] = 9, -9
    x, kept = decimate(np.arange(10_000), y, 50)
    assert len(x) <= 100
    assert (np.diff(x) > 0).all()
    assert {777, 5_001} <= set(x.tolist())
    assert (kept.max(), kept.min()) == (9, -9)
    short = decimate(np.arange(5), np.arange(5), 50)
    assert short[0].tolist() == [0, 1, 2, 3, 4]


def test_decimation_passes_over_nan() -> None:
    y = np.full(1_000, np.nan)
    y[500] = 1.0
    x, _ = decimate(np.arange(1_000), y, 10)
    assert 500 in x


def test_geometry_and_health() -> None:
    trace = HandTrace(num_blocks=8, block_size=4, block_bytes=64, clean=False, dropped=3, warnings=["torn tail"])
    m = summary(trace.alloc(0, seq_id=1).lose(7).write(0, 0, 1, seq_id=1))
    assert m["geometry"]["pool_bytes"] == 512
    assert m["geometry"]["bytes_per_token"] == 16
    assert m["health"] == {
        "clean_close": False, "dropped_events": 3, "lost_events": 7, "let_go_events": 0, "damaged_records": [],
        "lost_records": {"facts": 0, "details": 0, "names": 0}, "warnings": ["torn tail"],
    }  # fmt: skip


def test_a_million_events_take_seconds() -> None:
    import time

    one = shared_tail().release(0, seq_id=1).free(0).events
    repeats = 1_000_000 // len(one)
    events = np.tile(one, repeats)
    events["block"] = np.where(
        events["block"] >= 0, events["block"] + 4 * (np.arange(len(events)) // len(one) % 500), -1
    )
    trace = HandTrace(num_blocks=2_000)

    class Big:
        num_blocks, block_size, block_bytes, clean, dropped = 2_000, 4, 64, True, 0
        facts, warnings, sites, actors = (), (), (), ()
        seqs = np.arange(len(events))

        def detail(self, seq: int) -> None:
            return None

        details_of = trace.details_of

    big = Big()
    big.events = events  # type: ignore[attr-defined]
    started = time.perf_counter()
    s = series(big)  # type: ignore[arg-type]
    state_at(big, len(events))  # type: ignore[arg-type]
    assert time.perf_counter() - started < 20
    assert (sum(getattr(s, name) for name in COUNT_NAMES) == 2_000).all()
