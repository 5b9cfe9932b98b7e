"""Rule steps of the fuzzing state machine on our own block manager, as many as wanted.

`python -m kvscope.benchmarks.rules [--steps 1000000] [--seed N] [--json]`. Rounds with seeds of their own; a broken
rule ends the run with exit code 1 and the shortest program found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

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


def main(arguments: list[str] | None = None) -> int:
    """Print what was done; exit code 1 when a rule broke."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.rules", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}: must be 1 or more")
    try:
        result = rules(options.steps, options.seed, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['rules']:,} rule steps, {result['calls']:,} calls in {result['programs']:,} programs, "
              f"{result['cpu_s']} CPU s, seed {result['seed']}: {result['failure'] or 'no rule broke'}")  # fmt: skip
    return 1 if result["failure"] else 0


if __name__ == "__main__":
    sys.exit(main())
