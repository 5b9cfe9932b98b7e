"""Requests: a lane for each sequence, what it was doing when, the blocks it held, and copies as arrows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from kvscope.dashboard import figures
from kvscope.dashboard.answers import lanes_of, measured
from kvscope.dashboard.figures import Arrow
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.dashboard.views.overview import PLOT_CONFIG, axis_choice
from kvscope.inspector.lanes import Lane
from kvscope.inspector.source import named_detail
from kvscope.traces.schema import Kind

MAX_LANES = 60
MAX_ARROWS = 200


def render(view: TraceView, place: Place) -> None:
    """The page."""
    found = _families(lanes_of(view))
    if not found:
        st.info("No request in this trace: it records a bare pool.")
        return
    first = 0
    if len(found) > MAX_LANES:
        pages = -(-len(found) // MAX_LANES)
        first = MAX_LANES * (int(st.number_input(f"Part (of {pages})", 1, pages, key="lane_part", width=160)) - 1)
    shown = found[first : first + MAX_LANES]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown("**What each sequence was doing**", width="content")
        axis = axis_choice("lane_axis")
    figure = figures.lane_chart(shown, measured(view), axis, cursor=place.seq, arrows=_arrows(view, shown))
    st.plotly_chart(figure, key="lanes", config=PLOT_CONFIG, alt="What each sequence was doing over time")
    st.markdown("**Sequences**")
    st.dataframe(
        _table(view, shown),
        hide_index=True,
        key="lane_table",
        column_config={"text": st.column_config.TextColumn(width="large")},
        height=min(35 * (len(shown) + 1) + 3, 460),
    )


def _families(found: list[Lane]) -> list[Lane]:
    """The lanes with every fork right after the sequence that it was forked from."""
    children: dict[int, list[Lane]] = {}
    known = {lane.seq_id for lane in found}
    for lane in found:
        children.setdefault(lane.parent if lane.parent in known else -1, []).append(lane)
    ordered: list[Lane] = []
    stack = children.pop(-1, [])[::-1]
    while stack:
        lane = stack.pop()
        ordered.append(lane)
        stack += children.pop(lane.seq_id, [])[::-1]
    return ordered


def _arrows(view: TraceView, shown: list[Lane]) -> list[Arrow]:
    """A copy-on-write goes from the sequence that wrote the source's life first to the one that got the copy."""
    rows = np.flatnonzero(view.events["kind"] == Kind.COW)[:MAX_ARROWS]
    names = {lane.seq_id: lane for lane in shown}
    arrows = []
    for row in rows.tolist():
        event, seq = view.events[row], int(view.seqs[row])
        lane = names.get(int(event["seq_id"]))
        parent = names.get(lane.parent) if lane is not None else None
        detail = named_detail(view, seq, Kind.COW)
        source = f"b{int(event['aux'])}" + (f"#{detail['source_gen']}" if "source_gen" in detail else "")
        text = f"copy {source} to b{int(event['block'])}#{int(event['gen'])}"
        if lane is not None:
            arrows.append(Arrow(seq, parent.name if parent is not None else lane.name, lane.name, text))
    return arrows


def _table(view: TraceView, shown: list[Lane]) -> pd.DataFrame:
    """The lanes in numbers; with the texts, where the run was told to record them."""
    table = pd.DataFrame(
        {
            "sequence": [lane.name for lane in shown],
            "id": [lane.seq_id for lane in shown],
            "prompt tokens": [lane.prompt_tokens for lane in shown],
            "cached tokens": [lane.cached_tokens for lane in shown],
            "output tokens": [lane.output_tokens for lane in shown],
            "most blocks held": [lane.max_held for lane in shown],
            "preemptions": [lane.preemptions for lane in shown],
            "outcome": [lane.outcome for lane in shown],
        }
    )
    texts = {f["seq_id"]: f["text"] for f in view.facts if f.get("type") == "output" and f.get("text")}
    if texts:
        table["text"] = [str(texts.get(lane.seq_id, "")).strip() for lane in shown]
    return table
