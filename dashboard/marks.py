"""What stands above a picture of the pool: preemptions, evictions and findings, each at its event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from kvscope.dashboard.axes import axis_values, x_of
from kvscope.inspector.measures import Series

MAX_MARKS = 200
MARK_ROOM = 0.02  # of the axis: findings that are closer would lie on one another


@dataclass(frozen=True)
class Mark:
    """One marker on the time axis: its cause (`preempt`, `evict`, `finding`), its event number, what it says."""

    cause: str
    seq: int
    text: str


def drawn(series: Series, axis: str, marks: Sequence[Mark], cause: str, colour: str, symbol: str) -> list[Any]:
    """The marks of one cause as a trace of the figure; findings that would hide one another are one star."""
    if not marks:
        return []
    shown = [marks[i] for i in np.unique(np.linspace(0, len(marks) - 1, MAX_MARKS).astype(int))]
    name = cause if len(shown) == len(marks) else f"{cause} ({len(shown)} of {len(marks)} drawn)"
    placed = [(x_of(series, axis, mark.seq), mark, 1) for mark in shown]
    if cause == "finding":
        placed = _apart(placed, axis_values(series, axis))
        name = name if len(placed) == len(shown) else f"{name}, {len(shown)} at {len(placed)} places"
    star = {"color": colour, "symbol": symbol, "size": 14 if cause == "finding" else 9}
    edge = {"width": 1.5 if symbol.endswith("-open") else 0, "color": colour}
    several = [f"{many}" if many > 1 else "" for _, _, many in placed]
    return [
        go.Scatter(
            x=[x for x, _, _ in placed], y=[series.num_blocks * 1.05] * len(placed), name=name,
            mode="markers+text" if any(several) else "markers", marker={**star, "line": edge},
            customdata=[mark.seq for _, mark, _ in placed], textposition="middle right",
            text=several, textfont={"color": colour, "size": 11},
            hovertext=[mark.text + (f" and {many - 1} more from here" if many > 1 else "") for _, mark, many in placed],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    ]  # fmt: skip


def _apart(placed: list[tuple[float, Mark, int]], along: npt.NDArray[Any]) -> list[tuple[float, Mark, int]]:
    """Marks that would lie on one another as the first of them, with their number."""
    room = float(along[-1] - along[0]) * MARK_ROOM if len(along) else 0.0
    kept: list[tuple[float, Mark, int]] = []
    for x, mark, many in sorted(placed, key=lambda at: at[0]):
        if kept and x - kept[-1][0] < room:
            kept[-1] = (*kept[-1][:2], kept[-1][2] + many)
        else:
            kept.append((x, mark, many))
    return kept
