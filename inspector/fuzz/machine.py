"""A Hypothesis state machine that drives an allocator with small pools and colliding prompts.

Pools of 1 to 6 blocks of 1 to 4 slots make refusals, eviction and reuse frequent; two token values make prefixes
collide. Hypothesis leaves some rules out of each example (swarm testing), so that runs of forks, of appends or of
preemptions come up by themselves; it also shrinks what fails to the shortest program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import factorial
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis import target
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvscope.inspector.fuzz.harness import Call, Harness
from kvscope.inspector.fuzz.program import Program
from kvscope.inspector.fuzz.protocol import Factory, Sizes, Violation, offers

Rule = TypeVar("Rule", bound=Callable[..., Any])

MAX_LIVE = 6
MAX_STEPS = 3
MAX_HELD = 3  # transfers, lookups, and sequences in host memory
IDENTITIES: list[tuple[object, ...]] = [(("tenant", "a"),), (("adapter", "a"),), (("epoch", 1),)]
PICK = st.integers(0, MAX_LIVE - 1)  # which of the sequences there are, modulo their number: cheap to draw and shrink


def few_tokens(longest: int) -> st.SearchStrategy[list[int]]:
    """1 to `longest` tokens of two values, drawn as one number: a list costs two draws for each token."""
    return st.integers(0, (longest << longest) - 1).map(
        lambda number: [number // longest >> i & 1 for i in range(1 + number % longest)]
    )


TOKENS, PROMPT = few_tokens(3), few_tokens(6)


def can(*names: str) -> Callable[[Rule], Rule]:
    """A rule for allocators that offer these methods."""
    return precondition(lambda machine: offers(machine.harness.target, *names))


def choose(sequences: Iterable[int], pick: int) -> int:
    """One of the sequences."""
    ids = list(sequences)
    return ids[pick % len(ids)]


ROOM = precondition(lambda machine: len(machine.harness.live) < MAX_LIVE)
LIVE = precondition(lambda machine: machine.harness.live)


class TimeUp(KeyboardInterrupt):
    """The time given is over. Hypothesis lets an interrupt through untouched, and nothing else."""


@dataclass(slots=True)
class Tally:
    """What was done so far, and until when it may go on."""

    until: float = float("inf")  # of time.monotonic
    examples: int = 0
    rules: int = 0
    calls: int = 0
    failing: Program | None = None  # the program that broke a rule last
    now: list[Call] = field(default_factory=list)  # the program under way; its last call may not have returned
    size: tuple[int, int] = (0, 0)  # its blocks and slots


class AllocatorMachine(RuleBasedStateMachine):
    """Every operation of the protocol in any order; the harness checks after each."""

    factory: ClassVar[Factory]
    sizes: ClassVar[Sizes]
    tally: ClassVar[Tally]
    harness: Harness

    def __init__(self) -> None:
        super().__init__()
        self.next_seq = self.next_lease = 0
        self.seen: list[list[int]] = []
        self.failed = True

    @initialize(blocks=st.integers(0, 59), slots=st.integers(0, 11))
    def start(self, blocks: int, slots: int) -> None:
        """An empty pool."""
        sizes, tally = type(self).sizes, type(self).tally
        num_blocks, block_size = sizes.pools[blocks % len(sizes.pools)], sizes.blocks[slots % len(sizes.blocks)]
        self.harness = Harness(type(self).factory, num_blocks, block_size)
        tally.examples += 1
        tally.now, tally.size = self.harness.calls, (num_blocks, block_size)
        self.failed = False

    @ROOM
    @rule(like=st.integers(0, 3), cut=st.integers(0, 2), tokens=PROMPT)
    def add(self, like: int, cut: int, tokens: list[int]) -> None:
        """Admit a prompt: one of its own, or one that begins like a prompt seen before."""
        self._add(like, cut, tokens, ())

    @can("identity")
    @ROOM
    @rule(like=st.integers(0, 3), tokens=TOKENS, mine=st.integers(0, 2), other=st.integers(0, 2))
    def add_salted(self, like: int, tokens: list[int], mine: int, other: int) -> None:
        """Admit a prompt of another identity, and perhaps the same one of a third."""
        self._add(like, 0, tokens, IDENTITIES[mine])
        if other != mine and len(self.harness.live) < MAX_LIVE:
            self._do("add", self._new(), [*self.seen[-1], 0], IDENTITIES[other])

    @can("abandon")
    @rule(like=st.integers(0, 3), tokens=PROMPT, again=st.booleans())
    def abandon(self, like: int, tokens: list[int], again: bool) -> None:
        """Abort a prompt in front of the step that would have computed it; and perhaps somebody asks for it again."""
        self._add(like, 0, tokens, (), "abandon")
        if again and len(self.harness.live) < MAX_LIVE:
            self._do("add", self._new(), [*self.seen[-1], 0])

    @can("lookup", "forget")
    @ROOM
    @precondition(lambda machine: machine.seen and len(machine.harness.looked) < MAX_HELD)
    @rule(like=st.integers(1, 3), token=st.integers(0, 1), admit=st.booleans())
    def lookup(self, like: int, token: int, admit: bool) -> None:
        """Ask for what is cached of a prompt, and admit it at once, or ..."""
        seq, prompt = self._new(), [*self.seen[-min(like, len(self.seen))], token]
        self._do("lookup", seq, prompt)
        if admit:
            self._do("add", seq, prompt)

    @can("lookup", "forget")
    @precondition(lambda machine: machine.harness.looked)
    @rule(pick=PICK, admit=st.booleans())
    def looked_up(self, pick: int, admit: bool) -> None:
        """... later, or forget it."""
        seq = choose(self.harness.looked, pick)
        if admit and len(self.harness.live) < MAX_LIVE:
            self._do("add", seq, self.harness.looked[seq].tokens, self.harness.looked[seq].identity)
        else:
            self._do("forget", seq)

    @can("lease", "unlease")
    @LIVE
    @precondition(lambda machine: len(machine.harness.leases) < MAX_HELD)
    @rule(pick=PICK, twice=st.booleans())
    def lease(self, pick: int, twice: bool) -> None:
        """A transfer reads a sequence, or two do ..."""
        seq = choose(self.harness.live, pick)
        for _ in range(1 + twice):
            self.next_lease += 1
            self._do("lease", seq, self.next_lease - 1)

    @can("lease", "unlease")
    @precondition(lambda machine: machine.harness.leases)
    @rule(pick=PICK)
    def unlease(self, pick: int) -> None:
        """... until here."""
        self._do("unlease", choose(self.harness.leases, pick))

    @can("swap_out", "swap_in", "drain")
    @LIVE
    @precondition(lambda machine: not machine.harness.steps and len(machine.harness.swapped) < MAX_HELD)
    @rule(pick=PICK)
    def swap_out(self, pick: int) -> None:
        """Preempt to host memory ..."""
        self._do("swap_out", choose(self.harness.live, pick))

    @can("swap_out", "swap_in", "drain")
    @ROOM
    @precondition(lambda machine: machine.harness.swapped)
    @rule(pick=PICK)
    def swap_in(self, pick: int) -> None:
        """... and back."""
        self._do("swap_in", choose(self.harness.swapped, pick))

    @can("swap_out", "swap_in", "drain")
    @LIVE
    @precondition(lambda machine: not machine.harness.steps)
    @rule(order=st.integers(0, factorial(MAX_LIVE) - 1))
    def swap_all(self, order: int) -> None:
        """All make room for one another, and come back in any order."""
        going = list(self.harness.live)
        for seq in going:
            self._do("swap_out", seq)
        while going:
            order, pick = divmod(order, len(going))
            seq = going.pop(pick)
            if seq in self.harness.swapped:
                self._do("swap_in", seq)

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
    @rule(
        pick=PICK,
        drop=st.integers(1, 5),
        tokens=few_tokens(2),
        again=st.booleans(),
    )
    def truncate(self, pick: int, drop: int, tokens: list[int], again: bool) -> None:
        """Reject the last tokens, one is left at least, go on with others; and somebody asks for the old ones again."""
        seq = choose(self.harness.live, pick)
        before = list(self.harness.live[seq].tokens)
        self.seen.append(before)
        self._do("truncate", seq, max(1, len(before) - drop))
        kept = len(self.harness.live[seq].tokens)
        for nth, token in enumerate(tokens):  # the first is another than the rejected one: that is why it was rejected
            rejected = before[kept] if not nth and kept < len(before) else None
            self._do("append", seq, 1 - token if token == rejected else token)
        if again and len(self.harness.live) < MAX_LIVE:
            self._do("add", self._new(), [*before, 0], self.harness.live[seq].identity)

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

    @LIVE
    @rule(order=st.integers(0, factorial(MAX_LIVE) - 1), keep=st.integers(0, 1))
    def free_many(self, order: int, keep: int) -> None:
        """Finish all sequences, or all but one, in any order: every block must come back, whoever let go first."""
        while len(self.harness.live) > keep:
            order, pick = divmod(order, len(self.harness.live))
            self._do("free", choose(self.harness.live, pick))

    @precondition(lambda machine: machine.harness.can_add())
    @rule(token=st.integers(0, 1))
    def take_all(self, token: int) -> None:
        """Admit short prompts until no block is promised any more: each must be admitted."""
        for _ in range(self.harness.num_blocks + 1):
            if self.harness.can_add():
                self._do("add", self._new(), [token])

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
            target(self.harness.waiting, label="blocks freed while in use")

    def _new(self) -> int:
        self.next_seq += 1
        return self.next_seq - 1

    def _add(
        self, like: int, cut: int, tokens: list[int], identity: tuple[object, ...], operation: str = "add"
    ) -> None:
        start = self.seen[-like][: -cut or None] if 0 < like <= len(self.seen) else []
        prompt = start + tokens
        self.seen.append(prompt)
        self._do(operation, self._new(), prompt, identity)

    def _do(self, operation: str, *args: object) -> None:
        harness, tally = self.harness, type(self).tally
        before, self.failed = len(harness.calls), True
        if time.monotonic() > tally.until:
            raise TimeUp
        try:
            getattr(harness, operation)(*args)
        except Violation as violation:
            tally.failing = Program(harness.num_blocks, harness.block_size, tuple(harness.calls))
            violation.add_note("\n".join(tally.failing.lines()))
            raise
        tally.rules += 1
        tally.calls += len(harness.calls) - before
        self.failed = False


def machine_for(factory: Factory, tally: Tally | None = None) -> type[AllocatorMachine]:
    """The state machine over the allocators that `factory(num_blocks, block_size)` makes.

    Raises:
        UsageError: the factory names sizes that are none.
    """
    members = {"factory": staticmethod(factory), "sizes": Sizes.of(factory), "tally": tally or Tally()}
    return type("AllocatorMachine", (AllocatorMachine,), members)
