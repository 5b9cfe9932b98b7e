"""Options of commands that record for long: how much of the trace stays, by size and by age."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from kvscope.errors import UsageError

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|min|m|h|d|)")
_SECONDS = {"ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
MAX_SECONDS = 10 * 366 * 86400

TraceSize = Annotated[
    str | None,
    typer.Option(
        help="Keep the newest events of the trace only: about this size of them, such as 512MiB. What is told once of "
        "each request (facts.jsonl) stays and comes on top."
    ),
]
TraceAge = Annotated[
    str | None, typer.Option(help="Keep the newest events of the trace only: about this long, such as 90s or 24h.")
]


class Newest(NamedTuple):
    """The limits of a recorder."""

    max_bytes: int | None = None
    max_age_s: float | None = None


EVERYTHING = Newest()


def parse_duration(text: str) -> float:
    """Seconds from `90s`, `15min`, `24h`, `7d`, `500ms` or a plain number of seconds.

    Raises:
        UsageError: it is no duration, not above zero, or longer than ten years.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r:.60} is not a duration: write seconds, or a number with ms, s, min, h or d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"{text!r:.60} is not a usable duration: it must be above zero and at most ten years")
    return seconds


def kept_newest(trace: Path | None, size: str | None, age: str | None) -> Newest:
    """The limits that `--trace-size` and `--trace-age` give.

    Raises:
        UsageError: one is wrong or too small, or nothing is recorded that it could limit.
    """
    from kvscope.engine.sizing import parse_bytes
    from kvscope.traces.retention import MIN_BYTES

    for name, value in (("size", size), ("age", age)):
        if value is not None and trace is None:
            raise UsageError(f"--trace-{name} {value} limits a trace, and nothing is recorded: give --trace as well")
    limits = Newest(None if size is None else parse_bytes(size), None if age is None else parse_duration(age))
    if limits.max_bytes is not None and limits.max_bytes < MIN_BYTES:
        raise UsageError(f"--trace-size is {size}: at least {MIN_BYTES >> 10}KiB")
    return limits
