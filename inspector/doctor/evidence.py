"""What is known of a run or a workload, as numbers: the input of every verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvscope.inspector.doctor.prefixes import Split, splits
from kvscope.inspector.holes import holes
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.measures import summary
from kvscope.inspector.simulate import Cell, Settings, simulate
from kvscope.inspector.source import TraceLike
from kvscope.inspector.workloads import Workload
from kvscope.traces.schema import Kind

_FEW_STEPS = 30  # below so many decode steps a slope of throughput says nothing


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts, lengths in tokens, ratios 0..1; None where it was not measured, or there is nothing to divide by."""

    source: str  # "trace" or "workload"
    lengths: tuple[int, ...]  # actual, prompt and answer, one per sequence
    max_model_len: int | None
    num_blocks: int
    block_size: int
    external_fragmentation: float | None
    reservation_waste: float | None
    tail_waste: float | None
    waits_for_memory: float | None  # share of the time in which the head of the queue waits for blocks
    preemptions: int
    refusals: int
    peak_running: int
    prefix_hit_rate: float | None
    sharing_factor: float | None
    prompts: int  # requests whose prompts could have shared
    splits: tuple[Split, ...] | None  # None: no prompt text to look at
    throughput_gain: float | None  # tokens/s of the fuller half of the decode steps / of the emptier half
    batch_gain: float | None  # sequences per step, likewise
    notes: tuple[str, ...] = ()  # what makes this less than complete
    lost_blocks: int = 0  # most blocks that only sequences hold which have ended
    refusals_by_holes: int = 0  # of the refusals, those that free blocks would have served, had they lain side by side
    waits_for_holes: float | None = None  # share of the time in which the queue waits though enough is free, in pieces

    @property
    def p50(self) -> float:
        """Median of the actual lengths, in tokens."""
        return float(np.median(self.lengths)) if self.lengths else 0.0

    @property
    def benefit_ratio(self) -> float | None:
        """max_model_len / P50 of the actual lengths: whether paging pays."""
        return self.max_model_len / self.p50 if self.max_model_len and self.lengths else None


def of_trace(trace: TraceLike) -> Evidence:
    """Evidence of a recorded run."""
    measured = summary(trace)
    rows = lanes(trace, held=False)
    texts = [str(fact["prompt"]) for fact in trace.facts if fact.get("type") == "request" and "prompt" in fact]
    throughput, batch = _gains(trace)
    pieces = holes(trace) if measured["holes"] else None
    of_holes = frozenset(wait.seq for wait in pieces.waits if wait.by_holes) if pieces else frozenset()
    return Evidence(
        source="trace",
        lengths=tuple(row.prompt_tokens + row.output_tokens for row in rows if row.output_tokens),
        max_model_len=measured["geometry"]["max_model_len"],
        num_blocks=trace.num_blocks,
        block_size=trace.block_size,
        external_fragmentation=measured["external_fragmentation"],
        reservation_waste=_mean(measured["reservation_waste"]),
        tail_waste=_mean(measured["tail_waste"]),
        waits_for_memory=_queued_for_blocks(trace, but_for=of_holes),
        preemptions=measured["preemptions"],
        refusals=measured["refusals"],
        lost_blocks=measured["lost_blocks"]["peak"] or 0,
        peak_running=_peak_running(rows),
        prefix_hit_rate=measured["prefix_hit_rate"],
        sharing_factor=_mean(measured["sharing_factor"]),
        prompts=sum(fact.get("type") == "request" for fact in trace.facts),
        splits=tuple(splits(texts, trace.block_size)) if texts else None,
        throughput_gain=throughput,
        batch_gain=batch,
        notes=tuple(trace.warnings),
        refusals_by_holes=measured["holes"]["refusals"] if pieces else 0,
        waits_for_holes=_queued_for_blocks(trace, only=of_holes) if pieces else None,
    )


