"""The accounting half as an engine drives it: steps open while sequences come and go, a scheduler over a tight pool."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun, Operation
from kvscope.inspector.fuzz.shadow import Prefix, Shadow
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import DETAIL_FIELDS, EventArray, Kind

RUNS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5), st.integers(0, 9)), max_size=60)
BLOCKS, SLOTS = st.integers(2, 6), st.integers(1, 4)


@given(num_blocks=BLOCKS, block_size=SLOTS, operations=RUNS)
def test_any_run_is_sound_and_its_trace_a_legal_ledger(
    num_blocks: int, block_size: int, operations: list[Operation]
) -> None:
    """Reads are right, what an open step uses is not handed out, what is published exists; the trace says so too."""
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    DeviceRun(num_blocks, block_size, sink=sink).play(operations)
    ledger = Ledger(num_blocks)
    ledger.replay(sink)
    assert not ledger.entries.total()
    assert check(sink).findings == ()


class Ledger:
    """A second, simple opinion on what the events of a pool add up to."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.entries, self.leases, self.ref = Counter[int](), Counter[int](), Counter[int]()
        self.free, self.quarantined, self.published = set(range(num_blocks)), set[int](), set[int]()
        self.expect: tuple[int, set[Kind]] | None = None  # the block just let go of, and what must follow

    def replay(self, sink: MemoryRecorder) -> None:
        events = sink.events
        for seq in range(len(events)):
            self.apply(events[seq], sink.detail(seq))

    def apply(self, event: EventArray, details: tuple[int, ...] | None) -> None:
        kind, block = Kind(int(event["kind"])), int(event["block"])
        self.follows(kind, block)
        if block >= 0 and event["ref_before"] >= 0:
            assert event["ref_before"] == self.ref[block], f"{kind.name} of b{block}: the chain of counts is broken"
            self.ref[block] = int(event["ref_after"])
        if kind == Kind.ALLOC:
            assert block in self.free
            self.free.remove(block)
            self.entries[block] = 1
        elif kind in (Kind.SHARE, Kind.HIT):
            assert kind == Kind.SHARE or block in self.published
            self.entries[block] += 1
        elif kind == Kind.RELEASE:
            self.entries[block] -= 1
            self.let_go(block)
        elif kind == Kind.LEASE:
            self.leases[block] += 1
        elif kind == Kind.UNLEASE:
            self.leases[block] -= 1
            self.let_go(block)
        elif kind == Kind.WRITE:
            assert self.entries[block] == 1
            assert block not in self.published
        elif kind == Kind.PUBLISH:
            self.published.add(block)
        elif kind == Kind.EVICT:
            assert self.ref[block] == 0
            self.published.remove(block)
        elif kind in (Kind.FREE, Kind.SETTLE):
            assert block not in self.free
            self.free.add(block)
            self.quarantined.discard(block)
        elif kind == Kind.QUARANTINE:
            self.quarantined.add(block)
        elif kind == Kind.WITNESS:
            assert details is not None
            assert dict(zip(DETAIL_FIELDS[kind], details, strict=False)).items() >= self.counts().items()

    def let_go(self, block: int) -> None:
        assert self.entries[block] >= 0
        assert self.leases[block] >= 0
        if self.ref[block] == 0 and block not in self.published:
            self.expect = block, {Kind.FREE, Kind.QUARANTINE}

    def follows(self, kind: Kind, block: int) -> None:
        if self.expect is not None:
            assert kind in self.expect[1]
            assert block == self.expect[0]
        elif kind in (Kind.FREE, Kind.QUARANTINE):
            assert kind == Kind.FREE
            assert self.ref[block] == 0
            assert block not in self.published, "freed and still findable"
        self.expect = None

    def counts(self) -> dict[str, int]:
        held = +self.entries
        shared = sum(count > 1 for count in held.values())
        unheld = [b for b in range(self.num_blocks) if not self.entries[b]]
        return {
            "free": len(self.free),
            "private": len(held) - shared,
            "shared": shared,
            "cached": sum(b in self.published and not self.leases[b] for b in unheld),
            "quarantined": len(self.quarantined),
            "in_transit": sum(self.leases[b] > 0 for b in unheld),
            "table_entries": held.total(),
        }


