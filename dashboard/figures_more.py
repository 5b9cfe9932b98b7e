"""Figures of the pages Sharing, What if and Recording overhead, made from plain values; imports no Streamlit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from kvscope.dashboard.axes import AXES, MAX_POINTS, drawn_points, x_of, xs_of
from kvscope.dashboard.palette import BLUE, GREEN, GREY, MUTED, ORANGE, PURPLE, VERMILLION, hatch, ink_on
from kvscope.inspector.holes import Holes
from kvscope.inspector.measures import Series

_GRID = "rgba(128,140,152,0.22)"
_SHARED = ((0.0, BLUE), (0.001, "#F6D08A"), (1.0, ORANGE))


def prefix_icicle(
    labels: Sequence[str], parents: Sequence[int], holders: Sequence[int], texts: Sequence[str]
) -> go.Figure:
    """The prefix tree: a row for each level, as wide as sequences hold it, orange the more of them.

    Args:
        labels, texts: what is written on a branch, and said of it. parents: positions, -1 for none.
        holders: how many sequences hold a branch.
    """
    # Arrays, not lists: Plotly looks at each item of a list.
    icicle = go.Icicle(
        ids=_texts(str(i) for i in range(len(labels))), labels=_texts(labels), branchvalues="total",
        parents=_texts("" if parent < 0 else str(parent) for parent in parents), values=np.asarray(holders),
        customdata=_texts(texts), hovertemplate="%{customdata}<extra></extra>", sort=False,
        tiling={"orientation": "v", "pad": 2}, pathbar={"visible": False}, textfont={"size": 13},
        marker={"colors": np.asarray([float(n > 1) * n for n in holders]), "colorscale": _SHARED, "cmin": 0,
                "cmax": max([2, *holders]), "line": {"width": 0}},
    )  # fmt: skip
    layout = {"height": min(90 + 62 * _depth(parents), 560), "margin": {"l": 4, "r": 4, "t": 4, "b": 4},
              "uirevision": "keep", "uniformtext": {"minsize": 11, "mode": "hide"}}  # fmt: skip
    return go.Figure(icicle, layout)


def fragmentation(holes: Holes, series: Series, axis: str, cursor: int | None) -> go.Figure:
    """External fragmentation over time, as `holes` has it; gaps where nothing is free.

    Args:
        series: of the same run, for where its events lie on the axis.
    """
    x = xs_of(series, axis, holes.seq)
    keep = drawn_points(x, holes.fragmentation, MAX_POINTS)
    values = holes.fragmentation[keep]
    figure = go.Figure(
        go.Scatter(
            x=x[keep], y=values, mode="lines",
            line={"color": PURPLE, "width": 1.8, "shape": "hv"}, fill="tozeroy", connectgaps=False,
            customdata=np.column_stack([holes.largest[keep], holes.free[keep]]),
            hovertemplate="%{y:.1%}: largest hole %{customdata[0]:,} of %{customdata[1]:,} free<extra></extra>",
        )
    )  # fmt: skip
    figure.update_layout(height=190, margin={"l": 8, "r": 12, "t": 8, "b": 8}, showlegend=False, uirevision="keep")
    title = {"text": AXES[axis], "standoff": 6}
    figure.update_xaxes(title=title, automargin=True, showgrid=False, zeroline=False,
                        tickformat=None if axis == "time" else ",d")  # fmt: skip
    figure.update_yaxes(automargin=True, gridcolor=_GRID, zeroline=False, tickformat=".0%", rangemode="tozero")
    if cursor is not None and len(series):
        figure.add_vline(x=x_of(series, axis, cursor), line={"color": MUTED, "width": 1.5, "dash": "dot"})
    return figure


def _texts(values: Iterable[str]) -> npt.NDArray[np.object_]:
    return np.asarray(list(values), dtype=object)


def _depth(parents: Sequence[int]) -> int:
    levels: list[int] = []
    for parent in parents:
        levels.append(1 if parent < 0 else levels[parent] + 1)
    return max(levels, default=1)


def strip(state: npt.NDArray[np.bool_]) -> go.Figure:
    """A pool side by side, from its first block to its last: what is free (True) in holes, the largest plain.

    Each hole has its length on it where there is room.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], state, [False]]).astype(np.int8)))
    holes = list(zip(edges[::2].tolist(), (edges[1::2] - edges[::2]).tolist(), strict=True))
    largest = max(holes, key=lambda hole: hole[1], default=(0, 0))
    small = [hole for hole in holes if hole != largest]
    bounds = np.concatenate([[0], edges, [len(state)]])
    held = [(int(lo), int(hi - lo)) for lo, hi in zip(bounds[::2], bounds[1::2], strict=True) if hi > lo]
    traces = [
        _pieces(held, "held", BLUE, "", 0), _pieces(small, "free, in smaller holes", PURPLE, "/", len(state)),
        _pieces([largest] if largest[1] else [], "the largest hole", GREY, "", len(state)),
    ]  # fmt: skip
    return go.Figure(traces, {
        "height": 72, "margin": {"l": 8, "r": 12, "t": 8, "b": 8}, "barmode": "overlay", "showlegend": False,
        "uirevision": "keep", "yaxis": {"visible": False, "range": [0, 1]},
        "xaxis": {"range": [0, max(len(state), 1)], "tickformat": ",d", "showgrid": False, "zeroline": False,
                  "automargin": True},
    })  # fmt: skip


