"""What `kvscope races` is pointed at: a `Race`, a function that makes one, or the factory of a paged allocator."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.fuzz.protocol import Factory
from kvscope.inspector.races.race import Race


def load_race(text: str) -> Race | Factory:
    """What `package.module:name` or `path.py:name` stands for.

    Raises:
        UsageError: there is none, its module cannot be imported, or it is neither a race nor a factory.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"target is {text!r}: give package.module:name or path.py:name, or --example NAME")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _by_name(place)
    except KVScopeError:
        raise
    except SystemExit as error:
        raise UsageError(f"importing {place} calls sys.exit({error.code!r})") from error
    except Exception as error:
        raise UsageError(f"importing {place} raised {type(error).__name__}: {error}") from error
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
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
        raise UsageError(f"{name}() in {place} raised {type(error).__name__}: {error}") from error
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


def _by_name(name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:  # as `python -m` has it
        sys.path.insert(0, str(Path.cwd()))
    return import_module(name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path} is not there")
    name = path.stem
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # what it defines is then found by name, as in any module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
