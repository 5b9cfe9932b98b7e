"""What if: the requests of this trace run again, with other blocks, another pool, without sharing: accounting only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from kvscope.dashboard import choices, figures_more, markup, plots
from kvscope.dashboard.answers import lanes_of, summarised
from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, duration_text, ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.place import Place
from kvscope.dashboard.tables import at_right
from kvscope.engine.policy import Policy
from kvscope.errors import KVScopeError
from kvscope.inspector.lanes import most_at_once
from kvscope.inspector.simulate import Outcome, Settings, simulate
from kvscope.inspector.simulate.cells import Cell
from kvscope.inspector.units import counted
from kvscope.inspector.workloads import Workload
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
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        offered = sorted({*SIZES, view.block_size})
        sizes = st.pills("Block size (slots)", offered, selection_mode="multi",
                         **choices.several("sizes", offered, offered, key="sizes", what="Block size"))  # fmt: skip
        pool = st.select_slider("Pool, times this one", POOLS, width=200,
                                **choices.one("pool", POOLS, 1.0, key="pool_times", what="Pool"))  # fmt: skip
        reserved = st.toggle("Beside reserving",
                             **choices.switch("reserving", True, key="reserving", what="Beside reserving"))  # fmt: skip
        known = _work(view.id, view)
        sharing = st.toggle("Sharing", disabled=known is None or not known.names_prefixes,
                            **choices.switch("sharing", True, key="sharing", what="Sharing"),
                            help="Samples of a request share its prompt; prompts share nothing, for a trace holds no "
                            "text. Of no effect where each request has one sample.")  # fmt: skip
        orders = _policies(known)
        policy = st.selectbox("Order of the queue", orders, width=160, disabled=len(orders) == 1,
                              **choices.one("policy", orders, orders[0], key="policy", what="Order of the queue"),
                              help="By priority, where the requests of the trace differ in it.")  # fmt: skip
    if why := _without_effect(known, orders):
        st.caption(why)
    try:
        rows = _rows(
            view.id, tuple(sizes or [view.block_size]), float(pool), bool(reserved), bool(sharing), str(policy), view
        )
    except KVScopeError as error:
        st.info(markup.plain(str(error)))
        return
    told = spoken_of(rows, view.block_size)
    cells = (
        ("Row", _name(told), "", "What these numbers are of: this trace's own block size, where it is among the rows."),
        ("Requests", count_text(told.requests), "simulated", f"Of the trace, at most {MOST_REQUESTS:,} of them."),
        ("Pool", bytes_text(int(geometry["pool_bytes"] * pool)), "", "Memory for KV."),
        (
            "At once, mean",
            f"{told.concurrency_mean or 0:.1f}",
            f"peak {count_text(told.concurrency_peak)}",
            "Sequences that run at once: mean over time, and the most there were.",
        ),
        ("Used", ratio_text(told.utilization), "", "Share of held memory that holds tokens."),
        ("Preemptions", count_text(told.preemptions), "simulated", "Sequences that gave up their blocks."),
        ("Done in", duration_text(told.makespan_s), "", "Simulated time until the last token."),
    )
    st.html(markup.stats(cells))
    shares = "samples share their prompt, " if sharing and known is not None and known.names_prefixes else ""
    st.markdown(f"**The same requests, simulated**: {shares}prompts share nothing here, for a trace holds no text")
    st.caption(_the_run_itself(view))
    _picture(rows)
    table = _table(rows)
    st.dataframe(table, hide_index=True, key="whatif_rows", column_config=at_right(*table.columns[1:]))


def _the_run_itself(view: TraceView) -> str:
    """What the simulated rows are to be held against, and what of it they leave out."""
    facts = summarised(view)
    said = (
        f"The run itself took {duration_text(facts['duration_s'])}, with {counted(facts['preemptions'], 'preemption')}"
    )
    if not view.on_demand and (most := most_at_once(lanes_of(view))):
        said += f" and at most {counted(most, 'sequence')} at once"
    if (used := facts["utilization"]["mean"]) is not None:
        said += f"; {ratio_text(used)} of the memory in use held tokens"
    if hits := facts["prefix_hit_rate"]:
        said += (f"; {ratio_text(hits)} of its prompt tokens came from the prefix cache, which is left out here: "
                 "all are computed, and each prompt has blocks of its own")  # fmt: skip
    return said + "."


def _picture(rows: Sequence[Outcome]) -> None:
    """What tells the rows apart: how many sequences run at once; where that is all one, what they need for it."""
    if same_crowd(rows):
        st.caption(
            "As many sequences run at once with each, for memory is no limit here: they differ in what is empty."
        )
        fit = [row for row in rows if row.utilization is not None]
        bars = [(_name(row), row.utilization or 0.0, ratio_text(row.utilization),
                 ratio_text(1 - (row.utilization or 0.0)), _name(row)) for row in fit]  # fmt: skip
        plots.show(figures_more.used_and_empty(bars), key="whatif_used", bar=False,
                   alt="Held memory that holds tokens and that is empty, by allocator and block size")  # fmt: skip
        return
    shown = [(_name(row), row.concurrency_mean or 0.0, float(row.concurrency_peak), _said(row)) for row in rows]
    plots.show(figures_more.concurrency(shown), key="whatif_picture", bar=False,
               alt="Sequences that run at once, mean and peak, by allocator and block size")  # fmt: skip


def same_crowd(rows: Sequence[Outcome]) -> bool:
    """Whether as many sequences run at once in every row that serves any, to a hundredth."""
    fit = [row for row in rows if row.concurrency_peak]
    means = [row.concurrency_mean or 0.0 for row in fit]
    return len(fit) > 1 and max(means) - min(means) <= 0.01 * max(means)


def spoken_of(rows: Sequence[Outcome], block_size: int) -> Outcome:
    """The row that the numbers on top are of: paged at the trace's own block size, else the next to it."""
    paged = [row for row in rows if row.allocator == "paged"] or list(rows)
    return min(paged, key=lambda row: abs((row.block_size or 0) - block_size))


