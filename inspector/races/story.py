"""The articles' story: two workers decode samples of one prompt over a pool whose counts are not atomic.

    worker-1   forks a sample, then decodes it and the sequence of the prompt
    worker-2   forks two samples of the same prompt, then decodes them

There is one device, which runs one step at a time; the pool's operations race. The same program runs on shadow memory,
where the explorer finds the schedule in milliseconds, and on a real model, where its string plays it again: which
blocks are taken does not depend on which tokens are chosen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.sequence import Request, SamplingParams, Sequence, Status
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.errors import FaultyCall
from kvscope.inspector.fuzz.shadow import Prefix, Shadow
from kvscope.inspector.races.control import current
from kvscope.inspector.races.exploration import explore_race
from kvscope.inspector.races.hooks import pool
from kvscope.inspector.races.outcome import Outcome
from kvscope.inspector.races.planted import CountsNotAtomic
from kvscope.inspector.races.race import Race
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

BLOCK_SIZE, SAMPLES = 16, 4
OWNED = ((0, 1), (2, 3))  # samples of each worker; sample 0 is the sequence that computed the prompt
LEVEL = "hook"


class Device(Protocol):
    """What computes a step: shadow memory, or a model."""

    def step(
        self, manager: BlockManager, rows: list[Sequence], spans: list[Scheduled], copies: list[Copy]
    ) -> list[int]:
        """Run copies, write the KV of these spans and attend; returns the next token of each row."""
        ...


@dataclass
class ShadowDevice:
    """Shadow memory: every sequence has to read its own prefix; tokens are made up, other ones for each sample."""

    shadow: Shadow = field(default_factory=lambda: Shadow(BLOCK_SIZE))
    fatal: bool = True

    def step(
        self, manager: BlockManager, rows: list[Sequence], spans: list[Scheduled], copies: list[Copy]
    ) -> list[int]:
        """Raises: Violation where a sequence reads what is not its own."""
        for copy in copies:
            self.shadow.copy(copy.source, copy.target, copy.slots)
        for sequence, span in zip(rows, spans, strict=True):
            table, prefix = manager.table(sequence.seq_id), Prefix(list(sequence.tokens))
            for position in range(span.lo, span.hi):
                self.shadow.write(table, prefix, position)
            if self.fatal:
                self.shadow.check(sequence.seq_id, table, prefix)
        return [1_000 * (s.seq_id + 1) + s.length for s in rows]


class Story:
    """One run: the pool, the device, and what the workers do.

    Args:
        prompt: its tokens; their number decides which blocks are shared.
        max_tokens: of each sample; some end earlier than others.
        manager: the pool. device: what computes. sink: where events go.
    """

    def __init__(
        self, prompt: list[int], max_tokens: tuple[int, ...], *, manager: type[BlockManager], device: Device,
        sink: EventSink | None = None, params: Callable[[int], SamplingParams] | None = None,
    ) -> None:  # fmt: skip
        self.device, self.max_tokens, self.sink = device, max_tokens, sink
        self.manager = pool(
            blocks_needed(len(prompt), max_tokens), BLOCK_SIZE, manager=manager, sink=sink, share_prefixes=False
        )  # fmt: skip
        self.gpu = threading.Lock()  # one step at a time
        self.forked, self.to_fork = threading.Condition(), len(OWNED)  # workers that have not forked all of theirs
        make = params or (lambda count: SamplingParams(count, n=SAMPLES, ignore_eos=True))
        request = Request(0, prompt, make(max(max_tokens)), "story")
        self.samples = [Sequence(i, request, i) for i in range(SAMPLES)]
        self.errors: list[str] = []
        self._begin(len(prompt))

    def _begin(self, length: int) -> None:
        """The prompt is computed once, before the workers start."""
        first = self.samples[0]
        self._fact(type="request", request=0, name="story", seq_ids=[0], prompt_tokens=length,
                   max_tokens=max(self.max_tokens), samples=SAMPLES)  # fmt: skip
        self.manager.record(Kind.SUBMIT, Reason.NONE, 0, length, details=(0, max(self.max_tokens), SAMPLES))
        self.manager.admit(0, first.tokens)
        first.status, first.admitted = Status.RUNNING, length
        self.manager.write(0, 0, length)
        self.next = self._compute([first], [Scheduled(0, 0, length)])[0]

    def work(self, worker: int) -> None:
        """Fork the own samples, decode them in turn, and give each back when it is done."""
        own = [self.samples[i] for i in OWNED[worker]]
        for sequence in own:
            if sequence.seq_id:
                self._fork(sequence)
        with self.forked:
            self.to_fork -= 1
            self.forked.notify_all()
            while self.to_fork:
                self.forked.wait()
        while own:
            for sequence in list(own):
                if len(sequence.output) >= self.max_tokens[sequence.sample]:
                    own.remove(sequence)
                    self._finish(sequence)
                else:
                    self._decode(sequence)

    def _fork(self, sequence: Sequence) -> None:
        parent = self.samples[0]
        self.manager.fork(0, sequence.seq_id)
        self._fact(type="sample", request=0, sample=sequence.sample, seq_id=sequence.seq_id)
        length = len(parent.request.prompt)
        sequence.status, sequence.admitted, sequence.computed = Status.RUNNING, length, length

    def _decode(self, sequence: Sequence) -> None:
        if not sequence.output:
            sequence.output.append(self._first(sequence))
        with self.gpu:
            self.manager.append(sequence.seq_id, sequence.output[-1])
            token = self._compute([sequence], [Scheduled(sequence.seq_id, sequence.length - 1, sequence.length)])[0]
        sequence.output.append(token)

    def _first(self, sequence: Sequence) -> int:
        chosen = getattr(self.device, "first_token", None)
        return int(chosen(sequence)) if chosen is not None else self.next + 1_000 * sequence.seq_id

    def _compute(self, rows: list[Sequence], spans: list[Scheduled]) -> list[int]:
        self.manager.begin_step(spans)
        copies = self.manager.drain_copies()
        control = current()
        if control is None or control.mine() is None:
            tokens = self.device.step(self.manager, rows, spans, copies)
        else:
            with control.quiet():  # what the device does has no switch points: it is one step, whoever computes it
                tokens = self.device.step(self.manager, rows, spans, copies)
        self.manager.copies_done(copies)
        self.manager.end_step()
        for sequence, span in zip(rows, spans, strict=True):
            sequence.computed = span.hi
        return tokens

    def _finish(self, sequence: Sequence) -> None:
        try:
            self.manager.free(sequence.seq_id, Kind.FINISH, Reason.LENGTH, aux=len(sequence.output))
        except FaultyCall as error:  # the pool finds, at last, that something is wrong
            self.errors.append(str(error))
        text = getattr(self.device, "text", None)
        more = {"text": text(sequence)} if text is not None else {}
        self._fact(
            type="output", request=0, seq_id=sequence.seq_id, tokens=len(sequence.output), finish="length", **more
        )

    def _fact(self, **record: Any) -> None:
        if self.sink is not None:
            self.sink.fact(record)


def blocks_needed(prompt: int, max_tokens: tuple[int, ...]) -> int:
    """A pool that holds all samples without sharing: no sample is ever refused."""
    return sum(-(-(prompt + tokens) // BLOCK_SIZE) for tokens in max_tokens) + 1


def story_race(
    prompt: list[int], max_tokens: tuple[int, ...], *, manager: type[BlockManager] = CountsNotAtomic,
    device: Callable[[], Device] = ShadowDevice, sink: Callable[[], EventSink | None] = lambda: None,
    params: Callable[[int], SamplingParams] | None = None, keep: Callable[[Story], object] = lambda story: None,
) -> Race:  # fmt: skip
    """The race of the story; `keep` is given every run when its threads have ended."""

    def make() -> Story:
        return Story(prompt, max_tokens, manager=manager, device=device(), sink=sink(), params=params)

    def check(story: Story) -> str | None:
        keep(story)
        return story.errors[0] if story.errors else None

    return Race(make, [lambda s: s.work(0), lambda s: s.work(1)], check=check, expected=(), linear=False, modules=(),
                name="two workers, one prompt")  # fmt: skip


def find(prompt: list[int], max_tokens: tuple[int, ...], *, seconds: float = 60.0, seed: int = 0) -> Outcome:
    """The shortest schedule under which a sample reads what is not its own, found on shadow memory."""
    return explore_race(story_race(prompt, max_tokens), level=LEVEL, scheduler="exhaustive", preemptions=2,
                        seconds=seconds, seed=seed)  # fmt: skip
