"""What may be named to be looked at: a trace, a server's URL, or a folder in which traces are or will be."""

from __future__ import annotations

import time
from pathlib import Path

from kvscope.errors import TraceError, UsageError
from kvscope.traces.manifest import no_trace

_BEGINS_S = 1.0  # how long a recorder that has made its folder may take to say in it what it records
_BESIDE = (".kvtrace", ".kvpack", ".json", ".xml")  # traces, and results of property runs


def check_scheme(place: str) -> None:
    """Raises UsageError for a URL that nothing here can be asked at."""
    scheme = place.partition("://")[0]
    if scheme != place and scheme not in ("http", "https"):
        raise UsageError(f"{place!r:.80} is of no use here: give http://HOST:PORT of a server, or the path of a trace")


def check_folder(path: Path) -> None:
    """A folder that is named as a trace is one; that of a recorder which is only just beginning is waited for.

    Raises:
        TraceError: it is none.
    """
    until = time.monotonic() + _BEGINS_S
    while path.is_dir() and path.suffix == ".kvtrace" and not (path / "manifest.json").exists():
        if time.monotonic() > until:
            raise TraceError(no_trace(path))
        time.sleep(0.05)


def holds_no_trace_yet(path: Path) -> bool:
    """Whether a folder of traces is still without one.

    Raises:
        TraceError: it holds other things, and so is no folder of traces.
    """
    if not path.is_dir() or (path / "manifest.json").exists():
        return False
    inside = [file for file in path.iterdir() if not file.name.startswith(".")]  # OSError: says itself what it is
    if any(file.suffix in _BESIDE or (file / "manifest.json").exists() for file in inside):
        return False
    if inside:
        raise TraceError(no_trace(path))
    return True
