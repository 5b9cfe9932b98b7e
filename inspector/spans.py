"""Durations, lengths and means: what a summary says of blocks and sequences, one number per occurrence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.facts import usable
from kvscope.inspector.source import IntArray, TraceLike
from kvscope.inspector.state import block_rows
from kvscope.traces.schema import EventArray, Kind

FloatArray = npt.NDArray[np.float64]


def spread(values: IntArray, scale: float) -> dict[str, float | int | None]:
    """Count, mean, P50 and P99 of some durations, in units of `scale`; None where there are none."""
    if not len(values):
        return {"count": 0, "mean": None, "p50": None, "p99": None}
    scaled = values.astype(np.float64) * scale
    p50, p99 = np.percentile(scaled, [50, 99])
    return {"count": len(values), "mean": float(scaled.mean()), "p50": float(p50), "p99": float(p99)}


def block_times(trace: TraceLike) -> dict[str, IntArray]:
    """Durations in ns of `lifetime`, `idle_before_evict` and `reuse_gap`, one element per occurrence, exact.

    lifetime           from ALLOC to the end of that life (FREE or SETTLE)
    idle_before_evict  from the last time the block was taken (ALLOC, SHARE, HIT) to its EVICT
    reuse_gap          between two touches (SHARE, HIT) of one life
    """
    events = trace.events
    rows = block_rows(events, trace.num_blocks)
    rows = rows[np.argsort(events["block"][rows], kind="stable")]
    block, kind, gen = (events[name][rows] for name in ("block", "kind", "gen"))
    t = events["t_ns"][rows].astype(np.int64)

    def since(start: npt.NDArray[np.bool_], end: npt.NDArray[np.bool_]) -> IntArray:
        """Time from the nearest `start` row before each `end` row, where both belong to one life."""
        index = np.where(start, np.arange(len(rows)), -1)
        before = np.concatenate([[-1], np.maximum.accumulate(index)[:-1]]) if len(rows) else index
        ends = np.flatnonzero(end & (before >= 0))
        starts = before[ends]
        same = (block[ends] == block[starts]) & (gen[ends] == gen[starts])
        spans: IntArray = t[ends[same]] - t[starts[same]]
        return spans

    alloc, touch = kind == Kind.ALLOC, (kind == Kind.SHARE) | (kind == Kind.HIT)
    return {
        "lifetime": since(alloc, (kind == Kind.FREE) | (kind == Kind.SETTLE)),
        "idle_before_evict": since(alloc | touch, kind == Kind.EVICT),
        "reuse_gap": since(touch, touch),
    }


def sequence_lengths(trace: TraceLike) -> dict[int, int]:
    """Final length in tokens (prompt and output) of every sequence that ended."""
    events = trace.events
    kind = events["kind"]
    prompts = dict(_pairs(events[kind == Kind.SUBMIT]))
    for child, parent in _pairs(events[kind == Kind.FORK]):
        prompts.setdefault(child, prompts.get(parent, 0))
    outputs = dict(_pairs(events[(kind == Kind.FINISH) | (kind == Kind.ABORT)]))
    by_request: dict[int, int] = {}
    for fact in usable(trace.facts):
        if fact.get("type") == "request" and "prompt_tokens" in fact:
            by_request[int(fact["request"])] = int(fact["prompt_tokens"])
            prompts.update({int(s): int(fact["prompt_tokens"]) for s in fact.get("seq_ids") or ()})
        elif fact.get("type") == "sample" and int(fact["request"]) in by_request:
            prompts[int(fact["seq_id"])] = by_request[int(fact["request"])]
        elif fact.get("type") == "output":
            outputs[int(fact["seq_id"])] = int(fact["tokens"])
    lengths = {s: prompts[s] + n for s, n in sorted(outputs.items()) if s in prompts}
    return {s: n for s, n in lengths.items() if 0 <= n < 2**62}  # others were made up


def _pairs(rows: EventArray) -> Iterator[tuple[int, int]]:
    """(sequence, aux) of rows."""
    return zip(rows["seq_id"].tolist(), rows["aux"].tolist(), strict=True)


def model_facts(trace: TraceLike) -> dict[str, Any]:
    """The model fact of the run, or an empty dict."""
    return next((dict(f) for f in usable(trace.facts) if f.get("type") == "model"), {})


def mean_over_time(values: FloatArray, t_ns: IntArray) -> float | None:
    """Time-weighted mean: each value holds until the next event. NaN weighs nothing; by events if no time passed."""
    known = ~np.isnan(values)
    if not known.any():
        return None
    weight = np.where(known, np.append(np.diff(t_ns), 0), 0).astype(np.float64)
    if weight.sum() <= 0:
        return float(values[known].mean())
    return float(np.dot(np.where(known, values, 0.0), weight) / weight.sum())


def benefit_ratio(trace: TraceLike) -> float | None:
    """max_model_len / P50(actual length); None unless the model's facts and ended sequences are known."""
    limit, lengths = model_facts(trace).get("max_model_len"), list(sequence_lengths(trace).values())
    if not limit or not lengths or np.median(lengths) == 0:
        return None
    return float(limit / np.median(lengths))
