"""What scheduling costs while others wait: `python -m kvscope.benchmarks.schedule [--json]`.

64 sequences decode, the pool is full, and more are queued. CPU time of one call of `Scheduler.schedule`, of aborting a
queued request and of queueing one, at 20 and at 2,000 (and 20,000) queued; the median of several rounds, the two
lengths interleaved. The baseline is a plain deque as the queue: one copy of it per call, and a search to take one out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.policy import Policy
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence

FEW, MANY, VERY_MANY = 20, 2_000, 20_000
RUNNING, PROMPT, BLOCK = 64, 64, 16
ROUNDS, CALLS = 5, 40
FLAT = 2.0  # gate: what a call at MANY may cost beside one at FEW; a queue that is walked costs a hundred times as much


class Load:
    """A scheduler whose pool is full: so many sequences decode, so many wait."""

    def __init__(self, queued: int, kind: str) -> None:
        self.manager = BlockManager(RUNNING * (PROMPT // BLOCK + 1), BLOCK, share_prefixes=False)
        config = SchedulerConfig(
            max_seqs=4096, max_batched_tokens=RUNNING * PROMPT, watermark=0.0, policy=kind
        )  # fmt: skip
        self.scheduler = Scheduler(self.manager, config)
        self.made = 0
        for _ in range(RUNNING):
            self.submit()
        self.step()
        self.step()  # every one takes its fifth block: the pool is full
        self.waiting = [self.submit() for _ in range(queued)]

    def submit(self) -> Sequence:
        """Queue one more."""
        number, self.made = self.made, self.made + 1
        request = Request(
            number, [number] * PROMPT, SamplingParams(max_tokens=1000), priority=number % 3, user=f"u{number % 50}"
        )  # fmt: skip
        sequence = Sequence(number, request)
        self.scheduler.submit(sequence)
        return sequence

    def step(self) -> int:
        """One step; the CPU nanoseconds that `schedule` took."""
        start = time.thread_time_ns()
        plan = self.scheduler.schedule()
        spent = time.thread_time_ns() - start
        self.manager.begin_step(plan.rows)
        self.manager.end_step()
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            sequence.computed = row.hi
            if row.hi == sequence.length:
                sequence.output.append(1)
        return spent

    def steps(self) -> float:
        """Nanoseconds per call; the room of the last blocks bounds how many calls there are."""
        return statistics.median(self.step() for _ in range(BLOCK - 3))

    def abort_and_queue(self) -> float:
        """Nanoseconds to take a waiting sequence out of the middle, and to queue a new one."""
        spent = []
        for _ in range(CALLS):
            sequence = self.waiting.pop(len(self.waiting) // 2)
            start = time.thread_time_ns()
            self.scheduler.retire(sequence)
            spent.append(time.thread_time_ns() - start)
            self.waiting.append(self.submit())
        return statistics.median(spent)


def plain_queue(queued: int) -> tuple[float, float]:
    """The baseline: nanoseconds to copy a deque once, and to take its middle out."""
    queue = deque(Sequence(i, Request(i, [i], SamplingParams())) for i in range(queued))
    copies, removals = [], []
    for _ in range(CALLS):
        start = time.thread_time_ns()
        list(queue)
        copies.append(time.thread_time_ns() - start)
        middle = queue[len(queue) // 2]
        start = time.thread_time_ns()
        queue.remove(middle)
        removals.append(time.thread_time_ns() - start)
        queue.append(middle)
    return statistics.median(copies), statistics.median(removals)


def _lowest(measure: Callable[[int], float]) -> dict[int, float]:
    """The least of several rounds at each length, the lengths interleaved."""
    found: dict[int, list[float]] = {FEW: [], MANY: [], VERY_MANY: []}
    for _ in range(ROUNDS):
        for queued in found:
            found[queued].append(measure(queued))
    return {queued: min(values) for queued, values in found.items()}


def measure() -> list[dict[str, Any]]:
    """Rows in microseconds; the ratio is to the same at FEW queued, the gate on MANY."""
    rows: list[dict[str, Any]] = []

    def add(name: str, found: dict[int, float]) -> None:
        for queued, value in found.items():
            ratio = value / found[FEW]
            gate = FLAT if queued == MANY and not name.startswith("plain") else None
            rows.append({"name": f"{name}, {queued:,} queued", "value": value / 1000, "unit": "us",
                         "baseline": found[FEW] / 1000, "ratio": ratio, "gate": gate,
                         "ok": None if gate is None else ratio <= gate})  # fmt: skip

    for kind in Policy:
        add(f"schedule, {kind}", _lowest(lambda queued, kind=kind: Load(queued, kind).steps()))  # type: ignore[misc]
    add("plain deque, a copy per call", _lowest(lambda queued: plain_queue(queued)[0]))
    for kind in Policy:
        found = _lowest(lambda queued, kind=kind: Load(queued, kind).abort_and_queue())  # type: ignore[misc]
        add(f"abort of a queued one, {kind}", found)
    add("plain deque, take one out", _lowest(lambda queued: plain_queue(queued)[1]))
    for row in rows:
        if row["name"].startswith("abort"):
            row["gate"] = row["ok"] = None  # a microsecond more is no matter
    return rows


def main() -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    options = parser.parse_args()
    rows = measure()
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            gate = "" if row["gate"] is None else f"  gate {row['gate']:g} x  {'ok' if row['ok'] else 'MISSED'}"
            print(f"{row['name']:48} {row['value']:10.1f} us {row['ratio']:8.2f} x{gate}")
    return 0 if all(row["ok"] is not False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
