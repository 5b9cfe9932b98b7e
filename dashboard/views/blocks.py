"""Block map: every block of the pool at the chosen event, and the picked block's story beside it."""

from __future__ import annotations

import streamlit as st

from kvscope.dashboard import canvas, choices, markup, story
from kvscope.dashboard.answers import findings_so_far, names_of, owners_of, pool_at, tables_of
from kvscope.dashboard.component import block_map
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place, go
from kvscope.inspector.statrow import LOST, state_cells

_MODES = {"state": "State", "refcount": "References", "age": "Age", "owner": "Owner"}


def render(view: TraceView, place: Place) -> None:
    """The page."""
    counts = pool_at(view, place.seq).counts
    st.html(markup.stats(state_cells(counts, view.num_blocks), alarm=LOST if counts["lost"] else ""))
    left, right = st.columns([3, 2], gap="large")
    with left:
        chosen = choices.one("colour", list(_MODES), "state", key="map_mode", what="Colour by")
        mode = st.segmented_control("Colour by", list(_MODES), format_func=_MODES.__getitem__, required=True, **chosen)
        draw(view, place, mode or "state")
    with right:
        if place.block < 0:
            st.info("Pick a block on the map: its life is told here.", icon=":material/touch_app:")
        else:
            story.card(view, place)


def draw(view: TraceView, place: Place, mode: str) -> None:
    """The map at `place.seq`; a click makes that block the session's."""
    state, tables = pool_at(view, place.seq), tables_of(view, place.seq)
    marked = [f.block for f in findings_so_far(view) or () if f.seq <= place.seq and f.block >= 0]
    name = names_of(view)
    names = {seq_id: name(seq_id) for seq_id in tables}
    owners = owners_of(tables)

    def make(window: canvas.Window | None) -> bytes:
        return canvas.encode(
            state, mode, owners=owners, names=names, selected=place.block, marked=marked, window=window
        )

    picked = block_map(make, key="block_map")
    if picked is not None:
        block = canvas.block_of(state, picked)
        if block != place.block:
            go(block=block)
