"""The engine's own scheduler over its own pool (or a baseline), step by step, with made-up tokens.

This is what an engine does in a step, less the model: every table, copy, hit and event is the engine's own. It is
needed where sequences share, and for a trace; where they do not, `counted` gives the same row much sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvscope.engine.baselines import RegionManager
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.host_tier import Swap
from kvscope.engine.policy import Policy, Preemption
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import PrefixIndex
from kvscope.engine.scheduler import Scheduler, StepPlan
from kvscope.engine.sequence import Request, SamplingParams, Sequence
from kvscope.inspector.simulate.paged import admissible
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.tally import Tally
from kvscope.inspector.workloads import WorkRequest
from kvscope.inspector.workloads.request import output_token, prompt_tokens
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

Manager = BlockManager | RegionManager


class RememberingIndex(PrefixIndex):
    """The prefix index, counting what is evicted."""

    removed = 0

    def remove(self, block: int) -> None:
        """Forget a block that is about to lose its content."""
        self.removed += 1
        super().remove(block)


class SimulatedSequence(Sequence):
    """A sequence that knows when it came and which output it will have."""

    __slots__ = ("arrival", "counted", "work")

    def __init__(self, seq_id: int, request: Request, sample: int, work: WorkRequest, arrival: int) -> None:
        super().__init__(seq_id, request, sample)
        self.work, self.arrival = work, arrival
        self.counted = False  # its prompt, as looked up


class WatchedScheduler(Scheduler):
    """The scheduler, which also says why the head of its queue waits."""

    waits_for: Reason = Reason.NONE
    missing = 0
    recomputed = 0  # positions that preempted sequences lost

    def schedule(self) -> StepPlan:
        """Choose the rows of the next step."""
        self.waits_for = Reason.NONE
        return super().schedule()

    def _preempt(self, sequence: Sequence) -> None:
        self.recomputed += sequence.computed
        super()._preempt(sequence)

    def _wait(self, sequence: Sequence, reason: Reason, needed: int) -> None:
        if reason != Reason.PREFIX_PENDING:
            self.waits_for, self.missing = reason, needed
        super()._wait(sequence, reason, needed)


class DrivenRun:
    """One workload through the engine's scheduler.

    Args:
        requests: in order of arrival.
        manager: the block manager or a baseline, empty; with `sink`, if it records.
        settings: limits, policy and times.
        share: samples of one request are forks of one sequence; otherwise sequences of their own.
        could_hold: whether a sequence of so many tokens could ever fit.
        sink: where the facts of the run go.
        on_finish: called now and then with the number of sequences that are done.
    """

    def __init__(
        self,
        requests: list[WorkRequest],
        manager: Manager,
        settings: Settings,
        *,
        share: bool,
        could_hold: Callable[[int], bool],
        sink: EventSink | None = None,
        on_finish: Callable[[int], None] | None = None,
    ) -> None:
        self.manager: Any = manager  # the two have the same interface
        self.settings = settings
        self.tally = Tally()
        self.clock = 0
        self._requests = requests
        self._next = 0
        self._share = share
        self._could_hold = could_hold
        self._sink = sink
        self._on_finish = on_finish
        self._pool: BlockPool | None = manager.pool if isinstance(manager, BlockManager) else None
        self._space = manager.space if isinstance(manager, RegionManager) else None
        if self._pool is not None:
            self._pool.index = RememberingIndex(manager.block_size, key=b"simulate")
        limits = settings.scheduler
        if self._space is not None and self._space.name == "reserved":
            limits = replace(limits, watermark=0.0)  # nothing that is admitted grows
        if self._space is not None:
            limits = replace(limits, preemption=Preemption.RECOMPUTE)  # there is no host tier behind regions
        self._reserve = int(limits.watermark * manager.num_blocks)
        self.scheduler = WatchedScheduler(manager, limits, sink=sink, move=self._move)
        self._moved = 0  # tokens that were swapped since the last step
        self._next_seq = 0

    def run(self, stop: Callable[[], bool]) -> Tally:
        """Run to the end; returns what was added up.

        Raises:
            KeyboardInterrupt: `stop` said so, between two steps.
            Stalled: a queued request can never be admitted.
        """
        while True:
            self._arrive()
            if stop():
                raise KeyboardInterrupt
            if not self.scheduler.has_work:
                if self._next == len(self._requests):
                    return self.close()
                self.clock = max(self.clock, self._arrival(self._requests[self._next]))
                continue
            self._do_step()

    def _arrival(self, request: WorkRequest) -> int:
        return 0 if self.settings.at_once else request.arrival_ns * 1000

    def _arrive(self) -> None:
        while self._next < len(self._requests):
            work, number = self._requests[self._next], self._next
            if self._arrival(work) > self.clock:
                return
            self._next += 1
            output = admissible(work, self.settings, self._could_hold, self.tally)
            if output:
                self._submit(work, number, output)

    def _submit(self, work: WorkRequest, number: int, output: int) -> None:
        """Queue one request: as one sequence that forks, or as one sequence per sample."""
        forks = work.samples if self._share else 1
        if forks > self.settings.max_seqs:
            self.tally.too_big += 1
            return
        params = SamplingParams(max_tokens=output, n=forks, ignore_eos=True)
        for sample in range(1 if self._share else work.samples):
            prompt = prompt_tokens(work, number) if self._share else list(range(work.prompt))
            request = Request(number, prompt, params, f"r{number}", priority=work.priority, user=work.user)
            sequence = self._new(request, sample, work)
            self.manager.record(Kind.SUBMIT, Reason.NONE, sequence.seq_id, work.prompt, details=(number, output, forks))
            self.scheduler.submit(sequence)
            if sample == 0:
                self._fact(type="request", request=number, name=request.name, seq_ids=[sequence.seq_id],
                           prompt_tokens=work.prompt, max_tokens=output, samples=work.samples,
                           arrival_ns=self._arrival(work) // 1000)  # fmt: skip
            else:
                self._fact(type="sample", request=number, sample=sample, seq_id=sequence.seq_id)

    def _new(self, request: Request, sample: int, work: WorkRequest) -> SimulatedSequence:
        sequence = SimulatedSequence(self._next_seq, request, sample, work, self._arrival(work))
        self._next_seq += 1
        return sequence

    # -- one step -------------------------------------------------------------------------------------------------

    def _do_step(self) -> None:
        """Schedule and run one step, unless there is nothing to compute."""
        scheduler, manager = self.scheduler, self.manager
        before = scheduler.preemptions
        plan = scheduler.schedule()
        preempted = scheduler.preemptions > before
        if not plan.rows:
            return
        manager.begin_step(plan.rows)
        copies = manager.drain_copies()
        manager.copies_done(copies)
        copied = sum(copy.slots for copy in copies)
        prefill = live = 0
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            live += row.hi
            if sequence.prefilling:
                prefill += row.hi - row.lo
                self._count_prompt(sequence)
        service = self.settings.service
        time = service.base + service.prefill * prefill + service.live * live + service.copy * copied
        time += service.swap * self._moved
        self.tally.swapped, self._moved = self.tally.swapped + self._moved, 0
        self.tally.copied += copied
        self.tally.copies += len(copies) if self._pool is not None else 0
        self._account(plan, time, preempted)
        self.clock += time
        manager.end_step()
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            sequence.computed = row.hi
        self._complete([s for s, row in zip(plan.sequences, plan.rows, strict=True) if row.hi == s.length])

    def _count_prompt(self, sequence: Any) -> None:
        if not sequence.counted:
            sequence.counted = True
            self.tally.prompt_tokens += len(sequence.request.prompt)
            self.tally.prompt_blocks += -(-len(sequence.request.prompt) // self.manager.block_size)
            self.tally.hit_tokens += sequence.cached_tokens

    def _account(self, plan: StepPlan, time: int, preempted: bool) -> None:
        """Add the step up as it runs: what it writes counts as filled."""
        scheduler = self.scheduler
        pool, space = self._pool, self._space
        waits = preempted or scheduler.waits_for == Reason.NO_BLOCKS
        holes: float | None = 0.0
        by_holes = False
        if space is not None:
            held = entries = space.held
            holes = space.external_fragmentation()
            by_holes = waits and not preempted and space.free >= scheduler.missing + self._reserve
        elif pool is not None:
            held = entries = pool.num_blocks - pool.num_free - pool.num_cached - pool.num_quarantined
        if pool is not None and self._share:
            in_tables = pool.entries > 0
            entries, filled = int(pool.entries.sum()), int(pool.fill[in_tables].sum())
        else:
            planned = {id(sequence) for sequence in plan.sequences}
            filled = sum(row.hi for row in plan.rows)
            filled += sum(s.computed for s in scheduler.running if id(s) not in planned)
        self.tally.add(time, 1, len(scheduler.running), held, time * filled, entries, holes, waits, by_holes)

    def _complete(self, sampled: list[Sequence]) -> None:
        """Fork what has its prompt; give every sequence whose tokens are all computed the next, end what is done."""
        for member in [m for sequence in sampled for m in (sequence, *self._fork(sequence))]:
            if not member.output:
                self._first_token(member)
            member.output.append(
                output_token(member.work, member.request.request_id, member.sample, len(member.output))
            )
            if len(member.output) == member.request.params.max_tokens:
                self._finish(member)

    def _first_token(self, member: Any) -> None:
        wait = self.clock - member.arrival
        self.tally.waits.append(wait)
        if self.settings.policy != Policy.FCFS:
            work = member.work
            group = f"priority {work.priority}" if self.settings.policy == Policy.PRIORITY else work.user or "nobody"
            self.tally.groups.setdefault(group, []).append(wait)

    def _move(self, swaps: list[Swap]) -> None:
        self._moved += sum(len(swap.blocks) for swap in swaps) * self.manager.block_size

    def _fork(self, sequence: Any) -> list[Any]:
        request, children = sequence.request, []
        if sequence.output or sequence.sample or request.params.n == 1:
            return []
        for number in range(1, request.params.n):
            child = self._new(request, number, sequence.work)
            child.computed, child.admitted, child.counted = sequence.computed, sequence.admitted, True
            self.manager.fork(sequence.seq_id, child.seq_id)
            self._fact(type="sample", request=sequence.request.request_id, sample=number, seq_id=child.seq_id)
            self.scheduler.adopt(child)
            children.append(child)
        return children

    def _finish(self, sequence: Any) -> None:
        manager, output = self.manager, len(sequence.output)
        self.tally.finish(sequence.length - 1, len(manager.table(sequence.seq_id)), output)
        self.scheduler.retire(sequence)
        manager.free(sequence.seq_id, Kind.FINISH, Reason.LENGTH, aux=output)
        self._fact(
            type="output", request=sequence.request.request_id, seq_id=sequence.seq_id, tokens=output, finish="length"
        )
        if self._on_finish is not None:
            self._on_finish(self.tally.finished)

    def close(self) -> Tally:
        """The counters that others kept."""
        tally, pool, space = self.tally, self._pool, self._space
        tally.preemptions, tally.recomputed = self.scheduler.preemptions, self.scheduler.recomputed
        if pool is not None and isinstance(pool.index, RememberingIndex):
            tally.evictions = pool.index.removed
        if space is not None:
            tally.copies = space.moves
            tally.copied = self.manager.moved_tokens
        return tally

    def _fact(self, **record: Any) -> None:
        if self._sink is not None:
            self._sink.fact(record)
