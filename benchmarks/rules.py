"""Rule steps of the fuzzing state machine on our own block manager, as many as wanted.

`python -m kvscope.benchmarks.rules [--steps 1000000] [--seed N] [--json]`. Rounds with seeds of their own; a broken
rule ends the run with exit code 1 and the shortest program found.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from kvscope.benchmarks.repeat import repeat
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.hunt import ROUND, hunt
from kvscope.inspector.fuzz.machine import Tally

RULES_PER_PROGRAM = 60  # about so many: the last round should not go far beyond what was asked for


def rules(steps: int, seed: int, *, progress: bool = False) -> dict[str, Any]:
    """Play that many rule steps; `failure` is the program that broke a rule, None if none did."""
    tally, begun, spent, failure, number = Tally(), time.perf_counter(), time.process_time(), None, 0
    while tally.rules < steps and failure is None:
        examples = min(ROUND, 1 + (steps - tally.rules) // RULES_PER_PROGRAM)
        failure = hunt(EngineAllocator, examples=examples, seed_value=seed + number, tally=tally)
        number += 1
        if progress:
            rate = tally.rules / (time.perf_counter() - begun)
            print(f"\r{tally.rules:,} of {steps:,} rule steps, {rate:,.0f}/s", end="", file=sys.stderr)
    if progress:
        print(file=sys.stderr)
    return {
        "rules": tally.rules, "calls": tally.calls, "programs": tally.examples, "seed": seed, "rounds": number,
        "elapsed_s": round(time.perf_counter() - begun, 1), "cpu_s": round(time.process_time() - spent, 1),
        "failure": str(failure) if failure else None,
    }  # fmt: skip


def words(result: dict[str, Any]) -> str:
    """A result in one line."""
    return (f"{result['rules']:,} rule steps, {result['calls']:,} calls in {result['programs']:,} programs, "
            f"{result['cpu_s']} CPU s, seed {result['seed']}: {result['failure'] or 'no rule broke'}")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print what was done; exit code 1 when a rule broke."""
    return repeat("rules", __doc__, "steps", 1_000_000, rules, words, arguments)


if __name__ == "__main__":
    sys.exit(main())
