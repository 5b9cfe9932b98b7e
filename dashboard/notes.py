"""What a link asked for and does not get: said on the page in a line, until the visitor moves."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvscope.dashboard.markup import plain


def note(text: str) -> None:
    """Say it on the page that this run draws."""
    notes = st.session_state.setdefault("notes", [])
    if text not in notes:
        notes.append(text)


def note_of_move(text: str) -> None:
    """Say it on the page that a move leads to; for the callback that moves."""
    st.session_state.setdefault("notes_of_move", []).append(text)


def forget() -> None:
    """The visitor has moved: what was said before is gone."""
    st.session_state["notes"] = st.session_state.pop("notes_of_move", [])


def show(page: str, room: Any) -> None:
    """Draw them in their room; on another page they are forgotten."""
    state = st.session_state
    if state.get("notes") and state.get("notes_on", page) != page:
        forget()
    state["notes_on"] = page
    with room:
        for text in state.get("notes", ()):
            st.warning(plain(text), icon=":material/wrong_location:")
