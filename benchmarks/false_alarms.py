"""Random clean runs, and what is found in them: nothing, or a detector is wrong.

`python -m kvscope.benchmarks.false_alarms [--runs 10000] [--seed N] [--json]`. Half of the runs are random operations
over a device that runs its steps late, half are improvised plays with windows, swaps, leases, resizes and shadow words.
Every trace is checked as `kvscope check` does, and every tenth one event by event as well; exit code 1 with the first
finding and how to repeat it.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from kvscope.benchmarks.repeat import repeat
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.traces.memory import MemoryRecorder


def one(seed: int) -> tuple[MemoryRecorder, int]:
    """(trace, wrong reads) of the run with this seed."""
    if seed % 2:
        stage = improvise(seed)
        return stage.sink, stage.wrong
    rng = random.Random(seed)
    num_blocks, block_size = rng.randint(2, 8), rng.randint(1, 4)
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
    DeviceRun(num_blocks, block_size, sink=sink).play(operations)
    return sink, 0


def run(runs: int, seed: int, *, progress: bool = False) -> dict[str, Any]:
    """Play and check; `failure` says how to repeat what was found, None if nothing was."""
    started, cpu, events, failure = time.perf_counter(), time.process_time(), 0, None
    done = 0
    for number in range(seed, seed + runs):
        trace, wrong = one(number)
        findings = check(trace).findings
        if not findings and number % 10 == 0:
            findings = check(trace, replay=True).findings
        done, events = done + 1, events + len(trace.events)
        if findings or wrong:
            what = f"{findings[0].code} {findings[0].why}" if findings else f"{wrong} reads of foreign prefixes"
            failure = f"false_alarms.one({number}): {what}"
            break
        if progress and done % 50 == 0:
            print(f"\r{done:,} of {runs:,} runs, {events:,} events", end="", file=sys.stderr)
    return {
        "runs": done, "events": events, "seed": seed, "elapsed_s": round(time.perf_counter() - started, 1),
        "cpu_s": round(time.process_time() - cpu, 1), "failure": failure,
    }  # fmt: skip


def words(result: dict[str, Any]) -> str:
    """A result in one line."""
    verdict = result["failure"] or "no finding in any of them"
    return f"{result['runs']:,} random clean runs, {result['events']:,} events, {result['elapsed_s']} s: {verdict}"


def main(arguments: list[str] | None = None) -> int:
    """Print what was run; exit code 1 when something was found."""
    return repeat("false_alarms", __doc__, "runs", 10_000, run, words, arguments)


if __name__ == "__main__":
    sys.exit(main())
