"""Continuous batching: who computes what in the next step (Orca, OSDI 2022; chunked prefill as in Sarathi-Serve).

Running sequences go first, oldest first, decodes before prefill chunks; then the queue is admitted in order.
When a running sequence cannot get a block the newest one gives all of its blocks up and is computed again later
(preemption by recompute). The head of the queue is admitted whenever its blocks can be had by evicting, so the
engine never stands still while work is left: a request that could never fit was refused when it was submitted.

The beams of a request are one unit. They advance together, so a beam that is computed holds its blocks and waits for
the others. That cannot lock up, because at most one unit is ever admitted in part: its beams stand side by side in
the running list, give up their blocks all at once, and while some of them are queued nothing else is admitted. The
older units run to their end, then the unit is alone, and alone it fits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.sequence import Sequence, Status
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks, UsageError
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step.

    max_seqs: sequences that run at once. max_batched_tokens: positions computed per step, the size of a prefill
    chunk included. watermark: share of the pool kept free at admission while something runs, so that decodes
    do not preempt what was just admitted.
    """

    max_seqs: int = 64
    max_batched_tokens: int = 512
    watermark: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.max_seqs <= 4096:
            raise UsageError(f"max_seqs is {self.max_seqs}: must be 1..4096")
        if not 1 <= self.max_batched_tokens <= 1 << 20:
            raise UsageError(f"max_batched_tokens is {self.max_batched_tokens}: must be 1..{1 << 20}")
        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark is {self.watermark}: must be 0 or more, below 1")


@dataclass(slots=True)
class StepPlan:
    """The rows of one step, each with the positions it computes, and whether its last one is sampled from."""

    sequences: list[Sequence] = field(default_factory=list)
    rows: list[Scheduled] = field(default_factory=list)
    tokens: int = 0  # positions this step computes

    def add(self, sequence: Sequence, lo: int, hi: int) -> None:
        self.sequences.append(sequence)
        self.rows.append(Scheduled(sequence.seq_id, lo, hi))
        self.tokens += hi - lo


