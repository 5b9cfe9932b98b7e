"""What a target must leave as it is: the process around it, and the other allocators of its factory."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.harness import Harness
from kvscope.inspector.fuzz.protocol import Factory, Sizes

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def surroundings() -> dict[str, object]:
    """The process, by the name of each part."""
    return {
        "the working folder": os.getcwd(),
        "os.environ": dict(os.environ),
        "builtins": dict(vars(builtins)),
        "sys.stdout": sys.stdout,
        "sys.settrace": sys.gettrace(),
        "the recursion limit": sys.getrecursionlimit(),
        "threading": (threading.Lock, threading.RLock, threading.Condition, threading.Thread),
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
    }


def check_unchanged(before: dict[str, object], when: str) -> None:
    """Compare with the process now.

    Raises:
        UsageError: the target has changed a part of it.
    """
    now = surroundings()
    changed = [name for name, value in before.items() if now[name] != value]
    if changed:
        raise UsageError(
            f"{when} changed {', '.join(changed)}: an allocator that modifies globals makes runs depend on one another"
        )


def check_apart(factory: Factory) -> None:
    """Two allocators of one factory know nothing of each other, and making and using them changes nothing else.

    Raises:
        UsageError: they share state, or the process is not as before.
    """
    sizes, before = Sizes.of(factory), surroundings()
    first, second = (Harness(factory, max(sizes.pools), max(sizes.blocks)) for _ in range(2))
    for harness, other in ((first, second), (second, first)):
        free, tables = other.num_free(), other.tables()
        if not harness.can_add() or not harness.add(0, [0]):
            continue
        if (other.num_free(), other.tables()) != (free, tables):
            raise UsageError(
                "an operation on one allocator of the factory changed another: they share state (module globals, "
                "class attributes, default arguments)"
            )
    third = Harness(factory, max(sizes.pools), max(sizes.blocks))
    for harness in (second, third):
        if harness.capacity != first.capacity:
            raise UsageError(
                f"a new allocator has {harness.capacity} free blocks, the first one had {first.capacity}: the factory "
                "keeps state between its calls"
            )
    for harness in (first, second):
        harness.finish()
    check_unchanged(before, "the factory, or an allocator of it,")
