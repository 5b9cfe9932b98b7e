"""A race to explore: how the shared object is made, what each thread does with it, how a bad end is known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.errors import OutOfBlocks, UsageError

__all__ = ["LEVELS", "Race", "Thread"]

Action = Callable[[Any], object]
Thread = Action | Sequence[Action]
LEVELS = ("hook", "line", "opcode")
MAX_THREADS = 8
_EXAMPLES = "kvscope.inspector.races.examples"
_OURS = ("races", "fuzz.adapter", "fuzz.harness", "fuzz.protocol")  # what looks and adapts, not what is looked at
_NOT_LOOKED_AT = (
    *(f"kvscope.inspector.{name}" for name in _OURS), "kvscope.traces", "_pytest", "pytest", "hypothesis", "builtins",
    "numpy", "torch",
)  # fmt: skip


@dataclass(frozen=True)
class Race:
    """One shared object under a few threads.

    Args:
        make: builds the object anew for every schedule; its locks come under control.
        threads: per thread what it does: a function of the object, or a list of them. What they call on the object are
            the operations of the history.
        check: called with the object when all threads have ended; raises AssertionError, or returns problems.
        observe: what can be seen of the object at the end; counts as one more result.
        ids: methods whose results consist of block ids, which count up to renaming.
        expected: exceptions that are answers, not crashes.
        linear: judge whether the results could have come from calls one after another.
        modules: modules in whose functions switch points lie (line and opcode level); None: those of the object.
        name: what it is called in reports.
    """

    make: Callable[[], Any]
    threads: Sequence[Thread]
    check: Callable[[Any], object] | None = None
    observe: Callable[[Any], object] | None = None
    ids: Collection[str] = ()
    expected: tuple[type[Exception], ...] = (OutOfBlocks,)
    linear: bool = True
    modules: Collection[str] | None = None
    name: str = "race"

    def __post_init__(self) -> None:
        if not 2 <= len(self.threads) <= MAX_THREADS:
            raise UsageError(f"a race has 2 to {MAX_THREADS} threads, got {len(self.threads)}")
        for thread in self.threads:
            if not all(callable(action) for action in actions(thread)):
                raise UsageError(f"a thread is a function of the target or a list of them, got {thread!r:.60}")

    def looked_at(self, target: Any) -> frozenset[str]:
        """Modules of the target: of its class and its bases, of what it holds, of `make` and of the threads."""
        if self.modules is not None:
            return frozenset(self.modules)
        homes = {getattr(self.make, "__module__", "")}
        homes |= {getattr(action, "__module__", "") for thread in self.threads for action in actions(thread)}
        kinds = _classes(target)
        homes |= {kind.__module__ for kind in kinds}
        homes |= _beside({kind.__module__ for kind in kinds if _is_users(kind.__module__)})
        return frozenset(home for home in homes if home and _is_users(home))


def _classes(target: Any) -> set[type]:
    """The class of the target and of what it holds, two levels deep, with their bases."""
    found: set[type] = set()
    level = [target]
    for _ in range(3):
        found |= {kind for thing in level for kind in type(thing).__mro__}
        level = [value for thing in level for value in _held(thing)]
    return found


def _held(thing: Any) -> list[Any]:
    values = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, list | tuple | set | frozenset):
        values += list(thing)[:4]
    if isinstance(thing, dict):
        values += list(thing.values())[:4]
    return values


def _beside(modules: set[str]) -> set[str]:
    """All loaded modules of the packages that these belong to; of ours, of the room."""
    packages = {".".join(name.split(".")[: 2 if name.startswith("kvscope.") else 1]) for name in modules}
    packages -= {"kvscope.inspector", "kvscope.traces", "__main__"}
    return {name for name in sys.modules if any(name == p or name.startswith(f"{p}.") for p in packages)}


def _is_users(module: str) -> bool:
    """Whether a module is code to be explored, and not what explores it or runs it."""
    if module.startswith(_EXAMPLES):
        return True
    first = module.split(".")[0]
    return (first == "__main__" or first not in sys.stdlib_module_names) and not module.startswith(_NOT_LOOKED_AT)


def actions(thread: Thread) -> Iterator[Action]:
    """What a thread does, one after another."""
    if callable(thread):
        yield thread
    else:
        yield from thread
