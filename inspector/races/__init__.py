"""The race explorer: a few threads over one object, every switch chosen, the schedule that breaks it brought back.

    from kvscope.inspector.races import explore
    outcome = explore(make, [one, two], check=check)

control.py    one thread at a time: the baton, deadlock, watchdog;  worker.py  its threads
schedule.py   a schedule, its string, replay;  random_.py  pct.py  exhaustive.py  the schedulers
locks.py      Lock, RLock, Condition of the target;  pylevel.py  lines and instructions;  hooks.py  our own pool
player.py     plays one schedule and judges it;  history.py  linear.py  calls, results, linearizability
exploration.py  many schedules;  shrink.py  the shortest that fails;  lanes.py  outcome.py  how it is told
allocators.py  any paged allocator;  program.py  what its threads do;  shared.py  how it is judged
flights.py    calls that have not returned, and what they owe
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.inspector.races.allocators import AllocatorOutcome, explore_allocator
    from kvscope.inspector.races.control import point
    from kvscope.inspector.races.exploration import explore, explore_race
    from kvscope.inspector.races.outcome import Outcome
    from kvscope.inspector.races.race import Race
    from kvscope.inspector.races.worker import Failure

_HOMES = {
    "AllocatorOutcome": "allocators", "Failure": "worker", "Outcome": "outcome", "Race": "race",
    "explore": "exploration", "explore_allocator": "allocators", "explore_race": "exploration", "point": "control",
}  # fmt: skip
__all__ = [
    "AllocatorOutcome", "Failure", "Outcome", "Race", "explore", "explore_allocator", "explore_race", "point",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
