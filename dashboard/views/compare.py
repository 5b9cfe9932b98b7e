"""Compare: this run beside another, on one axis and in numbers; the address names both."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from kvscope.dashboard import figures, markup, opened
from kvscope.dashboard.answers import measured
from kvscope.dashboard.numbers import ABSENT
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.dashboard.views.overview import PLOT_CONFIG
from kvscope.inspector.compare import Change, Comparison, compare

_BETTER = {True: "better", False: "worse", None: ""}
_HEAD = ("held_slots_peak", "utilization", "tail_waste", "prefix_hit_rate", "preemptions", "duration_s")


def render(view: TraceView, place: Place) -> None:
    """The page."""
    traces = opened.start().traces
    others = [name for name in traces if name != view.name]
    if not others:
        st.info("There is one trace only: start with a folder of traces, `kvscope dashboard FOLDER`.")
        return
    wanted = st.session_state.get("other")
    st.session_state["other_box"] = wanted if wanted in others else others[0]
    name = st.selectbox(f"Compare {markup.plain(view.name)} with", others, key="other_box", on_change=_take, width=360)
    st.session_state["other"] = name
    other = opened.open_view(name, traces[name])
    if not len(other.events):
        st.info("That trace holds no event.")
        return
    found = _compared((view.id, other.id), view, other)
    by_name = {change.name: change for change in found.changes}
    st.html(markup.stats([_cell(by_name[n], view.name, name) for n in _HEAD if n in by_name]))
    for note in found.notes:
        st.caption(markup.plain(note))
    st.markdown("**Held memory over time (slots)**")
    figure = figures.side_by_side({view.name: measured(view), name: measured(other)})
    st.plotly_chart(figure, key="compared", config=PLOT_CONFIG, alt="Held slots of both runs over time")
    st.dataframe(_table(found, view.name, name), hide_index=True, key="changes", height=420)


def _take() -> None:
    st.session_state["other"] = st.session_state["other_box"]


@st.cache_resource(max_entries=4, show_spinner="comparing")
def _compared(key: tuple[Any, ...], _a: TraceView, _b: TraceView) -> Comparison:
    return compare(_a, _b)


def _cell(change: Change, a: str, b: str) -> tuple[str, str, str, str]:
    label = change.name.replace("_", " ").capitalize()
    return label, _plain(change.a), f"and {_plain(change.b)}", f"{change.name}: {a}, then {b}"


def _table(found: Comparison, a: str, b: str) -> pd.DataFrame:
    shown = found.changes
    relative = [ABSENT if c.relative is None else f"{c.relative:+.1%}" for c in shown]
    return pd.DataFrame(
        {
            "measure": [c.name for c in shown],
            a: [_plain(c.a) for c in shown],
            b: [_plain(c.b) for c in shown],
            "change": relative,
            "": [_BETTER[c.better] for c in shown],
        }
    )


def _plain(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
