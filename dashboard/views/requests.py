"""Requests: a lane for each sequence, what it was doing when, the blocks it held, and copies as arrows."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import streamlit as st

from kvscope.dashboard import choices, figures, markup, plots
from kvscope.dashboard.answers import lanes_of, measured
from kvscope.dashboard.lane_order import arrows_of, families
from kvscope.dashboard.numbers import count_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.inspector.lanes import Lane

MAX_LANES = 60
MAX_ARROWS = 200


def render(view: TraceView, place: Place) -> None:
    """The page."""
    found = families(lanes_of(view))
    if not found:
        st.info("No request in this trace: it records a bare pool.")
        return
    _stats(view, found)
    first, pages = 0, -(-len(found) // MAX_LANES)
    part = choices.one("part", range(1, pages + 1), 1, key="lane_part", what="Part")
    if pages > 1:
        first = MAX_LANES * (int(st.number_input(f"Part (of {pages})", step=1, width=160, **part)) - 1)
    shown = found[first : first + MAX_LANES]
    st.markdown("**What each sequence was doing**")
    figure = figures.lane_chart(shown, measured(view), place.axis, cursor=place.seq, arrows=arrows_of(view, shown))
    plots.show(figure, key="lanes", alt="What each sequence was doing over time")
    st.markdown("**Sequences**")
    st.dataframe(
        _table(view, shown),
        hide_index=True,
        key="lane_table",
        column_config={"text": st.column_config.TextColumn(width="large")},
        height=35 * (len(shown) + 1) + 3,  # all of them: a page that is saved has them too
    )


def _stats(view: TraceView, found: list[Lane]) -> None:
    prompted = [lane for lane in found if lane.parent < 0]  # a fork has its parent's prompt, computed once
    prompts, cached = (sum(getattr(lane, name) for lane in prompted) for name in ("prompt_tokens", "cached_tokens"))
    outcomes = Counter(lane.outcome for lane in found)
    most = max(found, key=lambda lane: lane.max_held)
    st.html(markup.stats((
        ("Sequences", count_text(len(found)), "", "Each sample of a request is one."),
        ("Finished", count_text(outcomes["finish"]), "", "Sequences that came to their end."),
        ("Prompt", count_text(prompts), "tokens", "Of all requests; samples of one share it."),
        ("From the cache", ratio_text(cached / prompts if prompts else None), "",
         "Prompt tokens found in the prefix cache at first admission."),
        ("Output", count_text(sum(lane.output_tokens or 0 for lane in found)), "tokens", "Of all that have ended."),
        ("Most held", count_text(most.max_held), "blocks", f"By one sequence, {most.name}."),
        ("Preemptions", count_text(sum(lane.preemptions for lane in found)), "", "Of all sequences: blocks given up."),
    )))  # fmt: skip


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
