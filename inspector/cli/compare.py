"""`kvscope compare`: two runs side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvscope.inspector.units import ABSENT, number, percent, size, span

if TYPE_CHECKING:
    from kvscope.inspector.compare import Comparison

STYLES = {True: "green", False: "red", None: ""}


def compare(
    a: Annotated[Path, typer.Argument(help="A trace.", metavar="TRACE")],
    b: Annotated[Path, typer.Argument(help="Another trace, best of the same requests.", metavar="TRACE")],
    everything: Annotated[bool, typer.Option("--all", help="Measures that did not change as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What changed from one run to another: measures, and the times of the requests that both served, in pairs.

    Example: kvscope compare before.kvtrace after.kvtrace
    """
    from kvscope.inspector.compare import compare as compared
    from kvscope.traces import open_trace

    found = compared(open_trace(a), open_trace(b))
    if as_json:
        sys.stdout.write(json.dumps(found.to_json(), ensure_ascii=False) + "\n")
        return
    console = Console(highlight=False)
    console.width = max(console.width, 100)
    console.print(Text.assemble(("kvscope compare ", "bold"), f"a = {a}   b = {b}"))
    _show(console, found, everything=everything)


def _show(console: Console, found: Comparison, *, everything: bool) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for column in ("measure", "a", "b", "change"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    shown = [change for change in found.changes if everything or change.difference != 0]
    for change in shown:
        text = ABSENT if change.difference is None else _signed(change.name, change.difference)
        if change.relative is not None:
            text += f" ({'+' if change.relative >= 0 else ''}{percent(change.relative)})"
        row = (_as(change.name, change.a), _as(change.name, change.b))
        table.add_row(label(change.name), *row, Text(text, style=STYLES[change.better]))
    console.print(table if shown else "no measure changed")
    if found.times:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
        for column in ("per request, mean", "a", "b", "difference", "95 % interval", ""):
            table.add_column(column, justify="left" if column in ("per request, mean", "") else "right")
        for time in found.times:
            name, low, high = time.name, time.low, time.high or 0.0
            between = ABSENT if low is None else f"{_signed(name, low)} .. {_signed(name, high)}"
            said = {True: "changed", False: "no change shown", None: "too few to tell"}[time.real]
            means = (_as(name, time.a), _as(name, time.b), _signed(name, time.difference))
            table.add_row(label(name), *means, between, said)
        console.print(table)
        console.print(f"[dim]{found.times[0].pairs:,} sequences that both runs finished, compared one by one[/]")
    for name, only in (("a", found.only_a), ("b", found.only_b)):
        if only:
            console.print(Text(f"only in {name}: {', '.join(only[:8])}{' ...' if len(only) > 8 else ''}", style="dim"))
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))


_RATIOS = ("tail_waste", "reservation_waste", "utilization", "pool_utilization", "prefix_hit_rate")
_LABELS = {
    "lifetime_s": "lifetime of a block, P50", "cow_copies": "copies on write", "cow_bytes": "copied on write",
    "held_slots_peak": "held slots, peak", "held_slots_mean": "held slots, mean",
    "cached_slots_mean": "cached slots, mean", "quarantined_slots_mean": "quarantined slots, mean",
    "saved_slots_mean": "saved slots, mean", "first_token_s": "until the first token",
}  # fmt: skip


def label(name: str) -> str:
    """A measure's name for people; `--json` tells it as it is."""
    return _LABELS.get(name) or name.removesuffix("_s").replace("_", " ")


def _as(name: str, value: float | None) -> str:
    """A value in the unit of its measure."""
    if value is None:
        return ABSENT
    if name.endswith("_s"):
        return span(value)
    if name in _RATIOS:
        return percent(value)
    if name.endswith("_bytes"):
        return size(value)
    return number(value) if value == int(value) else f"{value:,.4g}"


def _signed(name: str, value: float) -> str:
    """A difference of two values: of two ratios in points of a percent."""
    sign = "+" if value > 0 else "-" if value < 0 else ""
    text = f"{100 * abs(value):.1f} points" if name in _RATIOS else _as(name, abs(value))
    return f"{sign}{text}"
