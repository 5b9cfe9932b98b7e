"""Block map: every block of the pool at the chosen event, and the picked block's story beside it."""

from __future__ import annotations

import streamlit as st

from kvscope.dashboard import canvas, live, story
from kvscope.dashboard.answers import findings_so_far, names_of, owners_of, pool_at, tables_of
from kvscope.dashboard.component import block_map
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place, go

_MODES = {"state": "State", "refcount": "References", "age": "Age", "owner": "Owner"}


def render(view: TraceView, place: Place) -> None:
    """The page."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            mode = st.segmented_control("Colour by", list(_MODES), format_func=_MODES.__getitem__, default="state",
                                        key="map_mode", required=True)  # fmt: skip
            following = live.follow_toggle(view)

        def panel() -> None:
            if following:
                fresh = live.refreshed(view)
                draw(fresh, Place(fresh.last_seq, place.block), mode or "state")
            else:
                draw(view, place, mode or "state")

        # A fragment in both cases, so that the map's node stays when Follow is switched on.
        st.fragment(panel, run_every=live.EVERY_S if following else None)()
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
    payload = canvas.encode(state, mode, owners=owners_of(tables), names=names, selected=place.block, marked=marked)
    cell = block_map(payload, key="block_map")
    if cell is not None:
        block = canvas.block_of(state, cell)
        if block != place.block:
            go(block=block)
