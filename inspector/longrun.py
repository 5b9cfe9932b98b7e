"""The measures of a long trace in one pass, in memory that hardly grows with it.

`longrun` brings what `series` and `summary` say: peaks and means over all events, and a `Series` of a few thousand of
the events, picked so that no peak or trough of any measure is missed. A test holds them together with the measures of
all events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.facts import usable
from kvscope.inspector.source import IntArray
from kvscope.inspector.sums import COUNTS, STATES, Part, PoolSums
from kvscope.traces.fold import kind_mask
from kvscope.traces.schema import EVENT_DTYPE, EventArray, Kind, Reason

POINTS = 4000
_RUN = 1 << 18
_COLUMNS = ("seq", "t_ns", "step", "kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id",
            "lblock", "aux")  # fmt: skip
_NAMES = (*COUNTS, "sharing_factor", "filled_slots", "utilization", "tail_waste", "pool_utilization")
_RATIOS = frozenset(_NAMES[-4:]) - {"filled_slots"} | {"sharing_factor"}
_DRAWN = (*STATES, "saved_blocks", "lost_blocks", "sharing_factor", "filled_slots", "tail_waste", "utilization")
_DRAWN_ROWS = [_NAMES.index(name) for name in _DRAWN]
TOTALS = ("cow_copies", "preemptions", "refusals", "evictions", "prefix_hit_tokens", "prefix_query_tokens")

# Kinds that a summary asks more of than how often they occur: few of all rows.
SINGLED = kind_mask(
    frozenset(Kind)
    - {Kind.WRITE, Kind.COMMIT, Kind.SCHED, Kind.COPY_DONE, Kind.MISS, Kind.STEP_BEGIN, Kind.STEP_END, Kind.WITNESS,
       Kind.PUBLISH, Kind.UNPUBLISH, Kind.QUARANTINE, Kind.LEASE, Kind.UNLEASE, Kind.RELEASE}
)  # fmt: skip
_SINGLED_COLUMNS = ("kind", "reason", "block", "gen", "seq_id", "lblock", "aux", "t_ns", "step")


@dataclass(frozen=True)
class LongRun:
    """What one pass over a long trace shows."""

    rows: int
    t_ns: tuple[int, int]  # of the first and the last event
    spreads: dict[str, dict[str, float | int | None]]  # measure -> peak, mean over time, last
    picked: dict[str, npt.NDArray[Any]]  # the fields of a `Series` over some of the events, all extremes among them
    singled: EventArray  # the rows of kinds that are told one by one; columns that nothing needs are 0
    singled_seqs: IntArray


def longrun(trace: Any, points: int = POINTS, *, slots: bool = True) -> LongRun:
    """Go through a trace once.

    Args:
        trace: a reader of a folder or file.
        points: how many events to pick, about.
        slots: also how many slots are filled, which takes some times as long; without it, what depends on them is
            absent (NaN, None).
    """
    rows = trace.rows
    pool = PoolSums.before(trace, slots)
    means, picks, singled = (
        _Means(_complete(pool, pool.totals()[:, None])[:, 0]),
        _Picks(rows, pool.size, points),
        _Singled(),
    )
    columns = _COLUMNS if slots else tuple(name for name in _COLUMNS if name not in ("fill", "ref_before"))
    for lo in range(0, rows, _RUN):
        part = Part(trace, lo, min(lo + _RUN, rows), columns)
        where, values, _ = pool.follow(part)
        values = _complete(pool, values)
        means.add(part["t_ns"], where, values)
        rise = singled.add(part)
        picks.add(lo, part, where, values, pool.sizes, rise, means.entered)
    events, seqs = singled.done()
    return LongRun(rows, (means.t_first, means.t_last), means.done(), picks.done(), events, seqs)


def counts_at(trace: Any, rows: IntArray, *, as_counted: bool = False) -> dict[str, IntArray]:
    """Blocks by state, and `blocks`, the pool's size, just after some rows (rising) of a reader's trace."""
    found: dict[str, list[IntArray]] = {name: [] for name in (*STATES, "blocks")}
    for lo, values in parts_of_counts(trace, tuple(found), as_counted=as_counted):
        inside = rows[(rows >= lo) & (rows < lo + len(values["blocks"]))] - lo
        for name, part in values.items():
            found[name].append(part[inside])
    return {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in found.items()}


def parts_of_counts(
    trace: Any, names: Sequence[str], *, as_counted: bool = False
) -> Iterator[tuple[int, dict[str, IntArray]]]:
    """(first row, values after each row of a part) of a trace; names are of COUNTS, `filled_slots` or `blocks`.

    Args:
        as_counted: see `measures.series`.
    """
    pool = PoolSums.before(trace, slots=True, as_counted=as_counted)
    rows = trace.rows if hasattr(trace, "rows") else len(trace.events)
    for lo in range(0, rows, _RUN):
        entered, size = pool.totals(), pool.size
        part = Part(trace, lo, min(lo + _RUN, rows), _COLUMNS)
        where, values, _ = pool.follow(part)
        source = np.searchsorted(where, np.arange(len(part["kind"])), side="right")
        every = np.nan_to_num(np.column_stack([entered, values])).astype(np.int64)
        sizes = np.append(size, pool.sizes)
        yield lo, {name: (sizes if name == "blocks" else every[_NAMES.index(name)])[source] for name in names}


def singled_trace(trace: Any, run: LongRun) -> Any:
    """A stand-in for the trace that holds the rows of `run.singled` alone: for questions about sequences and lives."""
    events = run.singled
    sizes = np.isin(events["kind"], (Kind.GROW, Kind.SHRINK))
    most = max([trace.num_blocks, *events["aux"][sizes].tolist(), *events["lblock"][sizes].tolist()])
    return SimpleNamespace(
        events=events, seqs=run.singled_seqs, num_blocks=most, block_size=trace.block_size,
        block_bytes=trace.block_bytes, facts=tuple(usable(trace.facts)),
    )  # fmt: skip


def _complete(pool: PoolSums, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The measures of `_NAMES`: those that the pool sums up, and those that nothing is known of as NaN."""
    if not pool.slots:
        return np.vstack([values, np.full((len(_NAMES) - len(values), values.shape[1]), np.nan)])
    sizes = pool.sizes if len(pool.sizes) == values.shape[1] else np.full(values.shape[1], pool.size)
    return np.vstack([values, _ratio(values[_NAMES.index("filled_slots")], sizes * pool.block_size)])


