"""What refreshes by itself on one page must not reach into the next one.

A browser goes on asking for a refresh of the page it left until it has heard of the new one. Streamlit serves such a
request after the new page's run and takes the old page for the chosen one: the browser then drops what the new page has
drawn. So the first run on another page forgets the fragments of the page before, whose refreshes are then refused, and
begins again, which takes over the requests that came in meanwhile.
"""

from __future__ import annotations

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx


def leave_behind(page: str) -> None:
    """Forget what the page before refreshes; on another page the run begins again.

    Args:
        page: path of the page that this run draws.
    """
    state = st.session_state
    before = state.get("page_drawn")
    state["page_drawn"] = page
    again = state.pop("begun_again", False)
    state["stepped_back"] = again and state.get("stepped_back", False)
    context = get_script_run_ctx()
    if before is None or before == page or context is None:
        return
    context.fragment_storage.clear()
    state["begun_again"], state["stepped_back"] = True, history_asked()  # the run that follows would not know it
    st.rerun()


def history_asked() -> bool:
    """Whether the browser asked for this run because of its Back or Forward."""
    return bool(getattr(get_script_run_ctx(), "is_history_navigation", False))