class Scheduler:
    """Queue, running set and the choice of the next step's rows; owns no blocks, asks the block manager."""

    def __init__(self, manager: BlockManager, config: SchedulerConfig, *, sink: EventSink | None = None) -> None:
        self.manager = manager
        self.config = config
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # oldest first
        self.preemptions = 0
        self._sink = sink

    @property
    def has_work(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self.waiting or self.running)

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def adopt(self, sequence: Sequence) -> None:
        """A forked sequence joins the running ones, behind its siblings."""
        self._join(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def schedule(self) -> StepPlan:
        """Choose the rows of the next step; their blocks are reserved and their writes recorded."""
        plan = StepPlan()
        preempted = self._schedule_decodes(plan)
        self._schedule_prefills(plan)
        if not preempted:
            self._admit(plan)
        return plan

    def _decode_together(self, plan: StepPlan) -> bool:
        """All decodes of the step in one call; False, and nothing done, if some sequence has to make room first."""
        ready = [s for s in self.running if not s.prefilling and not s.waits][: self.config.max_batched_tokens]
        seq_ids = [s.seq_id for s in ready]
        if not self.manager.can_append_many(seq_ids):
            return False
        self.manager.append_many(seq_ids, [s.output[-1] for s in ready])
        for sequence in ready:
            plan.add(sequence, sequence.computed, sequence.length)
        return True

    def _schedule_decodes(self, plan: StepPlan) -> bool:
        if self._decode_together(plan):
            return False
        preempted = False
        for sequence in [s for s in self.running if not s.prefilling]:
            if sequence.waits or sequence.status is not Status.RUNNING:
                continue  # has nothing to compute, or was preempted for an older one in this very loop
            if plan.tokens >= self.config.max_batched_tokens:
                break
            while sequence.status is Status.RUNNING:
                try:
                    self.manager.append(sequence.seq_id, sequence.output[-1])
                except OutOfBlocks:
                    preempted = True
                    if not self._make_room(sequence, plan):
                        break
                    continue
                plan.add(sequence, sequence.computed, sequence.length)
                break
        return preempted

    def _schedule_prefills(self, plan: StepPlan) -> None:
        for sequence in [s for s in self.running if s.prefilling]:
            self._schedule_chunk(plan, sequence)

    def _schedule_chunk(self, plan: StepPlan, sequence: Sequence) -> None:
        budget = self.config.max_batched_tokens - plan.tokens
        hi = min(sequence.admitted, sequence.computed + budget)
        if hi > sequence.computed:
            self.manager.write(sequence.seq_id, sequence.computed, hi)
            plan.add(sequence, sequence.computed, hi)

    def _admit(self, plan: StepPlan) -> None:
        for sequence in self._queue():
            if plan.tokens >= self.config.max_batched_tokens:
                self._wait(sequence, Reason.TOKEN_BUDGET, 0)
                return
            if sum(s.width for s in self.running) + sequence.width > self.config.max_seqs:
                self._wait(sequence, Reason.SEQUENCE_LIMIT, 0)
                return
            match = self.manager.probe(sequence.tokens, sequence.request.extras)
            if match.pending is not None:
                self._wait(sequence, Reason.PREFIX_PENDING, match.needed)
                if sequence.request.params.beams:
                    return  # nothing may pass a beam whose unit is, or is about to be, admitted in part
                continue  # it may share next step; those behind it need not wait
            others = any(s.unit is not sequence.unit for s in self.running)
            reserve = int(self.config.watermark * self.manager.num_blocks) if others else 0
            if match.needed + reserve > match.available:
                self._wait(sequence, Reason.NO_BLOCKS, match.needed)
                return
            cached = self.manager.admit(
                sequence.seq_id, sequence.tokens, sequence.request.extras, resumed=sequence.preemptions > 0
            )
            if not sequence.preemptions:
                sequence.cached_tokens = cached
            sequence.computed, sequence.admitted = cached, sequence.length
            sequence.last_wait = None
            self.waiting.remove(sequence)
            self._join(sequence)
            self._schedule_chunk(plan, sequence)

    def _queue(self) -> list[Sequence]:
        """The waiting ones in order of admission: first what is missing of a unit that runs in part."""
        if not self.waiting:
            return []
        begun = {id(s.unit) for s in self.running if s.request.params.beams}
        return sorted(self.waiting, key=lambda s: id(s.unit) not in begun) if begun else list(self.waiting)

    def _join(self, sequence: Sequence) -> None:
        """Run it: the newest of all, but a beam right behind the other beams of its request."""
        at = len(self.running)
        if sequence.request.params.beams:
            siblings = [i for i, s in enumerate(self.running) if s.unit is sequence.unit]
            at = siblings[-1] + 1 if siblings else at
        sequence.status = Status.RUNNING
        self.running.insert(at, sequence)

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Preempt the newest unit for this sequence; False if that is its own and part of it is in this very step."""
        newest = self.running[-1].unit
        if newest is sequence.unit and any(s.unit is newest for s in plan.sequences):
            return False
        for member in [s for s in reversed(self.running) if s.unit is newest]:
            self._preempt(member)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """The sequence gives its blocks up and goes to the head of the queue."""
        self.manager.free(sequence.seq_id, Kind.PREEMPT, Reason.CAPACITY, aux=sequence.computed)
        self.running.remove(sequence)
        sequence.status = Status.WAITING
        sequence.computed, sequence.waits = 0, False
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _wait(self, sequence: Sequence, reason: Reason, needed: int) -> None:
        """Record why the sequence is not admitted, once per cause."""
        if self._sink is None or sequence.last_wait == (reason, needed):
            return
        sequence.last_wait = (reason, needed)
        self.manager.record(Kind.WAIT, reason, sequence.seq_id, needed=needed)
