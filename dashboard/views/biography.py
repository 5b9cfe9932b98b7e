"""Block biography: the lives of one block as rows, each with its events in words, and who wrote which slot."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import streamlit as st

from kvscope.dashboard import markup, story
from kvscope.dashboard.answers import findings_so_far, names_of, pool_at
from kvscope.dashboard.component import event_list
from kvscope.dashboard.notes import note_of_move
from kvscope.dashboard.numbers import count_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.palette import BY_LETTER
from kvscope.dashboard.place import BELOW, Place, go, move
from kvscope.dashboard.words import short_site
from kvscope.inspector.biography import Life, biography

MAX_EVENTS = 2000
MOST_CHOICES = 60
ABOVE = 38  # rem above the list of events, which ends in the window: its current row is seen without scrolling


def render(view: TraceView, place: Place) -> None:
    """The page."""
    lives = biography(view, place.block) if place.block >= 0 else []
    if lives:
        _stats(view, place, lives)
    left, right = st.columns([1, 4], gap="medium", vertical_alignment="center")
    with left:
        _choice(view, place)
    if place.block < 0:
        with right, st.container(horizontal=True, vertical_alignment="center"):
            st.info("Type a block's number, or pick it here or on the block map.", icon=":material/touch_app:")
            if st.button("To the block map", icon=":material/grid_view:"):
                go("blocks")
        _candidates(view, place)
        return
    now = [life for life in lives if life.first_seq <= place.seq]
    with right:
        story.head(view, place, now)
    if not lives:
        st.info(f"Block {place.block} was never handed out in this trace.")
        return
    strip, told = st.container(), st.container()
    life = _lives(view, place, lives)
    with strip:
        story.slots(view, place, life)
    with told:
        _events(place, life)


def _candidates(view: TraceView, place: Place) -> None:
    """Blocks with something to tell at this event: findings first, then who is held by most, then by lives."""
    state = pool_at(view, place.seq)
    broken = Counter(f.block for f in findings_so_far(view) or () if f.block >= 0)
    found = np.zeros(state.num_blocks, np.int64)
    for block, many in broken.items():
        found[block] = many
    order = np.lexsort((-state.gen, -state.ref, -found))[:MOST_CHOICES].tolist()
    st.markdown("**Blocks with something to tell** (pick one)")
    columns = (("block", "number"), ("state", "text"), ("held by", "number"), ("slots filled", "number"),
               ("lives so far", "number"), ("findings", "number"), ("", "grow"))  # fmt: skip
    rows = [
        (b, BY_LETTER[state.letter(b)].label, int(state.ref[b]), int(state.fill[b]), int(state.gen[b]),
         int(found[b]) or None, "")
        for b in order if state.gen[b] or found[b]
    ]  # fmt: skip
    picked = event_list(columns, rows, -1, height=520, key="candidates")
    if picked is not None:
        go(block=picked)


def _stats(view: TraceView, place: Place, lives: list[Life]) -> None:
    found = [f for f in findings_so_far(view) or () if f.block == place.block]
    written = sum(event.kind == "write" for life in lives for event in life.events)
    st.html(markup.stats((
        ("Lives", count_text(len(lives)), f"of block {place.block}", "How often it was handed out."),
        ("Events", count_text(sum(len(life.events) for life in lives)), "of it", "Everything that happened to it."),
        ("Writes", count_text(written), "", "Into slots of it."),
        ("Most holders", count_text(max(life.max_ref for life in lives)), "", "At once, tables and leases."),
        ("Sequences", count_text(len({s for life in lives for s in life.sequences})), "held it", "That ever held it."),
        ("Findings", count_text(len(found)), "on it", "Broken rules on this block."),
    ), alarm="Findings" if found else ""))  # fmt: skip


def _choice(view: TraceView, place: Place) -> None:
    st.session_state["block_box"] = None if place.block < 0 else place.block
    st.number_input("Block", value=None, step=1, key="block_box", on_change=_take,
                    placeholder=f"0..{view.num_blocks - 1}")  # fmt: skip


def _take() -> None:
    value = st.session_state.get("block_box")
    if value == -1:
        note_of_move(BELOW.format(-1))
    move(block=-1 if value is None else int(value))


def _lives(view: TraceView, place: Place, lives: list[Life]) -> Life:
    """The lives as a table; the one that the chosen event lies in is shown, and picking another goes to its end."""
    names = names_of(view)
    table = pd.DataFrame(
        {
            "life": [f"b{life.block}#{life.gen}" for life in lives],
            "from event": [life.first_seq for life in lives],
            "last event": [life.last_seq for life in lives],
            "events": [len(life.events) for life in lives],
            "most holders": [life.max_ref for life in lives],
            "slots written": [len(life.slots) for life in lives],
            "sequences": [", ".join(names(s) for s in life.sequences) for life in lives],
            "ended by": [life.end or "not ended" for life in lives],
        }
    )
    current = max((i for i, life in enumerate(lives) if life.first_seq <= place.seq), default=0)
    st.markdown("**Lives** (pick a row to go to its end)")
    picked = st.dataframe(
        table, hide_index=True, key=f"lives_{place.block}_{current}", on_select="rerun", selection_mode="single-row",
        height=min(35 * (len(lives) + 1) + 3, 213),
    )  # fmt: skip
    rows = picked["selection"]["rows"]
    if rows and rows[0] < len(lives) and rows[0] != current:
        go(seq=lives[rows[0]].last_seq)
    return lives[current]


def _events(place: Place, life: Life) -> None:
    st.markdown(f"**What happened to b{life.block}#{life.gen}** (pick an event to go there)")
    columns = (("event", "number"), ("step", "number"), ("what", "grow"), ("ref", "number"), ("where", "text"))
    told = life.events
    if len(told) > MAX_EVENTS:
        st.caption(f"The last {MAX_EVENTS:,} of {len(told):,} events of this life.")
        told = told[-MAX_EVENTS:]
    rows = [
        (e.seq, e.step if e.step >= 0 else None, e.text, e.ref if e.ref >= 0 else None, short_site(e.site))
        for e in told
    ]
    picked = event_list(columns, rows, place.seq, height=520, above=ABOVE, key="life_events")
    if picked is not None and picked != place.seq:
        go(seq=picked)
