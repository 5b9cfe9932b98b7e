"""Threads hammering one pool, recorded, and the trace checked: `python -m kvscope.benchmarks.hammer`.

Every thread owns sequences and does to them, unannounced, all that the block manager offers: admissions with common
prefixes, decodes, forks, rollbacks, windows, leases, preemptions; it begins and ends steps of its own between those of
the others; one of them makes the pool larger and smaller as it goes. Prints operations, events and findings; exit code
1 on any finding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kvscope.benchmarks.shown import positive
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.inspector.findings import check
from kvscope.traces import PoolFacts, Recorder, open_trace
from kvscope.traces.schema import Kind, Reason

BLOCKS, SLOTS = 72, 4
PROMPTS = [[salt] * 9 + list(range(8)) for salt in range(4)]  # what all threads have in common


class Worker(threading.Thread):
    """One user of the pool with sequences of its own."""

    def __init__(self, number: int, manager: BlockManager, ender: threading.Lock, until: float) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self.random = random.Random(number)
        self.manager, self.ender, self.until = manager, ender, until
        self.lengths: dict[int, int] = {}  # its sequences; all their positions are issued
        self.gone: dict[int, list[int]] = {}  # preempted ones
        self.operations = self.refused = 0
        self.failure: BaseException | None = None
        self._ids = iter(range(number << 20, (number + 1) << 20))

    def run(self) -> None:
        """Random operations until the time is over, then everything is given back."""
        actions = [self._admit, self._admit, *[self._decode] * 6, self._fork, self._rollback, self._slide, self._finish,
                   self._finish, self._preempt, self._lease, self._look]  # fmt: skip
        if self.name == "worker-1":
            actions += [self._grow, self._shrink]
        try:
            while time.monotonic() < self.until:
                self.operations += 1
                try:
                    self.random.choice(actions)()
                except OutOfBlocks:
                    self.refused += 1
                    self._finish()
            while self.lengths:
                self._finish()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.failure = error

    def _step(self, seq_ids: list[int], lo: dict[int, int]) -> None:
        """A step over sequences of this thread. It ends the oldest that is open, its own or another thread's."""
        manager = self.manager
        manager.begin_step([Scheduled(seq, lo[seq], self.lengths[seq]) for seq in seq_ids])
        with self.ender:  # the device: copies and steps complete in order
            manager.copies_done(manager.drain_copies())
            manager.end_step()

    def _admit(self) -> None:
        if len(self.lengths) > 6:
            return
        seq, tokens = next(self._ids), self.random.choice(PROMPTS)[: self.random.randint(1, 17)]
        if self.gone and self.random.random() < 0.5:
            seq, tokens = self.gone.popitem()
            self._admit_one(seq, tokens, resumed=True)
        else:
            if self.random.random() < 0.3:
                self.manager.lookup(seq, tokens, ttl=1000)
            self._admit_one(seq, tokens, resumed=False)

    def _admit_one(self, seq: int, tokens: list[int], *, resumed: bool) -> None:
        cached = self.manager.admit(seq, tokens, resumed=resumed)
        self.lengths[seq] = len(tokens)
        self.manager.write(seq, cached, len(tokens))
        self._step([seq], {seq: cached})

    def _decode(self) -> None:
        before = dict(self.lengths)
        for seq in before:
            self.manager.append(seq, self.random.randint(0, 1))
            self.lengths[seq] += 1
        if before:
            self._step(list(before), before)

    def _fork(self) -> None:
        if self.lengths and len(self.lengths) < 8:
            parent, child = self._pick(), next(self._ids)
            self.manager.fork(parent, child)
            self.lengths[child] = self.lengths[parent]

    def _rollback(self) -> None:
        if self.lengths:
            seq = self._pick()
            length = max(1, self.lengths[seq] - self.random.randint(0, 3))
            if -1 not in self.manager.table(seq):
                self.manager.truncate(seq, length)
                self.lengths[seq] = length

    def _slide(self) -> None:
        if self.lengths:
            seq = self._pick()
            self.manager.slide(seq, max(0, self.lengths[seq] - 12))

    def _finish(self) -> None:
        if self.lengths:
            seq = self._pick()
            self.manager.free(seq, self.random.choice([Kind.FINISH, Kind.ABORT]), Reason.STOP)
            del self.lengths[seq]

    def _preempt(self) -> None:
        if self.lengths:
            seq = self._pick()
            self.manager.free(seq, Kind.PREEMPT, Reason.CAPACITY)
            self.gone[seq] = [0] * self.lengths.pop(seq)

    def _lease(self) -> None:
        if self.lengths:
            held = [block for block in self.manager.table(self._pick()) if block >= 0]
            with contextlib.suppress(FaultyCall, UsageError):  # a shrink may have moved the block, just now
                self.manager.holders(held[0])
                lease = self.manager.lease(held[:2], holder=self.name, slots=(0, 1), ttl=1 << 30)
                self.manager.unlease(lease.lease_id)

    def _grow(self) -> None:
        if self.manager.num_blocks < BLOCKS + 40:
            self.manager.grow(self.random.randint(1, 8))

    def _shrink(self) -> None:
        if self.manager.num_blocks > BLOCKS - 20:
            with contextlib.suppress(FaultyCall, OutOfBlocks):
                self.manager.shrink(self.random.randint(1, 8))

    def _look(self) -> None:
        self.manager.expire()
        self.manager.num_free()
        self.manager.probe(self.random.choice(PROMPTS))
        self.manager.leases()

    def _pick(self) -> int:
        return self.random.choice(list(self.lengths))


