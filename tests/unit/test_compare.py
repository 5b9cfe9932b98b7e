"""Two runs side by side: equal ones are equal, changed ones are told by how much, and in which direction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.inspector import cli
from kvscope.inspector.compare import Change, compare
from kvscope.inspector.handmade import HandTrace
from kvscope.traces import Kind, open_trace


def run(wait_us: int, requests: int = 8) -> HandTrace:
    """Requests that queue for a while (and each a little longer than the one before), then decode for 5 us."""
    trace = HandTrace(num_blocks=16)
    for i in range(requests):
        trace.facts.append({"type": "request", "request": i, "name": f"r{i}", "seq_ids": [i], "prompt_tokens": 3})
    for i in range(requests):
        start = 1_000_000 * (i + 1)
        trace.event(Kind.SUBMIT, seq_id=i, aux=3, t_ns=start)
        trace.event(Kind.ADMIT, seq_id=i, t_ns=start + wait_us * 1000 + 10 * i)
        trace.event(Kind.SCHED, seq_id=i, lblock=3, fill=1, t_ns=start + wait_us * 1000 + 20_000)
        trace.event(Kind.FINISH, seq_id=i, aux=2, t_ns=start + wait_us * 1000 + 25_000)
    return trace


def test_a_run_and_itself() -> None:
    found = compare(run(100), run(100))
    assert all(change.difference == 0 for change in found.changes)
    assert {time.name: (time.difference, time.low, time.high) for time in found.times} == dict.fromkeys(
        ("queued_s", "first_token_s", "duration_s", "preempted_s"), (0.0, 0.0, 0.0)
    )
    assert (found.only_a, found.only_b, found.notes) == ((), (), ())


def test_a_longer_queue_is_told_with_its_interval() -> None:
    times = {time.name: time for time in compare(run(100), run(150)).times}
    queued = times["queued_s"]
    assert queued.pairs == 8
    assert queued.difference == pytest.approx(50e-6)
    assert queued.low is not None
    assert queued.high is not None
    assert queued.low <= 50e-6 <= queued.high
    assert queued.real is True
    assert times["preempted_s"].real is False


def test_other_requests_of_the_same_name_are_not_compared() -> None:
    other = run(150)
    for fact in other.facts:
        fact["prompt_tokens"] = 7
    longer = HandTrace(num_blocks=16, facts=other.facts)
    longer._rows, longer._seqs = (
        [dict(row, aux=7) if row["kind"] == Kind.SUBMIT else row for row in other._rows],
        other._seqs,
    )
    found = compare(run(100), longer)
    assert found.times == ()
    assert "8 requests of one name have prompts of different lengths" in found.notes[0]
    assert "the runs served different requests" in found.notes[1]


def test_blocks_are_compared_as_slots() -> None:
    small, large = HandTrace(num_blocks=8, block_size=4), HandTrace(num_blocks=4, block_size=8)
    for trace, blocks in ((small, 4), (large, 2)):
        for block in range(blocks):
            trace.alloc(block, seq_id=0)
    changes = {change.name: change for change in compare(small, large).changes}
    assert changes["held_slots_peak"].difference == 0


def test_few_pairs_show_no_interval_and_strangers_are_named() -> None:
    found = compare(run(100, 4), run(150, 3))
    assert found.only_a == ("r3",)
    assert all(time.low is None and time.real is None for time in found.times)


@pytest.mark.parametrize(
    ("a", "b", "less", "better"),
    [(1.0, 2.0, True, False), (2.0, 1.0, True, True), (1.0, 2.0, False, True), (1.0, 1.0, True, None),
     (1.0, 2.0, None, None), (None, 2.0, True, None), (0.0, 2.0, True, False)],
)  # fmt: skip
def test_which_way_is_better(a: float | None, b: float, less: bool | None, better: bool | None) -> None:
    change = Change("x", a, b, less)
    assert change.better is better
    assert change.relative == (None if not a else (b - a) / a)


def test_real_runs_and_the_command(toy_traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(toy_traces["clean"]), str(toy_traces["missing-copy"])
    found = compare(open_trace(Path(a)), open_trace(Path(b)))
    copies = {change.name: change for change in found.changes}["cow_copies"]
    assert copies.a is not None
    assert copies.a > 0
    assert copies.b == 0
    assert cli.run(["compare", a, b, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == json.loads(json.dumps(found.to_json()))
    assert cli.run(["compare", a, b]) == 0
    shown = capsys.readouterr().out
    assert "copies on write" in shown
    assert "95 % interval" in shown
    assert cli.run(["compare", a, "nowhere.kvtrace"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
