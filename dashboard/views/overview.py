"""Overview: the run in eight numbers, one big picture of the pool over time, and sharing and waste below it."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from kvscope.dashboard import figures, figures_more, markup, opened, plots, verdict
from kvscope.dashboard.answers import (
    QUICK_CHECK,
    checked,
    findings_so_far,
    holes_of,
    lanes_of,
    measure_all,
    measured,
    names_of,
    pool_at,
    summarised,
    whole,
)
from kvscope.dashboard.axes import cursor_x
from kvscope.dashboard.layers import Stack, stack_of
from kvscope.dashboard.marks import MAX_MARKS, Mark
from kvscope.dashboard.numbers import ratio_text
from kvscope.dashboard.opened import TraceView
from kvscope.dashboard.palette import GREEN, ORANGE, PURPLE
from kvscope.dashboard.place import Place
from kvscope.dashboard.views import compare
from kvscope.dashboard.words import event_text
from kvscope.inspector.holes import IN_ONE_PIECE, allocator_of
from kvscope.inspector.lanes import most_at_once
from kvscope.inspector.state import BlockState
from kvscope.inspector.statrow import stat_cells, waste_title
from kvscope.traces.schema import Kind

MAX_STRIP = 4096  # blocks of a pool that is drawn side by side
MAX_LONG_MARKS = 40  # each is read from another place of the file


def render(view: TraceView, place: Place) -> None:
    """The page."""
    stat_row(view)
    verdict.show(view)
    if before := opened.runs_before(view):
        many = "One run was" if before == 1 else f"{before} runs were"
        said = (
            "here before this one, which alone can be read and is shown. What was seen of both is on *Live and replay*."
        )
        st.caption(f":material/restart_alt: {many} {said}")
    if allocator_of(view.facts) in IN_ONE_PIECE and view.num_blocks <= MAX_STRIP:
        st.markdown("**The pool at this event, side by side**: the free blocks lie in holes, of so many blocks")
        plots.show(figures_more.strip(pool_at(view, place.seq).state == BlockState.FREE), key="strip", bar=False,
                   alt="The pool side by side at this event: held pieces, and the holes between them")  # fmt: skip
    said, axis = _stack((view.id, whole(view)), view).said, place.axis
    st.markdown("**The pool over time**" + (f": {said}" if said else ""))
    found = findings_so_far(view)
    picture = _picture((view.id, whole(view)), axis, -1 if found is None else len(found), view)
    left, right = _beside(view)
    with left:
        alt = f"The pool over time, stacked{said and ': '}{said}"
        plots.show(_at(picture, view, axis, place), key="occupancy", alt=alt, tall=True)
    if right is not None:
        with right:
            _sharing(view) if compare.partner_of(view, opened.start().traces) is None else _pair(view)
    for column, (title, name, _) in zip(st.columns(3, gap="medium"), _SMALL, strict=True):
        title = waste_title(view) if name == "tail_waste" else title
        with column:
            st.markdown(f"**{title}**")
            figure = _at(_small((view.id, whole(view)), axis, name, view), view, axis, place)
            plots.show(figure, key=f"small_{name}", alt=title, bar=False)
    # After everything else is on the page, what takes a while. A long trace is checked on the page Findings.
    if not whole(view):
        measure_all(view)
        st.rerun()
    if found is None and not view.live and not view.on_demand:
        checked(view)
        st.rerun()


@st.cache_resource(max_entries=6, show_spinner=False)
def _picture(key: tuple[Any, ...], axis: str, findings: int, _view: TraceView) -> plots.Written:
    return plots.written(figures.occupancy(measured(_view), axis, marks=marks(_view), stack=_stack(key[0:2], _view)))


@st.cache_resource(max_entries=6, show_spinner=False)
def _stack(key: tuple[Any, ...], _view: TraceView) -> Stack:
    allocator = allocator_of(_view.facts)
    holes = holes_of(_view) if allocator in IN_ONE_PIECE and not _view.on_demand else None
    return stack_of(measured(_view), allocator, holes)


@st.cache_resource(max_entries=18, show_spinner=False)
def _small(key: tuple[Any, ...], axis: str, name: str, _view: TraceView) -> plots.Written:
    options = next(options for _, other, options in _SMALL if other == name)
    return plots.written(figures.small_multiple(measured(_view), name, axis, **options))


def _beside(view: TraceView) -> tuple[Any, Any | None]:
    """Room for the big picture, and beside it for another run where this one's words name one that can be measured.

    Else for what sharing saves, where that is much.
    """
    pair = compare.partner_of(view, opened.start().traces) is not None and not view.on_demand
    shares = _stack((view.id, whole(view)), view).shares
    return st.columns([5, 2], gap="medium") if pair or shares else (st.container(), None)


def _sharing(view: TraceView) -> None:
    """The blocks in tables with sharing and without it, where it saves most."""
    series = measured(view)
    row = int(np.argmax(series.saved_blocks))
    distinct, saved = int(series.table_blocks[row]), int(series.saved_blocks[row])
    alt = f"Blocks in tables at event {int(series.seq[row]):,}: {distinct:,} with sharing, {distinct + saved:,} without"
    figure = figures_more.with_and_without(distinct, saved, int(series.blocks[row]))
    plots.show(figure, key="sharing_bars", bar=False, tall=True, alt=alt)


def _pair(view: TraceView) -> None:
    """Held memory of this run and of its partner: what of it holds tokens, on average."""
    traces = opened.start().traces
    name = compare.partner_of(view, traces) or ""
    rows = []
    for run in (view, opened.open_view(name, traces[name])):
        used = summarised(run)["utilization"]["mean"]
        if used is not None:
            rows.append((run.name, used, ratio_text(used), f"{ratio_text(1 - used)}<br>empty", _under(run)))
    alt = "Held memory, mean over time: " + ", ".join(f"{run} {said} in use" for run, _, said, *_ in rows)
    plots.show(figures_more.used_and_empty(rows), key="pair_bars", bar=False, tall=True, alt=alt)


def _under(run: TraceView) -> str:
    """A run's name, and how many sequences it computed at once, where that is quickly known."""
    if len(run.events) > QUICK_CHECK:
        return run.name
    return f"{run.name}<br>up to {most_at_once(lanes_of(run))} at once"