def hammer(threads: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Let them loose on one recorded pool, then check what was recorded.

    Raises:
        KVScopeError, or whatever else a worker died of.
    """
    with Recorder(folder, pool=PoolFacts(BLOCKS, SLOTS), overwrite=True, sealing="thread") as sink:
        manager = BlockManager(BLOCKS, SLOTS, sink=sink, hash_key=b"kvscope.hammer")
        ender, until = threading.Lock(), time.monotonic() + seconds
        workers = [Worker(number, manager, ender, until) for number in range(1, threads + 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for worker in workers:
            if worker.failure is not None:
                raise worker.failure
        manager.expire(1 << 62)
        manager.check_integrity()
        if manager.num_free() != manager.num_blocks:
            raise FaultyCall(f"{manager.num_free()} of {manager.num_blocks} blocks are free when nothing lives")
    trace = open_trace(folder)
    started = time.perf_counter()
    result = check(trace)
    return {
        "threads": threads, "seconds": seconds, "operations": sum(worker.operations for worker in workers),
        "refused": sum(worker.refused for worker in workers), "events": len(trace.events), "dropped": trace.dropped,
        "actors": len({int(actor) for actor in set(trace.events["actor"].tolist())}),
        "check_s": round(time.perf_counter() - started, 1), "findings": len(result.findings),
        "first": str(result.findings[0]) if result.findings else None, "notes": list(result.notes),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print operations, events and findings; exit code 1 on any finding or failure."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.hammer", description=__doc__)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=positive, default=60.0)
    parser.add_argument("--out", type=Path, help="keep the trace here")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.threads < 1 or options.seconds <= 0:
        parser.error("--threads must be 1 or more, --seconds above 0")
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # switch between any two bytecodes, not every 5 ms
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = hammer(options.threads, options.seconds, options.out or Path(folder) / "hammer.kvtrace")
    finally:
        sys.setswitchinterval(switch)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['threads']} threads, {result['seconds']:g} s: {result['operations']:,} operations "
              f"({result['refused']:,} refused), {result['events']:,} events ({result['dropped']} dropped), checked in "
              f"{result['check_s']} s: {result['findings']} findings")  # fmt: skip
        for line in (result["first"], *result["notes"]):
            if line:
                print(f"  {line}")
    return 1 if result["findings"] or result["dropped"] else 0


if __name__ == "__main__":
    sys.exit(main())
