"""The place: which event and block the pages stand at. The URL is the state.

`/blocks?trace=..&seq=..&block=..` (or `/?page=blocks&..`) reproduces a view, with what is chosen on it
(`choices`). A value in the URL that this session has not written itself is taken over; what the session holds is
written back at the end of every run. A link can only name traces that the launcher was given.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st

from kvscope.dashboard import choices, fragments
from kvscope.dashboard.answers import findings_so_far, measured, summarised
from kvscope.dashboard.axes import AXES
from kvscope.dashboard.notes import forget, note
from kvscope.dashboard.opened import Start, TraceView, run_of

_PLACE = ("trace", "other", "seq", "block")
_ASKED = {"seq": "Event", "block": "Block"}
_MOST_NAMED = 8  # of what a line lists
BELOW = "Block {} was asked for: blocks begin with 0, and none of them is chosen."
STALE_S = 2.0  # how long a browser may go on sending an address that has been replaced


@dataclass
class Place:
    """Where in the trace the pages stand."""

    seq: int
    block: int  # -1: none chosen
    axis: str = "event"  # what time goes by, one of AXES


def adopt_url() -> None:
    """Take over what the URL says and this session has not written itself: an opened link, or Back.

    A browser sends the address it knows: after a quick move that can still be the one before. So a run that moves
    takes nothing over, and neither does any run a value that was replaced only just now; unless the visitor goes back,
    who means the address as it is, with what it leaves out.
    """
    state = st.session_state
    state["adopted"] = adopted = set()
    choices.begin()
    back = stepped_back()
    if state.pop("moved", False):
        forget()
        if not back:
            return
    written: dict[str, str] = state.setdefault("written", {})
    replaced: dict[tuple[str, str], float] = state.setdefault("replaced", {})
    known = (*_PLACE, *choices.NAMES)
    unknown = [name for name in st.query_params if name not in (*known, "page")]
    for name in (*known, *unknown):
        value = st.query_params.get(name)
        here = name != "other" or state.get("page_drawn") == "compare"  # what no other page's address has
        if value is None and back and here and name in written and len(st.query_params):
            _leave(name)
            del written[name]
        if value is None or value == written.get(name):
            continue
        if not back and time.monotonic() - replaced.get((name, value), -STALE_S) < STALE_S:
            continue
        if not adopted:
            forget()
        adopted.add(name)
        if name in known:
            _say_doubled(name)
            _take(name, value)
        written[name] = value
    if left := [f"{name}={st.query_params[name]}" for name in unknown if name in adopted]:
        note(f"{_listed(left)} {'is' if len(left) == 1 else 'are'} in the link and nothing that a link can ask for.")


def _say_doubled(name: str) -> None:
    given = list(dict.fromkeys(st.query_params.get_all(name)))
    if len(given) > 1:
        note(f"The link has {_listed([f'{name}={value}' for value in given])}: the last one is followed.")


def _listed(texts: list[str]) -> str:
    """A few of them, none at any length."""
    return ", ".join(f"{text:.60}" for text in texts[:_MOST_NAMED]) + (" ..." if len(texts) > _MOST_NAMED else "")


def say_leftover(page: str) -> None:
    """What the link asks for and the page, which has been drawn, does not have."""
    if left := choices.leftover(page):
        note(f"{_listed(left)} was asked for, which this page has no choice of here: it is shown without.")


def _take(name: str, value: str) -> None:
    state = st.session_state
    if name in choices.NAMES or name == "other":
        choices.take(name, value)
    if name in choices.NAMES:
        return
    state[name] = value if name in ("trace", "other") else _number(value)
    if state[name] is None:
        note(f"{_ASKED[name]} {value!r:.60} was asked for, which is no number: the link is followed without it.")
    elif name == "block" and state[name] == -1:  # (which within a session means that it was let go of)
        note(BELOW.format(-1))


def _leave(name: str) -> None:
    if name in choices.NAMES:
        choices.asked().pop(name, None)
    else:
        st.session_state[name] = None


def publish_url(wanted: dict[str, str]) -> None:
    """Make the URL say where this session is, what `link` gives; the page is in its path."""
    if stepped_back() and not st.query_params.to_dict():
        return  # an entry that came before its place was known: one more would stand in the way of going on back
    state, now = st.session_state, time.monotonic()
    gone = {item: now for item in state.get("written", {}).items() if item not in wanted.items()}
    recent = {item: t for item, t in state.get("replaced", {}).items() if now - t < STALE_S}
    state["replaced"] = recent | gone
    state["written"] = wanted
    doubled = any(len(st.query_params.get_all(name)) > 1 for name in wanted)
    if doubled or st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def link(
    traces: dict[str, Path],
    page: str,
    trace: str | None = None,
    *,
    moving: bool = False,
    other: str | None = None,
    drawn: bool = False,
) -> dict[str, str]:
    """The parameters that reproduce a page as the session has it; what is not chosen is left out.

    Args:
        page: its path.
        trace: the one that is shown, where it is known.
        moving: the page plays: it stands at no event.
        other: the trace beside it, on the page that compares.
        drawn: the page has been drawn: its choices are known.
    """
    state = st.session_state
    wanted = {
        "seq": state.get("seq"),
        "trace": trace or state.get("trace") or state.get("place_of"),
        "other": other,
    }
    if len(traces) < 2:
        wanted["trace"] = None
    if moving or (state.get("seq") or 0) < 0:
        wanted["seq"] = None
    wanted["block"] = state.get("block") if (state.get("block") or 0) >= 0 else None
    found = {name: str(value) for name, value in wanted.items() if value not in (None, "")}
    return found | choices.parameters(page, drawn=drawn)


def stepped_back() -> bool:
    """Whether this run answers the browser's Back or Forward (Streamlit says so from 1.60 or so on)."""
    return st.session_state.get("stepped_back", False) or fragments.history_asked()


