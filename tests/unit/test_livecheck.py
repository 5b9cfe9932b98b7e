"""The rules checked beside a run: what the child finds arrives whole, and what is no result is not believed."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.livecheck import Checked, LiveCheck, result_of
from kvscope.traces import open_trace

SAMPLE = Path(__file__).parents[2] / "traces" / "samples" / "garbled-race.kvpack"


def test_a_child_s_findings_are_those_of_a_check() -> None:
    trace = open_trace(SAMPLE)
    want = check(trace)
    assert want.findings
    live, found = LiveCheck(SAMPLE), None
    until = time.monotonic() + 120
    while found is None and time.monotonic() < until:
        found = live.look("a run", len(trace.events))
        time.sleep(0.02)
    assert isinstance(found, Checked)
    assert replace(found.result, elapsed_s=0.0) == replace(want, elapsed_s=0.0)
    assert found.events == want.events
    assert live.look("another run", 0) is None


def test_a_result_comes_back_equal() -> None:
    want = check(open_trace(SAMPLE))
    assert result_of(json.dumps(asdict(want)).encode()) == want


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"findings": [{"code": 1}]}', b"\x80\x04."])
def test_what_is_no_result_is_refused(text: bytes) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        result_of(text)
