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

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from kvscope.engine import policy
from kvscope.engine.batch import StepRows
from kvscope.engine.host_tier import Swap
from kvscope.engine.lineup import Lineup
from kvscope.engine.memory import SequenceMemory, SwappingMemory
from kvscope.engine.policy import Door, Policy, Preemption, Runner
from kvscope.engine.sequence import Sequence, Status
from kvscope.engine.stall import NAMED, holders, who_waits
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import PrefixMatch
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
    worth in arrivals: a request is overtaken by at most so many per level. preemption: recompute, or swap to the
    host tier of the block manager as long as it has room.
    """

    max_seqs: int = 64
    max_batched_tokens: int = 512
    watermark: float = 0.01
    policy: str = Policy.FCFS
    patience: int = 1000
    preemption: str = Preemption.RECOMPUTE

    def __post_init__(self) -> None:
        if not 1 <= self.max_seqs <= 4096:
            raise UsageError(f"max_seqs is {self.max_seqs}: must be 1..4096")
        if not 1 <= self.max_batched_tokens <= 1 << 20:
            raise UsageError(f"max_batched_tokens is {self.max_batched_tokens}: must be 1..{1 << 20}")
        if not 0 <= self.watermark < 1:
            raise UsageError(f"watermark is {self.watermark}: must be 0 or more, below 1")
        if self.policy not in list(Policy):
            raise UsageError(f"policy is {self.policy!r}: must be one of {', '.join(Policy)}")
        if self.preemption not in list(Preemption):
            raise UsageError(f"preemption is {self.preemption!r}: must be one of {', '.join(Preemption)}")
        if not 1 <= self.patience <= 1 << 20:
            raise UsageError(f"patience is {self.patience}: must be 1..{1 << 20} arrivals")


@dataclass(slots=True)
class StepPlan:
    """The rows of one step, each with the positions it computes, and whether its last one is sampled from."""

    sequences: list[Sequence] = field(default_factory=list)
    rows: StepRows = field(default_factory=StepRows)
    tokens: int = 0  # positions this step computes

    def add(self, sequence: Sequence, lo: int, hi: int) -> None:
        self.sequences.append(sequence)
        self.rows.add([Scheduled(sequence.seq_id, lo, hi)])
        self.tokens += hi - lo


class Scheduler(Lineup):
    """The choice of the next step's rows; owns no blocks, asks the block manager.

    Args:
        manager: the memory it plans for.
        config: limits, order and preemption.
        sink: where WAIT rows go; None records none.
        move: runs swaps on the device, so that all later work comes behind them; None only counts them as run.
    """

    def __init__(
        self, manager: SequenceMemory, config: SchedulerConfig, *, sink: EventSink | None = None,
        move: Callable[[list[Swap]], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(Policy(config.policy), config.patience)
        self.manager = manager
        self.config = config
        self.preemptions = 0
        self.swap_outs = 0  # preemptions that kept what was computed
        self._host = manager if isinstance(manager, SwappingMemory) else None
        if self._host is None and config.preemption == Preemption.SWAP:
            raise UsageError("preemption is 'swap', but this allocator has no host tier; use recompute")
        self._move = move
        self._sink = sink
        self._idle = 0
        self._decoding: tuple[list[Sequence], list[int]] = ([], [])
        self._decoding_since = -1  # `changes` when these were all that ran

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
        ready, seq_ids = self._ready()
        if not self.manager.can_append_many(seq_ids):
            return False
        plan.rows.add(self.manager.append_many(seq_ids, [s.output[-1] for s in ready]))
        plan.sequences += ready
        plan.tokens += len(ready)
        return True

    def _ready(self) -> tuple[list[Sequence], list[int]]:
        """The running sequences that decode now, and their ids: found once for as long as the same ones run."""
        if not self.steady:
            ready = [s for s in self.running if not s.prefilling and not s.waits][: self.config.max_batched_tokens]
            self._decoding = ready, [s.seq_id for s in ready]
            if len(ready) == len(self.running) and not any(s.request.params.beams for s in ready):
                self._decoding_since = self.changes
        return self._decoding

    @property
    def steady(self) -> bool:
        """Whether all that runs was decoding in the last step, and goes on to: each by itself, in this step."""
        return self._decoding_since == self.changes

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
        if not self.steady:
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
        taken = len(self.running) if self.steady else sum(s.width for s in self.running)
        seats = self.config.max_seqs - taken
        with closing(self._candidates()) as queue:
            for sequence in queue:
                tokens = self.config.max_batched_tokens - plan.tokens
                reason = policy.seat(Door(tokens, seats), sequence.width)
                match = None
                if not reason:
                    match = self._probe(sequence)
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

    def _probe(self, sequence: Sequence) -> PrefixMatch:
        if sequence.swapped and self._host is not None:
            return self._host.probe_swap_in(sequence.seq_id, sequence.length)
        return self.manager.probe(sequence.tokens, sequence.request.extras)

    def _start(self, sequence: Sequence, plan: StepPlan) -> None:
        """Admit the sequence and compute what this step has left for it."""
        if sequence.swapped:
            self._bring_back(sequence, plan)
            return
        cached = self.manager.admit(
            sequence.seq_id, sequence.tokens, sequence.request.extras, resumed=sequence.preemptions > 0
        )
        if not sequence.preemptions:
            sequence.cached_tokens = cached
            self.waiting.charge(sequence, prompt=sequence.length)
        sequence.computed, sequence.admitted = cached, sequence.length
        self._enter(sequence)
        self._schedule_chunk(plan, sequence)

    def _bring_back(self, sequence: Sequence, plan: StepPlan) -> None:
        """A swapped sequence goes on where it was: in its prompt, or with its next token."""
        assert self._host is not None
        self._host.swap_in(sequence.seq_id)
        self._run_swaps()
        sequence.swapped = False
        self._enter(sequence)
        if sequence.prefilling:
            self._schedule_chunk(plan, sequence)
        elif not sequence.waits:
            self.manager.append(sequence.seq_id, sequence.output[-1])
            plan.add(sequence, sequence.computed, sequence.length)
            self.waiting.charge(sequence, output=1)

    def _enter(self, sequence: Sequence) -> None:
        sequence.last_wait = None
        self._dequeue(sequence)
        self._join(sequence)

    # -- giving way -----------------------------------------------------------------------------------------------

    def _make_room(self, sequence: Sequence, plan: StepPlan) -> bool:
        """Preempt the last unit for this sequence; False if that is its own and part of it is in this very step."""
        planned = {id(s) for s in plan.sequences}
        units = [Runner(id(s.unit), id(s) in planned) for s in self.running]
        victim = policy.victim(units, id(sequence.unit))
        if victim is None:
            return False
        members = [s for s in reversed(self.running) if id(s.unit) == victim]
        give_up = self._swap_out if self._relief(members) is Preemption.SWAP else self._preempt
        for member in members:
            give_up(member)
        self._run_swaps()
        return True

    def _relief(self, members: list[Sequence]) -> Preemption:
        wanted = Preemption(self.config.preemption)
        if wanted is Preemption.RECOMPUTE or self._host is None:
            return Preemption.RECOMPUTE
        return policy.relief(wanted, self._host.swap_cost([s.seq_id for s in members]), self._host.host_free())

    def _preempt(self, sequence: Sequence) -> None:
        """The sequence gives its blocks up and goes back to the queue; it is computed again later."""
        self.manager.free(sequence.seq_id, Kind.PREEMPT, Reason.CAPACITY, aux=sequence.computed)
        sequence.computed, sequence.waits = 0, False
        self._requeue(sequence)

    def _swap_out(self, sequence: Sequence) -> None:
        """The sequence gives its blocks up and goes back to the queue; what they hold waits in host memory."""
        assert self._host is not None
        self._host.swap_out(sequence.seq_id, aux=sequence.computed)
        sequence.swapped = True
        self.swap_outs += 1
        self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.preemptions += 1
        self.preemptions += 1
        self._enqueue(sequence)

    def _run_swaps(self) -> None:
        """Transfers are queued on the device before anything that this step writes, so their blocks may be used."""
        if self._host is None:
            return
        swaps = self._host.drain_swaps()
        if swaps:
            if self._move is not None:
                self._move(swaps)
            self._host.swaps_done(swaps)

    def _wait(self, sequence: Sequence, reason: Reason, needed: int) -> None:
        """Record why the sequence is not admitted, and for want of blocks who holds them, once per cause."""
        if self._sink is None or sequence.last_wait == (reason, needed):
            return
        sequence.last_wait = (reason, needed)
        known = holders(self.manager.held())[:NAMED] if reason is Reason.NO_BLOCKS else []
        named = [value for holder in known for value in holder]
        self.manager.record(Kind.WAIT, reason, sequence.seq_id, details=named, needed=needed)