def place_in(view: TraceView, begun: Start) -> Place:
    """The current place, inside the trace's limits; where none was chosen the launcher's, then the telling one."""
    state = st.session_state
    if state.get("place_of") not in (None, view.name):  # another trace: its numbers mean something else
        for name in {"seq", "block"} - state.get("adopted", set()):
            state[name] = None
    elif state.get("place_of") == view.name and state.get("run_of") != run_of(view):
        _begin_anew(view)
    elif state.get("place_of") is None:
        state["seq"] = begun.seq if state.get("seq") is None else state["seq"]
        state["block"] = begun.block if state.get("block") is None else state["block"]
    state["place_of"], state["run_of"] = view.name, run_of(view)
    if not len(view.events):
        return Place(-1, -1)
    if state.get("seq") is None:
        told = telling(view)
        state["seq"] = told.seq
        state["block"] = told.block if state.get("block") is None else state["block"]
    seq = int(state["seq"])
    block = -1 if state.get("block") is None else int(state["block"])
    state["seq"] = max(min(seq, view.last_seq), min(view.first_seq, view.last_seq))
    state["block"] = block if 0 <= block < view.num_blocks else -1
    if seq != state["seq"]:
        end = "ends at" if seq > state["seq"] else "begins with"
        note(f"Event {seq:,} was asked for: {view.name} {end} event {state['seq']:,}, which is shown.")
    if block >= view.num_blocks or block < -1:
        last = view.num_blocks - 1
        note(f"Block {block:,} was asked for: the pool has blocks 0 to {last:,}, and none of them is chosen.")
    axis = choices.asked().get("axis", usual_axis(view))
    return Place(state["seq"], state["block"], axis if axis in AXES else usual_axis(view))


def _begin_anew(view: TraceView) -> None:
    """Another run has been written over the one that was shown: events and blocks of its numbers are others."""
    state = st.session_state
    left = {"seq", "block"} - state.get("adopted", set())
    if state.get("seq") is not None and "seq" in left:
        note(f"Another run has been written over {view.name}: the event and the block before it are gone.")
    for name in left:
        state[name] = None


def usual_axis(view: TraceView) -> str:
    """What pictures go by where nothing else was chosen: of a run that goes on also the times when nothing comes."""
    return "time" if view.live else "event"


def telling(view: TraceView) -> Place:
    """Where a trace is opened: at its first finding, else at the first refusal by holes, else where most is held.

    One that grows or is long is opened at its end.

    At the end of a run that is complete nothing is held any more: no page would have anything to show.
    """
    if view.live or view.on_demand:
        return Place(view.last_seq, -1)
    if found := findings_so_far(view):
        return Place(found[0].seq, found[0].block)
    refused = (summarised(view)["holes"] or {}).get("first")
    if refused:  # of an allocator of regions: free memory that nobody could have
        return Place(refused["seq"], -1)
    held = measured(view).held_blocks
    return Place(int(measured(view).seq[int(np.argmax(held))]) if held.max(initial=0) else view.last_seq, -1)


def move(*, seq: int | None = None, block: int | None = None, trace: str | None = None) -> None:
    """Change the place; -1 lets go of the block. For callbacks: the run that follows shows it."""
    state = st.session_state
    for name, value in (("seq", seq), ("block", block), ("trace", trace)):
        if value is not None:
            state[name] = value
            state["moved"] = True


def go(page: str | None = None, *, seq: int | None = None, block: int | None = None) -> None:
    """Move to another place and, where named, to another page; ends the run.

    The page is left by the run that follows: a fragment that did so itself would be asked to refresh once more while
    the other page is drawn, and what it draws would be lost.
    """
    move(seq=seq, block=block)
    if page is not None:
        st.session_state["wanted"] = page
    st.rerun()


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
