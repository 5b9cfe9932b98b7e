"""What is added up while a simulation runs, and the row of measures that comes out.

Means are weighted by the time that steps took; time without a request does not count. A ratio of memory (utilization,
waste) is a ratio of such sums: token-seconds that were used / token-seconds that were held. Sums are whole numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kvscope.inspector.simulate.costs import PS


@dataclass(slots=True)
class Tally:
    """Running sums of one simulation; times in picoseconds."""

    steps: int = 0
    busy: int = 0
    running: int = 0  # this and the next four: sums of value * time
    held: int = 0  # blocks
    filled: int = 0  # slots, each physical one once
    entries: int = 0  # blocks as the tables count them
    holes: int = 0  # external fragmentation, in millionths
    holes_time: int = 0  # in which anything was free
    blocked: int = 0  # time in which the head of the queue waited for memory
    blocked_by_holes: int = 0  # of that, with enough free in all, only not in one piece
    peak_running: int = 0
    peak_held: int = 0
    finished: int = 0
    finished_filled: int = 0  # slots that finished sequences filled, and held, at their end
    finished_held: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0  # of first admissions
    prompt_blocks: int = 0
    hit_tokens: int = 0
    preemptions: int = 0
    recomputed: int = 0  # positions that preempted sequences lost
    copies: int = 0  # copies on write (blocks), or regions that moved
    copied: int = 0  # their tokens
    evictions: int = 0
    too_long: int = 0
    too_big: int = 0
    cut: int = 0
    waits: list[int] = field(default_factory=list)  # from arrival to the first token
    groups: dict[str, list[int]] = field(default_factory=dict)  # the same by user or priority
    swapped: int = 0  # tokens moved to or from host memory

    def add(self, time: int, steps: int, running: int, held: int, filled: int, entries: int,
            holes: float | None, blocked: bool, blocked_by_holes: bool) -> None:  # fmt: skip
        """Some steps with the same sequences and blocks; `filled` is slots * time, summed."""
        self.steps += steps
        self.busy += time
        self.running += running * time
        self.held += held * time
        self.filled += filled
        self.entries += entries * time
        if holes:
            self.holes += round(holes * 1e6) * time
        if holes is not None:
            self.holes_time += time
        if blocked:
            self.blocked += time
        if blocked_by_holes:
            self.blocked_by_holes += time
        if running > self.peak_running:
            self.peak_running = running
        if held > self.peak_held:
            self.peak_held = held

    def finish(self, filled: int, held: int, output: int) -> None:
        """A sequence ends with so many slots filled and held."""
        self.finished += 1
        self.finished_filled += filled
        self.finished_held += held
        self.output_tokens += output


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row: what an allocator made of the workload. Ratios are None where there is nothing to divide by."""

    allocator: str
    block_size: int | None
    num_blocks: int
    way: str  # "counted" or "driven"
    shared: bool
    requests: int
    sequences_finished: int
    rejected_too_long: int
    rejected_too_big: int
    cut_at_max_model_len: int
    concurrency_mean: float | None
    concurrency_peak: int
    utilization: float | None
    utilization_at_finish: float | None
    pool_utilization: float | None
    held_peak: float
    tail_waste: float | None
    reservation_waste: float | None
    external_fragmentation: float | None
    blocked: float | None
    blocked_by_holes: float | None
    sharing_factor: float | None
    prefix_hit_rate: float | None
    prefix_hit_rate_blocks: float | None
    prefix_hit_tokens: int
    cow_copies: int
    moves: int
    copied_bytes: int
    evictions: int
    preemptions: int
    recomputed_tokens: int
    swapped_tokens: int
    steps: int
    makespan_s: float
    output_tokens_per_s: float | None
    first_token_mean_s: float | None
    first_token_p99_s: float | None
    first_token_by: dict[str, dict[str, float]] | None  # by user or priority, where the policy looks at it
    wall_s: float
    cpu_s: float
    requests_per_cpu_s: float | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    def without_wall(self) -> dict[str, Any]:
        """What does not depend on this machine, nor on the way it was computed."""
        return {k: v for k, v in asdict(self).items() if k not in ("wall_s", "cpu_s", "requests_per_cpu_s", "way")}


def outcome(t: Tally, *, allocator: str, block_size: int, num_blocks: int, bytes_per_token: int, reserves: bool,
            way: str, shared: bool, requests: int, makespan: int, wall_s: float, cpu_s: float) -> Outcome:  # fmt: skip
    """The row of a finished simulation."""
    slots = t.held * block_size
    waste = _ratio(slots - t.filled, slots)
    waits = np.asarray(t.waits, dtype=np.float64) / PS
    groups = {name: np.asarray(times) / PS for name, times in sorted(t.groups.items())}
    moves = allocator != "paged"
    return Outcome(
        allocator=allocator, block_size=None if allocator == "reserved" else block_size, num_blocks=num_blocks,
        way=way, shared=shared, requests=requests, sequences_finished=t.finished, rejected_too_long=t.too_long,
        rejected_too_big=t.too_big, cut_at_max_model_len=t.cut, concurrency_mean=_ratio(t.running, t.busy),
        concurrency_peak=t.peak_running, utilization=_ratio(t.filled, slots),
        utilization_at_finish=_ratio(t.finished_filled, t.finished_held * block_size),
        pool_utilization=_ratio(t.filled, num_blocks * block_size * t.busy), held_peak=t.peak_held / num_blocks,
        tail_waste=None if reserves else waste, reservation_waste=waste if reserves else None,
        external_fragmentation=_ratio(t.holes, t.holes_time * 10**6), blocked=_ratio(t.blocked, t.busy),
        blocked_by_holes=_ratio(t.blocked_by_holes, t.busy), sharing_factor=_ratio(t.entries, t.held),
        prefix_hit_rate=_ratio(t.hit_tokens, t.prompt_tokens) if shared else None,
        prefix_hit_rate_blocks=_ratio(t.hit_tokens // block_size, t.prompt_blocks) if shared else None,
        prefix_hit_tokens=t.hit_tokens,
        cow_copies=0 if moves else t.copies, moves=t.copies if moves else 0,
        copied_bytes=t.copied * bytes_per_token, evictions=t.evictions, preemptions=t.preemptions,
        recomputed_tokens=t.recomputed, swapped_tokens=t.swapped, steps=t.steps, makespan_s=makespan / PS,
        output_tokens_per_s=_ratio(t.output_tokens * PS, makespan),
        first_token_mean_s=float(waits.mean()) if len(waits) else None,
        first_token_p99_s=float(np.percentile(waits, 99)) if len(waits) else None, wall_s=wall_s,
        first_token_by={
            name: {"sequences": len(times), "mean_s": float(times.mean()), "p99_s": float(np.percentile(times, 99))}
            for name, times in groups.items()
        } or None,
        cpu_s=cpu_s, requests_per_cpu_s=_ratio(requests, cpu_s),
    )  # fmt: skip


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
