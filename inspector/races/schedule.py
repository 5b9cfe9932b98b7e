"""Schedules: what a scheduler decides, and the string that brings a decision back.

At every switch point where more than one thread could go on, the scheduler gives a small integer: 0 is what happens
when nothing is switched (the running thread goes on; where it cannot, the next one in the circle), k is the k-th
other choice. A schedule is the list of these integers, nearly all of them 0, so it is written as those that are not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvscope.errors import UsageError

Switch = tuple[int, int]  # number of the decision, choice: never 0
_HEAD = "kvr1"


class Scheduler(Protocol):
    """Chooses who runs. One object plays many schedules: `begin`, then `choose` at each decision, then `end`."""

    name: str

    def begin(self) -> bool:
        """Get ready for the next schedule; False if there is none left."""
        ...

    def choose(self, options: Sequence[int], current: int, number: int) -> int:
        """Index into `options` (thread numbers); `current` is the thread that could go on, -1 if it cannot.

        `number` counts the decisions of this schedule. Where `current` is not -1, options[0] is it.
        """
        ...

    def end(self, decisions: Decisions) -> None:
        """The schedule has been played; these were its decisions."""
        ...

    def statement(self) -> dict[str, Any]:
        """What was explored, in numbers."""
        ...


@dataclass(slots=True)
class Decisions:
    """Every decision of one run. options[i]: how many threads could go on; forced[i]: the running one could not."""

    choices: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)
    forced: list[bool] = field(default_factory=list)
    at: list[int] = field(default_factory=list)  # how many points came before it

    def __len__(self) -> int:
        return len(self.choices)

    def add(self, choice: int, options: int, *, forced: bool, at: int) -> None:
        """One more decision."""
        self.choices.append(choice)
        self.options.append(options)
        self.forced.append(forced)
        self.at.append(at)

    @property
    def switches(self) -> tuple[Switch, ...]:
        """The decisions that were not 0."""
        return tuple((i, choice) for i, choice in enumerate(self.choices) if choice)

    @property
    def preemptions(self) -> int:
        """Threads that were stopped although they could have gone on."""
        return sum(1 for choice, forced in zip(self.choices, self.forced, strict=True) if choice and not forced)


@dataclass(frozen=True, slots=True)
class Replay:
    """A schedule as a string: `kvr1:opcode:2:14.1-30.1:9f3a`.

    level: where switch points are. threads: how many. switches: decisions other than 0. digest: of the points of the
    run that it was taken from; a replay in which they differ says so.
    """

    level: str
    threads: int
    switches: tuple[Switch, ...]
    digest: str = ""

    def __str__(self) -> str:
        moves = "-".join(f"{number}.{choice}" for number, choice in self.switches) or "none"
        return f"{_HEAD}:{self.level}:{self.threads}:{moves}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Replay:
        """The schedule that a string stands for.

        Raises:
            UsageError: it is not one; says what it should look like.
        """
        try:
            head, level, threads, moves, digest = text.strip().split(":")
            pairs = [] if moves == "none" else [move.split(".") for move in moves.split("-")]
            switches = tuple((int(number), int(choice)) for number, choice in pairs)
            if head != _HEAD or int(threads) < 1 or any(number < 0 or choice < 1 for number, choice in switches):
                raise ValueError
        except ValueError:
            raise UsageError(
                f"{text.strip()[:60]!r} is no replay string: one looks like {_HEAD}:opcode:2:14.1-30.1:9f3a"
            ) from None
        return cls(level, int(threads), switches, digest)


class ReplayScheduler:
    """Plays one given schedule, as often as it is asked to."""

    name = "replay"

    def __init__(self, switches: Iterable[Switch]) -> None:
        self.moves = dict(switches)

    def begin(self) -> bool:
        """Always: the same again."""
        return True

    def choose(self, options: Sequence[int], current: int, number: int) -> int:
        """What the schedule says; 0 where it says nothing, or asks for a thread that is not there."""
        choice = self.moves.get(number, 0)
        return choice if choice < len(options) else 0

    def end(self, decisions: Decisions) -> None:
        """Nothing to remember."""

    def statement(self) -> dict[str, Any]:
        """One schedule."""
        return {"replayed": len(self.moves)}


def digest(trail: Sequence[tuple[int, tuple[Any, ...]]]) -> str:
    """Four hex digits that stand for the points of a run."""
    text = "\n".join(f"{thread} {label}" for thread, label in trail)
    return hashlib.blake2b(text.encode(), digest_size=2).hexdigest()
