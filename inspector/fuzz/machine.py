"""A Hypothesis state machine that drives an allocator with small pools and colliding prompts.

Pools of 1 to 6 blocks of 1 to 4 slots make refusals, eviction and reuse frequent; two token values make prefixes
collide. Hypothesis leaves some rules out of each example (swarm testing), so that runs of forks, of appends or of
preemptions come up by themselves; it also shrinks what fails to the shortest program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, seed, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kvscope.inspector.fuzz.harness import Harness
from kvscope.inspector.fuzz.protocol import Factory, Violation, offers
from kvscope.inspector.fuzz.shrink import Program, shrink

Rule = TypeVar("Rule", bound=Callable[..., Any])

MAX_LIVE = 6
MAX_STEPS = 3
PICK = st.integers(0, MAX_LIVE - 1)  # which of the sequences there are, modulo their number: cheap to draw and shrink
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=3)
PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=6)


def can(*names: str) -> Callable[[Rule], Rule]:
    """A rule for allocators that offer these methods."""
    return precondition(lambda machine: offers(machine.harness.target, *names))


def choose(sequences: Iterable[int], pick: int) -> int:
    """One of the sequences."""
    ids = list(sequences)
    return ids[pick % len(ids)]


ROOM = precondition(lambda machine: len(machine.harness.live) < MAX_LIVE)
LIVE = precondition(lambda machine: machine.harness.live)


class AllocatorMachine(RuleBasedStateMachine):
    """Every operation of the protocol in any order; the harness checks after each."""

    factory: ClassVar[Factory]
    failing: ClassVar[Program | None] = None  # the program that broke a rule last
    harness: Harness

    def __init__(self) -> None:
        super().__init__()
        self.next_seq = 0
        self.seen: list[list[int]] = []
        self.failed = True

    @initialize(num_blocks=st.integers(1, 6), block_size=st.integers(1, 4))
    def start(self, num_blocks: int, block_size: int) -> None:
        """An empty pool."""
        self.harness = Harness(type(self).factory, num_blocks, block_size)
        self.failed = False

    @ROOM
    @rule(like=st.integers(0, 3), cut=st.integers(0, 2), tokens=PROMPT)
    def add(self, like: int, cut: int, tokens: list[int]) -> None:
        """Admit a prompt: one of its own, or one that begins like a prompt seen before."""
        self._add(like, cut, tokens, ())

    @can("identity")
    @ROOM
    @rule(like=st.integers(0, 3), cut=st.integers(0, 2), tokens=TOKENS)
    def add_salted(self, like: int, cut: int, tokens: list[int]) -> None:
        """Admit a prompt of another identity."""
        self._add(like, cut, tokens, ("salt",))

    @can("preempt")
    @precondition(lambda machine: machine.harness.preempted)
    @rule(pick=PICK)
    def add_again(self, pick: int) -> None:
        """Admit a preempted sequence with all tokens it had."""
        seq = choose(self.harness.preempted, pick)
        prefix = self.harness.preempted[seq]
        self._do("add", seq, prefix.tokens, prefix.identity)

    @LIVE
    @rule(pick=PICK, tokens=TOKENS)
    def append(self, pick: int, tokens: list[int]) -> None:
        """Decode some tokens."""
        seq = choose(self.harness.live, pick)
        for token in tokens:
            self._do("append", seq, token)

    @can("fork")
    @ROOM
    @LIVE
    @rule(pick=PICK)
    def fork(self, pick: int) -> None:
        """One more sample."""
        self._do("fork", choose(self.harness.live, pick), self._new())

    @can("truncate")
    @LIVE
    @rule(pick=PICK, drop=st.integers(0, 5), tokens=st.lists(st.integers(0, 1), max_size=2))
    def truncate(self, pick: int, drop: int, tokens: list[int]) -> None:
        """Reject the last tokens, one is left at least, and go on with others."""
        seq = choose(self.harness.live, pick)
        before = list(self.harness.live[seq].tokens)
        self.seen.append(before)
        self._do("truncate", seq, max(1, len(before) - drop))
        for token in tokens:
            self._do("append", seq, token)

    @can("preempt")
    @LIVE
    @rule(pick=PICK)
    def preempt(self, pick: int) -> None:
        """Give the blocks up."""
        self._do("preempt", choose(self.harness.live, pick))

    @LIVE
    @rule(pick=PICK)
    def free(self, pick: int) -> None:
        """Finish a sequence."""
        self._do("free", choose(self.harness.live, pick))

    @can("begin_step", "end_step")
    @LIVE
    @precondition(lambda machine: len(machine.harness.steps) < MAX_STEPS)
    @rule(members=st.integers(1, (1 << MAX_LIVE) - 1))
    def begin_step(self, members: int) -> None:
        """A step reads some sequences (one bit each) ..."""
        live = list(self.harness.live)
        self._do("begin_step", [seq for i, seq in enumerate(live) if members >> i & 1] or live[:1])

    @can("begin_step", "end_step")
    @precondition(lambda machine: machine.harness.steps)
    @rule()
    def end_step(self) -> None:
        """... until here."""
        self._do("end_step")

    def teardown(self) -> None:
        """What is left is freed, and every block must be back."""
        if not self.failed:
            self._do("finish")
            target(self.harness.shared, label="table entries saved by sharing")
            target(self.harness.taken, label="blocks taken")

    def _new(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1

    def _add(self, like: int, cut: int, tokens: list[int], identity: tuple[str, ...]) -> None:
        start = self.seen[-like][: -cut or None] if 0 < like <= len(self.seen) else []
        prompt = start + tokens
        self.seen.append(prompt)
        self._do("add", self._new(), prompt, identity)

    def _do(self, operation: str, *args: object) -> None:
        self.failed = True
        harness = self.harness
        try:
            getattr(harness, operation)(*args)
        except Violation as violation:
            program = Program(harness.target.num_blocks, harness.block_size, tuple(harness.calls))
            type(self).failing = program
            violation.add_note("\n".join(program.lines()))
            raise
        self.failed = False


def machine_for(factory: Factory) -> type[AllocatorMachine]:
    """The state machine over the allocators that `factory(num_blocks, block_size)` makes."""
    return type("AllocatorMachine", (AllocatorMachine,), {"factory": staticmethod(factory)})


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that broke, and the shortest program found that breaks it."""

    code: str
    message: str
    program: Program

    def __str__(self) -> str:
        return "\n".join([*self.program.lines(), self.message])


def hunt(factory: Factory, *, examples: int = 300, steps: int = 50, seed_value: int = 0) -> Failure | None:
    """Drive an allocator until a rule breaks; None if none did. The same seed gives the same run.

    Args:
        examples: programs tried. steps: rules per program, at most.
    """
    machine = machine_for(factory)
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=[Phase.generate],  # the programs are plain calls: `shrink` is faster on them than on Hypothesis' choices
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(seed_value)(machine), settings=options)
    except Violation as violation:
        assert machine.failing is not None
        program = shrink(factory, machine.failing, violation.code)
        return Failure(violation.code, str(program.run(factory) or violation), program)
    return None
