"""A long mixed run of the block manager beside a reference of dictionaries, compared after every operation.

`python -m kvscope.benchmarks.soak [--operations 1000000] [--seed N] [--json]`. The run is a number of shorter ones with
seeds of their own and pools of several sizes, each drained at its end; a difference ends it with exit code 1 and says
how to repeat it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from typing import Any

from kvscope.errors import KVScopeError
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.soak import Soak

ROUND = 20_000  # operations between two drained pools
GEOMETRIES = ((24, 4), (8, 2), (40, 1), (64, 16))  # blocks, slots


def soak(operations: int, seed: int, *, progress: bool = False) -> dict[str, Any]:
    """Play the operations; `failure` says how to repeat one that went wrong, None if none did."""
    done: Counter[str] = Counter()
    refused, started, failure = 0, time.perf_counter(), None
    for number, first in enumerate(range(0, operations, ROUND)):
        blocks, size = GEOMETRIES[number % len(GEOMETRIES)]
        run = Soak(seed + number, num_blocks=blocks, block_size=size)
        try:
            run.run(min(ROUND, operations - first))
            run.finish()
        except (Violation, KVScopeError) as error:
            failure = f"Soak({seed + number}, num_blocks={blocks}, block_size={size}): {error}"
        done += run.done
        refused += run.refused
        if progress:
            rate = sum(done.values()) / (time.perf_counter() - started)
            print(f"\r{sum(done.values()):,} of {operations:,} operations, {rate:,.0f}/s", end="", file=sys.stderr)
        if failure:
            break
    if progress:
        print(file=sys.stderr)
    return {
        "operations": sum(done.values()), "by_name": dict(sorted(done.items())), "refused": refused, "seed": seed,
        "elapsed_s": round(time.perf_counter() - started, 1), "failure": failure,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print what was done; exit code 1 when the two differed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.soak", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.operations < 1:
        parser.error(f"--operations is {options.operations}: must be 1 or more")
    try:
        result = soak(options.operations, options.seed, progress=sys.stderr.isatty())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['operations']:,} operations in {result['elapsed_s']} s, {result['refused']:,} refused, seed "
              f"{result['seed']}: " + (result["failure"] or "the same as the reference after each"))  # fmt: skip
        print("  " + ", ".join(f"{name} {count:,}" for name, count in result["by_name"].items()))
    return 1 if result["failure"] else 0


if __name__ == "__main__":
    sys.exit(main())
