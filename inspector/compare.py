"""Two runs side by side: which measures changed, and what the same requests felt of it.

Measures of the whole run are differences of two numbers. Times of requests are compared in pairs, request by request,
so that the spread between requests does not hide a change; the interval is a percentile bootstrap of the mean
difference (Efron, 1979), with a fixed seed: equal traces give equal answers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.facts import usable
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.measures import summary
from kvscope.inspector.source import TraceLike
from kvscope.traces.schema import Kind

RESAMPLES = 2000
FEWEST_PAIRS = 5  # below so many an interval says nothing

# Where the summary holds a measure, and whether less of it is better (None: neither).
MEASURES: tuple[tuple[str, tuple[str, ...], bool | None], ...] = (
    ("duration_s", ("duration_s",), True),
    ("finished", ("requests", "finished"), False),
    ("aborted", ("requests", "aborted"), True),
    ("held_slots_peak", ("held_blocks", "peak"), True),
    ("held_slots_mean", ("held_blocks", "mean"), True),
    ("cached_slots_mean", ("blocks", "cached", "mean"), None),
    ("quarantined_slots_mean", ("blocks", "quarantined", "mean"), True),
    ("saved_slots_mean", ("saved_blocks", "mean"), False),
    ("tail_waste", ("tail_waste", "mean"), True),
    ("reservation_waste", ("reservation_waste", "mean"), True),
    ("utilization", ("utilization", "mean"), False),
    ("pool_utilization", ("pool_utilization", "mean"), None),
    ("sharing_factor", ("sharing_factor", "mean"), False),
    ("prefix_hit_rate", ("prefix_hit_rate",), False),
    ("cow_copies", ("cow_copies",), True),
    ("cow_bytes", ("cow_bytes",), True),
    ("evictions", ("evictions",), True),
    ("preemptions", ("preemptions",), True),
    ("refusals", ("refusals",), True),
    ("lifetime_s", ("lifetime_s", "p50"), None),
)
TIMES = ("queued_s", "first_token_s", "duration_s", "preempted_s")


@dataclass(frozen=True, slots=True)
class Change:
    """One measure of both runs; None where a run has none."""

    name: str
    a: float | None
    b: float | None
    less_is_better: bool | None

    @property
    def difference(self) -> float | None:
        """b - a."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """(b - a) / a; None where a is 0."""
        return None if self.difference is None or not self.a else self.difference / self.a

    @property
    def better(self) -> bool | None:
        """Whether b is better; None where it is equal, or neither way is."""
        if not self.difference or self.less_is_better is None:
            return None
        return (self.difference < 0) == self.less_is_better

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "a": self.a, "b": self.b, "difference": self.difference,
                "relative": self.relative, "better": self.better}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paired:
    """One time of the same requests in both runs: means, and the mean difference with its 95 % interval."""

    name: str
    pairs: int
    a: float
    b: float
    difference: float
    low: float | None
    high: float | None

    @property
    def real(self) -> bool | None:
        """Whether the interval leaves zero out; None with too few pairs."""
        return None if self.low is None or self.high is None else not self.low <= 0 <= self.high

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "pairs": self.pairs, "a": self.a, "b": self.b, "difference": self.difference,
                "low": self.low, "high": self.high, "real": self.real}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that two traces have in common, compared."""

    changes: tuple[Change, ...]
    times: tuple[Paired, ...]
    only_a: tuple[str, ...]  # requests that only one of the runs served
    only_b: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": "kvscope-compare/1", "measures": [change.to_json() for change in self.changes],
            "requests": [time.to_json() for time in self.times], "only_a": list(self.only_a),
            "only_b": list(self.only_b), "notes": list(self.notes),
        }  # fmt: skip


