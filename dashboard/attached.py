"""A running server in the place of a trace: waited for, and what is said while there is nothing of it to see."""

from __future__ import annotations

import shlex
from pathlib import Path

import streamlit as st

from kvscope.dashboard import opened, sidebar
from kvscope.dashboard.markup import plain
from kvscope.dashboard.opened import Start, TraceView

_AGAIN_S = 1.0


def waits(begun: Start, path: Path) -> bool:
    """Whether the page waits for a server; then it says so, and goes on by itself as soon as the server answers."""
    if opened.waiting_for(path) is None:
        return False
    sidebar.show_choice(begun)
    st.fragment(_waiting, run_every=_AGAIN_S)(path, begun.servers.get(path, "the server"))
    return True


def _waiting(path: Path, url: str) -> None:
    contact = opened.waiting_for(path)
    if contact is None:
        st.rerun()
    with st.container(border=True, key="waiting"):
        st.markdown(f"**Waiting for {plain(url)}**")
        st.markdown(plain(contact.said) if contact.said else "It has not answered yet.")
        st.caption("It is asked again every second; this page goes on by itself. A server to look at is started so:")
        st.code(f"kvscope serve MODEL --trace live.kvtrace --debug-routes\nkvscope dashboard {url}", language=None)


def no_trace_yet(folders: tuple[Path, ...]) -> None:
    """Folders without a trace: the first one that appears is shown by itself."""
    st.fragment(_first_trace, run_every=_AGAIN_S)(folders)


def _first_trace(folders: tuple[Path, ...]) -> None:
    if any(map(opened.whole, opened.start().traces.values())):
        st.rerun()
    where = " or ".join(plain(str(folder)) for folder in folders)
    with st.container(border=True, key="waiting"):
        st.markdown(f"**No trace yet in {where}**")
        st.caption("It is looked for every second; this page goes on by itself as soon as there is one. Start one so:")
        target = shlex.quote(str(folders[0] / "run.kvtrace"))
        commands = (f"kvscope serve smollm2 --trace {target}", f"kvscope generate smollm2 'Hello' --trace {target}")
        st.code("\n".join(commands), language=None)


def empty(view: TraceView) -> None:
    """A trace without events; of one that is being written the first of them is waited for."""
    if view.absent:  # said above every page
        return
    if not view.live:
        st.info("This trace holds no event yet: nothing was recorded, or its writer has only just begun.")
        return
    st.fragment(_first_event, run_every=_AGAIN_S)(view)


def _first_event(view: TraceView) -> None:
    if len(opened.open_view(view.name, view.path, 0).events):
        st.rerun()
    st.info("This trace holds no event yet: it is being written, and shown as soon as there is one.",
            icon=":material/hourglass_empty:")  # fmt: skip
