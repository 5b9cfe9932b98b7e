"""Beam units in the scheduler: however small the pool, every search ends, and says what it says when it is alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.beam import heirs
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.limits import blocks_needed
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence
from kvscope.inspector.findings import check
from kvscope.traces import Kind, MemoryRecorder, Reason

CONTEXT = 1 << 20


class Choice:
    """A candidate: what `heirs` needs of one, and its token."""

    def __init__(self, parent: int, token: int) -> None:
        self.parent, self.token = parent, token


def choose(outputs: list[list[int]], width: int) -> list[Choice]:
    """The model and the search: any function of all beams will do, as long as parents have 0..width children."""
    word = sum((i + 1) * (token + 1) for output in outputs for i, token in enumerate(output)) + len(outputs)
    return [Choice((word * (k + 3) // (k + 1) + k) % len(outputs), (word + k) % 3) for k in range(width)]


def alone(width: int, tokens: int) -> list[list[int]]:
    """The beams of a search when it is over."""
    outputs: list[list[int]] = [[]]
    for _ in range(tokens):
        outputs = [[*outputs[choice.parent], choice.token] for choice in choose(outputs, width)]
    return outputs


class FakeEngine:
    """Scheduler and block manager without a model; beams and single sequences (width 0)."""

    def __init__(self, num_blocks: int, block_size: int, config: SchedulerConfig, *, share: bool) -> None:
        self.sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
        self.manager = BlockManager(num_blocks, block_size, sink=self.sink, share_prefixes=share, hash_key=b"test")
        self.scheduler = Scheduler(self.manager, config, sink=self.sink)
        self.beams: dict[int, list[Sequence]] = {}
        self.done: dict[int, list[list[int]]] = {}
        self.next_seq = 0

    def new(self, request: Request) -> Sequence:
        self.next_seq += 1
        return Sequence(self.next_seq - 1, request)

    def submit(self, request: Request) -> None:
        sequence = self.new(request)
        self.beams[request.request_id] = [sequence]
        self.scheduler.submit(sequence)

    def step(self) -> None:
        plan = self.scheduler.schedule()
        if not plan.rows:
            return
        self.manager.begin_step(plan.rows)
        self.manager.copies_done(self.manager.drain_copies())
        self.manager.end_step()
        self.manager.check_integrity()
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            sequence.computed = row.hi
            sequence.waits = row.hi == sequence.length
        for number in {sequence.request.request_id for sequence in plan.sequences}:
            if all(beam.waits for beam in self.beams[number]):
                self.advance(self.beams[number])

    def advance(self, beams: list[Sequence]) -> None:
        request = beams[0].request
        chosen = choose([beam.output for beam in beams], request.params.width)
        following = [beams[choice.parent] for choice in chosen]
        for parent, ranks in zip(beams, heirs(chosen, len(beams)), strict=True):  # type: ignore[arg-type]
            if not ranks:
                self.drop(parent)
            for rank in ranks[:-1]:
                following[rank] = child = self.new(request)
                child.output = list(parent.output)
                child.computed, child.admitted = parent.computed, parent.admitted
                self.manager.fork(parent.seq_id, child.seq_id)
                self.scheduler.adopt(child)
        for beam, choice in zip(following, chosen, strict=True):
            beam.output.append(choice.token)
            beam.waits = False
        self.beams[request.request_id] = following
        if len(following[0].output) == request.params.max_tokens:
            self.done[request.request_id] = [beam.output for beam in following]
            for beam in following:
                self.drop(beam)

    def drop(self, beam: Sequence) -> None:
        self.scheduler.retire(beam)
        self.manager.free(beam.seq_id, Kind.FINISH, Reason.BEAM)


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.integers(1, 6), st.integers(0, 4)),
    min_size=1,
    max_size=6,
)


@given(
    requests=REQUESTS,
    spare=st.integers(0, 3),
    block_size=st.integers(1, 4),
    max_seqs=st.integers(4, 7),
    max_batched_tokens=st.integers(1, 12),
    watermark=st.sampled_from([0.0, 0.3]),
    share=st.booleans(),
)
def test_every_search_ends_with_what_it_says_alone(
    requests: list[tuple[list[int], int, int]],
    spare: int,
    block_size: int,
    max_seqs: int,
    max_batched_tokens: int,
    watermark: float,
    share: bool,
) -> None:
    """The pool is just large enough for the largest request, so most of them are preempted at some time."""
    params = [SamplingParams(max_tokens=tokens, beams=beams) for _, tokens, beams in requests]
    needed = max(
        blocks_needed(len(prompt), param, context=CONTEXT, block_size=block_size, share_prefixes=share)
        for (prompt, _, _), param in zip(requests, params, strict=True)
    )
    config = SchedulerConfig(max_seqs, max_batched_tokens, watermark)
    engine = FakeEngine(needed + spare, block_size, config, share=share)
    for number, (prompt, _, _) in enumerate(requests):
        engine.submit(Request(number, prompt, params[number]))
    steps = 0
    while engine.scheduler.has_work:
        engine.step()
        steps += 1
        assert steps < 2000, "the scheduler stands still"
        assert len(engine.scheduler.running) <= max_seqs
    assert engine.done == {number: alone(param.width, param.max_tokens) for number, param in enumerate(params)}
    assert engine.manager.num_free() == needed + spare
    assert check(engine.sink).findings == ()
