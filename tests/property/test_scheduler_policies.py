"""Every policy over pools that are too small: all that was submitted ends, and nobody is passed without bound."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine import policy
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.host_tier import Swap
from kvscope.engine.limits import blocks_needed
from kvscope.engine.policy import Policy, Preemption
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence, Status
from kvscope.engine.waiting import FairQueue, Line
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.shadow import Content, Prefix, Shadow
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason


def waiting(number: int, priority: int = 0, user: str = "") -> Sequence:
    sequence = Sequence(number, Request(number, [1], SamplingParams(), priority=priority, user=user))
    sequence.number = number
    return sequence


# -- the queues against what the policy says ----------------------------------------------------------------------

ACTIONS = st.lists(st.tuples(st.sampled_from("paaars"), st.integers(0, 3), st.integers(0, 9)), max_size=60)


@given(actions=ACTIONS, patience=st.integers(1, 6))
def test_by_priority_nobody_is_passed_beyond_his_patience(actions: list[tuple[str, int, int]], patience: int) -> None:
    queue = Line(Policy.PRIORITY, patience)
    passed: Counter[int] = Counter()
    number = 0
    for action, priority, pick in actions:
        if action in "pa":
            queue.push(waiting(number, priority))
            number += 1
        elif len(queue):
            sequence = next(queue.walk()) if action == "s" else list(queue)[pick % len(queue)]
            if action == "s":
                for other in queue:
                    if other.number < sequence.number:
                        passed[other.number] += 1
                        assert other.request.priority > sequence.request.priority, "equals go as they came"
                        assert passed[other.number] <= patience * other.request.priority
            queue.remove(sequence)
    left = list(queue)
    assert left == sorted(left, key=lambda s: (s.number + s.request.priority * patience, s.number))


@given(actions=ACTIONS)
def test_the_fair_queue_serves_whom_the_counters_say(actions: list[tuple[str, int, int]]) -> None:
    queue = FairQueue()
    lines: dict[str, list[Sequence]] = {}
    counters: dict[str, int] = {}
    last_left, number = 0, 0
    for action, who, amount in actions:
        user = f"u{who}"
        if action in "pa":
            if user not in lines:
                counters[user] = policy.lift(counters.get(user, 0), [counters[u] for u in lines], last_left)
            sequence = waiting(number, user=user)
            number += 1
            lines.setdefault(user, []).append(sequence)
            queue.push(sequence)
        elif action == "r" and user in lines:
            sequence = lines[user][amount % len(lines[user])]
            queue.charge(sequence, output=amount)
            counters[user] += policy.OUTPUT_WEIGHT * amount
        elif action == "s" and lines:
            user = policy.least_served(counters, {u: line[0].number for u, line in lines.items()})
            walk = queue.walk()
            sequence = next(walk)
            assert sequence is lines[user][0]
            queue.charge(sequence, prompt=amount)
            counters[user] += amount
            queue.remove(sequence)
            lines[user].remove(sequence)
            if not lines[user]:
                del lines[user]
                last_left = counters[user]
            walk.close()  # type: ignore[attr-defined]
        assert len(queue) == sum(map(len, lines.values()))
    everyone = {id(s) for line in lines.values() for s in line}
    assert {id(s) for s in queue.walk()} == everyone, "who is passed over is looked at once"
    assert {id(s) for s in queue} == everyone


@given(prompts=st.lists(st.integers(1, 9), min_size=1, max_size=40), flood=st.integers(2, 6))
def test_a_user_with_one_request_in_a_while_is_not_drowned(prompts: list[int], flood: int) -> None:
    """While both users have something queued, their service differs by no more than one request (VTC, theorem 4.3)."""
    queue, number = FairQueue(), 0
    served: Counter[str] = Counter()
    for length in prompts:
        for user, count in (("many", flood), ("few", 1)):
            for _ in range(count):
                sequence = waiting(number, user=user)
                sequence.request.prompt[:] = [1] * length
                queue.push(sequence)
                number += 1
    backlog = Counter({"many": flood * len(prompts), "few": len(prompts)})
    while all(backlog.values()):
        sequence = next(queue.walk())
        user = sequence.request.user
        queue.charge(sequence, prompt=sequence.length)
        queue.remove(sequence)
        served[user] += sequence.length
        backlog[user] -= 1
        assert abs(served["many"] - served["few"]) <= max(prompts)


# -- the scheduler over a pool that is too small --------------------------------------------------------------------


class Driver:
    """Scheduler and block manager with made-up tokens; samples are forks, beams advance together.

    Shadow memory stands for the device, and for the host tier: every read of every step is checked.
    """

    def __init__(self, num_blocks: int, block_size: int, config: SchedulerConfig, host_blocks: int = 0) -> None:
        self.sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
        self.manager = BlockManager(
            num_blocks, block_size, sink=self.sink, hash_key=b"test", host_blocks=host_blocks
        )  # fmt: skip
        self.scheduler = Scheduler(self.manager, config, sink=self.sink, move=self.move)
        self.shadow = Shadow(block_size)
        self.host: dict[tuple[int, int], Content] = {}
        self.families: dict[int, list[Sequence]] = {}
        self.ended: Counter[int] = Counter()
        self.next_seq = 0

    def move(self, swaps: list[Swap]) -> None:
        device, host = self.shadow.slots, self.host
        for swap in swaps:
            for block, place in zip(swap.blocks, swap.slots, strict=True):
                here, there = (device, host) if swap.out else (host, device)
                source, target = (block, place) if swap.out else (place, block)
                for slot in range(self.shadow.block_size):
                    there.pop((target, slot), None)
                    if (source, slot) in here:
                        there[target, slot] = here[source, slot]

    def submit(self, request: Request) -> Sequence:
        sequence = self.new(request, 0)
        self.manager.record(Kind.SUBMIT, Reason.NONE, sequence.seq_id, len(request.prompt))
        self.scheduler.submit(sequence)
        return sequence

    def new(self, request: Request, sample: int) -> Sequence:
        self.next_seq += 1
        sequence = Sequence(self.next_seq - 1, request, sample)
        self.families.setdefault(request.request_id, []).append(sequence)
        return sequence

    def step(self) -> None:
        plan = self.scheduler.schedule()
        if not plan.rows:
            return
        self.manager.begin_step(plan.rows)
        copies = self.manager.drain_copies()
        for copy in copies:
            self.shadow.copy(copy.source, copy.target, copy.slots)
        self.manager.copies_done(copies)
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            for position in range(row.lo, row.hi):
                self.shadow.write(self.manager.table(row.seq_id), Prefix(sequence.tokens), position)
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            self.shadow.check(row.seq_id, self.manager.table(row.seq_id), Prefix(sequence.tokens[: row.hi]))
            sequence.computed = row.hi
        self.manager.end_step()
        for sequence in plan.sequences:
            if sequence.computed == sequence.length:
                self.computed(sequence)
        self.manager.check_integrity()

    def computed(self, sequence: Sequence) -> None:
        family = self.families[sequence.request.request_id]
        if sequence.request.params.beams:
            sequence.waits = True
            if not all(s.waits for s in family):
                return
            members = [*family, *self.fork(sequence)] if not sequence.output else list(family)
        else:
            members = [sequence, *self.fork(sequence)] if not sequence.output else [sequence]
        for member in members:
            member.waits = False
            member.output.append(len(member.output) * 7 % 5 + member.sample)
        for member in members:
            if len(member.output) >= member.request.params.max_tokens:
                self.end(member)

    def fork(self, sequence: Sequence) -> list[Sequence]:
        request = sequence.request
        if len(self.families[request.request_id]) == request.params.width:
            return []
        children = [self.new(request, number) for number in range(1, request.params.width)]
        for child in children:
            child.computed, child.admitted = sequence.computed, sequence.admitted
            self.manager.fork(sequence.seq_id, child.seq_id)
            self.scheduler.adopt(child)
        return children

    def end(self, sequence: Sequence, kind: Kind = Kind.FINISH) -> None:
        running, swapped = sequence.status is Status.RUNNING, sequence.swapped
        self.scheduler.retire(sequence)
        if running:
            self.manager.free(sequence.seq_id, kind)
        elif swapped:
            self.manager.forget_swapped(sequence.seq_id, kind, Reason.ABORTED)
        self.ended[sequence.request.request_id] += kind is Kind.FINISH

    def abort(self, request_id: int) -> None:
        """End all of a request that is not over, wherever it is."""
        for sequence in self.families.get(request_id, ()):
            if sequence.status is not Status.FINISHED:
                self.end(sequence, Kind.ABORT)


WORK = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=8), st.integers(1, 6), st.sampled_from([1, 1, 2, -2, -3]),
        st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 4),
    ),
    min_size=1, max_size=7,
)  # fmt: skip
Work = list[tuple[list[int], int, int, int, str, int]]
LIMITS = st.fixed_dictionaries(
    {"max_seqs": st.integers(3, 6), "max_batched_tokens": st.integers(1, 12), "watermark": st.sampled_from([0.0, 0.3]),
     "policy": st.sampled_from(list(Policy)), "patience": st.integers(1, 5),
     "preemption": st.sampled_from(list(Preemption))}
)  # fmt: skip


def made(work: Work) -> list[Request]:
    """Samples (positive width) and beams (negative), any priorities and users."""
    out = []
    for number, (prompt, tokens, width, priority, user, _) in enumerate(work):
        params = SamplingParams(max_tokens=tokens, n=max(width, 1), beams=max(-width, 0))
        out.append(Request(number, prompt, params, priority=priority, user=user))
    return out


def driver_for(requests: list[Request], spare: int, size: int, limits: dict[str, Any], host: int) -> Driver:
    """The pool is just large enough for the largest request, and a few blocks more."""
    needed = max(
        blocks_needed(len(r.prompt), r.params, context=1000, block_size=size, share_prefixes=True) for r in requests
    )
    return Driver(needed + spare, size, SchedulerConfig(**limits), host)


def play(driver: Driver, work: Work, requests: list[Request], aborts: dict[int, int]) -> None:
    left = list(zip((when for *_, when in work), requests, strict=True))
    steps = 0
    while left or driver.scheduler.has_work:
        while left and left[0][0] <= steps:
            driver.submit(left.pop(0)[1])
        if steps in aborts:
            driver.abort(aborts[steps])
        driver.step()
        steps += 1
        assert steps < 3000, "work is left and nothing ends"
    assert driver.manager.num_free() == driver.manager.num_blocks
    assert driver.manager.host_free() == driver.manager._host.num_slots
    assert check(driver.sink).findings == ()


@given(work=WORK, spare=st.integers(0, 3), block_size=st.integers(1, 4), host=st.integers(0, 9), limits=LIMITS)
def test_whatever_is_submitted_ends(work: Work, spare: int, block_size: int, host: int, limits: dict[str, Any]) -> None:
    """Requests come while others run; whoever gives way is computed again or comes back from the host tier."""
    requests = made(work)
    driver = driver_for(requests, spare, block_size, limits, host)
    play(driver, work, requests, {})
    assert driver.ended == Counter({r.request_id: r.params.width for r in requests})


@given(
    work=WORK, spare=st.integers(0, 3), block_size=st.integers(1, 4), host=st.integers(1, 9), limits=LIMITS,
    aborts=st.dictionaries(st.integers(0, 12), st.integers(0, 6), max_size=5),
)  # fmt: skip
def test_a_request_may_be_aborted_wherever_it_is(
    work: Work, spare: int, block_size: int, host: int, limits: dict[str, Any], aborts: dict[int, int]
) -> None:
    """Queued, in its prompt, while it decodes, in the host tier: nothing is left behind, and the others end."""
    requests = made(work)
    driver = driver_for(requests, spare, block_size, limits, host)
    play(driver, work, requests, aborts)
    for request in requests:
        if request.request_id not in aborts.values():
            assert driver.ended[request.request_id] == request.params.width


def test_the_runs_above_do_swap() -> None:
    """Four sequences over a pool for two: with room on the host nothing is computed twice."""
    limits = {"max_seqs": 4, "max_batched_tokens": 64, "watermark": 0.0, "preemption": "swap"}
    work: Work = [([i, i, i], 6, 1, 0, "", 0) for i in range(4)]
    requests = made(work)
    driver = driver_for(requests, 2, 2, limits, 64)
    play(driver, work, requests, {})
    assert driver.scheduler.swap_outs == driver.scheduler.preemptions > 2
    computed = driver.sink.events[driver.sink.events["kind"] == Kind.STEP_END]["aux"].sum()
    assert computed == sum(len(r.prompt) + r.params.max_tokens - 1 for r in requests)
