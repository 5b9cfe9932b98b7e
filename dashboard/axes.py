"""What time goes by in a figure, events, steps or seconds: the values, where an event lies, which rows are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.measures import Series, decimate

MAX_POINTS = 2000
AXES = {"event": "event", "step": "step", "time": "time (s)"}


def axis_values(series: Series, axis: str) -> npt.NDArray[Any]:
    """The x value of every event on an `event`, `step` or `time` axis."""
    if axis == "step":
        return series.step
    if axis == "time":
        return (series.t_ns - (series.t_ns[0] if len(series) else 0)) * 1e-9
    return series.seq


def shown_rows(series: Series, axis: str, curves: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """The rows to draw: every peak and trough of every curve, at most MAX_POINTS, the same rows for all curves.

    On the step axis only the last event of a step is drawn: one value for one step.
    """
    rows = np.arange(len(series), dtype=np.int64)
    if axis == "step" and len(rows):
        rows = rows[np.append(series.step[1:] != series.step[:-1], True)]
    if len(rows) <= MAX_POINTS:
        return rows
    width = MAX_POINTS // (2 * len(curves)) - 1
    picked = [decimate(rows, curve[rows], width)[0] for curve in curves]
    return np.unique(np.concatenate([*picked, rows[:1], rows[-1:]]))


def x_of(series: Series, axis: str, seq: int) -> float:
    """Where event `seq` lies on the axis; between two of the series' events in proportion (on a step's own place)."""
    if not len(series):
        return 0.0
    if axis == "event":
        return float(min(max(seq, int(series.seq[0])), int(series.seq[-1])))
    if axis == "time":
        return float(np.interp(seq, series.seq, axis_values(series, axis)))
    row = min(max(int(np.searchsorted(series.seq, seq, side="right")) - 1, 0), len(series) - 1)
    return float(series.step[row])


def cursor_x(series: Series, axis: str, seq: int) -> float | None:
    """Where the line at event `seq` stands; None where there is no event."""
    return x_of(series, axis, seq) if len(series) else None
