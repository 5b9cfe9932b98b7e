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
    before = st.session_state.get("page_drawn")
    st.session_state["page_drawn"] = page
    context = get_script_run_ctx()
    if before is None or before == page or context is None:
        return
    context.fragment_storage.clear()
    st.rerun()
