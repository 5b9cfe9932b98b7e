"""Live and replay: the pool as it breathes. A trace that is being written is followed; any other is played.

Everything that refreshes is one fragment of three elements that keep their nodes: numbers, curves, map. Pausing a live
trace leaves its curves growing; a click on them goes back to that moment.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import streamlit as st

from kvscope.dashboard import canvas, choices, curves, markup, story, verdict
from kvscope.dashboard.answers import findings_so_far, measured, pool_at
from kvscope.dashboard.component import block_map
from kvscope.dashboard.component import curves as curves_element
from kvscope.dashboard.curves import Tick
from kvscope.dashboard.numbers import count_text
from kvscope.dashboard.opened import Followed, TraceView, followed, row_at
from kvscope.dashboard.palette import CAUSES
from kvscope.dashboard.place import Place, go
from kvscope.errors import KVScopeError
from kvscope.inspector.following import Moment, thinned
from kvscope.inspector.holes import allocator_of
from kvscope.inspector.measures import MEASURES, Series
from kvscope.inspector.state import PoolState
from kvscope.inspector.statrow import LOST, Cell, going_cells, measures_now, moment_cells, now_cells, waste_title
from kvscope.inspector.units import counted

EVERY_S, EVERY_LARGE_S, EVERY_PAUSED_S = 0.12, 0.4, 1.0
LARGE = 1 << 17  # blocks
BEHIND = 100_000  # events that a server has and that are not here yet: said from so many on
SPEEDS = (20, 100, 500, 2_000, 10_000, 100_000)  # events per second
_MODES = {"state": "State", "refcount": "References", "age": "Age"}
_PILL = {
    "live": ("live", "live: {} so far"),
    "gone": ("gone", "the writer is gone, waiting for it to come back: {}"),
    "closed": ("still", "the run has ended: {}"),
    "paused": ("still", "paused, {} so far"),
    "away": ("gone", "the server does not answer, asking again: {}"),
    "behind": ("live", "catching up: {} fetched"),
    "play": ("live", "playing, event {}"),
    "still": ("still", "event {}"),
}

_AT_EVENT = ("play", "still")


def playing(view: TraceView, opened_at: int | None = None) -> bool:
    """Whether the page moves by itself; at first a live trace does, unless the link or the launcher names an event."""
    state = st.session_state
    named = "seq" in state.get("adopted", set())
    if state.get("played") != (view.name, view.opened):
        at_first = state.get("place_of") is None and (opened_at is not None or state.get("seq") is not None)
        state["played"] = (view.name, view.opened)
        state["playing"] = bool(view.live and not named and not at_first)
        state["play_from"] = None
    if named or (not view.live and not state["play_from"]):  # the run that was followed has ended
        if state["playing"] and not named:
            state["seq"] = view.last_seq
        state["playing"] = False
    if state["playing"] and view.live:
        state["seq"] = None  # the newest
    return bool(state["playing"])


def would_play(view: TraceView) -> bool:
    """Whether a session that comes here from another page finds the page following a live trace: at no event, then."""
    state = st.session_state
    return view.live and (state.get("played") != (view.name, view.opened) or bool(state.get("playing")))


def render(view: TraceView, place: Place) -> None:
    """The page."""
    moves = bool(st.session_state.get("playing"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        _buttons(view, place, moves)
        chosen = choices.one("colour", list(_MODES), "state", key="live_mode", what="Colour by")
        mode = st.segmented_control("Colour by", list(_MODES), format_func=_MODES.__getitem__, required=True,
                                    label_visibility="collapsed", **chosen)  # fmt: skip
    every = (EVERY_LARGE_S if view.num_blocks > LARGE else EVERY_S) if moves else EVERY_PAUSED_S if view.live else None
    st.fragment(_panel, run_every=every)(view, place, moves, mode or "state")
    if place.block >= 0:
        st.divider()
        if moves:
            st.caption(
                f"Block {place.block} as it was just after event {place.seq:,}; pick it again for its newest state."
            )
        story.card(view, place)


def _buttons(view: TraceView, place: Place, moves: bool) -> None:
    label, icon = ("Pause", ":material/pause:") if moves else ("Play", ":material/play_arrow:")
    if view.live and not moves:
        label, icon = "Back to live", ":material/play_arrow:"
    st.button(label, icon=icon, key="play", shortcut="P", type="secondary" if moves else "primary",
              on_click=_play, args=(view, place, not moves))  # fmt: skip
    if not view.live:
        chosen = choices.one("speed", SPEEDS, 100, key="speed", what="Speed")
        st.selectbox("Speed", SPEEDS, format_func=lambda n: f"{n:,} events/s", width=180, key="speed",
                     label_visibility="collapsed", on_change=_restart, args=(view, chosen))  # fmt: skip


def _play(view: TraceView, place: Place, wanted: bool) -> None:
    """Begin to move, or stop at what is shown. (A click may reach the server twice: it says what, not the opposite.)"""
    state = st.session_state
    if state.get("playing") and not wanted:
        state["seq"] = _played(view, place)
    state.update(playing=wanted, moved=True)
    at = view.first_seq if place.seq >= view.last_seq else place.seq
    state["play_from"] = None if view.live or not wanted else (time.monotonic(), at)


def _restart(view: TraceView, chosen: dict[str, Any]) -> None:
    """Another speed: go on from here."""
    chosen["on_change"](*chosen["args"])
    state = st.session_state
    if state.get("playing") and state.get("play_from"):
        state["play_from"] = (time.monotonic(), min(state.get("live_seq", 0), view.last_seq))


def _played(view: TraceView, place: Place) -> int:
    """The event that a playing page stands at."""
    if view.live or not st.session_state.get("play_from"):
        return int(st.session_state.get("live_seq", view.last_seq))
    began, seq = st.session_state["play_from"]
    return min(seq + int((time.monotonic() - began) * st.session_state.get("speed", 100)), view.last_seq)


@dataclass(frozen=True)
class _Shown:
    """One frame."""

    pool: PoolState
    past: dict[str, npt.NDArray[Any]]
    num_blocks: int
    block_bytes: int
    cells: tuple[Cell, ...]
    status: str
    events: int
    cursor: float | None  # on the axis of the curves
    dropped: int


def _panel(view: TraceView, place: Place, moves: bool, mode: str) -> None:
    """One refresh; what goes wrong is said in its place, and the next refresh tries again."""
    try:
        _refresh(view, place, moves, mode)
    except KVScopeError as error:
        st.error(markup.plain(str(error)), icon=":material/error:")


def _refresh(view: TraceView, place: Place, moves: bool, mode: str) -> None:
    if view.live:
        now = followed(view.name, view.path)
        if (now.status == "closed" or now.opened != view.opened) and moves:
            st.rerun()
        shown = _live(view, place, now, moves)
    else:
        seq = _played(view, place) if moves else place.seq
        if moves and seq >= view.last_seq:
            st.session_state.update(playing=False, seq=view.last_seq, moved=True)
            st.rerun()
        shown = _recorded(view, seq, moves, place.axis)
    st.session_state["live_seq"] = shown.pool.seq
    _draw(view, place, shown, mode)


def _draw(view: TraceView, place: Place, shown: _Shown, mode: str) -> None:
    kind, said = _PILL[shown.status]
    number = count_text(shown.events) if shown.status in _AT_EVENT else counted(shown.events, "event")
    st.html(markup.pill(kind, said.format(number)))
    banner = st.container()
    if shown.dropped:
        banner.error(f"{count_text(shown.dropped)} events were dropped while recording: this is not the whole story",
                     icon=":material/warning:")  # fmt: skip
    with banner:
        verdict.first_finding(view)
    st.html(markup.stats(shown.cells, alarm=LOST))
    left, right = st.columns([11, 10], gap="medium")
    with left:
        found = findings_so_far(view) or ()
        marked = [f.block for f in found if f.seq <= shown.pool.seq and f.block >= 0]

        def make(window: canvas.Window | None) -> bytes:
            return canvas.encode(shown.pool, mode, selected=place.block, marked=marked, window=window)

        picked = block_map(make, key="live_map")
    with right:
        ticks = [] if view.live else _ticks(view, place.axis)
        payload = curves.encode(shown.past, shown.num_blocks, axis=place.axis, cursor=shown.cursor, marks=ticks,
                                waste=waste_title(view))  # fmt: skip
        chosen = curves_element(payload, key="live_curves")
    if picked is not None:
        st.session_state["moved"] = True
        go(block=canvas.block_of(shown.pool, picked), seq=shown.pool.seq if not view.live else None)
    if chosen is not None:
        st.session_state.update(playing=False, play_from=None)
        go(seq=min(chosen, view.last_seq) if not view.live else chosen)


def _live(view: TraceView, place: Place, now: Followed, moves: bool) -> _Shown:
    """A frame of a trace that is being written: the newest, or the chosen event under curves that go on growing."""
    moment = now.moment
    pool, cursor = moment.pool, None
    if moves:
        cells = _cells(view, pool, now.block_bytes, _going(now))
    else:
        pool = pool_at(view, place.seq)
        cells = _cells_at(view, pool, *_row_of(view, place.seq))
        cursor = _cursor(moment.past, place)
    status = now.status if moves or now.status != "live" else "paused"
    if now.contact is not None:
        status = "away" if now.status == "gone" else "behind" if now.contact.behind > BEHIND else status
    past = _to_the_present(moment) if now.status == "live" else moment.past
    return _Shown(pool, past, now.num_blocks, now.block_bytes, cells, status, moment.seq + 1, cursor, now.dropped)


def _cursor(past: dict[str, npt.NDArray[Any]], place: Place) -> float | None:
    """Where the event of the page lies among the points of the newest run; None before the first of them."""
    seqs = np.where(curves.of_newest_run(past), past["seq"], -1.0)
    at = int(np.searchsorted(np.nan_to_num(seqs, nan=-1.0), place.seq, side="right")) - 1
    if at < 0 or seqs[at] < 0:
        return None
    return float(place.seq) if place.axis == "event" else float(curves.x_values(past, place.axis)[at])


def _to_the_present(moment: Moment) -> dict[str, npt.NDArray[Any]]:
    """The past up to now: where nothing comes, all stays as it is."""
    past = moment.past
    if not len(past["seq"]) or np.isnan(past["seq"][-1]):
        return past
    past = {name: np.append(values, values[-1]) for name, values in past.items()}
    past["wall_s"][-1] += moment.idle_s
    return past


def _cells(view: TraceView, pool: PoolState, block_bytes: int, when: tuple[Cell, ...]) -> tuple[Cell, ...]:
    found = findings_so_far(view)
    measures, allocator = measures_now(pool, block_bytes), allocator_of(view.facts)
    return now_cells(measures, allocator, None if found is None else len(found), when)


def _going(now: Followed) -> tuple[Cell, ...]:
    m = now.moment
    if now.status == "gone":  # nobody runs them
        return going_cells(None, None, known=True, tokens_per_s=None)
    return going_cells(m.running, m.waiting, m.lineup_known, m.tokens_per_s)


@st.cache_resource(max_entries=3, show_spinner=False)
def _past(key: tuple[Any, ...], _view: TraceView) -> dict[str, npt.NDArray[Any]]:
    series = measured(_view)
    past = {name: np.asarray(getattr(series, name), dtype=np.float64) for name in MEASURES}
    past["seq"], past["step"] = series.seq.astype(np.float64), series.step.astype(np.float64)
    past["wall_s"], past["run"] = series.t_ns * 1e-9, np.zeros(len(series))
    return thinned(past)


def _recorded(view: TraceView, seq: int, moves: bool, axis: str) -> _Shown:
    """A frame of a trace that is complete."""
    (series, row), pool = _row_of(view, seq), pool_at(view, seq)
    at = _on_axis(series.seq[row], series.step[row], series.t_ns[row], axis)
    cells = _cells_at(view, pool, series, row)
    status = "play" if moves else "still"
    return _Shown(pool, _past(view.id, view), view.num_blocks, view.block_bytes, cells, status, seq, at, 0)


def _row_of(view: TraceView, seq: int) -> tuple[Series, int]:
    """The measures, and where in them event `seq` is: of a long trace only some events are there."""
    series = measured(view)
    return series, max(int(np.searchsorted(series.seq, seq, side="right")) - 1, 0)


def _cells_at(view: TraceView, pool: PoolState, series: Series, row: int) -> tuple[Cell, ...]:
    since = (int(series.t_ns[row]) - int(series.t_ns[0])) * 1e-9
    return _cells(view, pool, view.block_bytes, moment_cells(int(series.step[row]), since))


def _ticks(view: TraceView, axis: str) -> list[Tick]:
    """Findings on the axis."""
    colour, _ = CAUSES["finding"]
    found = list(findings_so_far(view) or ())[:200]
    if not found:
        return []
    rows = np.asarray([row_at(view, f.seq) for f in found], dtype=np.int64)
    events = view.events[rows]
    places = zip(np.asarray(view.seqs)[rows].tolist(), events["step"].tolist(), events["t_ns"].tolist(), strict=True)
    return [Tick(_on_axis(*place, axis), colour) for place in places]


def _on_axis(seq: int, step: int, t_ns: int, axis: str) -> float:
    """Where an event of a complete trace lies."""
    return float(seq) if axis == "event" else float(max(step, 0)) if axis == "step" else float(t_ns) * 1e-9
