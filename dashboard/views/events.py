"""Events: the events around the chosen one in words, beside the state of the pool at that event."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from kvscope.dashboard import choices, markup
from kvscope.dashboard.answers import names_of, pool_at
from kvscope.dashboard.component import event_list
from kvscope.dashboard.opened import TraceView, row_at
from kvscope.dashboard.place import Place, go
from kvscope.dashboard.views import blocks
from kvscope.dashboard.words import event_text
from kvscope.inspector.biography import kind_words
from kvscope.inspector.statrow import LOST, state_cells

WINDOW = 50


def render(view: TraceView, place: Place) -> None:
    """The page."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        kinds = sorted({kind_words(k) for k in _kinds(view)})
        chosen = choices.several("kinds", kinds, (), key="event_kinds", what="Show only")
        wanted = st.multiselect("Show only", kinds, placeholder="all kinds of events", **chosen)
        _table(view, place, set(wanted))
    with right:
        counts = pool_at(view, place.seq).counts
        st.markdown("**The pool at this event**")
        cells = [cell for cell in state_cells(counts, view.num_blocks) if counts["lost"] or cell[0] != LOST]
        st.html(markup.stats(cells, alarm=LOST))
        blocks.draw(view, place, "state")


def _table(view: TraceView, place: Place, wanted: set[str]) -> None:
    here = row_at(view, place.seq)
    rows = _window(view, here, wanted)
    if not rows:
        st.info("No event of these kinds in this trace.")
        return
    names = names_of(view)
    columns = (("event", "number"), ("step", "number"), ("what", "grow"))
    steps = view.events[np.asarray(rows)]["step"].tolist()
    told = [
        (int(view.seqs[row]), step if step >= 0 else None, event_text(view, row, names))
        for row, step in zip(rows, steps, strict=True)
    ]
    picked = event_list(columns, told, place.seq, height=600, key="events_around")
    if picked is not None and picked != place.seq:
        go(seq=picked)


def _kinds(view: TraceView) -> list[int]:
    """The kinds of event that occur."""
    return _kinds_of(view.id, view)


@st.cache_resource(max_entries=4, show_spinner=False)
def _kinds_of(key: tuple[Any, ...], _view: TraceView) -> list[int]:
    return np.flatnonzero(np.bincount(_view.events["kind"], minlength=1)).tolist()  # type: ignore[no-any-return]


def _window(view: TraceView, here: int, wanted: set[str]) -> list[int]:
    """Up to WINDOW rows before and after `here`, of the wanted kinds (all for none)."""
    if not wanted:
        return list(range(max(0, here - WINDOW), min(len(view.events), here + WINDOW + 1)))
    numbers = [k for k in _kinds(view) if kind_words(k) in wanted]
    rows = np.flatnonzero(np.isin(view.events["kind"], numbers))
    middle = int(np.searchsorted(rows, here))
    return rows[max(0, middle - WINDOW) : middle + WINDOW + 1].tolist()  # type: ignore[no-any-return]