class _Means:
    """Peak, time-weighted mean and last value of every measure; rows between two entries keep the earlier value."""

    def __init__(self, before: npt.NDArray[np.float64]) -> None:
        self.entered = self._now = before
        self._peak = np.full(len(before), np.nan)
        self._sums = np.zeros((len(before), 2))  # of value times time, and times events
        self._weights = np.zeros((len(before), 2))
        self._begun = False
        self.t_first = self.t_last = 0

    def add(self, t_ns: IntArray, where: IntArray, values: npt.NDArray[np.float64]) -> None:
        """A part of the trace: the values after its rows `where`."""
        if not len(t_ns):
            return
        if not self._begun:
            self._begun, self.t_first, self.t_last = True, int(t_ns[0]), int(t_ns[0])
        self.entered = self._now
        edges = np.append(where, len(t_ns))
        lead = int(edges[0])  # rows that still have the value of the part before
        held = np.column_stack([self._now, values]) if lead else values
        events = np.diff(np.append(0, edges)) if lead else np.diff(edges)
        # A value holds until the row of the next one; the time before this part's first row belongs to the last value.
        times = np.append(t_ns[where], t_ns[-1]).astype(np.float64)
        spans = np.diff(np.append(float(self.t_last), times)) if lead else np.diff(times)
        if not lead:
            self._weigh(self._now[:, None], np.asarray([[float(t_ns[0]) - self.t_last, 0.0]]))
        self._weigh(held, np.column_stack([spans, events]).astype(np.float64))
        if held.shape[1]:
            self._peak = np.fmax(self._peak, np.fmax.reduce(held, axis=1))
            self._now = held[:, -1]
        self.t_last = int(t_ns[-1])

    def _weigh(self, values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> None:
        known = ~np.isnan(values)
        if known.all():
            self._sums += values @ weights
            self._weights += weights.sum(axis=0)
        else:
            self._sums += np.where(known, values, 0.0) @ weights
            self._weights += known @ weights

    def done(self) -> dict[str, dict[str, float | int | None]]:
        """By measure; a ratio without a denominator throughout is absent."""
        out: dict[str, dict[str, float | int | None]] = {}
        for i, name in enumerate(_NAMES):
            by = 0 if self._weights[i, 0] > 0 else 1
            if not self._begun or not self._weights[i, 1] or np.isnan(self._peak[i]):
                out[name] = {"peak": None, "mean": None, "last": None}
                continue
            cast = float if name in _RATIOS else int
            last = float(self._now[i])
            mean = float(self._sums[i, by] / self._weights[i, by])
            out[name] = {"peak": cast(self._peak[i]), "mean": mean, "last": None if np.isnan(last) else cast(last)}
        return out


class _Picks:
    """Some of the events, with all measures: of each run of rows those where a measure is least, greatest or last."""

    def __init__(self, rows: int, size: int, points: int) -> None:
        self._rows, self._size = rows, size
        self._step = max(1, -(-rows * 2 * len(_DRAWN) // max(points, 1)))  # rows of a run
        self._parts: list[dict[str, npt.NDArray[Any]]] = []

    def add(
        self, base: int, part: Part, where: IntArray, values: npt.NDArray[np.float64], sizes: IntArray,
        totals: dict[str, IntArray], entered: npt.NDArray[np.float64],
    ) -> None:  # fmt: skip
        """A part of the trace that begins at row `base`; `entered` are the values before its first row."""
        count = len(part["kind"])
        if not count:
            return
        at = self._extremes(where + base, values[_DRAWN_ROWS])
        rows = where[at]
        edge = {0} if base == 0 else set()
        edge |= {count - 1} if base + count == self._rows else set()
        rows = np.unique(np.append(rows, np.asarray(sorted(edge), np.int64))).astype(np.int64)
        source = np.searchsorted(where, rows, side="right") - 1  # the entry whose values hold at the row
        all_values = np.column_stack([entered, values])[:, source + 1]
        size = np.append(self._size, sizes)[source + 1]
        found = {name: all_values[i] for i, name in enumerate(_NAMES)}
        found |= {name: totals[name][rows] for name in TOTALS}
        found |= {"blocks": size, "t_ns": part["t_ns"][rows].astype(np.int64), "seq": part["seq"][rows]}
        self._parts.append(found | {"step": part["step"][rows]})
        self._size = int(sizes[-1]) if len(sizes) else self._size

    def _extremes(self, rows: IntArray, values: npt.NDArray[np.float64]) -> IntArray:
        """Which entries are the least, the greatest or the last of their run in a measure."""
        if not len(rows):
            return np.empty(0, np.int64)
        run = rows // self._step
        starts = np.flatnonzero(np.diff(run, prepend=-1))
        picked = [np.append(starts[1:], len(rows)) - 1, np.maximum(np.append(starts[1:], len(rows)) - 2, 0)]
        number = np.cumsum(np.diff(run, prepend=run[0]) != 0)
        for measure in values:
            for best in (np.fmin, np.fmax):
                hit = np.flatnonzero(measure == best.reduceat(measure, starts)[number])
                picked.append(hit[np.flatnonzero(np.diff(number[hit], prepend=-1))])  # the first of each run
        return np.unique(np.concatenate(picked))

    def done(self) -> dict[str, npt.NDArray[Any]]:
        """All picked events, in order."""
        if not self._parts:
            return {name: np.empty(0) for name in (*_NAMES, *TOTALS, "blocks", "t_ns", "seq", "step")}
        return {name: np.concatenate([part[name] for part in self._parts]) for name in self._parts[0]}


class _Singled:
    """The rows of kinds that are looked at one by one, and running totals over all rows."""

    def __init__(self) -> None:
        self._parts: list[EventArray] = []
        self._seqs: list[IntArray] = []
        self._totals = dict.fromkeys(TOTALS, 0)
        self._prompts: dict[int, int] = {}

    def add(self, part: Part) -> dict[str, IntArray]:
        """Take the rows of a part that are wanted; returns the running totals after each of its rows."""
        kind = part["kind"]
        rows = np.flatnonzero(SINGLED[kind])
        events = np.zeros(len(rows), EVENT_DTYPE)
        for name in _SINGLED_COLUMNS if len(rows) else ():
            events[name] = part[name][rows]
        self._parts.append(events)
        self._seqs.append(part["seq"][rows] if len(rows) else np.empty(0, np.int64))
        return {name: self._running(name, rows[at], by, len(kind)) for name, (at, by) in self._moves(events).items()}

    def _moves(self, events: EventArray) -> dict[str, tuple[IntArray, IntArray]]:
        """total -> (which of these rows change it, by how much)"""
        kind = events["kind"]
        counted = {
            "cow_copies": (kind == Kind.COW) & (events["reason"] != Reason.RESIZED),
            "preemptions": kind == Kind.PREEMPT,
            "refusals": kind == Kind.REFUSED,
            "evictions": kind == Kind.EVICT,
        }
        found = {name: (at := np.flatnonzero(which), np.ones(len(at), np.int64)) for name, which in counted.items()}
        admitted = list(self._admissions(events))
        at = np.asarray([at for at, _, _ in admitted], np.int64)
        hits, asked = (np.asarray([values[i] for values in admitted], np.int64) for i in (1, 2))
        return found | {"prefix_hit_tokens": (at, hits), "prefix_query_tokens": (at, asked)}

    def _running(self, name: str, rows: IntArray, by: IntArray, count: int) -> IntArray:
        total = self._totals[name]
        if not len(rows):
            return np.broadcast_to(np.int64(total), (count,))
        change = np.zeros(count, np.int64)
        change[rows] = by
        found = total + np.cumsum(change)
        self._totals[name] = int(found[-1])
        return found

    def _admissions(self, events: EventArray) -> Iterator[tuple[int, int, int]]:
        """(row, prompt tokens found in the prefix cache, prompt tokens) of admissions whose prompt is known."""
        submits = events[events["kind"] == Kind.SUBMIT]
        self._prompts |= dict(zip(submits["seq_id"].tolist(), submits["aux"].tolist(), strict=True))
        for at in np.flatnonzero(events["kind"] == Kind.ADMIT).tolist():
            prompt = self._prompts.get(int(events["seq_id"][at]))
            if prompt is not None:
                yield at, int(events["aux"][at]), prompt

    def done(self) -> tuple[EventArray, IntArray]:
        """(rows, their numbers)"""
        if not self._parts:
            return np.empty(0, EVENT_DTYPE), np.empty(0, np.int64)
        return np.concatenate(self._parts), np.concatenate(self._seqs)


def _ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    out = np.full(len(whole), np.nan)
    np.divide(part, whole, out=out, where=whole != 0)
    return out
