"""`kvscope check`: replay the ledger of a trace, report every broken rule."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvscope.inspector.findings import CheckResult


def check(
    trace: Annotated[Path, typer.Argument(help="A trace folder (NAME.kvtrace).", metavar="TRACE")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object (kvsan/1) on standard output.")] = False,
    most: Annotated[int, typer.Option("--max", min=1, help="Report at most this many kinds of mistake in full.")] = 20,
) -> None:
    """Replay a trace and report every broken rule: who, what, where, and why.

    Exits 0 when what the trace holds is clean (the line says how many events are missing, if any), 1 with findings,
    2 when there is nothing to check.

    Example: kvscope check run.kvtrace
    """
    from kvscope.inspector import findings
    from kvscope.inspector.report import report, to_json
    from kvscope.traces import open_trace

    opened = open_trace(trace)
    result = findings.check(opened)
    for line in (*opened.warnings, *result.notes):
        sys.stderr.write(f"kvscope: note: {line}\n")
    if as_json:
        told = to_json(result, opened, name=str(trace)) | {"missing_events": opened.missing}
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    elif result.nothing_to_check:
        sys.stdout.write(f"nothing to check: none of the {result.events:,} events of {trace} speaks of a block\n")
    elif result.findings:
        sys.stdout.write(report(result, opened, name=str(trace), most=most) + "\n")
    else:
        sys.stdout.write(clean_line(result, opened.missing) + "\n")
    raise typer.Exit(2 if result.nothing_to_check else 1 if result.findings else 0)


def clean_line(result: CheckResult, missing: int = 0) -> str:
    """One line that says how much was checked, and what could not be: `missing` events were lost."""
    lost = f"{missing:,} event{'s are' if missing > 1 else ' is'} missing"
    verdict = f"clean as far as recorded: {lost}; " if missing else "clean: "
    idle = f"; nothing to look at for {' '.join(name for name, _ in result.idle)}" if result.idle else ""
    return (
        f"{verdict}checked {result.events:,} events, {result.blocks:,} blocks, {result.slots:,} slots in "
        f"{result.elapsed_s:.2f} s (detectors {' '.join(result.detectors)}{idle})"
    )
