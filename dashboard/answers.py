"""The inspector's answers about an opened trace, cached. Arrays are shared, not copied: read-only for all pages."""

from __future__ import annotations

import gc
from typing import Any

import streamlit as st

from kvscope.dashboard.opened import TraceView, findings_while_live
from kvscope.inspector.findings import QUICK_CHECK as QUICK_CHECK
from kvscope.inspector.findings import CheckResult, Finding, check
from kvscope.inspector.holes import Holes, holes
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.longrun import LongRun, longrun
from kvscope.inspector.measures import Series, series, series_of, summary
from kvscope.inspector.source import Names
from kvscope.inspector.state import PoolState, state_at, tables_at
from kvscope.inspector.table_seek import TableSeeker

_CHECKED: set[tuple[Any, ...]] = set()  # views whose check has been run
_MEASURED: set[tuple[Any, ...]] = set()  # long views whose every measure is known


@st.cache_resource(max_entries=4, show_spinner="measuring")
def _series(key: tuple[Any, ...], slots: bool, _view: TraceView) -> Series:
    return series_of(_long_run(key, slots, _view), _view) if _view.on_demand else series(_view)


@st.cache_resource(max_entries=4, show_spinner="measuring")
def _long_run(key: tuple[Any, ...], slots: bool, _view: TraceView) -> LongRun:
    found = longrun(_view, slots=slots)
    _settle()
    if slots:
        _MEASURED.add(key)
    return found


@st.cache_resource(max_entries=4, show_spinner=False)
def _summary(key: tuple[Any, ...], slots: bool, _view: TraceView) -> dict[str, Any]:
    return summary(_view, _long_run(key, slots, _view) if _view.on_demand else _series(key, slots, _view))


@st.cache_resource(max_entries=3, show_spinner="checking every rule")
def _check(key: tuple[Any, ...], _view: TraceView) -> CheckResult:
    return check(_view)


@st.cache_resource(max_entries=16, show_spinner=False)
def _state(key: tuple[Any, ...], seq: int, _view: TraceView) -> PoolState:
    return state_at(_view, seq)


@st.cache_resource(max_entries=16, show_spinner=False)
def _tables(key: tuple[Any, ...], seq: int, _view: TraceView) -> dict[int, list[tuple[int, int]]]:
    return _table_seeker(key, _view).at(seq) if _view.on_demand else tables_at(_view, seq)


@st.cache_resource(max_entries=3, show_spinner="reading the block tables")
def _table_seeker(key: tuple[Any, ...], _view: TraceView) -> TableSeeker:
    return TableSeeker(_view)


@st.cache_resource(max_entries=3, show_spinner=False)
def _lanes(key: tuple[Any, ...], _view: TraceView) -> list[Lane]:
    return lanes(_view)


@st.cache_resource(max_entries=3, show_spinner=False)
def _names(key: tuple[Any, ...], _view: TraceView) -> Names:
    return Names(_view.facts)


@st.cache_resource(max_entries=3, show_spinner=False)
def _holes(key: tuple[Any, ...], _view: TraceView) -> Holes:
    return holes(_view)


def _settle() -> None:
    """Leave what is there out of the collector's rounds: each takes 0.1 s over all that a long trace keeps."""
    gc.collect()
    gc.freeze()


def whole(view: TraceView) -> bool:
    """Whether all measures are known: of a long trace, those of filled slots come later (`measure_all`)."""
    return not view.on_demand or view.id in _MEASURED


def measure_all(view: TraceView) -> None:
    """Measure a long trace in full; takes some seconds per 10 million events."""
    _long_run(view.id, True, view)


def measured(view: TraceView) -> Series:
    """`inspector.series` of the view; of a long one some of the events, among them every extreme."""
    return _series(view.id, whole(view), view)


def summarised(view: TraceView) -> dict[str, Any]:
    """`inspector.summary` of the view; what is not `whole` yet is absent."""
    return _summary(view.id, whole(view), view)


def checked(view: TraceView) -> CheckResult:
    """`inspector.check` of the view; of a long trace it takes a while the first time.

    Of a trace that is being written it is the last check that was run beside it, where there was one.
    """
    if view.live and (found := findings_while_live(view)) is not None:
        return found.result
    result = _check(view.id, view)
    _CHECKED.add(view.id)
    return result


def findings_so_far(view: TraceView) -> tuple[Finding, ...] | None:
    """The findings of the view where the check is quick or was run before, else None: nothing waits for it."""
    if view.live:
        found = findings_while_live(view)
        return None if found is None else found.result.findings
    if len(view.events) > QUICK_CHECK and view.id not in _CHECKED:
        return None
    return checked(view).findings


def holes_of(view: TraceView) -> Holes:
    """`inspector.holes` of the view."""
    return _holes(view.id, view)


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
    return _names(view.id, view)


def owners_of(tables: dict[int, list[tuple[int, int]]]) -> dict[int, list[int]]:
    """The block tables the other way round: block -> the sequences whose tables hold it."""
    owners: dict[int, list[int]] = {}
    for seq_id, row in tables.items():
        for block, _ in row:
            owners.setdefault(block, []).append(seq_id)
    return owners
