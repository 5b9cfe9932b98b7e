"""Counting is much faster than stepping the scheduler, in the same process."""

from __future__ import annotations

from kvscope.benchmarks.simulate import measure


def test_counting_is_worth_it() -> None:
    rows = measure(1000, driven=20)
    assert [row["name"] for row in rows if row["gate"]] == ["paged, as they arrive", "paged, all at once"]
    assert all(row["ok"] for row in rows if row["gate"]), rows
