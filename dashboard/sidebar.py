"""The sidebar: which trace, its geometry, and everything that makes it less than complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from kvscope.dashboard import markup, opened
from kvscope.dashboard.component import keep
from kvscope.dashboard.markup import plain
from kvscope.dashboard.numbers import bytes_text, count_text, duration_text
from kvscope.dashboard.opened import Start, TraceView
from kvscope.dashboard.place import go, move
from kvscope.inspector.spans import model_facts
from kvscope.inspector.units import counted
from kvscope.traces.folder import is_written
from kvscope.traces.losses import Losses

MAX_WARNINGS = 5
GONE = "Not closed by its writer, which is gone"
WRITER_S = 0.5  # how often it is asked whether the writer still is there
AGAIN_S = 2.0  # how often a folder is looked through for traces that have come
STEPS_AMONG = 1 << 14  # events at the end, among which the last step is looked for


def links(room: Any, chosen: Any, pages: dict[str, Any], place_on: Callable[[str], dict[str, str]]) -> None:
    """The pages' links, each with the place in it (`place_on` a path); a screen reader hears which one was `chosen`.

    Streamlit's own navigation leaves the place out of its links; the page would then write it into the address: a
    second entry for the browser's Back.
    """
    room.html(markup.here(chosen.title))
    for path, page in pages.items():
        room.page_link(page, query_params=place_on(path), width="stretch")


def show(view: TraceView, begun: Start) -> None:
    """The whole sidebar below the navigation."""
    show_choice(begun)
    with st.sidebar:
        _health(view)
        _geometry(view)
        keep(view.name)


def show_choice(begun: Start) -> None:
    """The trace's name, or a choice where there are several; one that appears in a watched folder is offered."""
    names = list(begun.traces)
    if not names:
        return
    with st.sidebar:
        _watch(begun)
        if len(names) == 1:
            st.markdown(f"**{plain(names[0])}**")
            return
        chosen = st.session_state.get("trace") or st.session_state.get("place_of") or names[0]
        st.session_state["trace_box"] = chosen if chosen in names else None
        st.selectbox(
            "Trace" + (f", {begun.order}" if begun.order else ""),
            names,
            key="trace_box",
            on_change=_choose,
            placeholder="choose a trace",
        )


def _watch(begun: Start) -> None:
    """Say which traces have come since the run before, but for the one that is shown, and go on looking for more."""
    state, there = st.session_state, tuple(filter(opened.whole, begun.traces.values()))
    before = state.get("there")
    state["there"] = there
    shown = state.get("trace") or state.get("place_of") or next(iter(begun.traces))
    for path in there if before is not None else ():
        name = next(name for name, other in begun.traces.items() if other == path)
        if path not in before and name != shown:
            st.toast(f"{plain(name)} is a new trace here: choose it in the sidebar", icon=":material/fiber_new:")
    if begun.folders:
        st.fragment(_look_again, run_every=AGAIN_S)(there)


def _look_again(there: tuple[Path, ...]) -> None:
    if tuple(filter(opened.whole, opened.start().traces.values())) != there:
        st.rerun()


def _choose() -> None:
    move(trace=st.session_state["trace_box"])


def _health(view: TraceView) -> None:
    """A banner for every warning; dropped events are an error, for what is shown is then not the whole story."""
    if view.dropped:
        st.error(
            f"{counted(view.dropped, 'event was', 'events were')} dropped while recording", icon=":material/warning:"
        )
    if any(losses := Losses.of(view.reader)):
        st.error(f"{losses} could not be written while recording", icon=":material/warning:")
    if not view.live:
        st.fragment(_another, run_every=AGAIN_S)(view)
    if view.live:
        st.fragment(_live, run_every=WRITER_S)(view)
        if st.button("Watch it live", key="watch", icon=":material/play_circle:", width="stretch"):
            go("live")
    elif not view.clean:
        st.warning(GONE, icon=":material/warning:")
    shown = [w for w in view.warnings if w]
    for warning in shown[:MAX_WARNINGS]:
        st.warning(plain(warning), icon=":material/warning:")
    if len(shown) > MAX_WARNINGS:
        st.caption(f"and {counted(len(shown) - MAX_WARNINGS, 'more warning')}")


def _another(view: TraceView) -> None:
    if opened.outdated(view):
        st.rerun()


def _live(view: TraceView) -> None:
    """Who writes it, as things stand now: the rest of the sidebar is drawn once."""
    contact = opened.contact_of(view.path)
    if contact is None and is_written(view.path):
        st.info("Being written right now", icon=":material/pending:")
    elif contact is None and opened.closed(view.path):
        st.info("Its writer has closed it", icon=":material/check_circle:")
    elif contact is None:
        st.warning(GONE, icon=":material/warning:")
    elif contact.connected:
        st.info("A running server, followed", icon=":material/lan:")
    else:
        st.error(plain(contact.said), icon=":material/cloud_off:")


def _geometry(view: TraceView) -> None:
    """Nothing here is measured: a long trace would have to be gone through for it.

    What grows is told of a trace that does not: the sidebar is drawn once, and the live page has a clock of its own.
    """
    pool = bytes_text(view.num_blocks * view.block_bytes) if view.block_bytes else "size not recorded"
    rows = [
        ("model", str(model_facts(view).get("name") or "not recorded")),
        ("pool", f"{counted(view.num_blocks, 'block')}, {pool}"),
        ("block", counted(view.block_size, "slot") + (f", {bytes_text(view.block_bytes)}" if view.block_bytes else "")),
    ]
    if not view.live:
        newest = view.events[-STEPS_AMONG:]
        seconds = (int(newest["t_ns"][-1]) - int(view.events[0]["t_ns"])) * 1e-9 if len(newest) else None
        rows.append(("events", count_text(len(view.events))))
        rows.append(("steps", count_text(int(newest["step"].max(initial=-1)) + 1)))
        rows.append(("duration", duration_text(seconds)))
    for fact in view.facts:
        if fact.get("type") == "run" and fact.get("fault"):
            rows.append(("planted", str(fact["fault"])))
    st.html(markup.facts(rows))
