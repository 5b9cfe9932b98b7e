"""Which allocator to fuzz: `package.module:factory`, `path.py:factory`, or the name of an adapter that ships here."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import cast

from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.fuzz.answers import told
from kvscope.inspector.fuzz.protocol import Factory

NAMED = {
    "kvscope": "kvscope.inspector.fuzz.adapter:EngineAllocator",
    "transformers": "kvscope.inspector.adapters.transformers:factory",
    "vllm": "kvscope.inspector.adapters.vllm:factory",
    "nano-vllm": "kvscope.inspector.adapters.nano_vllm:factory",
}


def find(place: str, name: str) -> object:
    """What `name` is in a module or a file; None if it is not there.

    Raises:
        UsageError: the module cannot be imported.
    """
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _by_name(place)
    except KVScopeError:
        raise
    except SystemExit as error:
        raise UsageError(f"importing {place} calls sys.exit({error.code!r})") from error
    except Exception as error:
        raise UsageError(f"importing {place} raised {told(error)}") from error
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def load_target(text: str) -> Factory:
    """The factory that `text` names.

    Raises:
        UsageError: there is none of that name, or its module cannot be imported; says why.
        MissingDependency: an adapter of ours needs what is not installed.
    """
    place, colon, name = NAMED.get(text, text).rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"target is {text!r}: give package.module:factory, path.py:factory, or one of {', '.join(NAMED)}"
        )
    found = find(place, name)
    if not callable(found):
        what = f"{name} is a {type(found).__name__}" if found is not None else f"there is no {name}"
        raise UsageError(f"{what} in {place}: the target must be factory(num_blocks, block_size)")
    return cast(Factory, found)


def _by_name(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:  # as `python -m` has it
        sys.path.insert(0, str(Path.cwd()))
    return import_module(name)


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"{path} is not there")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    loaded = sys.modules.get(path.stem)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == path.resolve():
        return loaded
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = module_from_spec(spec)
    if loaded is None:  # what it defines can then be found by name, as in any module
        sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if loaded is None:
            del sys.modules[path.stem]
        raise
    return module
