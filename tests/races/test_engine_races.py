"""Planted concurrency faults are found, each by its kind; the pool and the engine as they are stay clean."""

from __future__ import annotations

from typing import Any

import pytest

from kvscope.inspector.races import explore
from kvscope.inspector.races.exploration import explore_race
from kvscope.inspector.races.hooks import PoolJudge
from kvscope.inspector.races.kinds import KINDS, pool_race, prepared, search
from kvscope.inspector.races.script import Script
from kvscope.inspector.races.world import world_race

TWO = ([("fork", 0, 2), ("append", 0, 7), ("free", 2)], [("append", 1, 8), ("append", 1, 8), ("free", 1)])
THREE = ([("fork", 0, 2), ("free", 2)], [("append", 1, 8), ("free", 1)], [("append", 9, 1), ("append", 9, 2)])


# What takes tens of seconds on a busy machine is left to `make races`.
SLOW = {"preempt-without-fence", "load-without-lease", "lease-ends-early"}


def test_every_family_is_planted() -> None:
    assert {kind.family for kind in KINDS.values()} == {"A8", "B1", "B2", "B3", "B4", "B5", "C2"}
    assert {KINDS[name].family for name in KINDS if name not in SLOW} == {kind.family for kind in KINDS.values()}


@pytest.mark.parametrize("name", [name for name in KINDS if name not in SLOW])
def test_a_planted_concurrency_fault_is_found(name: str) -> None:
    result = search(KINDS[name], seed=1, seconds=120, shrink_s=0.5)
    assert result.outcome is not None, f"{result.schedules} schedules found nothing"
    assert result.outcome.deterministic
    again = explore_race(KINDS[name].race(result.attempt, True), replay=result.outcome.replay)
    assert result.outcome.failure is not None
    assert result.outcome.failure.same_kind(again.failure)


@pytest.mark.parametrize("focus", ["", "load", "store", "window"])
def test_the_engine_as_it_is_stays_clean(focus: str) -> None:
    for number in range(4):
        race = world_race(Script.draw(f"clean:{number}", focus=focus))
        outcome = explore_race(race, level="hook", scheduler="pct", schedules=4, seconds=120, seed=number)
        assert not outcome.found, outcome.text()


@pytest.mark.parametrize(("programs", "preemptions"), [(TWO, 2), (THREE, 1)])
def test_every_schedule_of_our_pool_is_clean_and_without_its_lock_one_is_not(programs: Any, preemptions: int) -> None:
    outcome = explore_race(
        pool_race(*programs), level="hook", scheduler="exhaustive", preemptions=preemptions, seconds=250
    )
    assert not outcome.found, outcome.text()
    assert outcome.explored[0]["complete_to"] == preemptions
    assert outcome.histories > 20
    control = explore_race(
        pool_race(*programs, make=lambda: prepared(lock=False)), level="hook", scheduler="exhaustive", seconds=120
    )
    assert control.failure is not None


def test_a_deadlock_between_our_lock_and_another_is_seen() -> None:
    """The pool's lock is one of the explorer's, so it takes part in cycles."""

    def make() -> Any:
        manager = prepared()
        manager.mine = type(manager._lock)()  # type: ignore[attr-defined]
        return manager

    def one(manager: Any) -> None:
        with manager.mine, manager._lock:
            pass

    def two(manager: Any) -> None:
        with manager._lock, manager.mine:
            pass

    outcome = explore(make, [one, two], level="hook", check=PoolJudge(), linear=False, seconds=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "deadlock"
