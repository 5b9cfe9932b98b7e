"""Exploring a race: schedules until one fails or the time is over; the failing one made short, and played twice.

outcome = explore(Pool, [lambda pool: pool.release(0), lambda pool: pool.release(0)], check=Pool.verify)
assert not outcome.found, outcome.text()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.races.exhaustive import ExhaustiveScheduler
from kvscope.inspector.races.lanes import lanes_of
from kvscope.inspector.races.outcome import Outcome
from kvscope.inspector.races.pct import PctScheduler
from kvscope.inspector.races.player import Played, Player
from kvscope.inspector.races.race import Race, Thread
from kvscope.inspector.races.random_ import RandomScheduler
from kvscope.inspector.races.schedule import Replay, Scheduler, digest
from kvscope.inspector.races.shrink import Shrinker, preempts_with_gil
from kvscope.inspector.races.worker import Failure

SCHEDULERS = ("auto", "exhaustive", "pct", "random")
_NEED_NO_SWITCH = ("deadlock", "nondeterminism", "stuck", "hang")  # without one, they still say nothing of it
Progress = Callable[[int, float], None]  # schedules played, seconds


def explore(
    make: Callable[[], Any],
    threads: Sequence[Thread],
    *,
    scheduler: str | Scheduler = "auto",
    level: str = "opcode",
    schedules: int | None = None,
    seconds: float = 10.0,
    seed: int = 0,
    preemptions: int = 3,
    depth: int = 3,
    replay: str | None = None,
    max_points: int = 20_000,
    stall_s: float = 10.0,
    shrink_s: float = 5.0,
    on_progress: Progress | None = None,
    **race: Any,
) -> Outcome:
    """Run a few threads over one object under many schedules, and report the first that goes wrong.

    Args:
        make, threads: see `Race`, as are the further arguments (`check`, `observe`, `ids`, `expected`, `linear`,
            `modules`, `name`).
        scheduler: `exhaustive` plays everything with up to `preemptions` preemptions, fewer first; `pct` has a
            probability bound for bugs of `depth` ordering constraints; `random`; `auto` plays exhaustive with at most
            2 preemptions for half of the time, then PCT. Or an object of your own.
        level: where switch points are: `opcode` and `line` for any Python code, `hook` for locks and events only.
        schedules, seconds: when to stop at the latest.
        seed: decides what is random.
        replay: play this schedule only; its level is used.
        max_points, stall_s: when a schedule counts as endless, by points and by the clock.
        shrink_s: how long to look for a shorter failing schedule.
        on_progress: called now and then.

    Raises:
        UsageError: the target cannot be made, or an argument has no meaning.
    """
    return explore_race(
        Race(make, threads, **race), scheduler=scheduler, level=level, schedules=schedules, seconds=seconds, seed=seed,
        preemptions=preemptions, depth=depth, replay=replay, max_points=max_points, stall_s=stall_s, shrink_s=shrink_s,
        on_progress=on_progress,
    )  # fmt: skip


def explore_race(
    race: Race,
    *,
    scheduler: str | Scheduler = "auto",
    level: str = "opcode",
    schedules: int | None = None,
    seconds: float = 10.0,
    seed: int = 0,
    preemptions: int = 3,
    depth: int = 3,
    replay: str | None = None,
    max_points: int = 20_000,
    stall_s: float = 10.0,
    shrink_s: float = 5.0,
    on_progress: Progress | None = None,
) -> Outcome:
    """`explore` of a `Race`."""
    given = Replay.parse(replay) if replay is not None else None
    if given is not None:
        level = given.level
        if given.threads != len(race.threads):
            raise UsageError(f"the replay string is of {given.threads} threads, this race has {len(race.threads)}")
    if seconds <= 0 or (schedules is not None and schedules < 1):
        raise UsageError(f"seconds must be above 0 and schedules at least 1, got {seconds:g} and {schedules}")
    player = Player(race, level, max_points=max_points, stall_s=stall_s)
    outcome = Outcome(race.name, level, len(race.threads))
    begun = time.perf_counter()
    try:
        if given is not None:
            _replay(player, outcome, given)
            return outcome
        phases = _phases(scheduler, len(race.threads), seconds, seed, preemptions, depth)
        _Search(player, outcome, schedules, on_progress).run(phases, shrink_s)
        return outcome
    finally:
        outcome.seconds = time.perf_counter() - begun
        player.close()


def _phases(
    scheduler: str | Scheduler, threads: int, seconds: float, seed: int, preemptions: int, depth: int
) -> list[tuple[Scheduler, float]]:
    """Schedulers, each with the second at which it has to stop."""
    if not isinstance(scheduler, str):
        return [(scheduler, seconds)]
    if scheduler == "auto":
        return [
            (ExhaustiveScheduler(min(preemptions, 2)), seconds / 2),
            (PctScheduler(threads, depth, seed), seconds),
        ]
    if scheduler == "exhaustive":
        return [(ExhaustiveScheduler(preemptions), seconds)]
    if scheduler == "pct":
        return [(PctScheduler(threads, depth, seed), seconds)]
    if scheduler == "random":
        return [(RandomScheduler(seed), seconds)]
    raise UsageError(f"scheduler is {scheduler!r}: must be one of {', '.join(SCHEDULERS)}")


class _Search:
    """Schedules one after another, until one fails."""

    def __init__(self, player: Player, outcome: Outcome, schedules: int | None, on_progress: Progress | None) -> None:
        self.player, self.outcome, self.limit, self.on_progress = player, outcome, schedules, on_progress
        self.begun = time.perf_counter()
        self._histories: set[Any] = set()

    def run(self, phases: list[tuple[Scheduler, float]], shrink_s: float) -> None:
        """All phases, or until the first failure; then what failed is made short."""
        failed = self._twice(phases[0][0])
        for scheduler, until in phases:
            failed = failed or self._phase(scheduler, until)
            self.outcome.explored.append({"scheduler": scheduler.name, **scheduler.statement()})
            if failed is not None:
                break
        self.outcome.histories = len(self._histories)
        self._judged()
        if failed is not None:
            self.outcome.to_failure_s = time.perf_counter() - self.begun
            self._settle(failed, shrink_s)

    def _twice(self, first: Scheduler) -> Played | None:
        """The plain schedule twice: what it does has to be the same, or no schedule means anything."""
        one, two = self.player.replay(()), None
        if one.failure is None and not self.player.control.lost:
            two = self.player.replay(())
            if digest(one.run.trail) != digest(two.run.trail):
                one.failure = Failure("nondeterminism", _difference(one, two))
        return self._seen(one) if one.failure is not None else None

    def _phase(self, scheduler: Scheduler, until: float) -> Played | None:
        last = time.perf_counter()
        while scheduler.begin():
            now = time.perf_counter()
            if now - self.begun > until or (self.limit is not None and self.outcome.schedules >= self.limit):
                break
            if self.on_progress is not None and now - last > 0.1:
                last = now
                self.on_progress(self.outcome.schedules, now - self.begun)
            played = self._seen(self.player.play(scheduler))
            if played.failure is not None:
                return played
        return None

    def _seen(self, played: Played) -> Played:
        self.outcome.schedules += 1
        self.outcome.points = max(self.outcome.points, len(played.run.trail))
        history = played.history
        self._histories.add(hash((history.results(played.observed), history.order())))
        return played

    def _judged(self) -> None:
        sequential = self.player.sequential
        if not self.player.race.linear or not sequential.asked:
            return
        if sequential.unknown:
            self.outcome.notes.append(f"linearizability was not judged: {sequential.unknown}")
        else:
            self.outcome.sequential = sequential.count

    def _settle(self, failed: Played, shrink_s: float) -> None:
        assert failed.failure is not None
        outcome = self.outcome
        switches = failed.run.decisions.switches
        if failed.failure.kind not in ("stuck", "nondeterminism"):
            switches = Shrinker(self.player, failed.failure, shrink_s).shrink(switches)
        show(self.player, outcome, switches, failed)


def show(player: Player, outcome: Outcome, switches: tuple[tuple[int, int], ...], failed: Played) -> None:
    """Play a failing schedule twice, with all details, and put it into the outcome."""
    outcome.failure = failed.failure
    outcome.replay = str(Replay(player.level, outcome.threads, switches, digest(failed.run.trail)))
    if player.control.lost:
        return
    one = player.replay(switches, detailed=True)
    two = player.replay(switches, detailed=True) if not player.control.lost else one
    if failed.failure is not None and not failed.failure.same_kind(one.failure):
        outcome.deterministic = False
    outcome.deterministic &= one.run.trail == two.run.trail and one.failure == two.failure
    if failed.failure is not None and failed.failure.kind != "nondeterminism" and one.failure is not None:
        outcome.failure = one.failure
    outcome.lanes = lanes_of(one.run, outcome.threads)
    outcome.replay = str(Replay(player.level, outcome.threads, one.run.decisions.switches, digest(one.run.trail)))
    outcome.preemptions = one.run.decisions.preemptions
    outcome.switches = len(outcome.lanes.stretches) - 1
    outcome.gil = player.level == "hook" or preempts_with_gil(one)
    if outcome.preemptions == 0 and outcome.failure is not None and outcome.failure.kind not in _NEED_NO_SWITCH:
        outcome.notes.append("it fails without a switch inside an operation: no race is needed")


def _replay(player: Player, outcome: Outcome, given: Replay) -> None:
    played = player.replay(given.switches)
    outcome.schedules = outcome.histories = 1
    outcome.points = len(played.run.trail)
    outcome.explored.append({"scheduler": "replay", "replayed": len(given.switches)})
    found = digest(played.run.trail)
    if given.digest and found != given.digest:
        outcome.notes.append(
            f"this is not the run that the string was taken from (its points give {found}, not {given.digest}): the "
            "program, or the Python version, is another one"
        )
    if played.failure is not None:
        show(player, outcome, given.switches, played)


def _difference(one: Played, two: Played) -> str:
    """Where two runs of one schedule part."""
    for i, (a, b) in enumerate(zip(one.run.trail, two.run.trail, strict=False)):
        if a != b:
            first, then = (f"{label} by worker-{thread + 1}" for thread, label in (a, b))
            return f"the same schedule differs at point {i + 1}: {first}, then {then}"
    return f"the same schedule has {len(one.run.trail)} points, then {len(two.run.trail)}"