def _pieces(pieces: Sequence[tuple[int, int]], name: str, colour: str, pattern: str, blocks: int) -> go.Bar:
    """Stretches of the pool as (first block, length); a length is written on one that is 1/64 of `blocks` or more."""
    lengths = [length for _, length in pieces]
    return go.Bar(
        x=lengths, base=[first for first, _ in pieces], y=[0.5] * len(pieces), width=1, orientation="h", name=name,
        text=[str(n) if blocks and n * 64 >= blocks else "" for n in lengths], textposition="inside", textangle=0,
        insidetextanchor="middle", marker={"color": colour, "pattern": hatch(colour) if pattern else None,
                                           "line": {"width": 0}},
        textfont={"size": 12, "color": ink_on(colour)}, hovertemplate=f"%{{x}} {name}<extra></extra>",
    )  # fmt: skip


def used_and_empty(rows: Sequence[tuple[str, float, str, str, str]]) -> go.Figure:
    """Held memory of several runs, a bar each: (name, share that holds tokens, what is written on it, on the rest, and
    below the bar).
    """
    names = [name for name, *_ in rows]
    used, empty = [share for _, share, *_ in rows], [1 - share for _, share, *_ in rows]
    figure = go.Figure()
    for values, colour, name, column in ((used, BLUE, "holds tokens", 2), (empty, PURPLE, "empty", 3)):
        figure.add_trace(go.Bar(
            x=names, y=values, name=name, width=0.62, textposition="auto", insidetextanchor="middle", textangle=0,
            text=[f"<b>{row[column]}</b>" for row in rows], hovertemplate="%{x}: %{y:.1%} " + name + "<extra></extra>",
            marker={"color": colour, "pattern": hatch(colour) if name == "empty" else None},
            insidetextfont={"color": ink_on(colour)},
        ))  # fmt: skip
    figure.update_layout(
        barmode="stack", height=320, margin={"l": 8, "r": 12, "t": 8, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "traceorder": "normal"},
    )  # fmt: skip
    figure.update_xaxes(tickvals=names, ticktext=[row[4] for row in rows])
    figure.update_yaxes(range=[0, 1], tickformat=".0%", gridcolor=_GRID, automargin=True, zeroline=False)
    return figure


def with_and_without(distinct: int, saved: int, pool: int) -> go.Figure:
    """The blocks that tables need with sharing and without it, two bars, and the pool as a line across them."""
    names, figure = ["with sharing", "without"], go.Figure()
    for values, colour, name in (([distinct, distinct], BLUE, "in tables"), ([0, saved], GREEN, "saved by sharing")):
        figure.add_trace(go.Bar(
            x=names, y=values, name=name, width=0.62, textposition="inside", insidetextanchor="middle", textangle=0,
            text=[f"<b>{value:,}</b>" if value else "" for value in values], marker={"color": colour},
            insidetextfont={"color": ink_on(colour)}, hovertemplate="%{x}: %{y:,} " + name + "<extra></extra>",
        ))  # fmt: skip
    figure.add_hline(y=pool, line={"color": MUTED, "width": 1.5, "dash": "dash"}, annotation={
        "text": f"the pool: {pool:,}", "font": {"color": MUTED}, "xanchor": "left", "x": 0.0, "yanchor": "bottom",
    })  # fmt: skip
    figure.update_layout(
        barmode="stack", height=320, margin={"l": 8, "r": 12, "t": 8, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "traceorder": "normal"},
    )  # fmt: skip
    figure.update_yaxes(title={"text": "blocks", "standoff": 6}, tickformat=",", gridcolor=_GRID, automargin=True,
                        zeroline=False)  # fmt: skip
    return figure


