"""The place: which event and block the pages stand at. The URL is the state.

`/blocks?trace=..&seq=..&block=..` (or `/?page=blocks&..`) reproduces a view. A value in the URL that this session has
not written itself is taken over; what the session holds is written back at the end of every run. A link can only name
traces that the launcher was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from kvscope.dashboard.opened import Start, TraceView


@dataclass
class Place:
    """Where in the trace the pages stand."""

    seq: int
    block: int  # -1: none chosen


def adopt_url() -> None:
    """Take over what the URL says and this session has not written itself: an opened link, or Back."""
    written: dict[str, str] = st.session_state.setdefault("written", {})
    for name in ("trace", "seq", "block"):
        value = st.query_params.get(name)
        if value is not None and value != written.get(name):
            st.session_state[name] = value if name == "trace" else _number(value)
            written[name] = value


def publish_url(view: TraceView, place: Place, traces: dict[str, Path]) -> None:
    """Make the URL say where this session is (the page is in its path); what is not chosen is left out."""
    wanted = {"seq": str(place.seq)}
    if len(traces) > 1:
        wanted["trace"] = view.name
    if place.block >= 0:
        wanted["block"] = str(place.block)
    st.session_state["written"] = wanted
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def place_in(view: TraceView, begun: Start) -> Place:
    """The current place, inside the trace's limits; where none was chosen the launcher's, then the last event."""
    state = st.session_state
    if state.get("place_of") not in (None, view.name):  # another trace: its numbers mean something else
        state["seq"] = state["block"] = None
    elif state.get("place_of") is None:
        state["seq"] = begun.seq if state.get("seq") is None else state["seq"]
        state["block"] = begun.block if state.get("block") is None else state["block"]
    state["place_of"] = view.name
    seq = view.last_seq if state.get("seq") is None else int(state["seq"])
    block = -1 if state.get("block") is None else int(state["block"])
    state["seq"] = max(min(seq, view.last_seq), min(view.first_seq, view.last_seq))
    state["block"] = block if 0 <= block < view.num_blocks else -1
    return Place(state["seq"], state["block"])


def go(page: str | None = None, *, seq: int | None = None, block: int | None = None) -> None:
    """Move to another place and, where named, to another page; ends the run."""
    if seq is not None:
        st.session_state["seq"] = int(seq)
    if block is not None:
        st.session_state["block"] = int(block)
    if page is not None:
        st.switch_page(st.session_state["pages"][page])
    st.rerun()


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
