"""The server's program, run by `launch.command`: Streamlit with the pages' own addresses.

Streamlit's browser part looks for its server below the address that it was opened at: on `/blocks` it asks for
`/blocks/_stcore/health` first, a miss that every browser notes as an error. So a page opened there is told where the
server is, in the object that Streamlit reads for it, and a link of the form `/?page=blocks&seq=812` is sent to
`/blocks?seq=812`: the page it names is the first entry in the browser's history.
"""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import Scope
from streamlit import file_util

from kvscope.dashboard.pages import PATHS

_TOLD = '<script>window.__streamlit = { BACKEND_BASE_URL: window.location.origin + "/" }</script>'


async def _at_the_root(request: Request) -> Response:
    """The first page, or the one that the link names."""
    given = request.query_params.multi_items()
    page = request.query_params.get("page")
    if page not in PATHS or len(set(request.query_params.getlist("page"))) > 1:  # the page says what is wrong
        return _document()
    rest = urlencode([(name, value) for name, value in given if name != "page"])
    path = "" if page == PATHS[0] else page
    return RedirectResponse(f"/{path}" + (f"?{rest}" if rest else ""), headers={"Cache-Control": "no-cache"})


class _Unknown(Route):
    """A first level path that is no page and none of Streamlit's own files: what a mistyped link asks for."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As `Route`, but for names of files and of Streamlit's own routes."""
        name = str(scope.get("path", "")).strip("/")
        if "." in name or name.startswith("_") or name in PATHS:
            return Match.NONE, {}
        return super().matches(scope)


async def _nowhere(request: Request) -> Response:
    """The first page, which says that there is no such page, and the rest of the link."""
    given = [("page", request.path_params["name"]), *request.query_params.multi_items()]
    return RedirectResponse(f"/?{urlencode(given)}", headers={"Cache-Control": "no-cache"})


async def _at_a_page(request: Request) -> Response:
    return _document()


def _document() -> Response:
    text = Path(file_util.get_static_dir(), "index.html").read_text(encoding="utf-8")
    return HTMLResponse(text.replace("<head>", f"<head>{_TOLD}", 1), headers={"Cache-Control": "no-cache"})


if "--server" in sys.argv:
    from kvscope.dashboard.opened import follow_servers

    follow_servers()

app = st.App(
    Path(__file__).with_name("app.py"),
    routes=[
        Route("/", _at_the_root),
        *(Route(f"/{path}", _at_a_page) for path in PATHS[1:]),
        _Unknown("/{name}", _nowhere),
    ],
)
