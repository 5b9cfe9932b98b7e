"""What a run comes to in a sentence or two, above every picture: what to see, what is broken, whether blocks leak."""

from __future__ import annotations

import numpy as np
import streamlit as st

from kvscope.dashboard.answers import findings_so_far, names_of, pool_at, tables_of
from kvscope.dashboard.markup import plain
from kvscope.dashboard.numbers import count_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import go
from kvscope.inspector.story import missing
from kvscope.inspector.units import counted

LEAK = "KV005"


def show(view: TraceView) -> None:
    """The verdict, where the check has been run; the way to the first finding."""
    point = next((str(f["point"]) for f in view.facts if f.get("type") == "run" and f.get("point")), "")
    if point:
        said = (point[:1].upper() + point[1:]).replace("`", "")
        st.markdown(f":material/lightbulb: **{plain(said)}**")
    if findings_so_far(view) == ():
        st.caption(f"No rule is broken{recorded(view)}. {leak_text(view)}".strip())
    first_finding(view)


def recorded(view: TraceView) -> str:
    """What a clean check stands for, where it is not the whole run."""
    return " so far" if view.live else " as far as recorded" if view.gaps or view.absent else ""


def first_finding(view: TraceView) -> None:
    """How many findings there are, what the first one is, and the way to it; nothing where there is none."""
    found = findings_so_far(view)
    if not found:
        return
    first, many = found[0], counted(len(found), "finding")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="verdict"):
        lacks = missing(view, first, names_of(view))
        said = f" Missing: {lacks}." if lacks else ""
        text = (
            f"{many}. The first: {first.code} {first.title}, at event {count_text(first.seq)}.{said} {leak_text(view)}"
        )
        st.error(plain(text), icon=":material/bug_report:")
        if st.button("Show it", key="show_first", type="primary", icon=":material/my_location:"):
            st.session_state["playing"] = False
            go("blocks", seq=first.seq, block=first.block if first.block >= 0 else None)


def leak_text(view: TraceView) -> str:
    """Is it a leak? In one sentence; of a run that goes on nothing can be said."""
    if view.live:
        lost = pool_at(view, view.last_seq).num_lost
        return f"So far {counted(lost, 'block is', 'blocks are')} lost: held by nobody, and not free." if lost else ""
    leaks = [f for f in findings_so_far(view) or () if f.code == LEAK]
    if leaks:
        blocks = len({f.block for f in leaks})
        return f"Is it a leak? Yes: {counted(blocks, 'block')} will never come back."
    if lost := pool_at(view, view.last_seq).num_lost:
        return f"Is it a leak? Yes: {counted(lost, 'block is', 'blocks are')} held by nobody, and not free."
    holders = tables_of(view, view.last_seq)
    if not holders:
        held = int(np.count_nonzero(pool_at(view, view.last_seq).ref))
        if held:
            known = counted(held, "held block was", "held blocks were")
            return f"Is it a leak? Not known: {known} taken before the first event here."
        return "Is it a leak? No: at the end nobody holds a block."
    many = counted(len(holders), "sequence")
    return f"Is it a leak? Nothing says so: what is held at the end belongs to {many}."
