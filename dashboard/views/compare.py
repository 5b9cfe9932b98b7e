"""Compare: this run beside another, on one axis and in numbers; the address names both."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from kvscope.dashboard import choices, figures, markup, notes, opened, plots
from kvscope.dashboard.answers import measured
from kvscope.dashboard.numbers import ABSENT, bytes_text, duration_text, factor_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place, move
from kvscope.dashboard.tables import at_right
from kvscope.errors import KVScopeError
from kvscope.inspector.compare import Change, Comparison, compare

MOST_OPENED = 8
_BETTER = {True: "better", False: "worse", None: ""}
_RATIOS = ("tail_waste", "reservation_waste", "utilization", "pool_utilization", "prefix_hit_rate")
_HEAD = ("held_slots_peak", "utilization", "tail_waste", "prefix_hit_rate", "preemptions", "duration_s")


def render(view: TraceView, place: Place) -> None:
    """The page."""
    traces = opened.start().traces
    wanted = other_of(view, traces)
    if wanted is None:
        st.info("There is one trace only: start with a folder of traces, `kvscope dashboard FOLDER`.")
        return
    asked = st.session_state.get("other")
    if choices.offers("other") and asked != wanted:
        why = "is the run itself" if asked == view.name else "is not shown here"
        notes.note(f"{asked!r:.60} was asked for to compare with, and {why}: {wanted} is compared.")
    st.session_state["other_box"], st.session_state["other"] = wanted, chosen(view, traces)
    others = [name for name in traces if name != view.name]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        said = f"Compare {markup.plain(view.name)} with"
        name = st.selectbox(said, others, key="other_box", on_change=_take, width=360)
        _telling_pair(view.name, name, traces)
    other = opened.open_view(name, traces[name])
    if not len(other.events):
        st.info("That trace holds no event.")
        return
    found = _compared((view.id, other.id), view, other)
    by_name = {change.name: change for change in found.changes}
    st.html(markup.stats([_cell(by_name[n], view.name, name) for n in _HEAD if n in by_name]))
    if found.notes:
        st.caption(markup.plain("; ".join(found.notes)))
    st.markdown("**Held memory over time (slots)**")
    figure = figures.side_by_side({view.name: measured(view), name: measured(other)})
    plots.show(figure, key="compared", alt="Held slots of both runs over time", tall=True)
    table = _table(found, view.name, name)
    st.dataframe(table, hide_index=True, key="changes", height=420, column_config=at_right(*table.columns[1:4]))


def chosen(view: TraceView, traces: Mapping[str, Path]) -> str | None:
    """The trace that somebody chose to see beside this one; None for none, and for itself."""
    other = st.session_state.get("other")
    return other if other in traces and other != view.name else None


def other_of(view: TraceView, traces: Mapping[str, Path]) -> str | None:
    """The trace beside which this one is looked at: the chosen one, else its partner, never itself.

    A partner is what the run's own words name (`paged`, of the samples), else one with a pool of as many slots, among
    those (or all, where there is none) the one with the most similar name: `load-16` of `load-32`.
    """
    others = [name for name in traces if name != view.name]
    if not others:
        return None
    telling = chosen(view, traces) or partner_of(view, traces)
    return telling or max(others, key=lambda name: (_as_large(view, traces, name), _alike(view.name, name)))


def partner_of(view: TraceView, traces: Mapping[str, Path]) -> str | None:
    """The trace that the run's own words name as the one to see it beside; None for none."""
    point = " ".join(str(f.get("point", "")) for f in view.facts if f.get("type") == "run")
    return next((name for name in traces if name != view.name and f"`{name}`" in point), None)


def _as_large(view: TraceView, traces: Mapping[str, Path], name: str) -> bool:
    """Whether that trace's pool has as many slots; not looked at where there are many traces to open for that."""
    if len(traces) > MOST_OPENED:
        return False
    try:
        other = opened.open_view(name, traces[name])
    except KVScopeError:
        return False
    return other.num_blocks * other.block_size == view.num_blocks * view.block_size


def _alike(a: str, b: str) -> int:
    """How many letters two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _telling_pair(a: str, b: str, traces: Mapping[str, Path]) -> None:
    """Two runs that are worth a look, where this is another pair: one that reserves, and one in blocks."""
    pair = [next((name for name in traces if word in name), None) for word in ("reserved", "paged")]
    if None in pair or len(set(pair)) < 2 or set(pair) == {a, b}:
        return
    if st.button(f"Reserved beside paged: {pair[0]}, {pair[1]}", key="pair", icon=":material/compare_arrows:"):
        st.session_state["other"] = pair[1]
        move(trace=pair[0])
        st.rerun()


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
