"""The pool stays quick: its cost as a ratio to a Python-list allocator, measured in the same process.

The goals themselves are the gates of `kvscope bench pool`. Here each bound has about twice the room that was needed
when it was set: machines differ, and only a change that makes the pool slower by more must not pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.benchmarks.pool import best_of, burst, pool_bodies
from kvscope.benchmarks.pool_memory import memory_rows
from kvscope.benchmarks.pool_peers import BATCH, BULK_ROW, CALL_ROW, ONE_ROW, SHARE_ROW, list_bodies
from kvscope.benchmarks.pool_step import step_rows
from kvscope.traces import PoolFacts, Recorder

BLOCKS = 1 << 14
# Times the list's cost per block, with recording off and on; the batch is compared with the list in bulk.
BOUNDS = {BULK_ROW: (0.45, 2.2), SHARE_ROW: (0.4, 2.0), CALL_ROW: (1.0, 4.5), ONE_ROW: (5.0, 20.0)}


@pytest.mark.parametrize("name", list(BOUNDS))
def test_cost_beside_a_list(name: str, tmp_path: Path) -> None:
    facts = PoolFacts(BLOCKS, 16)
    with Recorder(tmp_path / "a.kvtrace", pool=facts, hot_rows=1 << 16, seal_after_s=3600.0) as ring:
        lists = list_bodies(BLOCKS)
        base, off, on = lists[name if name in lists else BULK_ROW], pool_bodies(BLOCKS, None), pool_bodies(BLOCKS, ring)
        best = [float("inf")] * 3
        for _ in range(4):  # a busy neighbour can spoil a run, never make one
            bodies = ((base, None), (off[name], None), (on[name], ring))
            found = best_of([lambda b=body, s=sink: burst(b, s, 0.006) for body, sink in bodies], 4)
            best = [min(pair) for pair in zip(best, found, strict=True)]
            ratios = (best[1] / best[0], best[2] / best[0])
            if ratios[0] <= BOUNDS[name][0] and ratios[1] <= BOUNDS[name][1]:
                break
        assert ratios[0] <= BOUNDS[name][0], "recording off"
        assert ratios[1] <= BOUNDS[name][1], "recording on"
        assert ring.dropped == 0


def test_a_decode_step_costs_a_few_microseconds_per_sequence() -> None:
    rows = step_rows(2, both=False)
    assert rows[1]["value"] / rows[1]["baseline"] < 400, f"a step beside handing {BATCH} blocks out and back: {rows[1]}"


def test_memory_of_the_pool() -> None:
    bare, full = (row["value"] for row in memory_rows())
    assert bare <= 64
    assert full <= 700
