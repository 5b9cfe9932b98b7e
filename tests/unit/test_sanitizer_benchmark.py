"""The sanitizer's benchmark, over little: every row is measured, printed as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

from kvscope.benchmarks import sanitizer


@cache
def measured(part: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return part()


PARTS = {
    "a trace checked": partial(sanitizer.offline, 500),
    "rows emitted": partial(sanitizer.emits, 256),
    "a trace with swaps": partial(sanitizer.offline_with, "swaps", 500),
    "a look each step": partial(sanitizer.online, 4, 5, every=1),
}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part once, for both tests."""
    monkeypatch.setattr(sanitizer, "ROUNDS", 1)
    monkeypatch.setattr(
        sanitizer, "parts", lambda events: [(name, partial(measured, part)) for name, part in PARTS.items()]
    )


@pytest.mark.usefixtures("little")
def test_rows_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitizer.main(["--events", "500"]) in (0, 1)  # so few events may miss a gate
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert len(lines) == 6
    assert "by columns" in lines[1]
    assert lines[2].startswith("one row by emit")
    assert "baseline" not in lines[2]
    assert "baseline" in lines[3]
    assert "measuring 4 of 4: a look each step" in told.err


@pytest.mark.usefixtures("little")
def test_rows_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    sanitizer.main(["--events", "500", "--json"])
    told = capsys.readouterr()
    rows = json.loads(told.out)["rows"]
    assert [row["unit"] for row in rows] == [
        "M events/s", "M events/s", "ns/event", "ns/event", "M events/s", "ns/event",
    ]  # fmt: skip
    assert all(row["value"] for row in rows)
    assert told.err == ""
