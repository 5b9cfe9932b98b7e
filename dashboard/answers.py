"""The inspector's answers about an opened trace, cached. Arrays are shared, not copied: read-only for all pages."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvscope.dashboard.opened import TraceView
from kvscope.inspector.findings import CheckResult, check
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.measures import Series, series, summary
from kvscope.inspector.source import Names
from kvscope.inspector.state import PoolState, state_at, tables_at


@st.cache_resource(max_entries=8, show_spinner="measuring")
def _series(key: tuple[Any, ...], _view: TraceView) -> Series:
    return series(_view)


@st.cache_resource(max_entries=8, show_spinner=False)
def _summary(key: tuple[Any, ...], _view: TraceView) -> dict[str, Any]:
    return summary(_view, _series(key, _view))


@st.cache_resource(max_entries=8, show_spinner="checking every rule")
def _check(key: tuple[Any, ...], _view: TraceView) -> CheckResult:
    return check(_view)


@st.cache_resource(max_entries=16, show_spinner=False)
def _state(key: tuple[Any, ...], seq: int, _view: TraceView) -> PoolState:
    return state_at(_view, seq)


@st.cache_resource(max_entries=16, show_spinner=False)
def _tables(key: tuple[Any, ...], seq: int, _view: TraceView) -> dict[int, list[tuple[int, int]]]:
    return tables_at(_view, seq)


@st.cache_resource(max_entries=8, show_spinner=False)
def _lanes(key: tuple[Any, ...], _view: TraceView) -> list[Lane]:
    return lanes(_view)


def measured(view: TraceView) -> Series:
    """`inspector.series` of the view."""
    return _series(view.id, view)


def summarised(view: TraceView) -> dict[str, Any]:
    """`inspector.summary` of the view."""
    return _summary(view.id, view)


def checked(view: TraceView) -> CheckResult:
    """`inspector.check` of the view."""
    return _check(view.id, view)


def pool_at(view: TraceView, seq: int) -> PoolState:
    """`inspector.state_at` of the view."""
    return _state(view.id, seq, view)


def tables_of(view: TraceView, seq: int) -> dict[int, list[tuple[int, int]]]:
    """`inspector.tables_at` of the view."""
    return _tables(view.id, seq, view)


def lanes_of(view: TraceView) -> list[Lane]:
    """`inspector.lanes` of the view."""
    return _lanes(view.id, view)


def names_of(view: TraceView) -> Names:
    """The names of the view's sequences."""
    return Names(view.facts)


def owners_of(tables: dict[int, list[tuple[int, int]]]) -> dict[int, list[int]]:
    """The block tables the other way round: block -> the sequences whose tables hold it."""
    owners: dict[int, list[int]] = {}
    for seq_id, row in tables.items():
        for block, _ in row:
            owners.setdefault(block, []).append(seq_id)
    return owners