def of_workload(workload: Workload, settings: Settings, block_size: int = 16) -> Evidence:
    """Evidence of a workload that no one ran: simulated in a paged pool, and reserving beside it."""
    paged = simulate(workload, Cell("paged", block_size), settings)
    reserved = simulate(workload, Cell("reserved", block_size), settings)
    contiguous = simulate(workload, Cell("contiguous", block_size), settings)
    return Evidence(
        source="workload",
        lengths=tuple(min(r.prompt + r.output, settings.max_model_len) for r in workload.requests),
        max_model_len=settings.max_model_len,
        num_blocks=paged.num_blocks,
        block_size=block_size,
        external_fragmentation=contiguous.external_fragmentation,
        reservation_waste=reserved.reservation_waste,
        tail_waste=paged.tail_waste,
        waits_for_memory=paged.blocked,
        preemptions=paged.preemptions,
        refusals=paged.rejected_too_big,
        peak_running=paged.concurrency_peak,
        prefix_hit_rate=paged.prefix_hit_rate,
        sharing_factor=paged.sharing_factor,
        prompts=len(workload.requests),
        splits=None,
        throughput_gain=None,
        batch_gain=None,
    )


def _mean(measure: Any) -> float | None:
    if isinstance(measure, dict):
        measure = measure["mean"]
    return None if measure is None else float(measure)


def _peak_running(rows: list[Lane]) -> int:
    turns = [(bar.seq_lo, 1) for row in rows for bar in row.bars if bar.phase in ("prefill", "decode")]
    turns += [(bar.seq_hi, -1) for row in rows for bar in row.bars if bar.phase in ("prefill", "decode")]
    running = peak = 0
    for _, turn in sorted(turns):
        running += turn
        peak = max(peak, running)
    return peak


def _queued_for_blocks(
    trace: TraceLike, *, only: frozenset[int] | None = None, but_for: frozenset[int] = frozenset()
) -> float | None:
    """Share of the run's time between a WAIT for blocks and the next admission; None for an empty trace.

    Args:
        only: the waits (event numbers) that count, `but_for` those that do not.
    """
    from kvscope.traces.schema import Reason

    events = trace.events
    if not len(events):
        return None
    kinds, times = events["kind"], events["t_ns"]
    counts = (kinds == Kind.WAIT) & (events["reason"] == Reason.NO_BLOCKS)
    if but_for or only is not None:
        counts &= ~np.isin(trace.seqs, list(but_for))
        counts &= np.isin(trace.seqs, list(only)) if only is not None else True
    waits = times[counts].astype(np.int64)
    admits = times[(kinds == Kind.ADMIT) | (kinds == Kind.RESUME)].astype(np.int64)
    ends = np.append(admits, times[-1])
    until = ends[np.minimum(np.searchsorted(ends, waits, side="right"), len(ends) - 1)]
    held_up = until_now = 0
    for start, end in zip(waits.tolist(), until.tolist(), strict=True):
        held_up += max(0, end - max(start, until_now))
        until_now = max(until_now, end)
    span = int(times[-1]) - int(times[0])
    return held_up / span if span else None


def _gains(trace: TraceLike) -> tuple[float | None, float | None]:
    """How much tokens/s and sequences per step grow from the emptier half of the decode steps to the fuller half."""
    events = trace.events
    begun = np.flatnonzero(events["kind"] == Kind.STEP_BEGIN)
    ended = np.flatnonzero(events["kind"] == Kind.STEP_END)
    count = min(len(begun), len(ended))
    batch = events["aux"][begun[:count]].astype(np.int64)
    tokens = events["aux"][ended[:count]].astype(np.int64)
    took = events["t_ns"][ended[:count]].astype(np.int64) - events["t_ns"][begun[:count]].astype(np.int64)
    decode = (tokens == batch) & (took > 0)
    if int(decode.sum()) < _FEW_STEPS:
        return None, None
    batch, took = batch[decode], took[decode]
    order = np.argsort(batch, kind="stable")
    half = len(order) // 2
    few, many = order[:half], order[half:]
    if batch[many].mean() < 1.2 * batch[few].mean():
        return None, None
    rate = [float(batch[part].sum() / took[part].sum()) for part in (few, many)]
    return rate[1] / rate[0], float(batch[many].mean() / batch[few].mean())
