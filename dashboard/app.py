"""The dashboard's script: navigation, sidebar and the time bar of every page. Run by `dashboard/server.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import streamlit as st
from PIL import Image

from kvscope.dashboard import attached, fragments, markup, notes, opened, sidebar, timebar
from kvscope.dashboard import place as places
from kvscope.dashboard.pages import PAGES, PATHS, TIMELESS
from kvscope.dashboard.palette import BLUE, ORANGE, SKY
from kvscope.dashboard.views import (
    biography,
    blocks,
    compare,
    doctor,
    events,
    findings,
    overhead,
    overview,
    replay,
    requests,
    runs,
    sharing,
    waste,
    whatif,
)  # fmt: skip
from kvscope.errors import KVScopeError

log = logging.getLogger(__name__)

VIEWS: dict[str, ModuleType] = {
    "overview": overview, "live": replay, "blocks": blocks, "biography": biography, "requests": requests,
    "waste": waste, "sharing": sharing, "events": events, "findings": findings, "compare": compare,
    "whatif": whatif, "doctor": doctor, "runs": runs, "overhead": overhead,
}  # fmt: skip


def main() -> None:
    """Lay out one run: open the trace, put the place inside it, draw the chosen page."""
    st.set_page_config(page_title="KVScope", page_icon=_icon(), layout="wide")
    st.html(markup.STYLE)
    st.logo(markup.logo([BLUE] * 4 + [ORANGE] + [BLUE] * 2 + [SKY] * 2), size="large")
    begun = opened.start()
    pages = {path: st.Page(_page(VIEWS[path]), title=title, icon=icon, url_path=path, default=path == PATHS[0])
             for path, title, icon in PAGES}  # fmt: skip
    if (wanted := st.session_state.pop("wanted", None)) is not None:
        st.switch_page(pages[wanted], query_params=places.link(begun.traces, wanted))
    chosen = st.navigation(list(pages.values()), position="hidden")
    links = st.sidebar.container(key="pages", gap=None)
    fragments.leave_behind(chosen.url_path)
    places.adopt_url()
    _follow_page_link(pages, begun)
    beside = False  # whether the sidebar stands
    told = None  # where notes are said
    try:
        if not begun.traces and opened.results().runs:  # property runs alone: no other page has anything to show
            if chosen.url_path != "runs":
                st.switch_page(pages["runs"])
            sidebar.links(links, chosen, pages, lambda path: {})
            told = st.container()
            runs.render(None, None)
            places.say_leftover("runs")
            notes.show("runs", told)
            places.publish_url(places.link(begun.traces, "runs", drawn=True))
            return
        if begun.folders and not any(map(opened.whole, begun.traces.values())):
            sidebar.links(links, chosen, pages, lambda path: {})
            attached.no_trace_yet(begun.folders)
            return
        name, path = opened.find(_wanted(begun), begun.traces)
        if attached.waits(begun, path):
            sidebar.links(links, chosen, pages, lambda path: {})
            return
        st.session_state["view"] = view = opened.open_view(name, path, st.session_state.get("seq"))
        _live_first(view, pages, chosen)
        playing = chosen.url_path == "live" and replay.playing(view, begun.seq)
        st.session_state["place"] = place = places.place_in(view, begun)
        beside = True
        place_on = partial(_place_on, view=view, begun=begun, moving=playing)
        sidebar.links(links, chosen, pages, place_on)
        sidebar.show(view, begun)
        if not path.exists():
            st.warning(f"{markup.plain(path.name)} is gone from the disk: shown is what was read of it before.",
                       icon=":material/warning:")  # fmt: skip
        if view.damage:
            st.error(markup.plain(view.damage), icon=":material/broken_image:")
        told = st.container()
        bar = st.container()  # there also where it is empty: what follows keeps its place, and so its nodes
        if len(view.events) and chosen.url_path not in TIMELESS:
            with bar:
                timebar.show(view, place, following=playing)
        chosen.run()
        places.say_leftover(chosen.url_path)
        notes.show(chosen.url_path, told)
        places.publish_url(place_on(chosen.url_path, drawn=True))
    except KVScopeError as error:
        if not beside:
            sidebar.links(links, chosen, pages, lambda path: {})
            sidebar.show_choice(begun)
        if told is not None:
            notes.show(chosen.url_path, told)
        st.error(markup.plain(str(error)), icon=":material/error:")
    except Exception as error:
        log.exception("a page failed")
        st.error(f"This page failed: {type(error).__name__}: {error}. The server's log has the traceback.",
                 icon=":material/error:")  # fmt: skip


def _wanted(begun: opened.Start) -> str | None:
    """The trace that the session asks for, else the one it shows: a newer one that appears does not take its place."""
    shown = st.session_state.get("place_of")
    return st.session_state.get("trace") or (shown if shown in begun.traces else None)


def _place_on(
    path: str, *, view: opened.TraceView, begun: opened.Start, moving: bool, drawn: bool = False
) -> dict[str, str]:
    """The link's parameters on a page."""
    other = compare.chosen(view, begun.traces) if path == "compare" else None
    moving = moving or (path == "live" and replay.would_play(view))
    return places.link(begun.traces, path, view.name, moving=moving, other=other, drawn=drawn)


def _live_first(view: opened.TraceView, pages: dict[str, Any], chosen: Any) -> None:
    """A session that begins with a trace being written, at no place in particular, begins with the live page."""
    state = st.session_state
    first = state.get("begun") is None
    if not len(view.events):  # it begins with the first event
        return
    state["begun"] = True
    somewhere = {"seq", "block"} & state.get("adopted", set())
    if first and view.live and chosen.url_path == "" and not somewhere:
        st.switch_page(pages["live"])


def _icon() -> Image.Image:
    """Nine blocks, one of them shared: drawn here, since a named icon would be fetched from the internet."""
    image = np.zeros((32, 32, 4), dtype=np.uint8)
    for i in range(9):
        top, left = 1 + 11 * (i // 3), 1 + 11 * (i % 3)
        colour = ORANGE if i == 4 else BLUE
        image[top : top + 8, left : left + 8] = [*(int(colour[k : k + 2], 16) for k in (1, 3, 5)), 255]
    return Image.fromarray(image)


def _page(module: ModuleType) -> Callable[[], None]:
    def run() -> None:
        view, place = st.session_state["view"], st.session_state["place"]
        if len(view.events) == 0 and module is not runs:
            attached.empty(view)
            return
        module.render(view, place)

    return run


def _follow_page_link(pages: dict[str, Any], begun: opened.Start) -> None:
    """`?page=blocks` in a link opens that page, whichever path the link has; the rest of the link was adopted."""
    wanted, given = st.query_params.get("page"), list(dict.fromkeys(st.query_params.get_all("page")))
    if wanted is None:
        return
    if len(given) > 1:
        notes.note(f"The link has {', '.join(f'page={page:.60}' for page in given[:8])}: the last one is followed.")
    if wanted in pages and not places.stepped_back():
        st.switch_page(pages[wanted], query_params=places.link(begun.traces, wanted))
    if wanted not in pages:
        notes.note(f"There is no page {wanted!r}: the overview is shown.")
    del st.query_params["page"]


main()
