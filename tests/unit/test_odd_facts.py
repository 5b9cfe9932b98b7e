"""A facts stream may come from anyone: whatever is in it, no reader stops over it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.facts import usable
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.lanes import lanes
from kvscope.inspector.measures import summary
from kvscope.inspector.workloads.opening import from_trace
from kvscope.traces import Kind, PoolFacts, Recorder

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(), st.floats(allow_nan=False), st.text(max_size=4),
    st.lists(st.one_of(st.integers(-2, 3), st.text(max_size=2)), max_size=3),
)  # fmt: skip
FACTS = st.lists(
    st.dictionaries(
        st.sampled_from(
            ["request", "seq_id", "seq_ids", "tokens", "prompt_tokens", "max_tokens", "samples", "arrival_ns", "name",
             "sample", "max_model_len", "bytes_per_token", "text", "finish"]
        ),
        VALUES,
    ).flatmap(lambda d: st.sampled_from(["request", "sample", "output", "model", "run", 7, None]).map(
        lambda kind: {**d, "type": kind})),
    max_size=6,
)  # fmt: skip


@given(FACTS)
def test_any_facts_are_read(facts: list[dict[str, Any]]) -> None:
    trace = HandTrace(facts=facts)
    trace.event(Kind.SUBMIT, seq_id=0, aux=3).alloc(0, seq_id=0).event(Kind.FINISH, seq_id=0, aux=2)
    json.dumps(summary(trace), allow_nan=False)
    assert [lane.seq_id for lane in lanes(trace)] == [0]
    with suppress(UsageError):  # no request can be made of these
        from_trace("t", trace, None)


def test_a_good_fact_is_kept_as_it_is() -> None:
    good = [
        {"type": "request", "request": 0, "name": "a", "seq_ids": [0, 1], "prompt_tokens": 3, "own": {"x": 1}},
        {"type": "sample", "request": 0, "seq_id": 1, "sample": 1},
        {"type": "output", "request": 0, "seq_id": 0, "tokens": 4, "finish": "stop", "text": "x"},
        {"type": "something", "else": None},
    ]
    assert usable(good) == good


@pytest.mark.parametrize("command", ["inspect", "check", "doctor", "simulate"])
def test_commands_end_without_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    path = tmp_path / "odd.kvtrace"
    with Recorder(path, pool=PoolFacts(4, 4)) as sink:
        for fact in ({"type": "request"}, {"type": "output", "tokens": "x"}, {"type": "request", "request": "r"}):
            sink.fact(fact)
        sink.begin()
        sink.emit(Kind.SUBMIT, seq_id=0, aux=3)
    assert cli.run([command, str(path)]) in (0, 1, 2)
    assert "Traceback" not in capsys.readouterr().err
