"""What the block pool costs per block: `python -m kvscope.benchmarks.pool [--json] [--blocks N]`.

Every row is ns of CPU time of the calling thread per block, ledger included, with recording on and off (sealing runs in
its own thread). The baseline of a row is a plain Python-list
allocator with reference counts, no ledger and no events, measured in the same process and interleaved.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvscope.engine.pool import BlockPool
from kvscope.traces import Kind, PoolFacts, Reason, Recorder

ROUNDS = 7
BULK = 2048


class ListPool:
    """The baseline: a free list and a list of counts."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))
        self.count = [0] * num_blocks

    def take(self, count: int) -> list[int]:
        blocks = self.free[-count:]
        del self.free[-count:]
        for block in blocks:
            self.count[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        for block in blocks:
            self.count[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self.count[block] -= 1
            if self.count[block] == 0:
                self.free.append(block)


def list_bodies(num_blocks: int) -> dict[str, Callable[[], int]]:
    pool = ListPool(num_blocks)

    def bulk() -> int:
        pool.release(pool.take(BULK))
        return BULK

    def single() -> int:
        for _ in range(256):
            pool.release(pool.take(1))
        return 256

    held = ListPool(num_blocks)
    mine = held.take(BULK)

    def share() -> int:
        held.share(mine)
        held.release(mine)
        return BULK

    return {"allocate+free 2048": bulk, "allocate+free one at a time": single, "share+unshare 2048": share}


def pool_bodies(num_blocks: int, folder: Path | None) -> tuple[dict[str, Callable[[], int]], Recorder | None]:
    sink = None
    if folder is not None:
        sink = Recorder(folder / "pool.kvtrace", pool=PoolFacts(num_blocks, 16), overwrite=True, sealing="thread")
    pool = BlockPool(num_blocks, 16, sink=sink)

    def begin() -> None:
        if sink is not None:
            sink.begin()

    def bulk() -> int:
        begin()
        blocks = pool.take(BULK, seq_id=1, lblock=0, reason=Reason.PREFILL)
        begin()
        pool.release_row(blocks, seq_id=1, lblock=0, reason=Reason.STOP)
        return BULK

    def single() -> int:
        for _ in range(256):
            begin()
            block = pool.take_one(seq_id=1, lblock=0, reason=Reason.DECODE)
            begin()
            pool.release(block, seq_id=1, lblock=0, reason=Reason.STOP)
        return 256

    mine = pool.take(BULK, seq_id=2, lblock=0, reason=Reason.PREFILL)

    def share() -> int:
        begin()
        pool.retain_row(mine, Kind.SHARE, seq_id=3, reason=Reason.FORK)
        begin()
        pool.release_row(mine, seq_id=3, lblock=0, reason=Reason.STOP)
        return BULK

    return {"allocate+free 2048": bulk, "allocate+free one at a time": single, "share+unshare 2048": share}, sink


def best_of(bodies: list[Callable[[], int]]) -> list[float]:
    """The best of several interleaved runs of each, ns per block; each run repeats for about 20 ms of CPU time."""
    best = [float("inf")] * len(bodies)
    for _ in range(ROUNDS):
        for i, body in enumerate(bodies):
            gc.collect()
            blocks, start = 0, time.thread_time_ns()
            while time.thread_time_ns() - start < 20_000_000:
                blocks += body()
            best[i] = min(best[i], (time.thread_time_ns() - start) / blocks)
    return best


def measure(num_blocks: int) -> list[dict[str, Any]]:
    """One row per operation, with recording off and on."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        baseline = list_bodies(num_blocks)
        off, _ = pool_bodies(num_blocks, None)
        on, sink = pool_bodies(num_blocks, Path(folder))
        for name in baseline:
            base, plain, recorded = best_of([baseline[name], off[name], on[name]])
            for label, value in ((name, plain), (f"{name}, recording", recorded)):
                rows.append({"name": label, "value": round(value, 1), "unit": "ns/block", "baseline": round(base, 1),
                             "ratio": round(value / base, 3), "gate": None, "ok": True})  # fmt: skip
        assert sink is not None
        dropped = sink.dropped
        sink.close()
    rows.append({"name": "events dropped", "value": dropped, "unit": "events", "baseline": None, "ratio": None,
                 "gate": 0, "ok": dropped == 0})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--blocks", type=int, default=16_384, help="size of the pool")
    arguments = parser.parse_args()
    rows = measure(arguments.blocks)
    if arguments.json:
        print(json.dumps({"rows": rows}))
        return
    for row in rows:
        ratio = f"x {row['ratio']:7.3f} of a Python list at {row['baseline']:.1f}" if row["ratio"] is not None else ""
        print(f"{row['name']:42} {row['value']:9.1f} {row['unit']:9} {ratio}")


if __name__ == "__main__":
    main()
