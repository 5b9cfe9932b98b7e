"""What time goes by in a figure, events, steps or seconds: the values, where an event lies, which rows are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.measures import Series, decimate, in_force

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
    """The rows to draw, at most MAX_POINTS and the same for all curves: peaks, troughs, what stands at many places.

    On the step axis only the last event of a step is drawn: one value for one step.
    """
    rows = np.arange(len(series), dtype=np.int64)
    if axis == "step" and len(rows):
        rows = rows[np.append(series.step[1:] != series.step[:-1], True)]
    if len(rows) <= MAX_POINTS:
        return rows
    standing = rows[in_force(axis_values(series, axis)[rows], MAX_POINTS // 3)]
    width = max((MAX_POINTS - len(standing)) // (2 * len(curves)), 1)
    picked = [decimate(rows, curve[rows], width)[0] for curve in curves]
    return np.unique(np.concatenate([*picked, standing]))


def drawn_points(x: npt.NDArray[Any], y: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64]:
    """The points of one curve to draw: at most `most`, chosen as `shown_rows` chooses."""
    points = np.arange(len(x), dtype=np.int64)
    if len(x) <= most:
        return points
    return np.unique(np.concatenate([in_force(x, most // 3), decimate(points, y, max(most // 3 - 1, 1))[0]]))


def x_of(series: Series, axis: str, seq: int) -> float:
    """Where event `seq` lies on the axis; between two of the series' events in proportion (on a step's own place)."""
    return float(xs_of(series, axis, np.asarray([seq]))[0])


def xs_of(series: Series, axis: str, seqs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """`x_of` of many."""
    if not len(series):
        return np.zeros(len(seqs))
    if axis == "event":
        return np.clip(seqs, series.seq[0], series.seq[-1])
    if axis == "time":
        return np.interp(seqs, series.seq, axis_values(series, axis))
    rows = np.searchsorted(series.seq, seqs, side="right") - 1
    return series.step[np.clip(rows, 0, len(series) - 1)]


def cursor_x(series: Series, axis: str, seq: int) -> float | None:
    """Where the line at event `seq` stands; None where there is no event."""
    return x_of(series, axis, seq) if len(series) else None
