"""One block in words and pictures: who holds it, who wrote each slot, what happened to it. Shared by two pages."""

from __future__ import annotations

import streamlit as st

from kvscope.dashboard import figures, markup, plots
from kvscope.dashboard.answers import findings_so_far, names_of, pool_at
from kvscope.dashboard.markup import plain
from kvscope.dashboard.numbers import count_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.palette import BY_LETTER, FREE_FILL, GREY, sequence_colour
from kvscope.dashboard.place import Place, go
from kvscope.inspector.biography import Life, SlotWriter, biography, slot_writers
from kvscope.inspector.source import Names, rows_until, rows_with
from kvscope.inspector.state import BlockState, Holder, holders
from kvscope.inspector.units import counted

RECENT = 12
MOST_HOLDERS = 6


def card(view: TraceView, place: Place) -> None:
    """The picked block beside the map: state, holders, slots, what happened last."""
    lives = biography(view, place.block, place.seq)
    head(view, place, lives)
    if not lives:
        return
    life = lives[-1]
    slots(view, place, life)
    st.markdown("**What happened last**")
    recent = [event for event in life.events if event.seq <= place.seq][-RECENT:]
    st.html(markup.log((event.seq, event.text) for event in reversed(recent)))
    if st.button("Whole biography", icon=":material/history:", key="to_biography"):
        go("biography")


def head(view: TraceView, place: Place, lives: list[Life]) -> None:
    """The block's name, its state at the chosen event, and who holds it."""
    state = pool_at(view, place.seq)
    if place.block >= len(state.gen):  # a pool that grows or shrinks has other blocks at other events
        size = f"the pool has {counted(len(state.gen), 'block')} at this event"
        st.html(markup.head(f"b{place.block}", "not there", GREY, [size]))
        return
    block, gen = place.block, int(state.gen[place.block])
    letter = BY_LETTER[state.letter(block)]
    if not gen:
        st.html(markup.head(f"b{block}", letter.label, letter.colour, ["never handed out up to this event"]))
        return
    names = names_of(view)
    filled = f"{int(state.fill[block])} of {view.block_size} slots filled"
    many = counted(len(lives), "life", "lives")
    said = [f"ref {int(state.ref[block])}", filled, many]
    if state.published[block]:
        said.append("in the prefix index")
    st.html(markup.head(f"b{block}#{gen}", letter.label, letter.colour, said))
    held = holders(view, block, place.seq)
    more = f"; and {len(held) - MOST_HOLDERS} more" if len(held) > MOST_HOLDERS else ""
    told = "; ".join(_holder(h, names) for h in held[:MOST_HOLDERS]) + more
    if state.state[block] == BlockState.LOST:
        st.markdown(f"Held by nobody any more: taken by {told or 'a sequence that has ended'}, and never given back")
    else:
        st.markdown(f"Held by {told}" if held else "Held by nobody")
    for finding in findings_so_far(view) or ():
        if finding.block == block:
            text = f"{finding.code} {finding.title}, at event {count_text(finding.seq)}: {finding.why}"
            st.error(plain(text), icon=":material/bug_report:")
            break


def slots(view: TraceView, place: Place, life: Life) -> None:
    """The strip of slots just after the chosen event, coloured by the sequence that wrote each last, names below."""
    names = names_of(view)
    writers = [("empty", FREE_FILL)] * view.block_size
    said: dict[str, str] = {}
    written = _written(view, place, life)
    for found in written:
        name = names(found.seq_id) if found.seq_id >= 0 else "unknown"
        colour = sequence_colour(found.seq_id)
        others = [names(s) for s in found.writers if s != found.seq_id]
        how = f"{name}, {'copied' if found.copied else 'written'} at event {found.seq:,}"
        writers[found.slot] = (how + (f" (before: {', '.join(others)})" if others else ""), colour)
        said.setdefault(name, colour)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.markdown(f"**Who wrote which slot** of b{life.block}#{life.gen}, {_when(place, life)}")
        if said:
            st.html(markup.chips(said.items()))
    figure = figures.slot_strip(writers)
    plots.show(figure, key=f"slots_{life.block}_{life.gen}", alt="Slots by their last writer", bar=False)
    twice = [s.slot for s in written if len(s.writers) > 1]
    if twice:
        st.warning(f"Written by more than one sequence: slots {markup.ranges(twice)}", icon=":material/edit:")


def _written(view: TraceView, place: Place, life: Life) -> list[SlotWriter]:
    """The slots of this life that were written up to the chosen event."""
    events = view.events[: rows_until(view, place.seq)]
    rows = rows_with(events, "block", life.block)
    return slot_writers(view, events, rows[events[rows]["gen"] == life.gen].tolist())


def _when(place: Place, life: Life) -> str:
    """The time of the strip; a life that lies elsewhere in the trace says where."""
    if life.first_seq > place.seq:
        return f"just after event {place.seq:,}: this life begins at event {life.first_seq:,}"
    ended = [event.seq for event in life.events if event.kind == life.end and event.seq <= place.seq]
    return f"as it was when this life ended at event {ended[-1]:,}" if ended else f"just after event {place.seq:,}"


def _holder(holder: Holder, names: Names) -> str:
    if holder.kind == "lease":
        return f"lease {holder.lease_id} over slots [{holder.slot_lo}:{holder.slot_hi}]"
    return f"{plain(names(holder.seq_id))} as its block {holder.lblock}"