def _without_effect(known: Workload | None, orders: Sequence[str]) -> str:
    """Why a setting that is greyed out can make no difference to this trace; empty where each can."""
    said = []
    if known is None:
        said.append("Sharing: the trace speaks of no request.")
    elif not known.names_prefixes:
        said.append("Sharing makes no difference here: each request has one sample, and a trace holds no prompts.")
    if len(orders) == 1:
        order = "Nor does the order of the queue" if said else "The order of the queue makes no difference here"
        said.append(f"{order}: all requests have the same priority.")
    return " ".join(said)


def _policies(work: Workload | None) -> list[str]:
    """The orders of the queue that can make a difference to these requests."""
    orders = [Policy.FCFS.value]  # a trace does not say who asked, so fair is no other order
    return orders + ([Policy.PRIORITY.value] if work is not None and work.names_priorities else [])


@st.cache_resource(max_entries=4, show_spinner=False)
def _work(key: tuple[Any, ...], _view: TraceView) -> Workload | None:
    """The requests of the trace; None where it speaks of none."""
    try:
        return from_trace(_view.name, _view, MOST_REQUESTS)
    except KVScopeError:
        return None


def _name(row: Outcome) -> str:
    return f"{row.allocator}, {row.block_size} slots" if row.block_size else str(row.allocator)


def _said(row: Outcome) -> str:
    """What is written on the bar of an allocator."""
    if not row.concurrency_peak:
        return "not one request fits: the room reserved for it is more than the pool"
    return "" if row.utilization is None else f"{row.utilization:.0%} of held memory used"


@st.cache_resource(max_entries=16, show_spinner="simulating")
def _rows(
    key: tuple[Any, ...], sizes: tuple[int, ...], times: float, reserved: bool, sharing: bool, policy: str,
    _view: TraceView,
) -> list[Outcome]:  # fmt: skip
    geometry = summarised(_view)["geometry"]
    work = from_trace(_view.name, _view, MOST_REQUESTS)
    longest = max(r.prompt + r.output for r in work.requests)
    limit = max(int(geometry["max_model_len"] or 0), longest + 1)
    settings = Settings(int(geometry["pool_bytes"] * times), int(geometry["bytes_per_token"]), limit,
                        sharing=sharing, policy=policy)  # fmt: skip
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
