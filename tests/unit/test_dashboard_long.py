"""The pages of a long trace, which is decoded where it is looked at, say what they say of the same trace in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from kvscope.dashboard import opened
from kvscope.dashboard.launch import APP
from kvscope.traces import open_trace, reader

PAGES = ("overview", "blocks", "biography", "requests", "sharing", "events", "findings")


def shown(path: Path, page: str, seq: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """What a page has: its HTML pieces, its figures."""
    monkeypatch.setattr(sys, "argv", [str(APP), "--trace", str(path)])
    opened._tail.clear()
    app: Any = AppTest.from_file(str(APP), default_timeout=120)
    app.query_params.update({"page": page, "seq": str(seq), "block": "6"})
    app.run()
    assert not app.exception
    assert not [e.value for e in app.error if "failed" in e.value]
    return [str(e.proto.body) for e in app.get("html")], [e.proto.spec for e in app.get("plotly_chart")]


@pytest.mark.parametrize("page", PAGES)
def test_a_long_trace_looks_the_same(toy_traces: dict[str, Path], page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toy_traces["missing-copy"]
    seqs = open_trace(path).seqs
    seq = int(seqs[len(seqs) // 2])
    html, figures = shown(path, page, seq, monkeypatch)
    monkeypatch.setattr(reader, "SETTLED_ROWS", 0)
    long_html, long_figures = shown(path, page, seq, monkeypatch)
    assert isinstance(opened.open_view(path.stem, path), opened.LongView)
    assert long_html == html
    assert len(long_figures) == len(figures)
    if page != "overview":  # it draws some of the events, all extremes among them
        assert long_figures == figures
