"""Races to try: the articles' pool in plain Python, ours at hook level, and every planted concurrency fault."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kvscope.inspector.races.race import Race


class ArticlePool:
    """A paged pool as the articles draw it: a free list, a count per block, a table per request. No lock."""

    def __init__(self) -> None:
        self.free_blocks = [1, 2]
        self.ref_count = {0: 2}  # the prompt's block is held by requests A and B
        self.tables = {"A": [0], "B": [0]}
        self.memory = {0: "the prompt"}

    def fork(self, parent: str, child: str) -> None:
        """The child shares all blocks of the parent."""
        for block in self.tables[parent]:
            self.ref_count[block] += 1
        self.tables[child] = list(self.tables[parent])

    def finish(self, request: str) -> None:
        """Give the blocks back; one that nobody holds is reclaimed."""
        for block in self.tables.pop(request):
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_blocks.insert(0, block)

    def admit(self, request: str) -> None:
        """A new request writes into a block of its own."""
        block = self.free_blocks.pop(0)
        self.ref_count[block] = 1
        self.tables[request] = [block]
        self.memory[block] = f"what {request} wrote"


class LockedPool(ArticlePool):
    """The same behind a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def fork(self, parent: str, child: str) -> None:
        """As above."""
        with self.lock:
            super().fork(parent, child)

    def finish(self, request: str) -> None:
        """As above."""
        with self.lock:
            super().finish(request)

    def admit(self, request: str) -> None:
        """As above."""
        with self.lock:
            super().admit(request)


def served(pool: ArticlePool) -> None:
    """A and B are done; D comes."""
    pool.finish("A")
    pool.finish("B")
    pool.admit("D")


def forked(pool: ArticlePool) -> None:
    """A further sample of B's prompt."""
    pool.fork("B", "C")


def no_block_twice(pool: ArticlePool) -> str | None:
    """Every request still reads what it should: C the prompt, D what it wrote."""
    for block in pool.tables.get("C", ()):
        if pool.memory[block] != "the prompt":
            return f"C reads b{block} and finds {pool.memory[block]}: the block was reclaimed while C held it"
    return None


def article(kind: Callable[[], ArticlePool] = ArticlePool) -> Race:
    """The articles' bug: `ref_count -= 1` and `ref_count += 1` meet, a block is reclaimed early, two write into it."""
    return Race(kind, [served, forked], check=no_block_twice, expected=(KeyError,), linear=False, name="articles")


@dataclass(frozen=True, slots=True)
class Example:
    """A race by name. level, scheduler: by default."""

    title: str
    race: Callable[[int], Race]
    level: str = "hook"
    scheduler: str = "exhaustive"


def examples() -> dict[str, Example]:
    """Every example by name; those of our own pool and engine have to stay clean."""
    from kvscope.inspector.races.kinds import KINDS, pool_race, prepared
    from kvscope.inspector.races.script import Script
    from kvscope.inspector.races.world import world_race

    two = ([("fork", 0, 2), ("append", 0, 7), ("free", 2)], [("append", 1, 8), ("append", 1, 8), ("free", 1)])
    three = ([("fork", 0, 2), ("free", 2)], [("append", 1, 8), ("free", 1)], [("append", 9, 1), ("append", 9, 2)])
    found = {
        "articles": Example("refcount += 1 and -= 1 without atomicity, in plain Python", lambda _: article(),
                            "opcode", "auto"),
        "articles-locked": Example("the same behind a lock: clean", lambda _: article(LockedPool), "opcode", "auto"),
        "pool": Example("our pool, 2 threads of 3 operations: clean", lambda _: pool_race(*two)),
        "pool-3": Example("our pool, 3 threads of 2 operations: clean", lambda _: pool_race(*three)),
        "pool-unlocked": Example(
            "our pool with its lock removed", lambda _: pool_race(*two, make=lambda: prepared(lock=False))
        ),
        "engine": Example("scheduler, device, clients and transfers: clean",
                          lambda seed: world_race(Script.draw(f"{seed}:0")), scheduler="pct"),
    }  # fmt: skip
    for kind in KINDS.values():
        found[kind.name] = Example(
            f"planted {kind.family}: {kind.title}",
            lambda seed, kind=kind: kind.race(f"{seed}:0", True),  # type: ignore[misc]
            scheduler="pct",
        )  # fmt: skip
    return found
