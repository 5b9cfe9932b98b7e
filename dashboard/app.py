"""The dashboard's entry script: navigation, sidebar and the time bar of every page. Run by `launch.command`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import streamlit as st
from PIL import Image

from kvscope.dashboard import attached, fragments, markup, opened, sidebar, timebar
from kvscope.dashboard import place as places
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

PAGES: tuple[tuple[str, str, str, ModuleType], ...] = (
    ("overview", "Overview", ":material/monitoring:", overview),
    ("live", "Live and replay", ":material/play_circle:", replay),
    ("blocks", "Block map", ":material/grid_view:", blocks),
    ("biography", "Block biography", ":material/history:", biography),
    ("requests", "Requests", ":material/view_timeline:", requests),
    ("waste", "Waste", ":material/data_usage:", waste),
    ("sharing", "Sharing", ":material/account_tree:", sharing),
    ("events", "Events", ":material/list:", events),
    ("findings", "Findings", ":material/bug_report:", findings),
    ("compare", "Compare", ":material/compare_arrows:", compare),
    ("whatif", "What if", ":material/tune:", whatif),
    ("doctor", "Doctor", ":material/stethoscope:", doctor),
    ("runs", "Property runs", ":material/science:", runs),
    ("overhead", "Recording overhead", ":material/speed:", overhead),
)

TIMELESS = ("compare", "whatif", "doctor", "runs", "overhead")  # they speak of a whole run: no event is chosen there


def main() -> None:
    """Lay out one run: open the trace, put the place inside it, draw the chosen page."""
    st.set_page_config(page_title="KVScope", page_icon=_icon(), layout="wide")
    st.html(markup.STYLE)
    st.logo(markup.logo([BLUE] * 4 + [ORANGE] + [BLUE] * 2 + [SKY] * 2), size="large")
    begun = opened.start()
    pages = {key: st.Page(_page(module), title=title, icon=icon, url_path=key, default=key == "overview")
             for key, title, icon, module in PAGES}  # fmt: skip
    if (wanted := st.session_state.pop("wanted", None)) is not None:
        st.switch_page(pages[wanted], query_params=places.link(begun.traces))
    chosen = st.navigation(list(pages.values()), expanded=True)
    fragments.leave_behind(chosen.url_path)
    places.adopt_url()
    _follow_page_link(pages, begun)
    beside = False  # whether the sidebar stands
    try:
        if not begun.traces and opened.results().runs:  # property runs alone: no other page has anything to show
            if chosen.url_path != "runs":
                st.switch_page(pages["runs"])
            runs.render(None, None)
            return
        name, path = opened.find(st.session_state.get("trace"), begun.traces)
        if attached.waits(begun, path):
            return
        st.session_state["view"] = view = opened.open_view(name, path, st.session_state.get("seq"))
        _live_first(view, pages, chosen)
        playing = chosen.url_path == "live" and replay.playing(view, begun.seq)
        st.session_state["place"] = place = places.place_in(view, begun)
        beside = True
        sidebar.show(view, begun.traces)
        if not path.exists():
            st.warning(f"{markup.plain(path.name)} is gone from the disk: shown is what was read of it before.",
                       icon=":material/warning:")  # fmt: skip
        bar = st.container()  # there also where it is empty: what follows keeps its place, and so its nodes
        if len(view.events) and chosen.url_path not in TIMELESS:
            with bar:
                timebar.show(view, place, following=playing)
        chosen.run()
        places.publish_url(view, place, begun.traces, moving=playing)
    except KVScopeError as error:
        if not beside:
            sidebar.show_choice(begun.traces)
        st.error(markup.plain(str(error)), icon=":material/error:")
    except Exception as error:
        log.exception("a page failed")
        st.error(f"This page failed: {type(error).__name__}: {error}. The server's log has the traceback.",
                 icon=":material/error:")  # fmt: skip


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
    wanted = st.query_params.get("page")
    if wanted is None:
        return
    if wanted in pages:
        st.switch_page(pages[wanted], query_params=places.link(begun.traces))
    del st.query_params["page"]


main()
