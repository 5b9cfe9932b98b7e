"""The time bar of every page: which event the page shows, in words, and the ways to another one.

Keys: J and K to the event before and after, Shift+J and Shift+K a whole step.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import streamlit as st

from kvscope.dashboard import choices, markup
from kvscope.dashboard.answers import names_of
from kvscope.dashboard.axes import AXES
from kvscope.dashboard.component import asked_keys, time_keys
from kvscope.dashboard.numbers import count_text, duration_text
from kvscope.dashboard.opened import TraceView, open_view, row_at
from kvscope.dashboard.place import Place, move, usual_axis
from kvscope.dashboard.words import event_text, short_site
from kvscope.errors import KVScopeError
from kvscope.inspector.moments import event_at_step, event_at_time
from kvscope.inspector.source import site_text

KEYS = "time_keys"
LAG_S = 2.0  # how long a browser may go on telling what the bar was drawn with before
MOST_STEPS = 200  # of one answer to keys
Find = Callable[[TraceView, int, int], int | None]  # the event that a move from a row leads to; None: there is none


def show(view: TraceView, place: Place, *, following: bool = False) -> None:
    """Draw the bar; a move changes the session's place before the page below it is drawn again.

    Args:
        following: the page plays and says itself where it is: there is nothing to move.
    """
    if following:
        return
    row = row_at(view, place.seq)
    with st.container(border=True, key="timebar"):
        buttons, number, slide, by = st.columns([2.3, 1.2, 4.6, 2.65], vertical_alignment="center", gap="medium")
        with buttons, st.container(horizontal=True, gap="xxsmall"):
            time_keys(st.session_state.get("keys_done", (0, 0)), _pressed, key=KEYS)
            _move(view, row, "step_back", "first_page", "To the step before (Shift+J)", _step_seq, -1)
            _move(view, row, "event_back", "chevron_left", "To the event before (J)", _event_seq, -1)
            _move(view, row, "event_on", "chevron_right", "To the next event (K)", _event_seq, 1)
            _move(view, row, "step_on", "last_page", "To the next step (Shift+K)", _step_seq, 1)
        sliding = _slider(view, row, place.axis)
        st.session_state["keys_moved"] = False
        now = time.monotonic()
        drawn = {item: t for item, t in st.session_state.get("drawn", {}).items() if now - t < LAG_S}
        for key, value in (("seq_box", place.seq), (sliding["key"], sliding.pop("at"))):
            st.session_state[key] = value
            drawn[key, value] = now
        st.session_state["drawn"] = drawn
        with number:
            # (without limits: a browser would not say what is typed beyond them, and nobody would answer it)
            st.number_input("Event", step=1, key="seq_box", on_change=_take,
                            args=("seq_box",), label_visibility="collapsed")  # fmt: skip
        with slide:
            if sliding["max_value"] > sliding["min_value"]:
                st.slider(on_change=_take, args=(sliding["key"],), label_visibility="collapsed", **sliding)
        with by:
            chosen = choices.one("axis", list(AXES), usual_axis(view), key="axis", what="Time by")
            st.segmented_control("Time by", list(AXES), required=True, label_visibility="collapsed", width="stretch",
                                 help="What the slider and the pictures go by", **chosen)  # fmt: skip
        _caption(view, row)


def _slider(view: TraceView, row: int, axis: str) -> dict[str, Any]:
    """What the slider goes by: its limits, and `at`, where it stands."""
    if axis == "event":
        return {"key": "seq_slide", "label": "Event", "at": int(view.seqs[row]), "min_value": view.first_seq,
                "max_value": view.last_seq}  # fmt: skip
    here, last = view.events[row], view.events[len(view.events) - 1]
    if axis == "step":
        low, high, at = (max(int(event["step"]), 0) for event in (view.events[0], last, here))
        return {"key": "step_slide", "label": "Step", "at": min(max(at, low), high), "min_value": low,
                "max_value": high}  # fmt: skip
    high, at = (_seconds(view, event) for event in (last, here))
    digits = max(0, 3 - math.floor(math.log10(high))) if high > 0 else 0
    return {"key": "time_slide", "label": "Time", "at": min(at, high), "min_value": 0.0, "max_value": high,
            "step": 10.0**-digits, "format": f"%.{digits}f s"}  # fmt: skip


def _seconds(view: TraceView, event: Any) -> float:
    """Since the first event."""
    return max(int(event["t_ns"]) - int(view.events[0]["t_ns"]), 0) * 1e-9


def _caption(view: TraceView, row: int) -> None:
    event = view.events[row]
    where = f"event {count_text(int(view.seqs[row]))}"
    where += "" if view.live else f" of {count_text(view.last_seq)}"  # there are more by now
    step = f"step {int(event['step'])}" if event["step"] >= 0 else "before the first step"
    said = event_text(view, row, names_of(view))
    site = short_site(site_text(view, row))
    st.html(
        markup.now(
            said, " · ".join([where, step, duration_text(_seconds(view, event)), *([site] if site != "?" else [])])
        )
    )


def _move(view: TraceView, row: int, key: str, icon: str, text: str, find: Find, by: int) -> None:
    target = find(view, row, by)
    beyond = view.live and by > 0 and target is None  # of a trace that grows there may be more by then
    st.button("", key=key, icon=f":material/{icon}:", help=text,
              disabled=target is None and not beyond, on_click=_set_beyond if beyond else _set,
              args=(view, find) if beyond else (target,))  # fmt: skip


def _pressed() -> None:
    """Move by all that the keys have asked for since the last time, as one press after the other would."""
    state, asked, done = st.session_state, asked_keys(KEYS), st.session_state.get("keys_done", (0, 0))
    events, steps = asked[0] - done[0], asked[1] - done[1]
    state["keys_done"], state["keys_moved"] = asked, True
    view = state.get("view")
    if view is None or state.get("seq") is None or not len(view.events):
        return
    seq = int(state["seq"])
    if view.live and max(events, steps) > 0:  # there may be more by now
        with contextlib.suppress(KVScopeError):
            newer = open_view(view.name, view.path, seq + max(events, 0))
            view = newer if newer.opened == view.opened else view
    row = row_at(view, seq)
    for _ in range(min(abs(steps), MOST_STEPS)):
        target = _step_seq(view, row, 1 if steps > 0 else -1)
        if target is None:
            break
        row = row_at(view, target)
    _set(int(view.seqs[min(max(row + events, 0), len(view.seqs) - 1)]))


def _set(target: int | None) -> None:
    if target is not None:
        st.session_state["moved_at"] = time.monotonic()
        move(seq=target)


def _set_beyond(view: TraceView, find: Find) -> None:
    """On from the last event that was known when the page was drawn."""
    with contextlib.suppress(KVScopeError):  # what is wrong is said by the run that follows
        newer = open_view(view.name, view.path, view.last_seq + 1)
        target = find(newer, row_at(newer, view.last_seq), 1) if newer.opened == view.opened else None
        _set(target)


def _take(key: str) -> None:
    state = st.session_state
    value = state.get(key)
    # A browser that has not drawn the last moves yet says what the bar was before them as if somebody had set it.
    behind = asked_keys(KEYS) != state.get("keys_done", (0, 0)) or state.get("keys_moved", False)
    behind |= time.monotonic() - state.get("moved_at", -LAG_S) < LAG_S and (key, value) in state.get("drawn", {})
    if value is not None and not behind:
        move(seq=_event_of(key, value))


def _event_of(key: str, value: Any) -> int:
    """The event that a slider was set to; one that is moved on moves on, however far the next event is."""
    view = st.session_state["view"]
    if key not in ("step_slide", "time_slide"):
        return int(value)
    begun = int(view.events[0]["t_ns"])
    seq = event_at_step(view, value) if key == "step_slide" else event_at_time(view, begun + round(value * 1e9))
    row = row_at(view, int(st.session_state.get("seq") or 0))
    here = view.events[row]
    ahead = value > (int(here["step"]) if key == "step_slide" else _seconds(view, here))
    if seq == int(view.seqs[row]) and ahead and row + 1 < len(view.seqs):
        return int(view.seqs[row + 1])
    return seq


def _event_seq(view: TraceView, row: int, by: int) -> int | None:
    return int(view.seqs[row + by]) if 0 <= row + by < len(view.seqs) else None


def _step_seq(view: TraceView, row: int, by: int) -> int | None:
    """The last event of the step before or after, so that what is shown is a finished step."""
    now = int(view.events[row]["step"])
    other = _nearest(view, row, by, lambda steps: steps < now if by < 0 else steps > now)
    if other is None:
        last = len(view.events) - 1
        return int(view.seqs[last]) if by > 0 and row != last else None
    if by < 0:
        return int(view.seqs[other])
    following = int(view.events[other]["step"])
    end = _nearest(view, other, 1, lambda steps: steps != following)
    return int(view.seqs[len(view.events) - 1 if end is None else end - 1])


def _nearest(view: TraceView, row: int, by: int, wanted: Callable[[Any], Any]) -> int | None:
    """The nearest row before or after `row` whose step is wanted; looks further and further out."""
    lo, hi, width = row, row + 1, 1 << 12
    while (lo > 0) if by < 0 else (hi < len(view.events)):
        start, stop = (max(lo - width, 0), lo) if by < 0 else (hi, min(hi + width, len(view.events)))
        found = np.flatnonzero(wanted(view.events[start:stop]["step"]))
        if len(found):
            return start + int(found[-1 if by < 0 else 0])
        lo, hi, width = start, stop, 4 * width
    return None
