"""A long mixed run of the block manager beside a reference of dictionaries, compared after every operation.

`python -m kvscope.benchmarks.soak [--operations 1000000] [--seed N] [--json]`. The run is a number of shorter ones with
seeds of their own and pools of several sizes, each drained at its end; a difference ends it with exit code 1 and says
how to repeat it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from kvscope.benchmarks.repeat import repeat
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


def words(result: dict[str, Any]) -> str:
    """A result in two lines."""
    done = ", ".join(f"{name} {count:,}" for name, count in result["by_name"].items())
    return (f"{result['operations']:,} operations in {result['elapsed_s']} s, {result['refused']:,} refused, seed "
            f"{result['seed']}: {result['failure'] or 'the same as the reference after each'}\n  {done}")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print what was done; exit code 1 when the two differed."""
    return repeat("soak", __doc__, "operations", 1_000_000, soak, words, arguments)


if __name__ == "__main__":
    sys.exit(main())
