"""Drives an allocator until a rule breaks or the time is over, and makes what broke it short."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.answers import message_of
from kvscope.inspector.fuzz.machine import AllocatorMachine, Tally, TimeUp, machine_for
from kvscope.inspector.fuzz.program import Program
from kvscope.inspector.fuzz.protocol import Factory, Violation
from kvscope.inspector.fuzz.shrink import shrink

ROUND = 300  # examples of one round; each round has a seed of its own


@dataclass(frozen=True, slots=True)
class Failure:
    """A rule that broke, and the shortest program found that breaks it."""

    code: str
    message: str
    program: Program
    violation: Violation

    def __str__(self) -> str:
        return "\n".join([*self.program.lines(), self.message])


def hunt(
    factory: Factory,
    *,
    examples: int = 300,
    steps: int = 50,
    seed_value: int = 0,
    seconds: float = float("inf"),
    shrink_seconds: float = float("inf"),
    tally: Tally | None = None,
) -> Failure | None:
    """Drive an allocator until a rule breaks; None if none did. The same seed gives the same run.

    Args:
        examples: programs tried. steps: rules per program, at most.
        seconds: end after this time, whatever was done by then; a run of the same seed finds the same thing if it has
            the time. shrink_seconds: the time for making the program short.
        tally: counts what is done.

    Raises:
        UsageError: the allocator cannot be fuzzed, or one program breaks a rule and then does not.
    """
    tally = tally or Tally()
    tally.until = time.monotonic() + seconds
    machine = machine_for(factory, tally)
    try:
        for number, first in enumerate(range(0, examples, ROUND)):
            _round(machine, min(ROUND, examples - first), steps, seed_value + number)
    except TimeUp:
        return None
    except Violation as violation:
        assert tally.failing is not None
        return told_short(factory, tally.failing, violation, seconds=shrink_seconds)
    except Flaky as error:
        raise UsageError(f"{_MOVING}: {message_of(error)[:200]}") from error
    return None


def replay(factory: Factory, programs: Iterable[Program]) -> Failure | None:
    """Play programs that failed before; the first that still does."""
    for program in programs:
        violation = program.run(factory)
        if violation is not None:
            return told_short(factory, program, violation)
    return None


def told_short(factory: Factory, program: Program, violation: Violation, *, seconds: float = float("inf")) -> Failure:
    """The shortest program found that breaks the same rule as this one.

    Raises:
        UsageError: played again on a new allocator, it does not break it.
    """
    for played in (program, short := shrink(factory, program, violation.code, seconds=seconds)):
        again = played.run(factory)
        if again is None or again.code != violation.code:
            now = "none" if again is None else str(again)
            raise UsageError(f"{_MOVING}: it broke the rule {violation}; played again on a new allocator, {now}")
        violation = again
    return Failure(violation.code, str(violation), short, violation)


_MOVING = (
    "the target is not the same twice (it keeps state outside its allocators, in module globals or class attributes, "
    "or draws random numbers)"
)


def _round(machine: type[AllocatorMachine], examples: int, steps: int, seed_value: int) -> None:
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        # The programs are plain calls: `shrink` is faster on them than Hypothesis on its choices.
        phases=[Phase.generate, Phase.target],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(seed_value)(machine), settings=options)
