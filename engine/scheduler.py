"""Continuous batching: who computes what in the next step (Orca, OSDI 2022; chunked prefill as in Sarathi-Serve).

Running sequences go first, in order, decodes before prefill chunks; then the queue is admitted in its order. When a
running sequence cannot get a block the last one gives all of its blocks up and is computed again later (preemption
by recompute). The head of the queue is admitted whenever its blocks can be had by evicting, so the engine never
stands still while work is left: a request that could never fit was refused when it was submitted. What is decided,
and in which order, is in `policy`; this carries it out.

The beams of a request are one unit. They advance together, so a beam that is computed holds its blocks and waits for
the others. That cannot lock up, because at most one unit is ever admitted in part: its beams stand side by side in
the running list, give up their blocks all at once, and while some of them are queued nothing else is admitted. The
other units run to their end or give way, then the unit is alone, and alone it fits.

Should nothing move all the same (someone else holds blocks and never gives them back), that is an error which names
who waits for whom, never a loop.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field

from kvscope.engine import policy
from kvscope.engine.memory import SequenceMemory
from kvscope.engine.policy import Door, Policy, Runner
from kvscope.engine.sequence import Sequence, Status
from kvscope.engine.stall import NAMED, holders, who_waits
from kvscope.engine.steps import Scheduled
from kvscope.engine.waiting import make_queue
from kvscope.errors import OutOfBlocks, Stalled, UsageError
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

_IDLE = 3  # calls in a row that found nothing to do, though there is work and nothing is under way


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Limits of one step, and the order of the queue.

    max_seqs: sequences that run at once. max_batched_tokens: positions computed per step, the size of a prefill
    chunk included. watermark: share of the pool kept free at admission while something runs, so that decodes
    do not preempt what was just admitted. policy: fcfs, priority or fair. patience: what one level of priority is
    worth in arrivals: a request is overtaken by at most so many per level.
    """

    max_seqs: int = 64
    max_batched_tokens: int = 512
    watermark: float = 0.01
    policy: str = Policy.FCFS
    patience: int = 1000

    def __post_init__(self) -> None:
        if not 1 <= self.max_seqs <= 4096:
            raise UsageError(f"max_seqs is {self.max_seqs}: must be 1..4096")
        if not 1 <= self.max_batched_tokens <= 1 << 20:
            raise UsageError(f"max_batched_tokens is {self.max_batched_tokens}: must be 1..{1 << 20}")
        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark is {self.watermark}: must be 0 or more, below 1")
        if self.policy not in list(Policy):
            raise UsageError(f"policy is {self.policy!r}: must be one of {', '.join(Policy)}")
        if not 1 <= self.patience <= 1 << 20:
            raise UsageError(f"patience is {self.patience}: must be 1..{1 << 20} arrivals")


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

    def __init__(self, manager: SequenceMemory, config: SchedulerConfig, *, sink: EventSink | None = None) -> None:
        self.manager = manager
        self.config = config
        self.policy = Policy(config.policy)
        self.waiting = make_queue(self.policy, config.patience)
        self.running: list[Sequence] = []  # in order: the last one gives way first
        self.preemptions = 0
        self._sink = sink
        self._submitted = 0
        self._idle = 0
        self._queued_beams: dict[int, list[Sequence]] = {}  # by request

    @property
    def has_work(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self.running) or len(self.waiting) > 0

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        sequence.number = self._submitted
        self._submitted += 1
        self._enqueue(sequence, new=True)

    def adopt(self, sequence: Sequence) -> None:
        """A forked sequence joins the running ones, behind its siblings."""
        sequence.number = next(
            (s.number for s in reversed(self.running) if s.request is sequence.request), self._submitted
        )
        self._join(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self._dequeue(sequence)
        sequence.status = Status.FINISHED

    def schedule(self) -> StepPlan:
        """Choose the rows of the next step; their blocks are reserved and their writes recorded.

        Raises:
            Stalled: there is work, nothing is under way, and nothing can go on; says who waits for whom.
        """
        plan = StepPlan()
        preempted = self._schedule_decodes(plan)
        if self.policy is Policy.FAIR:
            for sequence in plan.sequences:
                self.waiting.charge(sequence, output=1)
        self._schedule_prefills(plan)
        if not preempted:
            self._admit(plan)
        if plan.rows or preempted or not self.has_work or self.manager.in_flight():
            self._idle = 0
        else:
            self._idle += 1
            if self._idle >= _IDLE:
                raise Stalled(who_waits(self.manager, next(self._candidates(), None), len(self.running)))
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
        if not len(self.waiting):
            return
        seats = self.config.max_seqs - sum(s.width for s in self.running)
        with closing(self._candidates()) as queue:
            for sequence in queue:
                tokens = self.config.max_batched_tokens - plan.tokens
                reason = policy.seat(Door(tokens, seats), sequence.width)
                match = None
                if not reason:
                    match = self.manager.probe(sequence.tokens, sequence.request.extras)
                    door = Door(tokens, seats, match.available, self._reserve(sequence))
                    reason = policy.blocks(door, match.needed, pending=match.pending is not None)
                if match is None or reason:
                    self._wait(sequence, reason, 0 if match is None else match.needed)
                    if reason is Reason.PREFIX_PENDING and not sequence.request.params.beams:
                        continue  # it may share next step; those behind it need not wait
                    return  # nothing may pass a beam whose unit is, or is about to be, admitted in part
                self._start(sequence, plan)
                seats -= sequence.width

    def _reserve(self, sequence: Sequence) -> int:
        """Blocks that have to stay free when this one joins; the members of a unit stand side by side."""
        running, unit = self.running, sequence.unit
        alone = not running or (running[0].unit is unit and running[-1].unit is unit)
        return policy.reserve(self.config.watermark, self.manager.num_blocks, alone=alone)

    def _start(self, sequence: Sequence, plan: StepPlan) -> None:
        """Admit the sequence and compute what this step has left for it."""
        cached = self.manager.admit(
            sequence.seq_id, sequence.tokens, sequence.request.extras, resumed=sequence.preemptions > 0
        )
        if not sequence.preemptions:
            sequence.cached_tokens = cached
            self.waiting.charge(sequence, prompt=sequence.length)
        sequence.computed, sequence.admitted = cached, sequence.length
        sequence.last_wait = None
        self._dequeue(sequence)
        self._join(sequence)
        self._schedule_chunk(plan, sequence)

    # -- queue and running list -----------------------------------------------------------------------------------

    def _candidates(self) -> Generator[Sequence]:
        """The waiting ones in order of admission: first what is missing of a unit that runs in part."""
        if self._queued_beams:
            for request in {id(s.request): s.request for s in self.running if s.request.params.beams}:
                yield from sorted(self._queued_beams.get(request, ()), key=lambda s: s.place)
        yield from self.waiting.walk()

    def _enqueue(self, sequence: Sequence, *, new: bool = False) -> None:
        sequence.status = Status.WAITING
        if new:
            self.waiting.push(sequence)
        else:
            self.waiting.put_back(sequence)
        if sequence.request.params.beams:
            self._queued_beams.setdefault(id(sequence.request), []).append(sequence)

    def _dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        if sequence.request.params.beams:
            queued = self._queued_beams[id(sequence.request)]
            queued.remove(sequence)
            if not queued:
                del self._queued_beams[id(sequence.request)]

    def _join(self, sequence: Sequence) -> None:
        """Run it: behind all others, or at its place by priority; a beam right behind the others of its request."""
        running, at = self.running, len(self.running)
        if self.policy is Policy.PRIORITY:
            key = self._rank(sequence)
            at = bisect_right(running, key, key=self._rank)
        elif sequence.request.params.beams:
            siblings = [i for i, s in enumerate(running) if s.unit is sequence.unit]
            at = siblings[-1] + 1 if siblings else at
        sequence.status = Status.RUNNING
        running.insert(at, sequence)

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        """The place among the running by priority; equal for the samples or beams of one request."""
        return policy.queue_key(
            self.policy, priority=sequence.request.priority, number=sequence.number, seq_id=0,
            patience=self.config.patience,
        )[:2]  # fmt: skip

    # -- giving way -----------------------------------------------------------------------------------------------

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Preempt the last unit for this sequence; False if that is its own and part of it is in this very step."""
        planned = {id(s) for s in plan.sequences}
        units = [Runner(id(s.unit), id(s) in planned) for s in self.running]
        victim = policy.victim(units, id(sequence.unit))
        if victim is None:
            return False
        for member in [s for s in reversed(self.running) if id(s.unit) == victim]:
            self._preempt(member)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """The sequence gives its blocks up and goes back to the queue."""
        self.manager.free(sequence.seq_id, Kind.PREEMPT, Reason.CAPACITY, aux=sequence.computed)
        self.running.remove(sequence)
        sequence.computed, sequence.waits = 0, False
        sequence.preemptions += 1
        self.preemptions += 1
        self._enqueue(sequence)

    def _wait(self, sequence: Sequence, reason: Reason, needed: int) -> None:
        """Record why the sequence is not admitted, and for want of blocks who holds them, once per cause."""
        if self._sink is None or sequence.last_wait == (reason, needed):
            return
        sequence.last_wait = (reason, needed)
        known = holders(self.manager.held())[:NAMED] if reason is Reason.NO_BLOCKS else []
        named = [value for holder in known for value in holder]
        self.manager.record(Kind.WAIT, reason, sequence.seq_id, details=named, needed=needed)