def rate(seconds: npt.NDArray[Any], per_s: npt.NDArray[Any]) -> go.Figure:
    """Events per second over time, as an area."""
    figure = go.Figure(
        go.Scatter(x=np.round(seconds, 6), y=per_s, mode="lines", line={"color": BLUE, "width": 1.6, "shape": "vh"},
                   fill="tozeroy", fillcolor="rgba(0,114,178,0.18)", name="events/s",
                   hovertemplate="%{y:,.0f} events/s at %{x:.3f} s<extra></extra>")
    )  # fmt: skip
    figure.update_layout(height=330, margin={"l": 8, "r": 12, "t": 8, "b": 8}, showlegend=False, uirevision="keep")
    figure.update_xaxes(title={"text": "time (s)", "standoff": 6}, automargin=True, showgrid=False, zeroline=False)
    figure.update_yaxes(title="events per second", automargin=True, gridcolor=_GRID, rangemode="tozero")
    return figure


def overhead(loads: Sequence[tuple[str, float, float | None, float | None, float | None]]) -> go.Figure:
    """Ratios of step times, a row each: (name, ratio, low, high, gate); the gate as a line beside its row."""
    names = [name for name, *_ in loads]
    colours = [VERMILLION if gate is not None and ratio > gate else GREEN for _, ratio, _, _, gate in loads]
    figure = go.Figure(
        go.Scatter(
            x=[ratio for _, ratio, *_ in loads], y=names, mode="markers", marker={"size": 13, "color": colours},
            error_x={"type": "data", "symmetric": False, "color": MUTED, "thickness": 1.6,
                     "array": [max((high or ratio) - ratio, 0) for _, ratio, _, high, _ in loads],
                     "arrayminus": [max(ratio - (low or ratio), 0) for _, ratio, low, _, _ in loads]},
            hovertemplate="%{y}<br>%{x:.4f} times the step without recording<extra></extra>",
        )
    )  # fmt: skip
    gates = [(name, gate) for name, *_, gate in loads if gate is not None]
    if gates:
        figure.add_trace(go.Scatter(
            x=[gate for _, gate in gates], y=[name for name, _ in gates], mode="markers", name="limit",
            marker={"symbol": "line-ns-open", "size": 22, "color": PURPLE, "line": {"width": 2}},
            hovertemplate="limit %{x:.3f}<extra></extra>",
        ))  # fmt: skip
    figure.add_vline(x=1.0, line={"color": MUTED, "width": 1.2, "dash": "dot"})
    figure.update_layout(height=120 + 44 * len(loads), margin={"l": 8, "r": 12, "t": 8, "b": 8}, showlegend=False)
    figure.update_xaxes(title={"text": "step with recording / step without", "standoff": 6}, gridcolor=_GRID)
    figure.update_yaxes(automargin=True, autorange="reversed", showgrid=False)
    return figure


def concurrency(rows: Sequence[tuple[str, float, float, str]]) -> go.Figure:
    """Sequences at once by allocator: (name, mean, peak, what is written on its bar); longer is better."""
    names = [name for name, *_ in rows]
    figure = go.Figure()
    figure.add_trace(go.Bar(
        y=names, x=[peak for _, _, peak, _ in rows], orientation="h", name="peak", width=0.56,
        marker={"color": "rgba(86,180,233,0.35)"}, hovertemplate="%{y}: %{x:,.0f} at most<extra></extra>",
    ))  # fmt: skip
    figure.add_trace(go.Bar(
        y=names, x=[mean for _, mean, _, _ in rows], orientation="h", name="mean", width=0.56, marker={"color": BLUE},
        text=[said for *_, said in rows], textposition=["inside" if mean else "outside" for _, mean, _, _ in rows],
        insidetextanchor="start", hovertemplate="%{y}: %{x:,.1f} on average<extra></extra>",
    ))  # fmt: skip
    figure.update_layout(
        barmode="overlay", height=110 + 52 * len(rows), margin={"l": 8, "r": 12, "t": 8, "b": 8}, barcornerradius=4,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0},
    )  # fmt: skip
    figure.update_xaxes(title={"text": "sequences that run at once", "standoff": 6}, gridcolor=_GRID, zeroline=False)
    figure.update_yaxes(automargin=True, autorange="reversed", showgrid=False)
    return figure