def _at(picture: plots.Written, view: TraceView, axis: str, place: Place) -> plots.Written:
    """The same picture with the chosen event as a line; the cached one stays as it is."""
    return plots.with_line(picture, cursor_x(measured(view), axis, place.seq))


_SMALL: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Sharing factor", "sharing_factor", {"colour": ORANGE, "unit": "×"}),
    ("Blocks saved by sharing", "saved_blocks", {"colour": GREEN}),
    ("Tail waste", "tail_waste", {"colour": PURPLE, "percent": True}),
)


def stat_row(view: TraceView) -> None:
    """Eight numbers, each as `inspector.summary` has it; findings are absent until the check has been run."""
    findings = findings_so_far(view)
    cells = stat_cells(summarised(view), None if findings is None else len(findings))
    st.html(markup.stats(cells, alarm="Findings" if findings else ""))


def marks(view: TraceView) -> list[Mark]:
    """What stands above the picture: preemptions, evictions and findings, in order of events."""
    names, kinds = names_of(view), view.events["kind"]
    found = []
    for cause, kind in (("preempt", Kind.PREEMPT), ("evict", Kind.EVICT)):
        rows = np.flatnonzero(kinds == kind)
        most = MAX_LONG_MARKS if view.on_demand else MAX_MARKS
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, most).astype(int))] if len(rows) else rows
        found += [Mark(cause, int(view.seqs[row]), event_text(view, int(row), names)) for row in rows.tolist()]
    return found + [Mark("finding", f.seq, f"{f.code} {f.title}") for f in findings_so_far(view) or ()]
