"""Waste and fragmentation: what of the held memory is empty, over time and at this event, and who it belongs to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from kvscope.dashboard import figures, markup, plots
from kvscope.dashboard.answers import measured, names_of, pool_at, summarised, tables_of
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.dashboard.verdict import leak_text
from kvscope.dashboard.views.overview import axis_choice
from kvscope.dashboard.views.sharing import nothing_held
from kvscope.inspector.state import PoolState, longest_free

MOST = 30


def render(view: TraceView, place: Place) -> None:
    """The page."""
    facts, state = summarised(view), pool_at(view, place.seq)
    held = state.ref > 0
    empty = int((view.block_size - state.fill[held]).clip(min=0).sum())
    size = bytes_text(empty * view.block_bytes // view.block_size) if view.block_bytes else ABSENT
    cells = (
        ("Empty now", count_text(empty), "slots", "Slots of held blocks that hold no token, at this event."),
        ("Empty bytes", size, "", "The same in bytes."),
        ("Tail waste", ratio_text(facts["tail_waste"]["mean"]), "mean", "Empty share of held slots, over the run."),
        ("Worst tail", ratio_text(facts["tail_waste"]["peak"]), "peak", "The greatest it was."),
        ("Reserved empty", ratio_text(facts["reservation_waste"]), "", "Reserved, not used, where room is reserved."),
        _holes(facts, state),
        ("Cached", count_text(int(np.count_nonzero(state.state == 4))), "blocks", "Held by nobody, kept for prompts."),
    )  # fmt: skip
    st.html(markup.stats(cells))
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown("**Held memory: what is filled, what is empty (slots)**", width="content")
        axis = axis_choice("waste_axis")
    figure = figures.filled_and_empty(measured(view), axis, cursor=place.seq)
    plots.show(figure, key="filled", alt="Filled and empty slots of held blocks over time")
    st.caption(leak_text(view) if not view.live else "Leaks are looked for once the trace is closed.")
    _who(view, place, state)


def _holes(facts: dict[str, Any], state: PoolState) -> tuple[str, str, str, str]:
    """Free memory in pieces: none in a paged pool, whose blocks are all alike; elsewhere the largest piece counts."""
    if facts["external_fragmentation"] is not None:
        return (
            "Holes",
            ratio_text(facts["external_fragmentation"]),
            "",
            "Free memory in pieces; none in a paged pool.",
        )
    free, largest = state.counts["free"], longest_free(state)
    return ("Largest hole", count_text(largest), f"of {count_text(free)} free",
            "The longest run of free blocks at this event: more than that nobody can have in one piece.")  # fmt: skip


def _who(view: TraceView, place: Place, state: PoolState) -> None:
    """Sequences by what they hold empty."""
    names, fill = names_of(view), state.fill
    rows = []
    for seq_id, table in tables_of(view, place.seq).items():
        blocks = [block for block, _ in table if 0 <= block < len(fill)]
        room = len(blocks) * view.block_size
        rows.append((names(seq_id), len(blocks), room - int(fill[blocks].sum()), room))
    if not rows:
        nothing_held(view, "held_blocks", "the most that is held")
        return
    rows.sort(key=lambda row: -row[2])
    st.markdown("**Who holds what is empty, at this event**")
    st.dataframe(
        pd.DataFrame(
            {
                "sequence": [row[0] for row in rows[:MOST]],
                "blocks": [row[1] for row in rows[:MOST]],
                "empty slots": [row[2] for row in rows[:MOST]],
                "empty": [ratio_text(row[2] / row[3] if row[3] else None) for row in rows[:MOST]],
            }
        ),
        hide_index=True, key="waste_rows", height=min(35 * (len(rows[:MOST]) + 1) + 3, 320),
    )  # fmt: skip
