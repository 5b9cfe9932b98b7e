"""From a step or a time to the event that it ends with, and back, of a trace of any length."""

from __future__ import annotations

from typing import Any

import numpy as np


def event_at_step(trace: Any, step: int) -> int:
    """The last event of a step (of the one before it, where it has none); the first event where there is none."""
    return _event(trace, _rows(trace, "row_at_step", "step", step))


def event_at_time(trace: Any, t_ns: int) -> int:
    """The last event at a time or before it, in ns since the trace began; the first event where there is none."""
    return _event(trace, _rows(trace, "row_at_time", "t_ns", t_ns))


def _rows(trace: Any, question: str, name: str, value: int) -> int:
    """How many of the rows come no later."""
    if getattr(trace, "on_demand", False):
        return int(getattr(trace.reader, question)(value))
    return int(np.searchsorted(trace.events[name], value, side="right"))


def _event(trace: Any, rows: int) -> int:
    return int(trace.seqs[min(max(rows, 1), len(trace.seqs)) - 1])
