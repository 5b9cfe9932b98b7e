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

from kvscope.inspector.cli.inspect import ABSENT

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
        text = ABSENT if change.difference is None else _signed(change.difference)
        if change.relative is not None:
            text += f" ({change.relative:+.1%})"
        table.add_row(change.name, _plain(change.a), _plain(change.b), Text(text, style=STYLES[change.better]))
    console.print(table if shown else "no measure changed")
    if found.times:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
        for column in ("per request, mean", "a", "b", "difference", "95 % interval", ""):
            table.add_column(column, justify="left" if column in ("per request, mean", "") else "right")
        for time in found.times:
            between = ABSENT if time.low is None else f"{_signed(time.low)} .. {_signed(time.high or 0.0)}"
            said = {True: "changed", False: "no change shown", None: "too few to tell"}[time.real]
            table.add_row(time.name, _plain(time.a), _plain(time.b), _signed(time.difference), between, said)
        console.print(table)
        console.print(f"[dim]{found.times[0].pairs:,} sequences that both runs finished, compared one by one[/]")
    for name, only in (("a", found.only_a), ("b", found.only_b)):
        if only:
            console.print(Text(f"only in {name}: {', '.join(only[:8])}{' ...' if len(only) > 8 else ''}", style="dim"))
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"))


def _plain(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}"


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if value == int(value) else f"{value:+,.4g}"
