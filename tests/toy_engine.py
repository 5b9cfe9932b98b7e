"""The engine's own scheduler and block manager driven without a model: real traces in milliseconds.

Only the tokens are made up (a seeded generator stands in for the model); every event is the engine's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence
from kvscope.traces.schema import Kind, Reason

BLOCK_BYTES = 16 * 2 * 30 * 3 * 64 * 4


class MissingCopy(BlockManager):
    """Writes straight into a shared block: the copy is forgotten."""

    def _needs_copy(self, block: int, slot: int) -> bool:
        return False


class ToyEngine:
    """Admits, schedules, forks, preempts and finishes as the engine does; tokens come from a seeded generator."""

    def __init__(self, sink: Any, *, num_blocks: int, block_size: int, faulty: bool = False, seed: int = 0) -> None:
        make = MissingCopy if faulty else BlockManager
        self.sink = sink
        self.manager = make(num_blocks, block_size, sink=sink, hash_key=b"toy")
        config = SchedulerConfig(max_batched_tokens=96, watermark=0.0)
        self.scheduler = Scheduler(self.manager, config, sink=sink)
        self.random = random.Random(seed)
        self._sequences: dict[int, list[Sequence]] = {}
        self._requests = self._next_seq = 0
        sink.fact({"type": "model", "name": "toy", "num_layers": 30, "num_kv_heads": 3, "head_dim": 64,
                   "dtype_bytes": 4, "max_model_len": 2048, "bytes_per_token": BLOCK_BYTES // 16})  # fmt: skip

    def submit(self, name: str, prompt: list[int], *, max_tokens: int, n: int = 1) -> None:
        """Queue one request."""
        params = SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True)
        request = Request(self._requests, prompt, params, name)
        self._requests += 1
        sequence = self._new(request, 0)
        self.manager.record(Kind.SUBMIT, Reason.NONE, sequence.seq_id, len(prompt),
                            details=(request.request_id, max_tokens, n))  # fmt: skip
        self.sink.fact(
            {
                "type": "request",
                "request": request.request_id,
                "name": name,
                "samples": n,
                "seq_ids": [sequence.seq_id],
                "prompt_tokens": len(prompt),
                "max_tokens": max_tokens,
            }
        )
        self.scheduler.submit(sequence)

    def step(self) -> None:
        """One engine step."""
        plan = self.scheduler.schedule()
        if not plan.rows:
            return
        sampled = [s for s, row in zip(plan.sequences, plan.rows, strict=True) if row.hi == s.length]
        self.manager.begin_step(plan.rows)
        self.manager.copies_done(self.manager.drain_copies())
        self.manager.end_step()
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            sequence.computed = row.hi
        for sequence in sampled:
            for member in [sequence, *self._fork(sequence)]:
                member.output.append(self.random.randrange(32000))
                if len(member.output) >= member.request.params.max_tokens:
                    self._finish(member)

    def run(self, on_step: Callable[[], object] = lambda: None) -> None:
        """Step until nothing is left to do."""
        while self.scheduler.has_work:
            self.step()
            on_step()

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        request, family = sequence.request, self._sequences[sequence.request.request_id]
        children: list[Sequence] = []
        if sequence.output or len(family) == request.params.n:
            return children
        for number in range(1, request.params.n):
            child = self._new(request, number)
            child.computed, child.admitted = sequence.computed, sequence.admitted
            self.manager.fork(sequence.seq_id, child.seq_id)
            self.sink.fact({"type": "sample", "request": request.request_id, "sample": number, "seq_id": child.seq_id})
            self.scheduler.adopt(child)
            children.append(child)
        return children

    def _finish(self, sequence: Sequence) -> None:
        self.scheduler.retire(sequence)
        self.manager.free(sequence.seq_id, Kind.FINISH, Reason.LENGTH, aux=len(sequence.output))
        self.sink.fact({"type": "output", "request": sequence.request.request_id, "seq_id": sequence.seq_id,
                        "tokens": len(sequence.output), "finish": "length"})  # fmt: skip

    def _new(self, request: Request, number: int) -> Sequence:
        sequence = Sequence(self._next_seq, request, number)
        self._next_seq += 1
        self._sequences.setdefault(request.request_id, []).append(sequence)
        return sequence


def workload(engine: ToyEngine) -> None:
    """Eight requests with one system prompt, one with three samples, in a pool that is too small for all of them."""
    system = list(range(1000, 1040))
    for i, name in enumerate(("haiku", "recipe", "planets", "letter", "riddle", "rivers", "proof", "ballad")):
        question = [engine.random.randrange(32000) for _ in range(5 + 3 * i)]
        engine.submit(name, system + question, max_tokens=20 + 4 * i, n=1)
    engine.submit("lighthouse", [engine.random.randrange(32000) for _ in range(50)], max_tokens=24, n=3)


def record(folder: Path, *, num_blocks: int = 32, block_size: int = 16, faulty: bool = False) -> Path:
    """Record the workload into a trace folder and return its path."""
    from kvscope.traces import PoolFacts, Recorder

    path = folder / ("missing-copy.kvtrace" if faulty else "clean.kvtrace")
    with Recorder(path, pool=PoolFacts(num_blocks, block_size, BLOCK_BYTES)) as sink:
        engine = ToyEngine(sink, num_blocks=num_blocks, block_size=block_size, faulty=faulty)
        workload(engine)
        engine.run()
    return path
