"""The measures of a long trace as curves of a few thousand points, in one pass and little memory.

Each point stands for an equal run of rows and holds the least, the greatest and the last value of it, so no peak is
lost however far out one looks. `series` has every event; the definitions are the same, and a test holds them together.
Only the rows that can change a count are looked at: a WRITE or COMMIT confirms the count that its block has already,
so one that contradicts it (a fault that the detectors report) does not show here unless `slots` are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray, TraceLike, frozen
from kvscope.inspector.sums import COUNTS as COUNTS
from kvscope.inspector.sums import REF_CLASSES as REF_CLASSES
from kvscope.inspector.sums import STATES as STATES
from kvscope.inspector.sums import Columns, Part, PoolSums

_RUN = 1 << 18


@dataclass(frozen=True)
class Curve:
    """The least, greatest and last value of each run of rows; ratios are NaN where there is nothing to divide by."""

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    last: npt.NDArray[Any]


@dataclass(frozen=True)
class Overview:
    """Curves of all measures; arrays have one element per run of rows, and runs are equally long."""

    rows: int
    seq: IntArray  # of the last row of each run
    t_ns: IntArray
    curves: dict[str, Curve]  # COUNTS, `sharing_factor`; with slots also `filled_slots`, `utilization`, `tail_waste`
    refcounts: npt.NDArray[np.int32]  # [class of REF_CLASSES, run]: blocks by number of references, at its end


def overview(trace: TraceLike, width: int = 2000, *, slots: bool = False) -> Overview:
    """The measures over a whole trace.

    Args:
        width: runs of rows, at most.
        slots: also how many slots are filled: looks at every row of every block, which takes some times as long.
    """
    if not hasattr(trace, "columns"):
        trace = frozen(trace)
    rows = trace.rows if hasattr(trace, "rows") else len(trace.events)
    bins = _Bins(rows, max(1, min(width, rows)), slots)
    pool = PoolSums.before(trace, slots)
    bins.begin(pool)
    names = ("t_ns", "kind", "block", "gen", "ref_after", *(("ref_before", "fill") if slots else ()))
    for lo in range(0, rows, _RUN):
        part = Part(trace, lo, min(lo + _RUN, rows), names)
        bins.add(lo, part, *pool.follow(part))
    return bins.done()


class _Bins:
    """Least, greatest and last value of every measure in equal runs of rows."""

    def __init__(self, rows: int, width: int, slots: bool) -> None:
        self.rows, self.width = rows, width
        self.names = [*COUNTS, "sharing_factor", *(("filled_slots", "utilization", "tail_waste") if slots else ())]
        self.edges = -(-np.arange(width + 1) * rows // width)  # run i is edges[i] .. edges[i + 1] - 1
        self.low, self.high, self.last = (np.full((len(self.names), width), np.nan) for _ in range(3))
        self.touched = np.zeros(width, np.bool_)
        self.refcounts = np.zeros((len(REF_CLASSES), width), np.int32)
        self.marks = {name: np.zeros(width, np.int64) for name in ("seq", "t_ns")}

    def begin(self, pool: PoolSums) -> None:
        """The values before the first row."""
        self.first = self.now = pool.totals()
        self.first_classes = pool.by_references()

    def add(self, base: int, part: Columns, where: IntArray, values: Any, classes: Any) -> None:
        """Enter the rows `where` of a part that begins at row `base`."""
        ends = self.edges[1:] - 1
        inside = np.flatnonzero((ends >= base) & (ends < base + len(part["kind"])))
        for name, marks in self.marks.items():
            if len(inside):
                marks[inside] = part[name][ends[inside] - base]
        if not len(where):
            return
        rows = where + base
        bins = np.searchsorted(self.edges, rows, side="right") - 1
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        runs, stops = bins[starts], np.append(starts[1:], len(bins)) - 1
        before = np.concatenate([self.now[:, None], values[:, starts[1:] - 1]], axis=1)
        before[:, rows[starts] == self.edges[runs]] = np.nan  # nothing of the run before is in this one
        for kept, best in ((self.low, np.fmin), (self.high, np.fmax)):
            kept[:, runs] = best(kept[:, runs], best(best.reduceat(values, starts, axis=1), before))
        self.last[:, runs] = values[:, stops]
        self.refcounts[:, runs] = classes[:, stops]
        self.touched[runs] = True
        self.now = values[:, -1]

    def done(self) -> Overview:
        """All curves: a run without a row that matters has the value of the one before."""
        source = np.maximum.accumulate(np.where(self.touched, np.arange(self.width), -1))
        last = np.where(source >= 0, self.last[:, source], self.first[:, None])
        refcounts = np.where(source >= 0, self.refcounts[:, source], self.first_classes[:, None]).astype(np.int32)
        low, high = (np.where(self.touched, kept, last) for kept in (self.low, self.high))
        curves = {}
        for i, name in enumerate(self.names):
            three = (low[i], high[i], last[i])
            whole = name in COUNTS or name == "filled_slots"
            curves[name] = Curve(*(values.astype(np.int64) for values in three)) if whole else Curve(*three)
        if not self.rows:
            curves = {name: Curve(*(values[:0] for values in (c.low, c.high, c.last))) for name, c in curves.items()}
            none = np.empty(0, np.int64)
            return Overview(0, none, none, curves, refcounts[:, :0])
        return Overview(self.rows, self.marks["seq"], self.marks["t_ns"], curves, refcounts)
