"""Random programs over the real block manager: what it records must be legal, and every view of it must agree."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.inspector.findings import check
from kvscope.inspector.measures import COUNT_NAMES, series
from kvscope.inspector.reads import reads_of
from kvscope.inspector.state import holders, state_at, tables_at
from kvscope.traces import Kind, MemoryRecorder, Reason

DEAD = ("free", "quarantined")


class Program:
    """A random legal user of a block manager, with up to `ahead` steps open at once."""

    def __init__(self, seed: int, *, elastic: bool = False, swapping: bool = False) -> None:
        self.elastic = elastic  # also leases, windows, and a pool that changes its size
        self.swapping = swapping  # also a host tier, with transfers that take their time
        self.arriving: dict[int, list[int]] = {}  # swapped in, not there yet: their tokens
        self.under_way: list[Any] = []
        self.moved: list[object] = []
        self.slid: dict[int, int] = {}
        self.random = random.Random(seed)
        self.ahead = seed % 3 + 1
        blocks, size = self.random.randint(3, 12), self.random.choice([1, 2, 4])
        self.recorder = MemoryRecorder(num_blocks=blocks, block_size=size)
        host = self.random.randint(1, 12) if swapping else 0
        self.manager = BlockManager(blocks, size, sink=self.recorder, host_blocks=host)
        self.tokens: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}  # positions issued
        self.preempted: dict[int, list[int]] = {}
        self.parked: dict[int, list[int]] = {}  # in the host tier
        self.open = 0
        self.next_id = 0

    def run(self, operations: int) -> None:
        actions = [self.admit, self.step, self.step, self.end, self.end, self.fork, self.finish, self.preempt,
                   self.resume, self.truncate]  # fmt: skip
        if self.elastic:
            actions += [self.lease, self.unlease, self.lookup, self.slide, self.slide, self.grow, self.shrink]
        if self.swapping:
            actions += [self.swap_out, self.swap_out, self.swap_in, self.swap_in, self.move, self.forget]
        for _ in range(operations):
            try:
                self.random.choice(actions)()
            except OutOfBlocks:
                continue
            self.manager.check_integrity()
        self.manager.expire(1 << 40)
        self.manager.swaps_done([*self.under_way, *self.manager.drain_swaps()])

    def swap_out(self) -> None:
        seq_id = self.pick()
        if seq_id is not None:
            cost = self.manager.swap_cost([seq_id])
            if cost is not None:
                self.manager.swap_out(seq_id, self.done[seq_id])
                self.parked[seq_id] = self.tokens.pop(seq_id)

    def swap_in(self) -> None:
        if self.parked:
            seq_id = self.random.choice(list(self.parked))
            self.manager.swap_in(seq_id)
            self.arriving[seq_id] = self.parked.pop(seq_id)

    def move(self) -> None:
        """The device has run some transfers; they run in order."""
        self.under_way += self.manager.drain_swaps()
        done = self.random.randint(0, len(self.under_way))
        self.manager.swaps_done(self.under_way[:done])
        del self.under_way[:done]
        if not self.manager.in_flight():
            self.tokens.update(self.arriving)
            self.arriving.clear()

    def forget(self) -> None:
        ends = [*self.parked, *self.arriving]
        if ends:
            seq_id = self.random.choice(ends)
            if self.parked.pop(seq_id, None) is not None:
                self.manager.forget_swapped(seq_id, Kind.ABORT, Reason.ABORTED)
            else:
                del self.arriving[seq_id]
                self.manager.free(seq_id, Kind.ABORT, Reason.ABORTED)

    def lease(self) -> None:
        blocks = [b for b in range(self.manager.num_blocks) if self.manager.pool.state_name(b) not in DEAD]
        if blocks:
            chosen = self.random.sample(blocks, min(len(blocks), 2))
            slots = sorted(self.random.choices(range(self.manager.block_size + 1), k=2))
            self.manager.lease(chosen, holder="offload", slots=(slots[0], slots[1]), ttl=self.random.randint(0, 3))

    def unlease(self) -> None:
        self.manager.expire()
        leases = [lease for lease in self.manager.leases() if lease.kind == Reason.TRANSFER]
        if leases:
            self.manager.unlease(self.random.choice(leases).lease_id)

    def lookup(self) -> None:
        seq_id, tokens = self.new_id(), [self.random.randint(0, 1) for _ in range(3 * self.manager.block_size)]
        match, _ = self.manager.lookup(seq_id, tokens, ttl=2)
        if self.random.random() < 0.5:
            self.done[seq_id] = self.manager.admit(seq_id, tokens)
            self.tokens[seq_id] = tokens
            assert self.done[seq_id] == match.cached_tokens

    def slide(self) -> None:
        seq_id = self.pick()
        if seq_id is not None:
            self.manager.slide(seq_id, self.random.randint(0, self.done[seq_id]))
            self.slid[seq_id] = len([b for b in self.manager.table(seq_id) if b < 0]) * self.manager.block_size

    def grow(self) -> None:
        self.manager.grow(self.random.randint(1, 3))

    def shrink(self) -> None:
        with contextlib.suppress(FaultyCall, UsageError):
            self.manager.shrink(self.random.randint(1, 4), move=self.moved.extend)

    def pick(self) -> int | None:
        return self.random.choice(list(self.tokens)) if self.tokens else None

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def admit(self) -> None:
        seq_id = self.new_id()
        tokens = [self.random.randint(0, 1) for _ in range(self.random.randint(1, 3 * self.manager.block_size))]
        self.done[seq_id] = self.manager.admit(seq_id, tokens)
        self.tokens[seq_id] = tokens

    def step(self) -> None:
        if self.open >= self.ahead:
            return
        scheduled = []
        for seq_id, tokens in self.tokens.items():
            lo = self.done[seq_id]
            try:
                if lo < len(tokens):
                    hi = self.random.randint(lo + 1, len(tokens))
                    self.manager.write(seq_id, lo, hi)
                else:
                    token, hi = self.random.randint(0, 1), lo + 1
                    self.manager.append(seq_id, token)
                    tokens.append(token)
            except OutOfBlocks:
                continue
            self.done[seq_id] = hi
            scheduled.append(Scheduled(seq_id, lo, hi))
        if scheduled and self.random.random() < 0.2:  # a victim whose writes no step will take
            victim = self.random.choice(scheduled)
            scheduled.remove(victim)
            self.give_up(victim.seq_id)
        if scheduled:
            self.manager.begin_step(scheduled)
            self.open += 1
            if self.random.random() < 0.5:
                self.manager.copies_done(self.manager.drain_copies())

    def end(self) -> None:
        if self.open:
            self.manager.copies_done(self.manager.drain_copies())
            self.manager.end_step()
            self.open -= 1

    def fork(self) -> None:
        parent = self.pick()
        if parent is not None and self.done[parent] == len(self.tokens[parent]):
            child = self.new_id()
            self.manager.fork(parent, child)
            self.tokens[child], self.done[child] = list(self.tokens[parent]), self.done[parent]
            self.slid[child] = self.slid.get(parent, 0)

    def finish(self) -> None:
        seq_id = self.pick()
        if seq_id is not None:
            self.manager.free(seq_id, self.random.choice([Kind.FINISH, Kind.ABORT]))
            del self.tokens[seq_id]

    def preempt(self) -> None:
        seq_id = self.pick()
        if seq_id is not None:
            self.give_up(seq_id)

    def give_up(self, seq_id: int) -> None:
        self.manager.free(seq_id, Kind.PREEMPT, Reason.CAPACITY)
        self.preempted[seq_id] = self.tokens.pop(seq_id)
        self.slid.pop(seq_id, None)

    def resume(self) -> None:
        if self.preempted:
            seq_id = self.random.choice(list(self.preempted))
            self.done[seq_id] = self.manager.admit(seq_id, self.preempted[seq_id], resumed=True)
            self.tokens[seq_id] = self.preempted.pop(seq_id)

    def truncate(self) -> None:
        seq_id = self.pick()
        if seq_id is not None and self.done[seq_id] > 1:
            length = self.random.randint(max(1, self.slid.get(seq_id, 0)), self.done[seq_id])
            self.manager.truncate(seq_id, length)
            del self.tokens[seq_id][length:]
            self.done[seq_id] = length


@pytest.mark.parametrize("swapping", [False, True], ids=["", "swapping"])
@pytest.mark.parametrize("elastic", [False, True], ids=["plain", "elastic"])
@pytest.mark.parametrize("seed", range(40))
def test_legal_programs_are_clean_and_every_view_agrees(seed: int, elastic: bool, swapping: bool) -> None:
    program = Program(seed, elastic=elastic, swapping=swapping)
    program.run(150)
    trace, manager = program.recorder, program.manager
    result = check(trace)
    assert result.findings == (), (seed, result.findings[0])
    assert reads_of(trace).damage == {}  # no step reads what was not written for it
    measured = series(trace)
    assert (sum(getattr(measured, name) for name in COUNT_NAMES) == measured.blocks).all()
    counts = manager.pool.counts()
    assert {name: int(getattr(measured, name)[-1]) for name in counts} == counts
    end = len(trace.events) - 1
    pool = state_at(trace, end)
    size = manager.num_blocks
    assert pool.entries.tolist() == manager.pool.entries[:size].tolist()
    assert pool.leases.tolist() == manager.pool.leases[:size].tolist()
    tables = {s: [b for b in manager.table(s) if b >= 0] for s in manager.sequences()}
    assert {s: [b for b, _ in t] for s, t in tables_at(trace, end).items()} == {s: t for s, t in tables.items() if t}
    for seq in random.Random(seed).sample(range(end + 1), 10):
        state = state_at(trace, seq)
        assert state.counts == {name: int(getattr(measured, name)[seq]) for name in state.counts}
        block = seq % state.num_blocks
        assert len(holders(trace, block, seq)) == state.ref[block]


def test_events_lost_anywhere_make_no_false_findings() -> None:
    """Drop a stretch of a legal trace: nothing may be found in what is left."""
    for seed in range(60):
        program = Program(seed, elastic=seed % 2 == 1)
        program.run(150)
        cut = random.Random(seed)
        length = len(program.recorder.events)
        start = cut.randrange(length // 2) if seed % 4 else 0  # also from the very first one on
        trace = _Holed(program.recorder, start, cut.randrange(1, length // 4))
        assert reads_of(trace).damage == {}, seed  # type: ignore[arg-type]
        result = check(trace)  # type: ignore[arg-type]
        assert result.findings == (), (seed, result.findings[0])
        assert "missing in 1 place" in result.notes[0]


class _Holed:
    """A trace without `lost` events from `start` on."""

    def __init__(self, trace: MemoryRecorder, start: int, lost: int) -> None:
        self.num_blocks, self.block_size, self.block_bytes = trace.num_blocks, trace.block_size, 0
        keep = [i for i in range(len(trace.events)) if not start <= i < start + lost]
        self.events, self.seqs = trace.events[keep], trace.seqs[keep]
        self.sites, self.actors, self.facts, self.warnings = trace.sites, trace.actors, trace.facts, ()
        self.clean, self.dropped = True, lost
        self.detail, self.details_of = trace.detail, trace.details_of
