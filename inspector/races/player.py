"""Plays a race under a scheduler, one schedule at a time, and judges each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.fuzz.answers import told
from kvscope.inspector.races.control import Control
from kvscope.inspector.races.exhaustive import ExhaustiveScheduler
from kvscope.inspector.races.history import Frozen, History, Probe, freeze
from kvscope.inspector.races.linear import Sequential
from kvscope.inspector.races.locks import Controlled
from kvscope.inspector.races.pylevel import Tracer, place_of
from kvscope.inspector.races.race import LEVELS, Race, actions
from kvscope.inspector.races.schedule import ReplayScheduler, Scheduler, Switch
from kvscope.inspector.races.worker import Failure, Run, failure_of

_MOST_ORDERS = 3_000
_RAW = (int, str, float, list, dict, set, tuple, bytearray)


@dataclass(slots=True)
class Played:
    """One schedule and what came of it."""

    run: Run
    history: History
    failure: Failure | None
    observed: Frozen = None


class Player:
    """Holds the threads of a race, and runs it as often as wanted; close it in the end.

    Args:
        race: what is explored.
        level: where switch points are: `hook` (locks and events), `line` or `opcode`.
        max_points: a schedule with more points hangs.
        stall_s: a thread that reaches no point for so long is stuck.

    Raises:
        UsageError: the level is unknown, or the target cannot be made.
    """

    def __init__(
        self, race: Race, level: str = "opcode", *, max_points: int = 20_000, stall_s: float = 10.0
    ) -> None:  # fmt: skip
        if level not in LEVELS:
            raise UsageError(f"level is {level!r}: must be one of {', '.join(LEVELS)}")
        self.race, self.level = race, level
        self.control = Control(len(race.threads), max_points=max_points, stall_s=stall_s)
        self._window = Controlled(self.control)
        self._tracer: Tracer | None = None
        try:
            modules = race.looked_at(self._make() if race.modules is None else None)
        except BaseException:
            self.close()
            raise
        self._window = Controlled(self.control, modules)
        if level != "hook":
            self._tracer = Tracer(self.control, modules, opcodes=level == "opcode")
        self.sequential = Sequential(self._sequential_runs)

    def play(self, scheduler: Scheduler, *, detailed: bool = False, calls_only: bool = False) -> Played:
        """One schedule: a new target, all threads, the check.

        Args:
            detailed: note where in the source each point is; slower.
            calls_only: switch between operations only.
        """
        if self.control.lost:
            raise UsageError("a thread of an earlier schedule could not be ended: nothing more can be explored")
        history = History(frozenset(self.race.ids))
        self._prepare(detailed, calls_only)
        with self._window:
            target = self._target()
            seen = Probe(target, self.control, history) if not isinstance(target, _RAW) else target
            bodies = [self._body(i, seen) for i in range(len(self.race.threads))]
            run = self.control.run(bodies, scheduler)
            scheduler.end(run.decisions)
            failure, observed = run.failure, None
            if failure is None:
                failure, observed = self._judge(target)
        played = Played(run, history, failure, observed)
        if failure is None and self.race.linear and not calls_only:
            played.failure = self._linear(played)
        return played

    def replay(self, switches: tuple[Switch, ...], *, detailed: bool = False) -> Played:
        """The schedule with these switches."""
        return self.play(ReplayScheduler(switches), detailed=detailed)

    def close(self) -> None:
        """End the threads."""
        self.control.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _make(self) -> Any:
        with self._window:
            return self._target()

    def _target(self) -> Any:
        try:
            return self.race.make()
        except KVScopeError:
            raise
        except Exception as error:
            raise UsageError(f"{self.race.name}: make() raised {told(error)}") from error

    def _prepare(self, detailed: bool, calls_only: bool) -> None:
        self.control.calls_only = calls_only
        self.control.detail = None
        if self._tracer is not None:
            self._tracer.watching = detailed
        if detailed:
            self.control.detail = self._tracer.place if self._tracer is not None else place_of

    def _body(self, number: int, seen: Any) -> Callable[[], None]:
        thread, expected = self.race.threads[number], self.race.expected
        tracer = self._tracer

        def body() -> None:
            if tracer is not None:
                tracer.install()
            try:
                for action in actions(thread):
                    try:
                        action(seen)
                    except expected:
                        continue
            finally:
                if tracer is not None:
                    tracer.remove()

        return body

    def _judge(self, target: Any) -> tuple[Failure | None, Frozen]:
        """What is wrong with the target now that all threads have ended, and what can be seen of it."""
        try:
            problems = self.race.check(target) if self.race.check is not None else None
            observed = freeze(self.race.observe(target)) if self.race.observe is not None else None
        except Exception as error:  # noqa: BLE001 - whatever the target's own code or check raises is the verdict
            return failure_of(error), None
        if isinstance(problems, Failure):
            return problems, observed
        if problems and problems is not True:
            words = problems if isinstance(problems, str) else "; ".join(map(str, problems))  # type: ignore[call-overload]
            return Failure("violation", words), observed
        return None, observed

    def _linear(self, played: Played) -> Failure | None:
        if not played.history.ops or self.sequential.explains(played.history, played.observed):
            return None
        told = ", ".join(f"{op.words()} = {_brief(op.result)}" for op in played.history.ops)
        seen = f"; at the end {_brief(played.observed)}" if played.observed is not None else ""
        return Failure("not-linearizable", f"no order of the calls one after another gives these results: {told}{seen}")

    def _sequential_runs(self) -> list[tuple[History, Frozen]] | str:
        """Every run in which no call is interrupted; or why there is no such list."""
        orders = ExhaustiveScheduler(preemptions=1 << 10)
        runs: list[tuple[History, Frozen]] = []
        while orders.begin():
            if len(runs) >= _MOST_ORDERS:
                return f"there are more than {_MOST_ORDERS:,} orders of the calls"
            played = self.play(orders, calls_only=True)
            if self.control.lost:
                return "a call does not come to its end by itself"
            if self.control.blocked:
                return "calls wait for each other, so they cannot be made one after another"
            if played.failure is None:
                runs.append((played.history, played.observed))
        return runs


def _brief(value: Frozen) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
