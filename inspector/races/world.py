"""An engine whose parts run at their own pace: scheduler, device, clients and transfers over the real pool.

    engine   schedules (the real scheduler over the real block manager) and begins steps, up to two ahead of the device
    device   runs steps in order, late: copies, then writes, then reads, in shadow memory
    client   submits and aborts
    mover    stores blocks away, loads blocks in, looks prefixes up: other streams, ordered with nothing

Each is a thread of a race, so finish during an open step, abort during prefill, preemption during a store, a window
that frees what is being read, and a transfer into a block that was given to somebody else all happen, when the
schedule wants it. One seed draws the script, another number the schedule. A plant is one mistake.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence, Status
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.engine.windows import first_needed
from kvscope.errors import Stalled
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.shadow import Prefix, Shadow
from kvscope.inspector.races.control import point
from kvscope.inspector.races.hooks import PoolJudge, pool
from kvscope.inspector.races.race import Race
from kvscope.inspector.races.script import Script
from kvscope.inspector.races.transfers import Transfers
from kvscope.inspector.races.worker import Failure
from kvscope.traces.schema import Kind, Reason

_AHEAD = 2


@dataclass(slots=True)
class _Work:
    """One step as the device is given it: rows, tables and tokens as they were when it began."""

    rows: list[Scheduled]
    tables: list[list[int]]
    prefixes: list[Prefix]
    copies: list[Copy]
    lives: list[tuple[int, int]]  # sequence, and how often it had been preempted


class World(Transfers):
    """One engine and what is around it, for one schedule.

    Args:
        script: what happens.
        manager: the block manager, or a broken one.
        plant: a mistake of the engine or of the mover: "" for none.
    """

    def __init__(self, script: Script, *, manager: Callable[..., BlockManager] = BlockManager, plant: str = "") -> None:
        self.script, self.plant = script, plant
        self.time = 0  # goes on with every turn of the engine, also when there is nothing to compute
        self.manager = pool(script.num_blocks, script.block_size, manager=manager, lease_clock=lambda: self.time)
        self.scheduler = Scheduler(self.manager, SchedulerConfig(max_batched_tokens=4, watermark=0.0))
        self.shadow = Shadow(script.block_size)
        self.changed = threading.Condition()
        self.queue: deque[_Work] = deque()
        self.under_way = 0
        self.requests: dict[int, list[Sequence]] = {}
        self.landed: dict[tuple[int, int], int] = {}  # positions of a life of a sequence that the device has written
        self.staging: list[list[int]] = []
        self.loading: int | None = None
        self.client_done = self.mover_done = self.over = False
        self._next = self.submitted = 0

    # -- the engine -------------------------------------------------------------------------------------------------

    def engine(self) -> None:
        """Steps until nothing is left to do and nothing will come."""
        with self.changed:
            while not (self.client_done and not self.scheduler.has_work):
                if (
                    self.under_way >= _AHEAD
                    or not self.scheduler.has_work
                    or (not self._step() and (self.under_way or not self._held_for_a_time()))
                ):
                    self._rest()
            self.over = True
            self.changed.notify_all()

    def _rest(self) -> None:
        """Until something has changed; who waits for the engine to be out of work is told."""
        if not self.scheduler.has_work:
            self.changed.notify_all()
        self.changed.wait()

    def _held_for_a_time(self) -> bool:
        """Whether waiting helps: some lease will be overdue."""
        return any(lease.deadline is not None for lease in self.manager.leases())

    def _step(self) -> bool:
        """Begin one step; False if there is nothing to do now."""
        self.time += 1
        self.manager.expire()
        self._slide()
        before = self.scheduler.preemptions
        try:
            plan = self.scheduler.schedule()
        except Stalled:
            return False
        if not plan.rows:
            return self.scheduler.preemptions > before
        self.manager.begin_step(plan.rows)
        copies = self.manager.drain_copies()
        tables = [self.manager.table(row.seq_id) for row in plan.rows]
        prefixes = [Prefix(list(s.tokens[: row.hi])) for s, row in zip(plan.sequences, plan.rows, strict=True)]
        if self.plant == "shared-staging":  # one buffer for the tables of all steps
            self.staging[: len(tables)] = tables
            tables = self.staging
        lives = [(s.seq_id, s.preemptions) for s in plan.sequences]
        self.queue.append(_Work(list(plan.rows), tables, prefixes, copies, lives))
        self.under_way += 1
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            sequence.computed = row.hi
            if row.hi == sequence.length:
                self._sampled(sequence)
        self.changed.notify_all()
        return True

    def _slide(self) -> None:
        if self.script.window:
            more = self.script.block_size if self.plant == "window-too-early" else 0
            for sequence in self.scheduler.running:
                first = first_needed(sequence.computed, self.script.window) + more
                self.manager.slide(sequence.seq_id, min(first, self.manager.length(sequence.seq_id)))

    def _sampled(self, sequence: Sequence) -> None:
        """Its next token is known, or will be when the step has run: samples are forked, ended ones freed at once."""
        request = sequence.request
        family = self.requests[request.request_id]
        members = [sequence]
        if not sequence.output and len(family) < request.params.n:
            child = self._new(request, 1)
            child.computed, child.admitted = sequence.computed, sequence.admitted
            self.manager.fork(sequence.seq_id, child.seq_id)
            self.scheduler.adopt(child)
            members.append(child)
        for member in members:
            member.output.append(10 + member.seq_id)
            if len(member.output) >= request.params.max_tokens:
                self._end(member, Kind.FINISH, Reason.LENGTH)

    def _end(self, sequence: Sequence, kind: Kind, reason: Reason) -> None:
        held = sequence.status is Status.RUNNING
        self.scheduler.retire(sequence)
        if held:
            self.manager.free(sequence.seq_id, kind, reason)
        self.requests[sequence.request.request_id].remove(sequence)

    def _new(self, request: Request, sample: int) -> Sequence:
        sequence = Sequence(self._next, request, sample)
        self._next += 1
        self.requests.setdefault(request.request_id, []).append(sequence)
        return sequence

    # -- the device -------------------------------------------------------------------------------------------------

    def device(self) -> None:
        """Steps in the order in which they began, until the engine has ended."""
        while True:
            with self.changed:
                while not self.queue and not self.over:
                    self.changed.wait()
                if not self.queue:
                    return
                work = self.queue.popleft()
            self._run(work)
            self.manager.copies_done(work.copies)
            self.manager.end_step()
            with self.changed:
                for row, life in zip(work.rows, work.lives, strict=True):
                    self.landed[life] = max(row.hi, self.landed.get(life, 0))
                self.under_way -= 1
                self.changed.notify_all()

    def _run(self, work: _Work) -> None:
        size = self.script.block_size
        for copy in work.copies:
            point(f"device copies b{copy.source} to b{copy.target}")
            self.shadow.copy(copy.source, copy.target, copy.slots)
        for row, table, prefix in zip(work.rows, work.tables, work.prefixes, strict=False):
            point(f"device writes {row.lo}..{row.hi} of sequence {row.seq_id}")
            for position in range(row.lo, row.hi):
                if position // size < len(table):
                    self.shadow.write(table, prefix, position)
        for row, table, prefix in zip(work.rows, work.tables, work.prefixes, strict=False):
            point(f"device reads for sequence {row.seq_id}")
            first = first_needed(row.lo, self.script.window) if self.script.window else 0
            self._read(row, table, prefix, first)

    def _read(self, row: Scheduled, table: list[int], prefix: Prefix, first: int) -> None:
        for position in range(first, row.hi):
            lblock, slot = divmod(position, self.script.block_size)
            block = table[lblock] if lblock < len(table) else -1
            found = self.shadow.slots.get((block, slot))
            if found != prefix.content(position):
                code = "KV002" if block < 0 else "KV009" if found is None else "KV023"
                raise Violation(
                    code,
                    f"the device reads position {position} of sequence {row.seq_id} at b{block}[{slot}]: it should "
                    f"hold {prefix.content(position)[1]}, it holds {found[1] if found else 'nothing'}",
                )

    # -- clients ----------------------------------------------------------------------------------------------------

    def client(self) -> None:
        """Submits and aborts, in the order of the script."""
        for name, which in self.script.client:
            point(f"client: {name} {which}")
            with self.changed:
                if name == "submit":
                    prompt, tokens, samples = self.script.requests[which]
                    request = Request(which, list(prompt), SamplingParams(tokens, n=samples, ignore_eos=True))
                    self.scheduler.submit(self._new(request, 0))
                    self.submitted += 1
                elif name == "abort":
                    for sequence in list(self.requests.get(which, ())):
                        self._end(sequence, Kind.ABORT, Reason.ABORTED)
                else:
                    self._abort_load()
                self.changed.notify_all()
        with self.changed:
            self.client_done = True
            self.changed.notify_all()

    def _abort_load(self) -> None:
        """As soon as a load is under way; the mover does not know."""
        while self.loading is None and not self.mover_done:
            self.changed.wait()
        if self.loading is not None:
            self.manager.free(self.loading, Kind.ABORT, Reason.ABORTED)
            self.loading = None

    # -- the end ----------------------------------------------------------------------------------------------------

    def check(self, judge: PoolJudge) -> Failure | None:
        """Nothing lives any more: everything has to be back, and the events have to tell a clean story.

        Raises:
            Violation: something is held.
        """
        self.manager.expire(1 << 40)
        if (failure := judge(self.manager)) is not None:
            return failure
        if held := self.manager.leases():
            raise Violation("KV017", f"lease {held[0].lease_id} was never ended: its blocks are lost")
        if (free := self.manager.num_free()) != self.manager.num_blocks:
            raise Violation("KV005", f"{free} of {self.manager.num_blocks} blocks are free when nothing lives")
        return None


def world_race(
    script: Script, *, manager: Callable[..., BlockManager] = BlockManager, plant: str = "",
    judge: PoolJudge | None = None,
) -> Race:  # fmt: skip
    """The race of one script; at hook level."""
    judge = judge or PoolJudge()
    threads: list[Callable[[Any], object]] = [
        lambda w: w.engine(), lambda w: w.device(), lambda w: w.client(), lambda w: w.mover(),
    ]  # fmt: skip
    return Race(
        lambda: World(script, manager=manager, plant=plant), threads, check=lambda w: w.check(judge), expected=(),
        linear=False, name="engine",
    )  # fmt: skip
