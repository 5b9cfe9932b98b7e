"""Spans folded from events: phases that follow each other, the same however the trace is cut, and what they count."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.inspector.telemetry.spans import RequestSpan, SpanFold
from kvscope.traces import Kind, Reason, TraceReader, open_trace
from kvscope.traces.follow import Follower, Part


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Any]]:
    """A real run in a pool so small that sequences are preempted; its trace, and what the engine itself counted."""
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.model import load_model
    from kvscope.engine.scheduler import SchedulerConfig
    from kvscope.engine.sequence import SamplingParams
    from kvscope.traces import PoolFacts, Recorder

    path = tmp_path_factory.mktemp("spans") / "run.kvtrace"
    limits = SchedulerConfig(max_seqs=6, max_batched_tokens=16)
    with Recorder(path, pool=PoolFacts(14, 4)) as sink:
        engine = Engine(load_model(tiny_folder), EngineConfig(num_blocks=14, block_size=4, scheduler=limits), sink=sink)
        for number in range(7):
            n = 3 if number == 2 else 1
            engine.submit([number + 1, *range(10, 20 + number)], SamplingParams(8 + number, n=n, ignore_eos=True))
        dropped = engine.submit([9] * 12, SamplingParams(30, ignore_eos=True))
        outputs: dict[int, Any] = {}
        steps = 0
        while engine.has_work:
            for token in engine.step():
                outputs[token.request_id] = outputs.get(token.request_id, 0) + 1
            steps += 1
            if steps == 9:
                engine.abort(dropped)
    return path, outputs


def parts(path: Path, cuts: list[int]) -> Iterator[Part]:
    follower = Follower(path)
    ends = sorted({min(cut, follower.end) for cut in cuts} | {follower.end})
    at = 0
    for end in ends:
        if end > at:
            yield from follower.rows(at, end - at)
            at = end


def folded(path: Path, cuts: list[int], every: int = 1) -> SpanFold:
    fold = SpanFold(every)
    for part in parts(path, cuts):
        fold.add(part)
    return fold


def test_every_request_becomes_one_span(run: tuple[Path, dict[int, Any]]) -> None:
    path, outputs = run
    spans = {span.request: span for span in folded(path, []).ended}
    assert sorted(spans) == list(range(8))
    assert {r: s.output_tokens for r, s in spans.items() if not s.aborted} == {
        r: n for r, n in outputs.items() if r != 7
    }
    assert [s.aborted for _, s in sorted(spans.items())] == [False] * 7 + [True]
    assert spans[2].samples == len(spans[2].finish) == 3
    trace = open_trace(path)
    assert sum(s.preemptions for s in spans.values()) == int((trace.events["kind"] == Kind.PREEMPT).sum()) > 0


def test_phases_follow_each_other(run: tuple[Path, dict[int, Any]]) -> None:
    for span in folded(run[0], []).ended:
        assert span.start <= span.first_token <= span.end or span.first_token == -1
        for seq_id in {phase.seq_id for phase in span.phases}:
            phases = [phase for phase in span.phases if phase.seq_id == seq_id]
            names = [phase.name for phase in phases]
            assert names[0] in ("queued", "decode")  # a further sample begins with its first token
            for before, after in itertools.pairwise(phases):
                assert before.end == after.start
                assert (before.name, after.name) in {
                    ("queued", "prefill"), ("prefill", "decode"), ("decode", "preempted"), ("prefill", "preempted"),
                    ("preempted", "prefill"), ("preempted", "decode"),
                }  # fmt: skip
            assert all(phase.start <= phase.end <= span.end for phase in phases)


def test_first_tokens_are_those_of_the_steps(run: tuple[Path, dict[int, Any]]) -> None:
    """The step that computes the last position of a prompt gives the first token."""
    trace = open_trace(run[0])
    for span in folded(run[0], []).ended:
        if span.first_token >= 0:
            ends = trace.events[trace.events["kind"] == Kind.STEP_END]
            assert span.first_token in ends["t_ns"].tolist()


def test_events_of_spans_are_the_rare_ones(run: tuple[Path, dict[int, Any]]) -> None:
    trace, fold = open_trace(run[0]), folded(run[0], [])
    told = [event for span in fold.ended for event in span.events]
    for name, kind in (("preempted", Kind.PREEMPT), ("cow", Kind.COW), ("evicted", Kind.EVICT)):
        seqs = sorted(event.attributes["kvscope.trace.seq"] for event in told if event.name == name)
        assert seqs == trace.seqs[trace.events["kind"] == kind].tolist()
    assert {event.name for event in told} == {"preempted", "cow", "evicted"}


def test_steps_are_sampled(run: tuple[Path, dict[int, Any]]) -> None:
    trace = open_trace(run[0])
    ends = trace.events[trace.events["kind"] == Kind.STEP_END]
    assert [(s.step, s.tokens) for s in folded(run[0], []).steps] == list(zip(ends["step"], ends["aux"], strict=True))
    assert [s.step for s in folded(run[0], [], every=5).steps] == [s for s in ends["step"].tolist() if s % 5 == 0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 2000), max_size=6))
def test_any_cut_folds_to_the_same_spans(run: tuple[Path, dict[int, Any]], cuts: list[int]) -> None:
    assert folded(run[0], cuts).ended == folded(run[0], []).ended


def test_a_follower_reads_what_a_reader_does(run: tuple[Path, dict[int, Any]]) -> None:
    trace = open_trace(run[0])
    for cuts in ([], [3, 7, 400]):
        seqs, details = [], {}
        for part in parts(run[0], cuts):
            assert (part.events == trace.events[part.seqs[0] : part.seqs[-1] + 1]).all()
            seqs += part.seqs.tolist()
            positions, offsets, values = part.details
            for i, at in enumerate(positions.tolist()):
                details[int(part.seqs[at])] = tuple(values[offsets[i] : offsets[i + 1]].tolist())
        assert seqs == trace.seqs.tolist()
        assert details == {seq: trace.detail(seq) for seq in seqs if trace.detail(seq) is not None}


def test_a_row_that_waits_for_its_details_is_held_back(tmp_path: Path) -> None:
    from kvscope.traces import PoolFacts, Recorder

    with Recorder(tmp_path / "t.kvtrace", pool=PoolFacts(4, 4)) as sink:
        sink.emit(Kind.ALLOC, Reason.PREFILL, 0, 1, 0, 1, 0, 7, 0)
        follower = Follower(tmp_path / "t.kvtrace")
        seq = sink.emit(Kind.SUBMIT, seq_id=7, aux=3)
        follower.refresh()
        assert [part.seqs.tolist() for part in follower.rows()] == [[0]]
        sink.detail(seq, (5, 6, 1))
        follower.refresh()
        (part,) = follower.rows(1)
        assert part.details[2].tolist() == [5, 6, 1]
    assert isinstance(open_trace(tmp_path / "t.kvtrace"), TraceReader)


def test_a_trace_without_its_beginning_makes_no_spans(run: tuple[Path, dict[int, Any]]) -> None:
    follower, fold = Follower(run[0]), SpanFold()
    for part in follower.rows(follower.end // 2):
        fold.add(part)
    assert all(isinstance(span, RequestSpan) and span.end >= 0 for span in fold.ended)