def compare(a: TraceLike, b: TraceLike) -> Comparison:
    """What changed from run `a` to run `b`."""
    first, second = summary(a), summary(b)
    alike = _asked(a) == _asked(b)  # of other requests another time or another waste says nothing
    changes = tuple(
        Change(name, _at(first, path, "_slots_" in name), _at(second, path, "_slots_" in name), less if alike else None)
        for name, path, less in MEASURES
        if _at(first, path) is not None or _at(second, path) is not None
    )
    ours, theirs = _requests(a), _requests(b)
    known = [name for name in ours if name in theirs]
    both = [name for name in known if ours[name]["prompt"] == theirs[name]["prompt"]]
    notes = _notes(first, second, a, b)
    if len(both) < len(known):
        notes.append(f"{len(known) - len(both)} requests of one name have prompts of different lengths: not compared")
    if not alike:
        notes.append("the runs served different requests: no measure is judged better or worse")
    times = tuple(_paired(name, [ours[key][name] for key in both], [theirs[key][name] for key in both])
                  for name in TIMES) if both else ()  # fmt: skip
    only_a, only_b = (
        tuple(key for key in mine if key not in other) for mine, other in ((ours, theirs), (theirs, ours))
    )
    return Comparison(changes, times, only_a, only_b, tuple(notes))


def _at(summed: dict[str, Any], path: tuple[str, ...], slots: bool = False) -> float | None:
    """A measure of a summary; blocks as slots, which are the same whatever the block size is."""
    measured: Any = summed
    for key in path:
        if not isinstance(measured, dict):
            return None
        measured = measured.get(key)
    if measured is None or isinstance(measured, dict):
        return None
    return float(measured) * (summed["geometry"]["block_size"] if slots else 1)


def _asked(trace: TraceLike) -> Counter[tuple[int, ...]]:
    """What a run was asked for: prompts by their length and, where it is known, their samples."""
    facts = [f for f in usable(trace.facts) if f.get("type") == "request" and "prompt_tokens" in f]
    if facts:
        return Counter((int(fact["prompt_tokens"]), int(fact.get("samples", 1))) for fact in facts)
    events = trace.events
    return Counter((tokens,) for tokens in events["aux"][events["kind"] == Kind.SUBMIT].tolist())


def _requests(trace: TraceLike) -> dict[str, dict[str, float]]:
    """Times of each sequence that ended, in seconds, and its prompt's tokens, by its name."""
    found: dict[str, dict[str, float]] = {}
    for lane in lanes(trace, held=False):
        if lane.bars and lane.outcome == "finish":
            name = lane.name if lane.name not in found else f"{lane.name} (sequence {lane.seq_id})"
            found[name] = _times(lane)
    return found


def _times(lane: Lane) -> dict[str, float]:
    def spent(*phases: str) -> float:
        return sum(bar.t1_ns - bar.t0_ns for bar in lane.bars if bar.phase in phases) * 1e-9

    start, end = lane.bars[0].t0_ns, lane.bars[-1].t1_ns
    decode = next((bar.t0_ns for bar in lane.bars if bar.phase == "decode"), end)
    return {"queued_s": spent("queued"), "first_token_s": (decode - start) * 1e-9,
            "duration_s": (end - start) * 1e-9, "preempted_s": spent("preempted"),
            "prompt": float(lane.prompt_tokens)}  # fmt: skip


def _paired(name: str, a: list[float], b: list[float]) -> Paired:
    ours, theirs = np.asarray(a), np.asarray(b)
    low, high = _interval(theirs - ours)
    return Paired(name, len(a), float(ours.mean()), float(theirs.mean()), float((theirs - ours).mean()), low, high)


def _interval(differences: npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
    if len(differences) < FEWEST_PAIRS:
        return None, None
    chance = np.random.default_rng(0)
    means = np.array(
        [differences[chance.integers(0, len(differences), len(differences))].mean() for _ in range(RESAMPLES)]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def _notes(first: dict[str, Any], second: dict[str, Any], a: TraceLike, b: TraceLike) -> list[str]:
    notes = []
    for field, what in (("num_blocks", "blocks"), ("block_size", "slots per block"), ("model", "model")):
        mine, other = first["geometry"][field], second["geometry"][field]
        if mine != other:
            notes.append(f"the runs differ in their {what}: {mine} and {other}")
    for name, trace, summed in (("a", a, first), ("b", b, second)):
        health = summed["health"]
        lost = health["lost_events"] - health["let_go_events"] + health["dropped_events"]
        if lost and not summed["events"]:
            notes.append(f"{name} is damaged: all its {lost:,} events are missing, and there is nothing to compare")
        elif lost:
            notes.append(f"{name} is damaged: {lost:,} events are missing, of {lost + summed['events']:,}")
        elif trace.warnings:
            notes.append(f"{name} is not complete: kvscope inspect says what is missing")
    return notes
