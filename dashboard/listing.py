"""Which traces may be shown: what the launcher was given, and what lies in the folders among it at this moment."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Sequence
from pathlib import Path

from kvscope.errors import TraceError
from kvscope.traces.folder import MANIFEST, traces_in
from kvscope.traces.place import place_of

MAX_LISTED = 200


def is_watched(path: Path) -> bool:
    """Whether it is a folder of traces, those among them that are still to come."""
    return path.is_dir() and path.suffix != ".kvtrace" and not (path / MANIFEST).exists()


def listed(given: Sequence[Path]) -> list[Path]:
    """Traces as they are given; of a watched folder those in it, newest first; those without a time last, by name."""
    found: list[Path] = []
    for path in given:
        found += _inside(path) if is_watched(path) else [path]
    return list(dict.fromkeys(found))


def named(paths: Sequence[Path]) -> dict[str, Path]:
    """Short names that differ: the file's own, with its folder's where two would be the same."""
    own = [path.stem for path in paths]
    return {(p.stem if own.count(p.stem) == 1 else f"{p.parent.name}/{p.stem}"): p for p in paths}


def order(given: Sequence[Path]) -> str:
    """How the traces are sorted, in a word or two."""
    if len(given) == 1 and is_watched(given[0]):
        return "newest first"
    return "" if any(map(is_watched, given)) else "in the order given"


def begun_ns(path: Path) -> int | None:
    """The wall clock at which a trace began; None where it does not say."""
    file = path / MANIFEST if path.is_dir() else path
    try:
        stat = file.stat()
    except OSError:
        return None
    return _begun_ns(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(4 * MAX_LISTED)
def _begun_ns(path: Path, mtime_ns: int, size: int) -> int | None:
    with contextlib.suppress(TraceError, OSError, ValueError, KeyError, TypeError):
        return int(json.loads(place_of(path).read(MANIFEST))["clock"]["wall_ns"])
    return None


def _inside(folder: Path) -> list[Path]:
    try:
        inside = traces_in(folder)
    except OSError:  # it is gone, or is not to be read: what was in it is
        return []
    begun = {path: begun_ns(path) for path in inside}
    return sorted(begun, key=lambda path: -(begun[path] or 0))[:MAX_LISTED]
