"""The sidebar: which trace, its geometry, and everything that makes it less than complete."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from kvscope.dashboard import markup
from kvscope.dashboard.answers import measured, summarised
from kvscope.dashboard.markup import plain
from kvscope.dashboard.numbers import bytes_text, count_text, duration_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import go, move

MAX_WARNINGS = 5


def show(view: TraceView, traces: dict[str, Path]) -> None:
    """The whole sidebar below the navigation."""
    show_choice(traces)
    with st.sidebar:
        _health(view)
        _geometry(view)


def show_choice(traces: dict[str, Path]) -> None:
    """The trace's name, or a choice where there are several."""
    names = list(traces)
    if not names:
        return
    with st.sidebar:
        if len(names) == 1:
            st.markdown(f"**{plain(names[0])}**")
            return
        chosen = st.session_state.get("trace") or names[0]
        st.session_state["trace_box"] = chosen if chosen in names else None
        st.selectbox("Trace", names, key="trace_box", on_change=_choose, placeholder="choose a trace")


def _choose() -> None:
    move(trace=st.session_state["trace_box"])


def _health(view: TraceView) -> None:
    """A banner for every warning; dropped events are an error, for what is shown is then not the whole story."""
    if view.dropped:
        st.error(f"{count_text(view.dropped)} events were dropped while recording", icon=":material/warning:")
    if view.live:
        st.info("Being written right now", icon=":material/pending:")
        if st.button("Watch it live", key="watch", icon=":material/play_circle:", width="stretch"):
            go("live")
    elif not view.clean:
        st.warning("Not closed by its writer, which is gone", icon=":material/warning:")
    shown = [w for w in view.warnings if w]
    for warning in shown[:MAX_WARNINGS]:
        st.warning(plain(warning), icon=":material/warning:")
    if len(shown) > MAX_WARNINGS:
        st.caption(f"and {len(shown) - MAX_WARNINGS} more warnings")


def _geometry(view: TraceView) -> None:
    facts = summarised(view)
    geometry = facts["geometry"]
    pool = bytes_text(geometry["pool_bytes"]) if geometry["pool_bytes"] else "size not recorded"
    rows = [
        ("model", str(geometry["model"] or "not recorded")),
        ("pool", f"{count_text(view.num_blocks)} blocks, {pool}"),
        ("block", f"{view.block_size} slots" + (f", {bytes_text(view.block_bytes)}" if view.block_bytes else "")),
        ("events", count_text(len(view.events))),
        ("steps", count_text(int(measured(view).step.max(initial=-1)) + 1)),
        ("duration", duration_text(facts["duration_s"])),
    ]
    for fact in view.facts:
        if fact.get("type") == "run" and fact.get("fault"):
            rows.append(("planted", str(fact["fault"])))
    st.html(markup.facts(rows))
