"""The kinds of concurrency faults that paged caches really have, one planted variant or more of each, and a search.

A8 unsynchronised allocator, B1 reuse during an open step, B2 reuse during a transfer, B3 metadata staging, B4 a hold
that never ends, B5 a window too early, C2 fork and copy-on-write that are not atomic. The same search over the pool as
it is has to find nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.faults.fences import FreeWithoutFence
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.races import planted
from kvscope.inspector.races.control import point
from kvscope.inspector.races.exploration import Progress, explore_race
from kvscope.inspector.races.hooks import PoolJudge, calls, pool
from kvscope.inspector.races.outcome import Outcome
from kvscope.inspector.races.race import Race
from kvscope.inspector.races.script import Script
from kvscope.inspector.races.world import world_race

_TURNS = ("pct", "random", "pct")
_PER_RACE = 10  # schedules of one race before the next is drawn


@dataclass(frozen=True, slots=True)
class ConcurrencyKind:
    """One planted variant. race(seed, planted): the race to explore, broken or right."""

    name: str
    family: str
    title: str
    race: Callable[[str, bool], Race]


def prepared(manager: type[BlockManager] = BlockManager, *, lock: bool = True, num_blocks: int = 4) -> BlockManager:
    """A manager with sequence 0 of 3 tokens, its fork 1, and sequence 9 of one token; blocks of 2 slots."""
    made = pool(num_blocks, 2, manager=manager, lock=lock)
    made.admit(0, [1, 2, 3])
    made.write(0, 0, 3)
    made.admit(9, [5])
    made.write(9, 0, 1)
    made.begin_step([Scheduled(0, 0, 3), Scheduled(9, 0, 1)])
    made.end_step()
    made.fork(0, 1)
    return made


def watched(manager: BlockManager) -> object:
    """What can be seen of a manager at the end."""
    return manager.num_free(), [(seq, manager.length(seq)) for seq in sorted(manager.sequences())]


def pool_race(*programs: list[tuple[Any, ...]], make: Callable[[], Any] = prepared, name: str = "pool") -> Race:
    """Calls of a few threads on one manager, judged by sanitizer, integrity and linearizability."""
    return Race(
        make, calls(*programs), check=PoolJudge(), observe=watched, ids=("table",), expected=(OutOfBlocks, FaultyCall),
        name=name,
    )  # fmt: skip


def _pool(manager: type[BlockManager], *programs: list[tuple[Any, ...]], lock: bool = True, num_blocks: int = 4) -> Any:
    def race(_: str, broken: bool) -> Race:
        kind = manager if broken or manager is planted.Preallocating else BlockManager
        return pool_race(
            *programs, make=lambda: prepared(kind, lock=lock or not broken, num_blocks=num_blocks)
        )  # fmt: skip

    return race


def _mapped(_: str, broken: bool) -> Race:
    """A background thread maps pages ahead while another admits: with or without a moment in which one is nowhere."""
    ahead = [("map_ahead",)] if broken else [("num_free",)]
    manager = planted.Preallocating if broken else BlockManager
    return pool_race(ahead, [("admit", 5, [6])], make=lambda: prepared(manager))


def _looked_up(_: str, broken: bool) -> Race:
    """A prefix is looked up, and admitted later; meanwhile another sequence needs blocks."""

    def make() -> BlockManager:
        made = pool(3, 2)
        made.admit(0, [1, 2, 3])
        made.write(0, 0, 3)
        made.begin_step([Scheduled(0, 0, 3)])
        made.end_step()
        made.free(0)
        return made

    def router(manager: Any) -> None:
        match, lease = (manager.probe([1, 2, 3]), None) if broken else manager.lookup(1, [1, 2, 3])
        point("the answer travels")
        try:
            cached = manager.admit(1, [1, 2, 3])
        except OutOfBlocks:
            if lease is not None:
                manager.unlease(lease.lease_id)
            return
        if cached < match.cached_tokens:
            raise Violation("KV017", f"a lookup promised {match.cached_tokens} cached tokens, admission found {cached}")

    def other(manager: Any) -> None:
        manager.admit(5, [7, 7, 7, 7, 7])
        manager.free(5)

    return Race(make, [router, other], check=PoolJudge(), linear=False, name="lookup")


def _world(plant: str = "", focus: str = "", manager: type[BlockManager] = BlockManager) -> Any:
    def race(seed: str, broken: bool) -> Race:
        script = Script.draw(seed, focus=focus)
        # What goes wrong in the bytes alone is not in the events: the sanitizer would only take time.
        judge = PoolJudge(sanitize=focus not in ("store", "stores", "load"))
        kind = manager if broken else BlockManager
        return world_race(script, manager=kind, plant=plant if broken else "", judge=judge)

    return race


_FORKS = ([("fork", 0, 2), ("free", 2)], [("append", 1, 8), ("free", 1)])
KINDS: dict[str, ConcurrencyKind] = {
    kind.name: kind
    for kind in (
        ConcurrencyKind("no-lock", "A8", "the pool without its lock", _pool(BlockManager, *_FORKS, lock=False)),
        ConcurrencyKind("counts-outside-lock", "A8", "forks and frees count outside of the critical section",
                        _pool(planted.CountsOutsideLock, *_FORKS)),
        ConcurrencyKind("page-in-between", "A8", "a page is on no list while it is mapped ahead", _mapped),
        ConcurrencyKind("free-without-fence", "B1", "blocks freed during an open step are handed out at once",
                        _world(manager=FreeWithoutFence)),
        ConcurrencyKind("preempt-without-fence", "B1", "blocks preempted during an open step are handed out at once",
                        _world(manager=planted.PreemptWithoutFence)),
        ConcurrencyKind("window-without-fence", "B1", "what a window frees during an open step is handed out at once",
                        _world(focus="window", manager=planted.WindowWithoutFence)),
        ConcurrencyKind("store-without-lease", "B2", "a store reads blocks that nobody keeps for it",
                        _world("store-without-lease", "store")),
        ConcurrencyKind("lease-ends-early", "B2", "the first block that is stored ends the lease of all",
                        _world("lease-ends-early", "stores")),
        ConcurrencyKind("load-without-lease", "B2", "a transfer lands in blocks that were given to somebody else",
                        _world("load-without-lease", "load")),
        ConcurrencyKind("lookup-without-lease", "B2", "what a lookup found is evicted before admission", _looked_up),
        ConcurrencyKind("shared-staging", "B3", "the tables of a step are overwritten by those of the next",
                        _world("shared-staging")),
        ConcurrencyKind("no-deadline", "B4", "a transfer that dies holds its blocks for ever",
                        _world("no-deadline", "store")),
        ConcurrencyKind("window-too-early", "B5", "a window frees one block that is still read",
                        _world("window-too-early", "window")),
        ConcurrencyKind("fork-in-two-sections", "C2", "a fork reads the row and counts its blocks at two moments",
                        _pool(planted.ForkInTwoSections, [("fork", 9, 5)], [("free", 9), ("append", 1, 4)])),
        ConcurrencyKind("copy-decided-outside", "C2", "whether a write needs a copy is decided before the write",
                        _pool(planted.CopyDecidedOutside, [("append", 9, 7)], [("fork", 9, 5)])),
    )
}  # fmt: skip


@dataclass(slots=True)
class Search:
    """What a search came to: the failing exploration, if any, and what it took."""

    outcome: Outcome | None
    races: int
    schedules: int
    seconds: float  # until the failing schedule, before it was made short
    attempt: str = ""  # the seed of the failing race


def search(
    kind: ConcurrencyKind, *, seed: int = 0, seconds: float = 30.0, broken: bool = True, shrink_s: float = 3.0,
    schedules: int | None = None, on_progress: Progress | None = None,
) -> Search:  # fmt: skip
    """Races of a kind one after another, PCT and random schedules in turn, until one fails or the time is over."""
    begun, races, played = time.perf_counter(), 0, 0
    while time.perf_counter() - begun < seconds and (schedules is None or played < schedules):
        attempt = f"{seed}:{races}"
        before = time.perf_counter()
        outcome = explore_race(
            kind.race(attempt, broken), level="hook", scheduler=_TURNS[races % 3], schedules=_PER_RACE,
            seconds=seconds, seed=seed * 1_000 + races, shrink_s=shrink_s,
        )  # fmt: skip
        races, played = races + 1, played + outcome.schedules
        if outcome.found:
            return Search(outcome, races, played, before - begun + outcome.to_failure_s, attempt)
        if on_progress is not None:
            on_progress(played, time.perf_counter() - begun)
    return Search(None, races, played, time.perf_counter() - begun)


def explore_kind(
    kind: ConcurrencyKind, *, seed: int = 0, seconds: float = 30.0, schedules: int | None = None,
    replay: str | None = None, on_progress: Progress | None = None,
) -> Outcome:  # fmt: skip
    """`search`, told as one exploration. Its replay string names the race in front: `0:5@kvr1:hook:...`."""
    if replay is not None:
        attempt, _, schedule = replay.rpartition("@")
        outcome = explore_race(kind.race(attempt or f"{seed}:0", True), replay=schedule)
        outcome.replay = f"{attempt or f'{seed}:0'}@{outcome.replay}" if outcome.replay else None
        return outcome
    found = search(kind, seed=seed, seconds=seconds, schedules=schedules, on_progress=on_progress)
    outcome = found.outcome or Outcome(kind.name, "hook", len(kind.race(f"{seed}:0", True).threads))
    outcome.replay = f"{found.attempt}@{outcome.replay}" if outcome.replay else None
    outcome.schedules, outcome.to_failure_s = found.schedules, found.seconds
    outcome.seconds = max(outcome.seconds, found.seconds)
    outcome.notes.append(f"{found.races:,} race{'s' if found.races != 1 else ''} of this kind drawn")
    return outcome
