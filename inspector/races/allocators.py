"""Any paged allocator under threads: random small programs, each under many schedules, judged from outside.

Threads share one allocator, and each has sequences of its own, some of which were forked from one prompt before the
threads began. No switch falls between the return of a call and the playing of its writes, so what is found is the
allocator's doing; what a call under way is about to write counts as written for a prompt that hits it. Judged are:
every sequence reads its own prefix through its table (shadow memory), no block is written that another one's table
holds, counts and conservation at the end. Whether results could have come from calls made one after another is not
judged here: which prompts hit, and so who is refused, may depend on the order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.fuzz.answers import told
from kvscope.inspector.fuzz.protocol import OPTIONAL, Factory, build, offers
from kvscope.inspector.races.exploration import explore_race
from kvscope.inspector.races.outcome import Outcome
from kvscope.inspector.races.program import MAX_THREADS, Operation, ThreadProgram
from kvscope.inspector.races.race import Race
from kvscope.inspector.races.shared import Shared

_MOST_POINTS = 500
_PROBED = 64  # schedules of a program by exhaustive search, then as many by PCT


def allocator_race(factory: Factory, program: ThreadProgram) -> Race:
    """The race of one program on an allocator."""

    def thread(number: int, operations: tuple[Operation, ...]) -> list[Callable[[Any], object]]:
        return [lambda shared, op=op: shared._target.step(number, *op, shared) for op in operations]  # type: ignore[misc]

    trial = _trial(factory, program)
    modules = Race(lambda: trial.target, [print, print]).looked_at(trial.target)
    return Race(
        lambda: Shared(factory, program), [thread(i, ops) for i, ops in enumerate(program.threads)],
        check=Shared.check, linear=False, modules=modules, name="allocator",
    )  # fmt: skip


def _trial(factory: Factory, program: ThreadProgram) -> Shared:
    """The allocator as it is before the threads begin.

    Raises:
        UsageError: it cannot be made, or its first calls fail.
    """
    try:
        return Shared(factory, program)
    except KVScopeError:
        raise
    except Exception as error:
        raise UsageError(f"the first calls on a new allocator fail: {told(error)}") from error


@dataclass(slots=True)
class AllocatorOutcome:
    """What came of many programs: that of the first one which failed, or how many were played."""

    program: ThreadProgram | None = None
    calls: list[str] = field(default_factory=list)  # of the program that failed, for people
    outcome: Outcome | None = None
    programs: int = 0
    schedules: int = 0
    seconds: float = 0.0

    @property
    def found(self) -> bool:
        """Whether a program failed."""
        return self.outcome is not None

    @property
    def replay(self) -> str | None:
        """The string that plays the failing program and schedule again."""
        return f"{self.program}@{self.outcome.replay}" if self.outcome is not None else None

    def text(self, width: int = 110) -> str:
        """The report, as plain text."""
        if self.outcome is None or self.program is None:
            return (
                f"{self.programs:,} programs under {self.schedules:,} schedules: nothing found ({self.seconds:.1f} s)"
            )
        own = "\n".join(f"  {line}" for line in self.calls)
        return f"{own}\n{self.outcome.text(width)}\n  replay of program and schedule: {self.replay}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "found": self.found, "programs": self.programs, "schedules": self.schedules,
            "seconds": round(self.seconds, 3), "program": self.calls if self.program is not None else None,
            "replay": self.replay, "outcome": None if self.outcome is None else self.outcome.to_json(),
        }  # fmt: skip


def explore_allocator(
    factory: Factory,
    *,
    threads: int = 2,
    seconds: float = 30.0,
    seed: int = 0,
    level: str | None = None,
    replay: str | None = None,
    programs: int | None = None,
    on_progress: Callable[[int, int, float], None] | None = None,
) -> AllocatorOutcome:
    """Small random programs on an allocator, small ones first, each under many schedules, until one fails.

    Args:
        factory: as for fuzzing. threads: 2 to 4. seconds: in all. seed: the same gives the same programs.
        level: where switch points are; None: at instructions, or at lines if a schedule would have too many.
        replay: play this string only. programs: no more than these.
        on_progress: called with programs, schedules and seconds so far.

    Raises:
        UsageError: the allocator cannot be made, or `replay` is no such string.
    """
    if replay is None and not 2 <= threads <= MAX_THREADS:
        raise UsageError(f"threads is {threads}: must be 2 to {MAX_THREADS} for an allocator")
    begun, result = time.perf_counter(), AllocatorOutcome()
    if replay is not None:
        program, schedule = ThreadProgram.parse(replay)
        outcome = explore_race(allocator_race(factory, program), replay=schedule)
        result.programs = result.schedules = 1
        if outcome.found:
            result.program, result.outcome, result.calls = program, outcome, _calls(factory, program)
        return result
    level = level or _level(factory, threads, seed)
    while time.perf_counter() - begun < seconds and result.programs != programs:
        program = ThreadProgram.draw(random.Random(f"{seed}:{result.programs}"), threads, 1 + result.programs // 20 % 4)
        outcome = _probe(factory, program, level, seed)
        result.programs += 1
        result.schedules += outcome.schedules
        if outcome.found:
            result.program, result.outcome = _shortened(factory, program, outcome, level, seed)
            result.calls = _calls(factory, result.program)
            break
        if on_progress is not None:
            on_progress(result.programs, result.schedules, time.perf_counter() - begun)
    result.seconds = time.perf_counter() - begun
    return result


def _calls(factory: Factory, program: ThreadProgram) -> list[str]:
    target = build(factory, program.num_blocks, program.block_size)
    return program.lines([name for name in OPTIONAL if offers(target, name)])


def _level(factory: Factory, threads: int, seed: int) -> str:
    """Instructions, where that is not too slow to see much of it."""
    program = ThreadProgram.draw(random.Random(seed), threads, 1)
    plain = explore_race(allocator_race(factory, program), schedules=1, seconds=20, seed=seed, shrink_s=0.1)
    return "opcode" if plain.points <= _MOST_POINTS else "line"


def _probe(factory: Factory, program: ThreadProgram, level: str, seed: int, *, shrink_s: float = 5.0) -> Outcome:
    race = allocator_race(factory, program)
    outcome = Outcome(race.name, level, len(race.threads))
    schedules = 0
    for scheduler in ("exhaustive", "pct"):
        outcome = explore_race(race, scheduler=scheduler, level=level, schedules=_PROBED, seconds=20, seed=seed,
                               preemptions=2, shrink_s=shrink_s)  # fmt: skip
        schedules += outcome.schedules
        if outcome.found:
            break
    outcome.schedules = schedules
    return outcome


def _shortened(
    factory: Factory, program: ThreadProgram, outcome: Outcome, level: str, seed: int
) -> tuple[ThreadProgram, Outcome]:
    """Without every operation that it fails without."""
    assert outcome.failure is not None
    again = True
    while again:
        again = False
        for smaller in program.smaller():
            tried = _probe(factory, smaller, level, seed)
            if tried.failure is not None and tried.failure.same_kind(outcome.failure):
                program, outcome, again = smaller, tried, True
                break
    return program, outcome
