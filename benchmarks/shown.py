"""The rows that benchmarks print, and their progress."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any


def row(name: str, value: float, unit: str, baseline: float | None = None, gate: float | None = None) -> dict[str, Any]:
    """One line of the result; the gate is on the ratio where there is a baseline, else on the value."""
    ratio = None if baseline is None else round(value / baseline, 4)
    ok = None if gate is None else (value if ratio is None else ratio) <= gate
    return {"name": name, "value": round(value, 4), "unit": unit, "baseline": baseline, "ratio": ratio, "gate": gate,
            "ok": ok}  # fmt: skip


def gated(name: str, value: float, unit: str, baseline: float | None, gate: float | None) -> dict[str, Any]:
    """A row whose gate is on the value, also where there is a baseline."""
    return row(name, value, unit, baseline) | {"gate": gate, "ok": None if gate is None else value <= gate}


def median_within(values: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the interval of order statistics that holds it with 95 %."""
    ordered = sorted(values)
    middle, half = len(ordered) / 2, 0.98 * len(ordered) ** 0.5
    low, high = ordered[max(int(middle - half), 0)], ordered[min(int(middle + half), len(ordered) - 1)]
    return statistics.median(ordered), low, high


def show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the rows."""
    if as_json:
        print(json.dumps({"rows": rows}))
        return
    for r in rows:
        ratio = "" if r["ratio"] is None else f"{r['ratio']:8.3f} x"
        gate = "" if r["gate"] is None else f"  gate {r['gate']:g}  {'ok' if r['ok'] else 'MISSED'}"
        print(f"{r['name']:46} {r['value']:14,.2f} {r['unit']:12}{ratio:11}{gate}")


def progress_of(what: str, total: float) -> Callable[[int], None]:
    """Says on standard error how far it is, in steps of a percent; only where somebody looks."""
    said = -1

    def progress(done: int) -> None:
        nonlocal said
        percent = int(100 * done / total) if total else 100
        if percent != said:
            said = percent
            sys.stderr.write(f"\r{what} {done:,} ({percent} %)" + ("\n" if percent >= 100 else ""))
            sys.stderr.flush()

    return progress


def say_now(text: str) -> None:
    """What is being done, on a line of standard error that the next such word takes; only where somebody looks."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}" if text else "\r\x1b[K")
        sys.stderr.flush()


def positive(text: str) -> float:
    """An option's value above 0, and finite: `nan` and `inf` are numbers to Python, and no benchmark would end."""
    value = _number(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def none_or_more(text: str) -> float:
    """An option's value of 0 or more, and finite."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is not a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
    return value
