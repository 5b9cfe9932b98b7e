"""The part of KVScope that is written in C, if it was built: which methods it stands in for, and the way back.

An event costs less than a microsecond, and half of that is what CPython takes to call `struct.pack_into`, to read a
clock, or to find a frame. So the methods that are called for each of them exist twice: in Python, which says what they
do and is what runs where no C compiler was there at installation; and in C (`speed.c`, and `engine/lanes.c` for a batch
that decodes), which does the common case of the same on the same attributes, and calls the Python for everything else.
`tests/property/test_compiled.py` and `test_lanes.py` play the same histories through both and compare every byte. The
screen of the sanitizer (`inspector/screen/live.c`) is loaded here too, and asks `used` when one is made.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from kvscope.traces.schema import Kind

_KINDS = (int(Kind.ALLOC), int(Kind.RELEASE), int(Kind.FREE))
_ways: list[tuple[type, str, Any, Any]] = []  # class, method, in Python, in C
_absent: list[str] = []  # modules that were not built
_wanted = True  # what `use` was told last: also for classes that come later


def load(name: str, *, edition: int) -> Any:
    """A module in C, or None where it was not built, or built of another edition: an earlier installation left it."""
    try:
        module = import_module(f"kvscope.{name}")
        if edition == module.EDITION:
            return module
    except ImportError:
        pass
    _absent.append(name)
    return None


_speed = load("traces._speed", edition=4)


def built() -> bool:
    """Whether the C part is there, as far as it was looked for."""
    return not _absent


def used() -> bool:
    """Whether it is what runs."""
    return _wanted and bool(_ways)


def way() -> str:
    """The language of what runs, for people."""
    return "C" if used() else "Python"


def use(on: bool) -> bool:
    """Run the C part where it was built, or the Python code: for all, at once. Returns what was wanted before."""
    global _wanted
    before, _wanted = _wanted, on
    for owner, name, python, compiled in _ways:
        setattr(owner, name, compiled if on else python)
    return before


@contextmanager
def using(on: bool) -> Iterator[None]:
    """`use` for the body of a with statement."""
    before = use(on)
    try:
        yield
    finally:
        use(before)


def compile_recorder(recorder: type) -> None:
    """Let the C part stand in for the methods of a class of recorders that it knows."""
    if _speed is not None:
        stand_in(recorder, _speed.methods(recorder, _KINDS, time.monotonic_ns, sys._getframe))


def compile_details(recorder: type) -> None:
    """The same for `detail`, of a class of recorders that keeps details beside the rows."""
    if _speed is not None:
        stand_in(recorder, _speed.details(recorder))


def stand_in(owner: type, compiled: dict[str, Any]) -> None:
    """Put methods in C in the place of those of the same name."""
    for name, method in compiled.items():
        python = getattr(owner, name)
        setattr(owner, name + "_python", python)  # what the C code calls where it does not know better
        _ways.append((owner, name, python, method))
        setattr(owner, name, method if _wanted else python)
