"""Plotly figures from the inspector's arrays: pure functions, no Streamlit, at most 2,000 points a line.

Colours are explicit, fonts and backgrounds are left to the page's theme, so one figure serves light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from kvscope.dashboard.axes import AXES, MAX_POINTS, axis_values, drawn_points, shown_rows, x_of, xs_of
from kvscope.dashboard.layers import Stack, labels, stack_of
from kvscope.dashboard.marks import Mark, drawn
from kvscope.dashboard.palette import BLUE, BY_NAME, CAUSES, GREEN, MUTED, ORANGE, PHASES, PURPLE, hatch
from kvscope.inspector.lanes import Bar, Lane
from kvscope.inspector.measures import Series

_GRID = "rgba(123,135,148,0.18)"


@dataclass(frozen=True)
class Arrow:
    """One copy-on-write between two lanes, given by their names; the same name twice is a copy within a lane."""

    seq: int
    source: str
    target: str
    text: str


def occupancy(
    series: Series,
    axis: str = "event",
    *,
    cursor: int | None = None,
    marks: Sequence[Mark] = (),
    stack: Stack | None = None,
) -> go.Figure:
    """The pool over time, stacked to its size, with causes above and the chosen event as a line.

    Args:
        stack: its layers; the block states if left out.
    """
    layers = (stack or stack_of(series)).layers
    rows = shown_rows(series, axis, [layer.values for layer in layers])
    x = axis_values(series, axis)[rows]
    traces = [
        go.Scatter(
            x=x, y=layer.values[rows], name=layer.name, stackgroup="pool", mode="lines",
            fillcolor=layer.fill or layer.colour, line={"width": 0, "color": layer.colour, "shape": "hv"},
            fillpattern=hatch(layer.colour) if layer.hatched else None, showlegend=bool(layer.values.any()),
            hovertemplate="%{y:,.4~g} " + layer.name + "<extra></extra>",
        )
        for layer in layers
    ]  # fmt: skip
    for cause, (colour, symbol) in CAUSES.items():
        traces += drawn(series, axis, [m for m in marks if m.cause == cause], cause, colour, symbol)
    top = max(series.num_blocks, 1) * (1.1 if marks else 1.0)
    span = {"range": [x[0], x[-1]]} if len(x) > 1 else {}
    figure = _figure(traces, height=320, x=_x_axis(axis) | span, y=_y_axis("blocks") | {"range": [0, top]},
                     hovermode="x unified", annotations=labels(layers, rows, x, top))  # fmt: skip
    _cursor(figure, series, axis, cursor)
    return figure


def small_multiple(
    series: Series, name: str, axis: str = "event", *, cursor: int | None = None, percent: bool = False,
    colour: str = ORANGE, unit: str = "",
) -> go.Figure:  # fmt: skip
    """One measure of `series` by name over time; gaps stay gaps."""
    values = np.asarray(getattr(series, name), dtype=np.float64)
    rows = shown_rows(series, axis, [values])
    figure = _figure(
        [go.Scatter(
            x=axis_values(series, axis)[rows], y=values[rows], mode="lines", name=name, connectgaps=False,
            line={"color": colour, "width": 1.8, "shape": "hv"}, fill="tozeroy" if not unit else None,
            hovertemplate="%{y:.1%}<extra></extra>" if percent else "%{y:,.4~g}" + unit + "<extra></extra>",
        )],
        height=190, x=_x_axis(axis), hovermode="x", showlegend=False,
        y=_y_axis(None) | {"tickformat": ".0%" if percent else ",", "rangemode": "tozero", "nticks": 5,
                           "ticksuffix": unit},
    )  # fmt: skip
    _cursor(figure, series, axis, cursor)
    return figure


def filled_and_empty(series: Series, axis: str = "event", *, cursor: int | None = None) -> go.Figure:
    """The slots of blocks in use over time: lost ones at the bottom, filled ones, empty ones on top."""
    reached = series.held_slots - series.lost_slots
    filled = np.minimum(series.filled_slots, reached)
    curves = [("filled", filled, BLUE), ("empty", reached - filled, PURPLE)]
    lost = BY_NAME["lost"]
    if series.lost.any():
        curves.insert(0, (lost.label, series.lost_slots, lost.colour))
    rows = shown_rows(series, axis, [curve for _, curve, _ in curves])
    x = axis_values(series, axis)[rows]
    figure = _figure(
        [
            go.Scatter(
                x=x, y=curve[rows], name=name, stackgroup="held", mode="lines", fillcolor=colour,
                line={"width": 0, "color": colour, "shape": "hv"}, hovertemplate=f"%{{y:,}} {name}<extra></extra>",
                fillpattern=hatch(colour) if name == lost.label else None,
            )
            for name, curve, colour in curves
        ],
        height=300, x=_x_axis(axis), y=_y_axis("slots"), hovermode="x unified",
    )  # fmt: skip
    _cursor(figure, series, axis, cursor)
    return figure


def side_by_side(runs: Mapping[str, Series]) -> go.Figure:
    """Held slots of several runs over the time since each began."""
    traces = []
    for (name, series), colour in zip(runs.items(), (BLUE, ORANGE, GREEN, PURPLE), strict=False):
        rows = shown_rows(series, "time", [series.held_slots])
        traces.append(
            go.Scatter(
                x=axis_values(series, "time")[rows], y=series.held_slots[rows], name=name, mode="lines",
                line={"color": colour, "width": 2, "shape": "hv"}, hovertemplate="%{y:,} slots<extra></extra>",
            )
        )  # fmt: skip
    return _figure(traces, height=300, x=_x_axis("time"), y=_y_axis("slots"), hovermode="x unified")


def block_tables(tables: Mapping[str, Sequence[tuple[int, int]]], refs: npt.NDArray[np.integer]) -> go.Figure:
    """The block tables: a row for each sequence, a cell for each logical block; colour = how many tables hold it."""
    names = list(tables)
    width = max((len(row) for row in tables.values()), default=0)
    z = np.full((len(names), width), np.nan)
    text = np.full((len(names), width), "", dtype=object)
    for i, name in enumerate(names):
        for j, (block, gen) in enumerate(tables[name]):
            z[i, j] = min(int(refs[block]), 4)
            text[i, j] = f"b{block}#{gen}"
    few = width * len(names) <= 900 and width <= 28
    scale = ["#0072B2", "#F3B73E", "#E69F00", "#B87F00"]  # one table, two, three, four and more
    steps = [(edge, colour) for i, colour in enumerate(scale) for edge in (i / 4, (i + 1) / 4)]
    return _figure(
        [go.Heatmap(
            z=z, x=list(range(width)), y=names, text=text, texttemplate="%{text}" if few else None,
            textfont={"size": 11}, colorscale=steps, zmin=0.5, zmax=4.5, showscale=False,
            xgap=2, ygap=3, hoverongaps=False, hovertemplate="%{y} [%{x}] = %{text}<extra></extra>",
        )],
        height=max(120, 74 + 26 * len(names)), x=_axis("logical block") | {"dtick": max(1, width // 20)},
        y=_y_axis(None) | {"autorange": "reversed", "showgrid": False, "type": "category"},
    )  # fmt: skip


def slot_strip(writers: Sequence[tuple[str, str]]) -> go.Figure:
    """The slots of one life of a block, left to right: who wrote each, as (what hover says, colour)."""
    slots = list(range(len(writers)))
    return _figure(
        [go.Bar(
            x=slots, y=[1] * len(slots), width=0.94, marker={"color": [colour for _, colour in writers]},
            text=[str(i) for i in slots] if len(slots) <= 32 else None, textposition="inside",
            insidetextanchor="middle", textangle=0, customdata=[said for said, _ in writers],
            hovertemplate="slot %{x}: %{customdata}<extra></extra>",
        )],
        height=58, margin={"l": 0, "r": 0, "t": 4, "b": 4}, showlegend=False, barcornerradius=4,
        x={"visible": False, "range": [-0.5, len(slots) - 0.5]}, y={"visible": False, "range": [0, 1]},
    )  # fmt: skip


def lane_chart(
    lanes: Sequence[Lane],
    series: Series,
    axis: str = "event",
    *,
    cursor: int | None = None,
    arrows: Sequence[Arrow] = (),
) -> go.Figure:
    """One lane for each sequence: bars by phase, the blocks it held as a line below them, copies as arrows."""
    traces: list[Any] = []
    start_ns = int(series.t_ns[0]) if len(series) else 0
    for phase, colour in PHASES.items():
        bars = [(i, lane.name, bar) for i, lane in enumerate(lanes) for bar in lane.bars if bar.phase == phase]
        ends = [_bar_ends(bar, axis, start_ns) for _, _, bar in bars]
        traces.append(
            go.Bar(
                y=[i for i, _, _ in bars], x=[hi - lo for lo, hi in ends], base=[lo for lo, _ in ends], width=0.4,
                offset=-0.36, orientation="h", name=phase, marker={"color": colour, "line": {"width": 0}},
                customdata=[(name, bar.seq_lo, bar.seq_hi, bar.step_lo, bar.step_hi) for _, name, bar in bars],
                hovertemplate="<b>%{customdata[0]}</b> " + phase + "<br>events %{customdata[1]:,} to "
                "%{customdata[2]:,}, steps %{customdata[3]} to %{customdata[4]}<extra></extra>",
            )
        )  # fmt: skip
    traces.append(_held_line(lanes, series, axis, start_ns))
    lines = _axis(None) | {"tickvals": list(range(len(lanes))), "ticktext": [lane.name for lane in lanes],
                           "range": [len(lanes) - 0.4, -0.6]}  # fmt: skip
    diamonds, flows = _arrows(lanes, series, axis, arrows)
    figure = _figure(
        traces + diamonds, height=110 + 34 * max(len(lanes), 1), x=_x_axis(axis), y=lines, annotations=flows,
        barmode="overlay", hovermode="closest", barcornerradius=3,
    )  # fmt: skip
    _cursor(figure, series, axis, cursor)
    return figure


def _bar_ends(bar: Bar, axis: str, start_ns: int) -> tuple[float, float]:
    if axis == "time":
        return (bar.t0_ns - start_ns) * 1e-9, (bar.t1_ns - start_ns) * 1e-9
    if axis == "step":
        return float(bar.step_lo), float(bar.step_hi)
    return float(bar.seq_lo), float(bar.seq_hi)


def _held_line(lanes: Sequence[Lane], series: Series, axis: str, start_ns: int) -> go.Scatter:
    """Blocks held, all lanes in one curve with breaks between them; each lane's room is 0.36 high."""
    most = max((lane.max_held for lane in lanes), default=1) or 1
    most_points = max(MAX_POINTS // max(len(lanes), 1), 6)
    x: list[float | None] = []
    y: list[float | None] = []
    said: list[int | None] = []
    for i, lane in enumerate(lanes):
        at = (lane.held_t_ns - start_ns) * 1e-9 if axis == "time" else lane.held_seq
        if axis == "step":
            at = xs_of(series, axis, at)
        keep = drawn_points(at, lane.held, most_points)
        x += [*at[keep].tolist(), None]
        y += [*(i + 0.44 - 0.34 * lane.held[keep] / most).tolist(), None]
        said += [*lane.held[keep].tolist(), None]
    return go.Scatter(
        x=x, y=y, customdata=said, mode="lines", name=f"blocks held (up to {most})", connectgaps=False,
        line={"color": MUTED, "width": 1.4, "shape": "hv"}, hovertemplate="blocks held: %{customdata}<extra></extra>",
    )  # fmt: skip


def _arrows(
    lanes: Sequence[Lane], series: Series, axis: str, arrows: Sequence[Arrow]
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Copies on write: (diamonds where they were made, arrows from the lane that was copied from)."""
    if not arrows:
        return [], []
    row = {lane.name: i for i, lane in enumerate(lanes)}
    x = xs_of(series, axis, np.asarray([arrow.seq for arrow in arrows], np.int64)).tolist()
    diamonds = go.Scatter(
        x=x, y=[row[arrow.target] - 0.16 for arrow in arrows], mode="markers", name="copy on write",
        marker={"color": GREEN, "size": 9, "symbol": "diamond", "line": {"width": 1, "color": "#FFFFFF"}},
        text=[arrow.text for arrow in arrows], hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    flows = [
        {"x": at, "y": row[arrow.target] - 0.16, "ax": at, "ay": row[arrow.source] - 0.16, "xref": "x", "yref": "y",
         "axref": "x", "ayref": "y", "showarrow": True, "arrowhead": 2, "arrowsize": 1.1, "arrowwidth": 1.6,
         "arrowcolor": GREEN, "standoff": 5, "text": ""}
        for at, arrow in zip(x, arrows, strict=True) if arrow.source != arrow.target
    ]  # fmt: skip
    return [diamonds], flows


def _cursor(figure: go.Figure, series: Series, axis: str, cursor: int | None) -> None:
    if cursor is not None and len(series):
        figure.add_vline(x=x_of(series, axis, cursor), line={"color": MUTED, "width": 1.5, "dash": "dot"})


def _figure(traces: list[Any], *, height: int, x: dict[str, Any], y: dict[str, Any], **layout: Any) -> go.Figure:
    """A figure with what all have in common. In one go: an update of a figure costs as much as making it."""
    common: dict[str, Any] = {
        "height": height, "margin": {"l": 8, "r": 12, "t": 8, "b": 8}, "dragmode": "zoom", "uirevision": "keep",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "traceorder": "normal"},
        "xaxis": x, "yaxis": y,
    }  # fmt: skip
    return go.Figure(traces, common | layout)


def _axis(title: str | None) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 6}, "automargin": True, "showgrid": False, "zeroline": False}


def _x_axis(axis: str) -> dict[str, Any]:
    """Time, on one of AXES; whole numbers with a comma for the thousands."""
    return _axis(AXES[axis]) | ({} if axis == "time" else {"tickformat": ",d"})


def _y_axis(title: str | None) -> dict[str, Any]:
    return _axis(title) | {"showgrid": True, "gridcolor": _GRID, "tickformat": ","}
