"""What the commands that turn one file into another have in common: ranges, names of outputs, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvscope.errors import TraceError, UsageError
from kvscope.inspector.cli._lines import errors

SUFFIXES = (".kvtrace", ".kvpack", ".jsonl")
STDOUT = Path("-")


def parse_range(text: str | None) -> tuple[int, int] | None:
    """`A:B` as (A, B), either end may be left out.

    Raises:
        UsageError: it is no such range.
    """
    if text is None:
        return None
    lo, colon, hi = text.partition(":")
    try:
        first, last = int(lo or 0), int(hi) if hi else 2**63 - 1
    except ValueError:
        first = last = -1
    if not colon or first < 0 or first >= last or last >= 2**63:
        raise UsageError(f"seq-range is {text!r:.40}: give A:B with A below B, like 1000:2000 (B itself is left out)")
    return first, last


def readable(paths: Sequence[Path]) -> tuple[list[Path], list[TraceError]]:
    """The traces that can be opened, and why the others cannot: it is said, and those that can are looked at.

    Raises:
        TraceError: there is one only, or none can be opened.
    """
    from kvscope.traces import open_trace

    opened: list[Path] = []
    failed: list[TraceError] = []
    for path in paths if len(paths) > 1 else ():
        try:
            open_trace(path)
            opened.append(path)
        except TraceError as error:
            failed.append(error)
    if len(paths) == 1:
        return list(paths), []
    if failed and not opened:
        raise failed[0]
    for each in failed:
        sys.stderr.write(f"kvscope: error: {' '.join(str(each).split())}; the others are looked at\n")
    return opened, failed


def check_replaceable(trace: Path, engine: str, *, overwrite: bool) -> None:
    """Raises UsageError where a trace is that `engine` has not written: a command replaces only what it has made."""
    from kvscope.traces import open_trace

    if overwrite or not (trace / "manifest.json").exists():
        return
    try:
        mine = open_trace(trace).manifest.get("engine") == engine
    except TraceError:
        mine = False
    if not mine:
        raise UsageError(f"{trace} is a trace that `{engine}` has not made: choose another --out, or --overwrite")


def named_after(source: Path, suffix: str) -> Path:
    """In the working folder, the name of `source` with another suffix."""
    name = source.resolve().name if source.name in ("", ".", "..") else source.name
    for known in SUFFIXES:
        name = name.removesuffix(known)
    return Path(name + suffix)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A status line with a percentage, on a terminal; yields what is to be called with (done, total)."""
    if not errors.is_terminal:
        yield lambda done, total: None
        return
    with errors.status(f"{what} ...") as status:

        def show(done: int, total: int) -> None:
            status.update(f"{what}: {100 * done // max(total, 1)} %")

        yield show
