"""What scheduling a decode step costs the accounting: one token for each of 256 sequences, tracing on; and for each of
64 with cold caches, as they are behind a step of a model.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.benchmarks.pool_peers import ListPool
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence
from kvscope.engine.steps import Scheduled
from kvscope.traces import EventSink, PoolFacts, Recorder, compiled

SEQUENCES, PROMPT, BLOCK_SIZE = 256, 512, 16
STEPS = 2 * BLOCK_SIZE  # sequences end at different slots, so that in each step the same share of them gets a block
CHANGES = 3
LIMIT_US = 60.0
COLD, COLD_ROUNDS = 64, 4
_CACHES = 64 << 20  # bytes that are walked through to cool the caches
IN_PYTHON = ", in Python"


class Decoding:
    """Sequences that decode side by side, each behind a prompt of its own."""

    def __init__(self, sink: EventSink | None, sequences: int = SEQUENCES) -> None:
        blocks = sequences * (PROMPT // BLOCK_SIZE + 40)
        self.manager = BlockManager(blocks, BLOCK_SIZE, sink=sink, hash_key=b"bench")
        self.ids = list(range(sequences))
        self._next = sequences
        lengths = [PROMPT + seq % BLOCK_SIZE for seq in self.ids]
        for seq, length in enumerate(lengths):
            self.manager.admit(seq, [seq * 10_000 + i for i in range(length)])
            self.manager.write(seq, 0, length)
        self.manager.begin_step([Scheduled(s, 0, n) for s, n in enumerate(lengths)])
        self.manager.end_step()

    def step(self, token: int) -> int:
        """One step; ns of this thread's processor time."""
        tokens = [token] * len(self.ids)
        start = time.thread_time_ns()
        rows = self.manager.append_many(self.ids, tokens)
        self.manager.begin_step(rows)
        self.manager.copies_done(self.manager.drain_copies())
        self.manager.end_step()
        return time.thread_time_ns() - start

    def cold_step(self, token: int, cool: Callable[[], object]) -> int:
        """One step whose three operations each find what `cool` has left of the caches; ns as above."""
        tokens, clock, manager = [token] * len(self.ids), time.thread_time_ns, self.manager
        cool()
        start = clock()
        rows = manager.append_many(self.ids, tokens)
        spent = clock() - start
        cool()
        start = clock()
        manager.begin_step(rows)
        spent += clock() - start
        cool()
        start = clock()
        manager.end_step()
        return spent + clock() - start

    def replace_one(self) -> None:
        """One sequence finishes, and another one, whose prompt is computed, joins the batch; off the clock."""
        gone = self.ids.pop(self._next % len(self.ids))
        self.manager.free(gone)
        seq, self._next = self._next, self._next + 1
        length = PROMPT + seq % BLOCK_SIZE
        self.manager.admit(seq, [seq * 10_000 + i for i in range(length)])
        self.manager.write(seq, 0, length)
        self.manager.begin_step([Scheduled(seq, 0, length)])
        self.manager.end_step()
        self.ids.append(seq)

    def rewind(self) -> None:
        """Back to the prompts, off the clock."""
        for seq in self.ids:
            self.manager.truncate(seq, PROMPT + seq % BLOCK_SIZE)


