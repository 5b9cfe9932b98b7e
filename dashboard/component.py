"""The dashboard's own elements: the block map, the curves, the list of events, and the buttons that save a page.

Each is registered once and mounted by key, so that its node outlives a change of its data. The scripts put text of
a trace into the page as text only.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from kvscope.dashboard.canvas import Window, window_of

_HERE = Path(__file__).parent
_MAP = """<div class="map"><div class="area"><div class="labels"></div>
<canvas tabindex="0" role="img"></canvas><div class="hovered" hidden></div><div class="picked" hidden></div>
<div class="tip" hidden></div><div class="zoom"><button class="reset" title="The whole pool (0, or a double click)"
hidden>⤢</button><button class="farther" title="Zoom out (-, or the wheel)">−</button>
<button class="nearer" title="Zoom in to single blocks (+, or the wheel)">+</button></div></div>
<div class="legend"></div></div>"""
_CURVES = '<div class="curves"><canvas role="img"></canvas><div class="tip" hidden></div></div>'
_KEEP = """<div class="keep"><b>Save this page</b><button data-kind="html">HTML</button>
<button data-kind="png">PNG</button><span role="alert"></span></div>"""
_LANES = '<div class="lanes"></div>'
_ROWS = '<div class="rows"><table><thead></thead><tbody></tbody></table></div>'


@st.cache_resource(show_spinner=False)
def _renderer(name: str, html: str) -> Any:
    css, js = ((_HERE / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return st.components.v2.component(f"kvscope_{name}", html=html, css=css, js=js)


def block_map(make: Callable[[Window | None], bytes], *, key: str) -> int | None:
    """Draw the map that `canvas.encode` writes; returns what was clicked just now, else None.

    Args:
        make: the payload, with single blocks in the part of the map that is looked at closely.

    Returns:
        A block, or -1 - block for any of the tile that the block lies in.
    """
    asked = (st.session_state.get(key) or {}).get("window")
    payload = make(window_of(asked))
    result = _renderer("canvas", _MAP)(
        data=payload, key=key, on_picked_change=lambda: None, on_window_change=lambda: None
    )
    return None if result.picked is None else int(result.picked)


def curves(payload: bytes, *, key: str) -> int | None:
    """Draw the measures that `curves.encode` wrote; returns the event that was clicked just now, else None."""
    result = _renderer("curves", _CURVES)(data=payload, key=key, on_picked_change=lambda: None)
    return None if result.picked is None else int(result.picked)


def keep(trace: str) -> None:
    """The buttons that save what the page shows as one file, named after the trace, the page and the event."""
    _renderer("keep", _KEEP)(data=trace, key="keep")


def time_keys(done: tuple[int, int], on_press: Callable[[], None], *, key: str) -> None:
    """Listen to J and K: `asked_keys` says how often they were pressed once `on_press` is called.

    Args:
        done: how many events and steps of that the page has moved by.
    """
    session = st.session_state.setdefault(f"{key}_session", secrets.token_hex(8))
    data = {"session": session, "event": done[0], "step": done[1]}
    _renderer("keys", '<div class="keys"></div>')(data=data, key=key, on_asked_change=on_press)


def asked_keys(key: str) -> tuple[int, int]:
    """(events, steps) that keys have asked for since the session began; less than 0 is back."""
    asked = (st.session_state.get(key) or {}).get("asked")
    if not isinstance(asked, dict) or asked.get("session") != st.session_state.get(f"{key}_session"):
        return 0, 0
    events, steps = (asked.get(name) for name in ("event", "step"))
    return int(events or 0), int(steps or 0)


def finding_lanes(data: dict[str, Any], *, key: str) -> int | None:
    """Draw the chain of a finding in lanes; returns the event that was picked just now, else None.

    Args:
        data: `alt`; `lanes` (name, by, colour); `rows` (seq, lane, where, between, role, text, guilty, missing).
    """
    result = _renderer("lanes", _LANES)(data=data, key=key, on_picked_change=lambda: None)
    return None if result.picked is None else int(result.picked)


def event_list(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Any]],
    current: int,
    *,
    height: int,
    key: str,
    above: int = 0,
) -> int | None:
    """A list of events, scrolled to the one numbered `current`; returns the number that was picked just now.

    Args:
        columns: (name, kind) with kind `number`, `text`, or `grow` for the column that takes the room.
        rows: the cells of each event; the first is its number, None leaves a cell empty.
        height: at most so many pixels. above: rem that stand above it on the page, so that the list ends in the window.
    """
    shape = [{"name": n, "kind": "text" if k == "grow" else k, "grow": k == "grow"} for n, k in columns]
    data = {"columns": shape, "rows": [list(row) for row in rows], "current": current, "height": height, "above": above}
    result = _renderer("rows", _ROWS)(data=data, key=key, on_picked_change=lambda: None)
    return None if result.picked is None else int(result.picked)
