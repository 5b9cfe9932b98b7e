"""What a target gives and says, taken in without trust: it may be of any type, have no end, or raise when looked at."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from operator import index
from pathlib import Path
from traceback import extract_tb
from typing import Any

from kvscope.errors import UsageError

MOST = 1 << 16  # members of what a target gives: blocks of a table, moves of a drain, blocks of a pool
_HOME = str(Path(__file__).parent)


def whole(value: object, what: str) -> int:
    """A number that an allocator gave, as an int.

    Raises:
        UsageError: it is none.
    """
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what} is {shown(value)}, a {type(value).__name__}: must be a whole number") from None


def taken(values: Iterable[Any], what: str) -> list[Any]:
    """What a target gave to be gone through, as a list: it may have no end.

    Raises:
        UsageError: it is not to be gone through, or has more than `MOST` members.
    """
    if not isinstance(values, Iterable):
        raise UsageError(f"{what} is {shown(values)}: must be a sequence")
    found = list(islice(values, MOST + 1))
    if len(found) > MOST:
        raise UsageError(f"{what} has more than {MOST:,} members: must be a short sequence, with an end")
    return found


def shown(value: object) -> str:
    """A value of a target, in at most 60 characters."""
    try:
        return f"{value!r:.60}"
    except Exception as error:  # noqa: BLE001 - it is the target's
        return f"a {type(value).__name__} whose repr raises {type(error).__name__}"


def message_of(error: BaseException) -> str:
    """What an exception says, in one line."""
    try:
        return printable(" ".join(str(error).split()))
    except Exception as inner:  # noqa: BLE001 - it is the target's
        return f"(its __str__ raises {type(inner).__name__})"


def printable(text: str) -> str:
    """Any text as a terminal, JSON and a file can take it: control characters and lone surrogates as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def told(error: BaseException) -> str:
    """An exception in one line, with the place in the target's own code where it was raised."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_HOME)]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message_of(error)}{where}"
