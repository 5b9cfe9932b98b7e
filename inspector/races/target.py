"""What `kvscope races` is pointed at: a `Race`, a function that makes one, or the factory of a paged allocator."""

from __future__ import annotations

import inspect

from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.fuzz.answers import told
from kvscope.inspector.fuzz.protocol import Factory
from kvscope.inspector.fuzz.target import find
from kvscope.inspector.races.race import Race


def load_race(text: str) -> Race | Factory:
    """What `package.module:name` or `path.py:name` stands for.

    Raises:
        UsageError: there is none, its module cannot be imported, or it is neither a race nor a factory.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"target is {text!r}: give package.module:name or path.py:name, or --example NAME")
    found = find(place, name)
    if isinstance(found, Race):
        return found
    if not callable(found):
        raise UsageError(
            f"{name} in {place} is no race: it must be a Race, a function that returns one, or an allocator's factory"
        )
    if isinstance(found, type) or _needs_arguments(found):
        return found
    try:
        made = found()
    except KVScopeError:
        raise
    except Exception as error:
        raise UsageError(f"{name}() in {place} raised {told(error)}") from error
    if not isinstance(made, Race):
        raise UsageError(f"{name}() in {place} returns a {type(made).__name__}: a Race was expected")
    return made


def _needs_arguments(function: object) -> bool:
    """Whether it cannot be called without arguments: then it is an allocator's factory."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return True
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
