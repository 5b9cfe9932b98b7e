"""What if: the requests of this trace run again, with other blocks, another pool, without sharing: accounting only."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from kvscope.dashboard import figures_more, markup, plots
from kvscope.dashboard.answers import summarised
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, duration_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.errors import KVScopeError
from kvscope.inspector.simulate import Outcome, Settings, simulate
from kvscope.inspector.simulate.cells import Cell
from kvscope.inspector.workloads.opening import from_trace

SIZES = (8, 16, 32, 64)
POOLS = (0.25, 0.5, 1.0, 2.0, 4.0)
MOST_REQUESTS = 2_000


def render(view: TraceView, place: Place) -> None:
    """The page."""
    geometry = summarised(view)["geometry"]
    if not geometry["bytes_per_token"]:
        st.info("The trace does not say how many bytes a token takes: nothing to size a pool with.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        sizes = st.pills("Block size (slots)", SIZES, default=list(SIZES), selection_mode="multi", key="sizes")
        pool = st.select_slider("Pool, times this one", POOLS, value=1.0, key="pool_times", width=260)
        reserved = st.toggle("Beside reserving", value=True, key="reserving")
    try:
        rows = _rows(view.id, tuple(sizes or [view.block_size]), float(pool), bool(reserved), view)
    except KVScopeError as error:
        st.info(markup.plain(str(error)))
        return
    best = max(rows, key=lambda row: row.concurrency_mean or 0.0)
    cells = (
        ("Requests", count_text(best.requests), "", f"Of the trace, at most {MOST_REQUESTS:,} of them."),
        ("Pool", bytes_text(int(geometry["pool_bytes"] * pool)), "", "Memory for KV."),
        (
            "Most at once",
            f"{best.concurrency_mean or 0:.1f}",
            str(best.allocator),
            "Sequences that run, mean over time.",
        ),
        ("Used", ratio_text(best.utilization), "", "Share of held memory that holds tokens."),
        ("Preemptions", count_text(best.preemptions), "", "Sequences that gave up their blocks."),
        ("Done in", duration_text(best.makespan_s), "", "Simulated time until the last token."),
    )
    st.html(markup.stats(cells))
    st.markdown("**The same requests, simulated**: prompts share nothing here, for a trace holds no text")
    shown = [(_name(row), row.concurrency_mean or 0.0, float(row.concurrency_peak), _said(row)) for row in rows]
    plots.show(figures_more.concurrency(shown), key="whatif_picture", bar=False,
               alt="Sequences that run at once, mean and peak, by allocator and block size")  # fmt: skip
    st.dataframe(_table(rows), hide_index=True, key="whatif_rows")


def _name(row: Outcome) -> str:
    return f"{row.allocator}, {row.block_size} slots" if row.block_size else str(row.allocator)


def _said(row: Outcome) -> str:
    """What is written on the bar of an allocator."""
    if not row.concurrency_peak:
        return "not one request fits: the room reserved for it is more than the pool"
    return "" if row.utilization is None else f"{row.utilization:.0%} of held memory used"


@st.cache_resource(max_entries=16, show_spinner="simulating")
def _rows(
    key: tuple[Any, ...], sizes: tuple[int, ...], times: float, reserved: bool, _view: TraceView
) -> list[Outcome]:
    geometry = summarised(_view)["geometry"]
    work = from_trace(_view.name, _view, MOST_REQUESTS)
    longest = max(r.prompt + r.output for r in work.requests)
    limit = max(int(geometry["max_model_len"] or 0), longest + 1)
    settings = Settings(int(geometry["pool_bytes"] * times), int(geometry["bytes_per_token"]), limit)
    cells = [Cell("paged", size) for size in sorted(sizes)] + ([Cell("reserved", 16)] if reserved else [])
    return [simulate(work, cell, settings) for cell in cells]


def _table(rows: list[Outcome]) -> pd.DataFrame:
    def number(value: float | None, digits: int = 1) -> str:
        return ABSENT if value is None else f"{value:,.{digits}f}"

    return pd.DataFrame(
        {
            "allocator": [row.allocator for row in rows],
            "block (slots)": [str(row.block_size or ABSENT) for row in rows],
            "at once (mean)": [number(row.concurrency_mean) for row in rows],
            "at once (peak)": [row.concurrency_peak for row in rows],
            "used": [ratio_text(row.utilization) for row in rows],
            "tail waste": [ratio_text(row.tail_waste) for row in rows],
            "reservation waste": [ratio_text(row.reservation_waste) for row in rows],
            "waits for memory": [ratio_text(row.blocked) for row in rows],
            "preemptions": [row.preemptions for row in rows],
            "tokens/s": [number(row.output_tokens_per_s, 0) if row.concurrency_peak else ABSENT for row in rows],
            "done in": [duration_text(row.makespan_s) if row.concurrency_peak else ABSENT for row in rows],
        }
    )