# -- the scheduler over a pool that is too small ----------------------------------------------------------------------


def next_token(tokens: list[int], sample: int) -> int:
    """The model: any function of the whole prefix will do."""
    return (sum((i + 1) * token for i, token in enumerate(tokens)) + len(tokens) + sample) % 3


def alone(prompt: list[int], sample: int, max_tokens: int) -> list[int]:
    """What a request says when nothing else runs."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens, sample))
    return tokens[len(prompt) :]


class FakeEngine:
    """Scheduler and block manager around shadow memory: reads are checked, tokens come from what is read."""

    def __init__(self, num_blocks: int, block_size: int, config: SchedulerConfig) -> None:
        self.manager = BlockManager(num_blocks, block_size, hash_key=b"test")
        self.scheduler = Scheduler(self.manager, config)
        self.shadow = Shadow(block_size)
        self.done: list[Sequence] = []
        self.forked: set[int] = set()
        self.next_seq = 0

    def new(self, request: Request, sample: int) -> Sequence:
        self.next_seq += 1
        return Sequence(self.next_seq - 1, request, sample)

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
        self.manager.check_integrity()
        for sequence in plan.sequences:
            if sequence.computed == sequence.length:
                for member in [sequence, *self.samples(sequence)]:
                    self.advance(member)

    def samples(self, sequence: Sequence) -> list[Sequence]:
        request = sequence.request
        if request.request_id in self.forked:
            return []
        self.forked.add(request.request_id)
        children = [self.new(request, number) for number in range(1, request.params.n)]
        for child in children:
            child.computed, child.admitted = sequence.computed, sequence.admitted
            self.manager.fork(sequence.seq_id, child.seq_id)
            self.scheduler.adopt(child)
        return children

    def advance(self, sequence: Sequence) -> None:
        sequence.output.append(next_token(sequence.tokens, sequence.sample))
        if len(sequence.output) == sequence.request.params.max_tokens:
            self.scheduler.retire(sequence)
            self.manager.free(sequence.seq_id)
            self.done.append(sequence)


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.integers(1, 6), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@given(
    requests=REQUESTS,
    spare=st.integers(0, 3),
    block_size=SLOTS,
    max_seqs=st.integers(3, 6),
    max_batched_tokens=st.integers(1, 12),
    watermark=st.sampled_from([0.0, 0.3]),
)
def test_scheduler_always_drains_and_preemption_changes_no_token(
    requests: list[tuple[list[int], int, int]],
    spare: int,
    block_size: int,
    max_seqs: int,
    max_batched_tokens: int,
    watermark: float,
) -> None:
    """The pool is just large enough for the largest request, so most of them are preempted at some time."""
    needed = max(-(-(len(prompt) + tokens - 1) // block_size) for prompt, tokens, _ in requests)
    engine = FakeEngine(needed + spare, block_size, SchedulerConfig(max_seqs, max_batched_tokens, watermark))
    for number, (prompt, tokens, samples) in enumerate(requests):
        request = Request(number, prompt, SamplingParams(max_tokens=tokens, n=samples))
        engine.scheduler.submit(engine.new(request, 0))
    steps = 0
    while engine.scheduler.has_work:
        engine.step()
        steps += 1
        assert steps < 2000, "the scheduler stands still"
    assert len(engine.done) == sum(samples for _, _, samples in requests)
    for sequence in engine.done:
        request = sequence.request
        assert sequence.output == alone(request.prompt, sequence.sample, request.params.max_tokens)
    assert engine.manager.num_free() == needed + spare
    assert np.all(engine.manager.pool.entries == 0)
