"""Compare: this run beside another, on one axis and in numbers; the address names both."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from kvscope.dashboard import figures, markup, opened, plots
from kvscope.dashboard.answers import measured
from kvscope.dashboard.numbers import ABSENT, bytes_text, duration_text, factor_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.inspector.compare import Change, Comparison, compare

_BETTER = {True: "better", False: "worse", None: ""}
_RATIOS = ("tail_waste", "reservation_waste", "utilization", "pool_utilization", "prefix_hit_rate")
_HEAD = ("held_slots_peak", "utilization", "tail_waste", "prefix_hit_rate", "preemptions", "duration_s")


def render(view: TraceView, place: Place) -> None:
    """The page."""
    traces = opened.start().traces
    others = [name for name in traces if name != view.name]
    if not others:
        st.info("There is one trace only: start with a folder of traces, `kvscope dashboard FOLDER`.")
        return
    wanted = st.session_state.get("other")
    st.session_state["other_box"] = wanted if wanted in others else _partner(view, others)
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
    plots.show(figure, key="compared", alt="Held slots of both runs over time")
    st.dataframe(_table(found, view.name, name), hide_index=True, key="changes", height=420)


def _partner(view: TraceView, others: list[str]) -> str:
    """The run that this one's own words name (`paged`, of the samples), else the first one."""
    point = " ".join(str(f.get("point", "")) for f in view.facts if f.get("type") == "run")
    return next((name for name in others if f"`{name}`" in point), others[0])


def _take() -> None:
    st.session_state["other"] = st.session_state["other_box"]


@st.cache_resource(max_entries=4, show_spinner="comparing")
def _compared(key: tuple[Any, ...], _a: TraceView, _b: TraceView) -> Comparison:
    return compare(_a, _b)


def _cell(change: Change, a: str, b: str) -> tuple[str, str, str, str]:
    said = f"{_label(change)}: {a} {_text(change, change.a)}, {b} {_text(change, change.b)}"
    return _label(change), _text(change, change.a), f"there {_text(change, change.b)}", said


def _table(found: Comparison, a: str, b: str) -> pd.DataFrame:
    shown = found.changes
    relative = [ABSENT if c.relative is None else f"{c.relative:+.1%}" for c in shown]
    return pd.DataFrame(
        {
            "measure": [_label(c) for c in shown],
            a: [_text(c, c.a) for c in shown],
            b: [_text(c, c.b) for c in shown],
            "change": relative,
            f"{b} is": [_BETTER[c.better] for c in shown],
        }
    )


def _label(change: Change) -> str:
    """A measure's name as people read it: `Held slots, peak`."""
    words = change.name.removesuffix("_s").replace("cow", "COW").split("_")
    stat = f", {words.pop()}" if words[-1] in ("peak", "mean") else ""
    return " ".join(words)[:1].upper() + " ".join(words)[1:] + stat


def _text(change: Change, value: float | None) -> str:
    """A value with its unit."""
    if value is None:
        return ABSENT
    if change.name.endswith("_s"):
        return duration_text(value)
    if change.name in _RATIOS:
        return ratio_text(value)
    if change.name == "sharing_factor":
        return factor_text(value)
    if change.name == "cow_bytes":
        return bytes_text(int(value))
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"
