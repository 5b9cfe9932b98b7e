"""Waste and fragmentation: what of the held memory is empty, over time and at this event, and who it belongs to."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from kvscope.dashboard import figures, figures_more, markup, plots
from kvscope.dashboard.answers import holes_of, measured, names_of, pool_at, summarised, tables_of
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.dashboard.verdict import leak_text
from kvscope.dashboard.views.sharing import nothing_held
from kvscope.inspector.state import PoolState, longest_free
from kvscope.inspector.statrow import LOST, Cell, lost_cells

MOST = 30


def render(view: TraceView, place: Place) -> None:
    """The page."""
    facts, state = summarised(view), pool_at(view, place.seq)
    empty = int((view.block_size - state.fill[state.held]).clip(min=0).sum())
    size = bytes_text(empty * view.block_bytes // view.block_size) if view.block_bytes else ABSENT
    cells = (
        ("Empty now", count_text(empty), "slots",
         "Slots of held blocks that hold no token, at this event; lost blocks are counted apart."),
        ("Empty bytes", size, "", "The same in bytes."),
        *lost_cells(state.num_lost, view.block_bytes),
        *_empty(facts),
        *_holes(facts, state),
        ("Cached", count_text(state.num_cached), "blocks", "Held by nobody, kept for prompts."),
    )  # fmt: skip
    st.html(markup.stats(cells, alarm=LOST))
    gone = ", what is lost" if measured(view).lost_blocks.any() else ""
    st.markdown(f"**Memory in use: what is filled, what is empty{gone} (slots)**")
    figure = figures.filled_and_empty(measured(view), place.axis, cursor=place.seq)
    plots.show(figure, key="filled", alt=f"Slots in use over time: filled, empty{gone}", tall=True)
    if facts["holes"] and not view.on_demand:
        st.markdown("**Free memory in pieces: external fragmentation**")
        figure = figures_more.fragmentation(holes_of(view), measured(view), place.axis, place.seq)
        plots.show(figure, key="holes", alt="External fragmentation over time")
    st.caption(leak_text(view) if not view.live else "Leaks are looked for once the trace is closed.")
    _who(view, place, state)


def _empty(facts: dict[str, Any]) -> tuple[Cell, ...]:
    """The empty share of held slots, by what it is a matter of: the block size, or a policy that reserves."""
    if facts["reservation_waste"] is not None:
        return (("Reservation waste", ratio_text(facts["reservation_waste"]), "mean",
                 "Share of what is reserved that is not used, over the run."),)  # fmt: skip
    tail = facts["tail_waste"]
    return (
        ("Tail waste", ratio_text(tail["mean"]), "mean", "Empty share of held slots, over the run."),
        ("Worst tail", ratio_text(tail["peak"]), "peak", "The greatest it was."),
    )


def _holes(facts: dict[str, Any], state: PoolState) -> tuple[Cell, ...]:
    """Free memory in pieces: none in a paged pool, whose blocks are all alike; elsewhere the largest piece counts."""
    mean = ratio_text(facts["external_fragmentation"])
    if not facts["holes"]:
        return (("Fragmentation", mean, "", "External: free memory in pieces; none where all pieces are alike."),)
    free, largest = state.counts["free"], longest_free(state)
    return (
        ("Fragmentation", mean, "mean", "External: share of the free memory outside the largest hole, over the run."),
        ("Largest hole", count_text(largest), f"of {count_text(free)} free",
         "The longest run of free blocks at this event: more than that nobody can have in one piece."),
    )  # fmt: skip


def _who(view: TraceView, place: Place, state: PoolState) -> None:
    """Sequences by what they hold empty."""
    names, fill = names_of(view), state.fill
    rows = []
    for seq_id, table in tables_of(view, place.seq).items():
        blocks = [block for block, _ in table if 0 <= block < len(fill)]
        room = len(blocks) * view.block_size
        rows.append((names(seq_id), len(blocks), room - int(fill[blocks].sum()), room))
    if not rows and not state.num_lost:
        nothing_held(view, "held_blocks", "the most that is held")
        return
    rows.sort(key=lambda row: -row[2])
    if state.num_lost:
        room = state.num_lost * view.block_size
        rows.insert(0, ("nobody: lost, counted apart above", state.num_lost, room, room))
    st.markdown("**Who holds what is empty, at this event**")
    st.dataframe(
        pd.DataFrame(
            {
                "sequence": [row[0] for row in rows[:MOST]],
                "blocks": [row[1] for row in rows[:MOST]],
                "empty slots": [row[2] for row in rows[:MOST]],
                "empty": [100 * row[2] / row[3] if row[3] else None for row in rows[:MOST]],
            }
        ),
        column_config={"empty": st.column_config.NumberColumn(format="%.1f %%")},
        hide_index=True, key="waste_rows", height=min(35 * (len(rows[:MOST]) + 1) + 3, 320),
    )  # fmt: skip
