"""The measures of a paged pool: one definition each, over all events at once and as a summary of the run.

A pool has N blocks of B slots. In words:

    private shared in_transit lost cached quarantined free   blocks by state; they add up to N at every event
    lost_blocks      lost: blocks that lost references alone hold: their sequences have ended without giving them back
    held_slots       slots of blocks in use (private, shared, in_transit, lost)
    filled_slots     slots of those that hold a live token, each physical slot once; writes on their way included.
                     What lies in a lost block is not live
    tail_waste       empty share of the slots of blocks that a table or a lease holds
    sharing_factor   table_entries / distinct blocks in tables;  saved_blocks = their difference
                     (a lost reference is no table entry: no sequence reads through it)
    utilization      filled_slots / held_slots;  pool_utilization = filled_slots / (N * B)
    prefix_hit_rate  prompt tokens found in the prefix cache / prompt tokens, over first admissions
    benefit_ratio    max_model_len / P50(actual length): does paging pay

A ratio with an empty denominator is absent: NaN inside arrays, None in a summary, never 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.longrun import TOTALS, LongRun, counts_at, longrun, parts_of_counts, singled_trace
from kvscope.inspector.source import Frozen, IntArray, TraceLike, frozen, gap_rows, pool_sizes
from kvscope.inspector.spans import FloatArray, mean_over_time
from kvscope.inspector.state import BlockState, classify
from kvscope.inspector.timeline import timeline
from kvscope.inspector.told import COUNT_NAMES as COUNT_NAMES
from kvscope.inspector.told import RATIO_NAMES, told
from kvscope.traces.fold import begun_anew
from kvscope.traces.schema import EventArray, Kind, Reason

CountArray = npt.NDArray[np.int32]

MEASURES = (*COUNT_NAMES, "held_blocks", "table_entries", "saved_blocks", "lost_blocks", *RATIO_NAMES)


@dataclass(frozen=True)
class Series:
    """The measures just after each event; every array has one element per event of the trace."""

    num_blocks: int  # the most there ever were
    block_size: int
    block_bytes: int
    blocks: IntArray  # the pool's size, which changes where it grows or shrinks
    seq: IntArray
    t_ns: IntArray
    step: npt.NDArray[np.int32]
    private: CountArray
    shared: CountArray
    in_transit: CountArray
    lost: CountArray
    cached: CountArray
    quarantined: CountArray
    free: CountArray
    table_entries: CountArray
    filled_slots: CountArray
    cow_copies: CountArray  # from here on: running totals
    preemptions: CountArray
    refusals: CountArray
    evictions: CountArray
    prefix_hit_tokens: IntArray
    prefix_query_tokens: IntArray

    def __len__(self) -> int:
        return len(self.seq)

    @cached_property
    def table_blocks(self) -> CountArray:
        """Distinct blocks in tables."""
        return self.private + self.shared

    @cached_property
    def lost_blocks(self) -> CountArray:
        """Blocks that are counted as held, and that nobody holds any more."""
        return self.lost

    @cached_property
    def held_blocks(self) -> CountArray:
        """Blocks in use: a table or a lease holds them, or they are lost."""
        return self.private + self.shared + self.in_transit + self.lost

    @cached_property
    def held_slots(self) -> IntArray:
        """Slots of blocks in use."""
        return self.held_blocks.astype(np.int64) * self.block_size

    @cached_property
    def lost_slots(self) -> IntArray:
        """Slots of lost blocks."""
        return self.lost.astype(np.int64) * self.block_size

    @cached_property
    def empty_slots(self) -> IntArray:
        """Slots without a token, of blocks that a table or a lease holds."""
        empty: IntArray = self.held_slots - self.lost_slots - self.filled_slots
        return empty

    @cached_property
    def saved_blocks(self) -> CountArray:
        """Blocks that sharing saves: table entries less distinct blocks in tables."""
        return self.table_entries - self.table_blocks

    @cached_property
    def saved_bytes(self) -> IntArray:
        """Bytes that sharing saves."""
        return self.saved_blocks.astype(np.int64) * self.block_bytes

    @cached_property
    def cow_bytes(self) -> IntArray:
        """Bytes of the blocks that copy-on-write has taken so far, whole blocks."""
        return self.cow_copies.astype(np.int64) * self.block_bytes

    @cached_property
    def tail_waste(self) -> FloatArray:
        """Empty share of the slots of blocks that a table or a lease holds."""
        return ratio(self.empty_slots, self.held_slots - self.lost_slots)

    @cached_property
    def utilization(self) -> FloatArray:
        """Share of held memory that holds live tokens."""
        return ratio(self.filled_slots, self.held_slots)

    @cached_property
    def pool_utilization(self) -> FloatArray:
        """Share of the whole pool that holds live tokens."""
        return ratio(self.filled_slots, self.blocks * self.block_size)

    @cached_property
    def sharing_factor(self) -> FloatArray:
        """Table entries per distinct block in tables."""
        return ratio(self.table_entries, self.table_blocks)

    @cached_property
    def prefix_hit_rate(self) -> FloatArray:
        """Share of admitted prompt tokens that the prefix cache had, so far."""
        return ratio(self.prefix_hit_tokens, self.prefix_query_tokens)


def series(trace: TraceLike, *, as_counted: bool = False) -> Series:
    """All measures at every event of a trace, vectorised (about a second per million events).

    Args:
        as_counted: blocks by what the pool itself counts, which takes lost references for table entries.
    """
    trace = frozen(trace)
    events = trace.events
    sizes = pool_sizes(trace)
    counts = _counts(trace, sizes, as_counted) if trace.before is None else _counts_from(trace, as_counted)
    hit_tokens, query_tokens = prefix_tokens(events)
    return Series(
        num_blocks=trace.num_blocks, block_size=trace.block_size, block_bytes=trace.block_bytes, blocks=sizes,
        seq=np.asarray(trace.seqs, dtype=np.int64), t_ns=events["t_ns"].astype(np.int64),
        step=events["step"].astype(np.int32), **counts,
        cow_copies=np.cumsum((events["kind"] == Kind.COW) & (events["reason"] != Reason.RESIZED), dtype=np.int32),
        preemptions=_running(events, Kind.PREEMPT),
        refusals=_running(events, Kind.REFUSED), evictions=_running(events, Kind.EVICT),
        prefix_hit_tokens=np.cumsum(hit_tokens), prefix_query_tokens=np.cumsum(query_tokens),
    )  # fmt: skip


_COUNTED = (*(state.name.lower() for state in BlockState), "table_entries", "filled_slots")


def _counts(trace: Frozen, sizes: IntArray, as_counted: bool) -> dict[str, CountArray]:
    """Of a trace that has its first event: the run of each of its writers begins with a pool that is free."""
    events, found = trace.events, []
    edges = [0, *begun_anew(events["kind"], events["aux"]).tolist(), len(events)]
    for lo, hi in itertools.pairwise(edges):
        if lo == 0 or hi > lo:
            run = SimpleNamespace(events=events[lo:hi], seqs=trace.seqs[lo:hi], num_blocks=trace.num_blocks)
            found.append(_counts_of(run, sizes[lo:hi], as_counted))
    return {name: np.concatenate([counts[name] for counts in found]) for name in _COUNTED}


def _counts_of(trace: Any, sizes: IntArray, as_counted: bool) -> dict[str, CountArray]:
    line = timeline(trace, as_counted=as_counted)
    entries = line.entries - line.lost
    state = classify(entries, line.leases, line.published, line.quarantined, line.lost)
    counts = {s.name.lower(): line.total(state == s) for s in BlockState}
    # Blocks without a row yet have not been handed out; those that a shrink took away were free.
    counts["free"] = (counts["free"] + sizes - line.seen).astype(np.int32)
    filled = line.total(np.where(entries + line.leases > 0, line.fill, 0))
    return {**counts, "table_entries": line.total(entries), "filled_slots": filled}


def _counts_from(trace: Frozen, as_counted: bool) -> dict[str, CountArray]:
    """Of a trace whose first events were let go: from what those had made of the pool."""
    parts = [part for _, part in parts_of_counts(trace, _COUNTED, as_counted=as_counted)]
    none = np.empty(0, np.int64)
    return {name: np.concatenate([none, *(part[name] for part in parts)]).astype(np.int32) for name in _COUNTED}


def ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> FloatArray:
    """part / whole, NaN where `whole` is 0."""
    out = np.full(len(whole), np.nan)
    np.divide(part, whole, out=out, where=np.asarray(whole) != 0)
    return out


def prefix_tokens(events: EventArray) -> tuple[IntArray, IntArray]:
    """Per event the prompt tokens found in the prefix cache, and those asked for; both stand at ADMIT rows."""
    hits, queries = np.zeros(len(events), dtype=np.int64), np.zeros(len(events), dtype=np.int64)
    submits = events[events["kind"] == Kind.SUBMIT]
    prompts = dict(zip(submits["seq_id"].tolist(), submits["aux"].tolist(), strict=True))
    for row in np.flatnonzero(events["kind"] == Kind.ADMIT).tolist():
        prompt = prompts.get(int(events["seq_id"][row]))
        if prompt is not None:  # without its SUBMIT (lost, or a bare pool) an admission says nothing about a rate
            hits[row], queries[row] = int(events["aux"][row]), prompt
    return hits, queries


def decimate(x: npt.NDArray[Any], y: npt.NDArray[Any], width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """At most 2 * `width` points of a curve: the least and the greatest of each of `width` equal runs of points.

    Peaks survive. Points keep their order; NaN is passed over unless a whole run is NaN.
    """
    n = len(x)
    if width < 1 or n <= 2 * width:
        return x, y
    edges = np.linspace(0, n, width + 1).astype(np.int64)
    values = np.asarray(y, dtype=np.float64)
    low, high = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    run = np.repeat(np.arange(width), np.diff(edges))
    picked = []
    for key in (low, -high):
        order = np.lexsort((key, run))  # within a run the least key first
        picked.append(order[edges[:-1]])
    keep = np.unique(np.concatenate(picked))
    return x[keep], y[keep]


def in_force(x: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """The points that stand at `count` places of an axis, evenly apart, and the first and the last one.

    A curve that holds each value until the next point is drawn right at all those places by these points alone, however
    unevenly the points lie: a burst whose last value then stands for a long time is drawn at that value.

    Args:
        x: where the points lie, rising.
    """
    if not len(x):
        return np.empty(0, np.int64)
    places = np.linspace(float(x[0]), float(x[-1]), max(count, 2))
    found: npt.NDArray[np.int64] = np.unique(np.append(np.searchsorted(x, places, side="right") - 1, 0)).astype(
        np.int64
    )
    return found


def counts_by_part(trace: Frozen, names: Sequence[str]) -> Iterator[tuple[int, dict[str, IntArray]]]:
    """(first row, counts after each row of a part) for a whole trace; a long one is read a part at a time."""
    if trace.on_demand:
        yield from parts_of_counts(trace.source, names)
    else:
        s = series(trace)
        yield 0, {name: np.asarray(getattr(s, name), np.int64) for name in names}


def held_at(trace: Frozen, rows: IntArray) -> IntArray:
    """Held blocks just after some rows, which rise."""
    if not trace.on_demand:
        return series(trace).held_blocks[rows].astype(np.int64)
    found = counts_at(trace.source, rows)
    return found["private"] + found["shared"] + found["in_transit"] + found["lost"]


def series_of(run: LongRun, trace: TraceLike) -> Series:
    """The measures at some of the events of a long trace: no peak and no trough of a measure is missing."""
    most = singled_trace(trace, run).num_blocks
    sizes = {"num_blocks": most, "block_size": trace.block_size, "block_bytes": trace.block_bytes}
    columns: dict[str, Any] = {}
    for name in Series.__dataclass_fields__.keys() - sizes.keys():
        wide = name in ("blocks", "seq", "t_ns", "prefix_hit_tokens", "prefix_query_tokens")
        known = name != "filled_slots" or not np.isnan(run.picked[name]).any()
        columns[name] = run.picked[name].astype(np.int64 if wide else np.int32) if known else run.picked[name]
    return Series(**sizes, **columns)


def summary(trace: TraceLike, measured: Series | LongRun | None = None) -> dict[str, Any]:
    """The measures of a whole run as one JSON-ready dict; means are time-weighted, peaks are over all events.

    Args:
        measured: what `series` or, of a long trace, `longrun` said of the trace already.
    """
    if isinstance(measured, LongRun) or (measured is None and getattr(trace, "long", False)):
        run = measured if isinstance(measured, LongRun) else longrun(trace)
        totals = {name: int(run.picked[name][-1]) if run.rows else 0 for name in TOTALS}
        seconds = (run.t_ns[1] - run.t_ns[0]) * 1e-9
        singled = singled_trace(trace, run)
        return told(trace, singled, run.rows, seconds, run.spreads, totals, _lost(trace, run))
    trace = frozen(trace)
    s = measured if isinstance(measured, Series) else series(trace)
    totals = {name: _total(getattr(s, name)) for name in TOTALS}
    seconds = (int(s.t_ns[-1]) - int(s.t_ns[0])) * 1e-9 if len(s) else 0.0
    spreads = {name: _peak_mean_last(getattr(s, name), s.t_ns) for name in MEASURES}
    return told(trace, trace, len(s), seconds, spreads, totals, sum(lost for _, lost in gap_rows(trace)))


def _lost(trace: Any, run: LongRun) -> int:
    """How many events are missing: what the numbers of the rows leave out, and what GAP rows say, counted once."""
    last = int(run.picked["seq"][-1]) if run.rows else -1
    holes = {hi: hi - lo for lo, hi in trace.gaps if hi <= last}
    marks = run.singled["kind"] == Kind.GAP
    for seq, lost in zip(run.singled_seqs[marks].tolist(), run.singled["aux"][marks].tolist(), strict=True):
        near = next((hi for lo, hi in trace.gaps if lo == seq + 1), seq)
        holes[near] = max(holes.get(near, 0), lost)
    return sum(holes.values())


def _running(events: EventArray, kind: Kind) -> CountArray:
    return np.cumsum(events["kind"] == kind, dtype=np.int32)


def _total(running: npt.NDArray[Any]) -> int:
    return int(running[-1]) if len(running) else 0


def _peak_mean_last(values: npt.NDArray[Any], t_ns: IntArray) -> dict[str, float | int | None]:
    as_float = np.asarray(values, dtype=np.float64)
    known = as_float[~np.isnan(as_float)]
    if not len(known):
        return {"peak": None, "mean": None, "last": None}
    cast = float if np.issubdtype(np.asarray(values).dtype, np.floating) else int
    last = as_float[-1]
    return {
        "peak": cast(known.max()),
        "mean": mean_over_time(as_float, t_ns),
        "last": None if np.isnan(last) else cast(last),
    }
