"""Sharing: the block tables at the chosen event, and which sequences share which blocks, with the bytes saved."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import streamlit as st

from kvscope.dashboard import figures, figures_more, markup, plots
from kvscope.dashboard.answers import measured, names_of, owners_of, pool_at, tables_of
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, factor_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place, go
from kvscope.dashboard.tables import at_right
from kvscope.inspector.prefixes import prefix_tree
from kvscope.inspector.source import fold_before
from kvscope.inspector.units import counted

MAX_TABLES = 60
_TREE_PX, _WHOLE_PX = 900, 130  # about how wide the tree is, and a branch in which all can be written
MAX_TREE, MAX_BRANCHES, MAX_GROUPS = 400, 300, 100


def render(view: TraceView, place: Place) -> None:
    """The page."""
    tables, names = tables_of(view, place.seq), names_of(view)
    pool = pool_at(view, place.seq)
    held = pool.entries - pool.lost  # as the counts say: in the middle of a copy also what is about to be given back
    entries, distinct = int(held.sum()), int(np.count_nonzero(held))
    saved = entries - distinct
    factor = None if distinct == 0 else entries / distinct
    size = bytes_text(saved * view.block_bytes) if view.block_bytes else None
    cells = (
        ("Table entries", count_text(entries), "", "Blocks as the sequences see them, each counted in every table."),
        ("Distinct blocks", count_text(distinct), "", "Blocks that are really there."),
        ("Sharing factor", factor_text(factor), "", "Table entries per distinct block."),
        ("Blocks saved", count_text(saved), "", "Table entries less distinct blocks."),
        ("Bytes saved", size or ABSENT, "", "Blocks saved times the size of a block."),
    )
    st.html(markup.stats(cells))
    if fold_before(view) is not None:
        said = "The oldest events were let go: blocks that were taken before are in none of these tables."
        st.info(f"{said} The numbers above count them.", icon=":material/info:")
    if not tables:
        nothing_held(view, "saved_blocks", "the most sharing")
        return
    _tree(view, tables)
    shown = {names(s): row for s, row in list(tables.items())[:MAX_TABLES]}
    st.markdown("**Block tables at this event**: blue is held by one table; orange by several, darker by more")
    figure = figures.block_tables(shown, pool.entries)
    plots.show(figure, key="block_tables", alt="Block tables, shared blocks in orange", bar=False)
    if len(tables) > MAX_TABLES:
        st.caption(f"The first {MAX_TABLES} of {len(tables)} tables.")
    _groups(view, place, tables)


def nothing_held(view: TraceView, measure: str, what: str) -> None:
    """What to say where no table holds a block, and the way to where there is something to see."""
    st.info("No sequence holds a block at this event. Move to another event above, or:", icon=":material/info:")
    values = getattr(measured(view), measure)
    if len(values) and np.nanmax(values, initial=0) > 0:
        seq = int(measured(view).seq[int(np.nanargmax(values))])
        if st.button(f"To {what}, at event {count_text(seq)}", icon=":material/my_location:", type="primary"):
            go(seq=seq)


def _tree(view: TraceView, tables: dict[int, list[tuple[int, int]]]) -> None:
    """Who shares which beginning, as a tree: what hangs below a branch goes on where it ends."""
    names = names_of(view)
    found = prefix_tree({s: [block for block, _ in row] for s, row in list(tables.items())[:MAX_TREE]}, MAX_BRANCHES)
    labels, texts = [], []
    total = sum(len(branch.sequences) for branch in found if branch.parent < 0)
    for branch in found:
        count, held = len(branch.blocks), len(branch.sequences)
        who = names(branch.sequences[0]) if held == 1 else counted(held, "sequence")
        blocks = counted(count, "block")
        room = held * _TREE_PX / max(total, 1)
        labels.append(f"{who}: {blocks}" if room > _WHOLE_PX else str(count))
        size = f" = {bytes_text(branch.saved * view.block_bytes)}" if view.block_bytes else ""
        saved = f"<br>saves {counted(branch.saved, 'block')}{size}" if branch.saved else ""
        shown = ", ".join(names(s) for s in branch.sequences[:8]) + (" ..." if held > 8 else "")
        span = f"b{branch.blocks[0]}" if count == 1 else f"b{branch.blocks[0]} ... b{branch.blocks[-1]}"
        texts.append(f"{blocks} ({span})<br>held by {shown}{saved}")
    said = "as wide as sequences hold it; orange is shared, and what hangs below goes on alone; numbers are blocks"
    st.markdown(f"**Prefix tree**: {said}")
    plots.show(
        figures_more.prefix_icicle([escape(t) for t in labels], [b.parent for b in found],
                                   [len(b.sequences) for b in found], texts),
        key="prefix_tree", bar=False,
        alt=f"Prefix tree of {counted(len(tables), 'sequence')} in {counted(len(found), 'branch', 'branches')}",
    )  # fmt: skip


def _groups(view: TraceView, place: Place, tables: dict[int, list[tuple[int, int]]]) -> None:
    """Blocks by the set of sequences that hold them, most saved first."""
    names, lives = names_of(view), pool_at(view, place.seq).gen
    groups: dict[tuple[int, ...], list[int]] = {}
    for block, held in sorted(owners_of(tables).items()):
        if len(held) > 1:
            groups.setdefault(tuple(sorted(held)), []).append(block)
    if not groups:
        st.caption("No block is shared at this event.")
        return
    ordered = sorted(groups.items(), key=lambda item: -(len(item[0]) - 1) * len(item[1]))
    many, ordered = len(ordered), ordered[:MAX_GROUPS]
    saved = [(len(held) - 1) * len(blocks) for held, blocks in ordered]
    st.markdown("**Who shares what**")
    if many > MAX_GROUPS:
        st.caption(f"The {MAX_GROUPS} groups that save most, of {many:,}.")
    st.dataframe(
        pd.DataFrame(
            {
                "sequences": [", ".join(names(s) for s in dict.fromkeys(held)) for held, _ in ordered],
                "blocks": [", ".join(f"b{b}#{int(lives[b])}" for b in blocks) for _, blocks in ordered],
                "shared blocks": [len(blocks) for _, blocks in ordered],
                "blocks saved": saved,
                "saved": [bytes_text(n * view.block_bytes) if view.block_bytes else ABSENT for n in saved],
            }
        ),
        column_config=at_right("saved"), hide_index=True, key="share_groups",
        height=min(35 * (len(ordered) + 1) + 3, 400),
    )  # fmt: skip
