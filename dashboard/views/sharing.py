"""Sharing: the block tables at the chosen event, and which sequences share which blocks, with the bytes saved."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from kvscope.dashboard import figures, markup
from kvscope.dashboard.answers import names_of, owners_of, pool_at, tables_of
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, factor_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place

MAX_TABLES = 60
_NO_BAR = {"displayModeBar": False}


def render(view: TraceView, place: Place) -> None:
    """The page."""
    tables, names = tables_of(view, place.seq), names_of(view)
    held = pool_at(view, place.seq).entries
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
    if not tables:
        st.info("No sequence holds a block at this event. Move to another event above.")
        return
    shown = {names(s): row for s, row in list(tables.items())[:MAX_TABLES]}
    st.markdown("**Block tables at this event**: blue is held by one table; orange by several, darker by more")
    figure = figures.block_tables(shown, pool_at(view, place.seq).entries)
    st.plotly_chart(figure, key="block_tables", config=_NO_BAR, alt="Block tables, shared blocks in orange")
    if len(tables) > MAX_TABLES:
        st.caption(f"The first {MAX_TABLES} of {len(tables)} tables.")
    _groups(view, place, tables)


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
    saved = [(len(held) - 1) * len(blocks) for held, blocks in ordered]
    st.markdown("**Who shares what**")
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
        hide_index=True, key="share_groups", height=min(35 * (len(ordered) + 1) + 3, 400),
    )  # fmt: skip