class Choosing:
    """The same, with a scheduler that chooses what each step computes; nothing is queued."""

    def __init__(self, sink: EventSink | None) -> None:
        self.manager = BlockManager(SEQUENCES * (PROMPT // BLOCK_SIZE + 40), BLOCK_SIZE, sink=sink, hash_key=b"bench")
        config = SchedulerConfig(max_seqs=SEQUENCES, max_batched_tokens=SEQUENCES * (PROMPT + BLOCK_SIZE))
        self.scheduler = Scheduler(self.manager, config, sink=sink)
        for seq in range(SEQUENCES):
            prompt = [seq * 10_000 + i for i in range(PROMPT + seq % BLOCK_SIZE)]
            self.scheduler.submit(Sequence(seq, Request(seq, prompt, SamplingParams(max_tokens=1 << 20))))
        self.step(0)

    def step(self, token: int) -> int:
        """One step; ns of this thread's processor time, without that for the tokens that it has brought."""
        start = time.thread_time_ns()
        plan = self.scheduler.schedule()
        self.manager.begin_step(plan.rows)
        self.manager.copies_done(self.manager.drain_copies())
        self.manager.end_step()
        spent = time.thread_time_ns() - start
        for sequence, end in zip(plan.sequences, plan.rows.ends(), strict=True):
            sequence.computed = end
            sequence.output.append(token)
        return spent


def list_step() -> float:
    """us that a Python list takes to hand 256 blocks out and take them back: the baseline of this machine."""
    pool = ListPool(4096)
    start = time.thread_time_ns()
    for _ in range(20):
        pool.release(pool.take(SEQUENCES))
    return (time.thread_time_ns() - start) / 20_000


def step_rows(rounds: int, *, both: bool = True) -> list[dict[str, Any]]:
    """The median step of a batch that stays the same; one whose batch has just changed by one; and the first one after
    a rollback of each sequence, which copies their last blocks. Each the best of several rounds; with `both`, beside
    what runs also what would run without the part in C.
    """
    with tempfile.TemporaryDirectory() as folder:
        facts = PoolFacts(1 << 15, BLOCK_SIZE)
        ring = Recorder(Path(folder) / "steps", pool=facts, hot_rows=1 << 16, seal_after_s=3600.0)
        decoding: dict[str, Decoding] = {"off": Decoding(None), "recording": Decoding(ring)}
        if both and compiled.used():
            decoding |= {f"off{IN_PYTHON}": Decoding(None), f"recording{IN_PYTHON}": Decoding(ring)}
        choosing = {"off": Choosing(None), "recording": Choosing(ring)}
        steady, changed, rolled = (dict.fromkeys(decoding, float("inf")) for _ in range(3))
        chosen = dict.fromkeys(choosing, float("inf"))
        baseline = float("inf")
        gc.collect()
        gc.disable()
        for turn in range(rounds):
            baseline = min(baseline, list_step())
            for name, run in decoding.items():
                with compiled.using(compiled.used() and IN_PYTHON not in name):
                    ring.seal()
                    spent = []
                    for token in range(STEPS):
                        spent.append(run.step(turn * 1000 + token) / 1000)
                        if token % BLOCK_SIZE == BLOCK_SIZE - 1:
                            ring.seal()  # off the clock, before the ring would wake its own thread for it
                    rolled[name] = min(rolled[name], spent[0])
                    steady[name] = min(steady[name], statistics.median(spent[1:]))
                    for _ in range(CHANGES):
                        run.replace_one()
                        changed[name] = min(changed[name], run.step(turn) / 1000)
                    run.rewind()
            for name, served in choosing.items():
                spent = [served.step(turn * 1000 + token) / 1000 for token in range(BLOCK_SIZE)]
                chosen[name] = min(chosen[name], statistics.median(spent))
                ring.seal()
        gc.enable()
        assert ring.dropped == 0
        ring.close()
    rows = []
    labels = {"the same batch": steady, "the same batch, with the scheduler": chosen,
              "one sequence replaced": changed, "after a rollback of each": rolled}  # fmt: skip
    for label, figures in labels.items():
        for name, value in figures.items():
            gate = LIMIT_US if figures is steady and name == "recording" else None
            rows.append(
                {"name": f"decode step of {SEQUENCES} sequences, {label}, {name}", "value": round(value, 1),
                 "unit": "us", "baseline": round(baseline, 1), "ratio": round(baseline / value, 3), "gate": gate,
                 "ok": None if gate is None else value <= gate}
            )  # fmt: skip
    return rows


def cold_rows(rounds: int = COLD_ROUNDS) -> list[dict[str, Any]]:
    """The median step of a batch that stays the same, its caches cold; the baseline is that without recording.

    Colder than behind a model's step, which leaves the code and the tables of the interpreter in the large caches.
    """
    caches = np.zeros(_CACHES // 8)
    with tempfile.TemporaryDirectory() as folder:
        facts = PoolFacts(1 << 15, BLOCK_SIZE)
        ring = Recorder(Path(folder) / "cold", pool=facts, seal_after_s=3600.0)
        runs = {"off": Decoding(None, COLD), "recording": Decoding(ring, COLD)}
        spent: dict[str, list[int]] = {name: [] for name in runs}
        for turn in range(rounds):
            ring.seal()
            for token in range(STEPS):
                for name, run in runs.items():
                    spent[name].append(run.cold_step(turn * 1000 + token, caches.sum))
            for run in runs.values():
                run.rewind()
                run.step(0)  # that copies blocks
                run.rewind()
        ring.close()
    name, rows = f"decode step of {COLD} sequences, caches cold", []
    off = statistics.median(spent["off"]) / 1000
    for how, each in spent.items():
        value = statistics.median(each) / 1000
        rows.append({"name": f"{name}, {how}", "value": round(value, 1), "unit": "us", "baseline": round(off, 1),
                     "ratio": round(off / value, 3), "gate": None, "ok": None})  # fmt: skip
    return rows
