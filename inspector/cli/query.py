"""`kvscope query`: ask a trace in SQL."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope.inspector.cli._lines import errors

if TYPE_CHECKING:
    from kvscope.inspector.query import Answer

WIDEST = 60  # characters of a cell of the table for people


def query(
    trace: Annotated[Path, typer.Argument(help="A trace (NAME.kvtrace).", metavar="TRACE")],
    sql: Annotated[str, typer.Argument(help='One SELECT, in quotes; "SHOW TABLES" and "DESCRIBE events" work too.')],
    limit: Annotated[int, typer.Option("--limit", min=0, help="Rows at most; 0 for all.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on standard output.")] = False,
) -> None:
    """Ask a trace in SQL (DuckDB): tables events, details, sites, facts, blocks, sequences, findings.

    Reads only; needs DuckDB (pip install duckdb).

    Example: kvscope query run.kvtrace "SELECT kind, count(*) FROM events GROUP BY kind ORDER BY 2 DESC"
    """
    from kvscope.errors import UsageError
    from kvscope.inspector.query import ask
    from kvscope.traces import open_trace

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other: give one of them")
    opened = open_trace(trace)
    for line in opened.warnings:
        sys.stderr.write(f"kvscope: note: {line}\n")
    with errors.status("asking ..."), ask(opened, sql, most=limit + 1 if limit else None) as answer:
        taken = islice(answer.rows, limit) if limit else answer.rows
        show = _show_json if as_json else _show_csv if as_csv else _show_table
        count = show(answer, taken)
        more = bool(limit) and count == limit and next(answer.rows, None) is not None
        if as_json:
            sys.stdout.write(f'],"truncated":{json.dumps(more)}}}\n')
    if more:
        sys.stderr.write(f"kvscope: note: only the first {limit:,} rows are shown: --limit 0 shows all\n")


def _show_json(answer: Answer, rows: Iterator[tuple[Any, ...]]) -> int:
    columns = [{"name": name, "type": kind} for name, kind in answer.columns]
    sys.stdout.write(f'{{"schema":"kvscope-query/1","columns":{json.dumps(columns)},"rows":[')
    count = 0
    for row in rows:
        sys.stdout.write(("," if count else "") + json.dumps([_plain(value) for value in row]))
        count += 1
    return count


def _show_csv(answer: Answer, rows: Iterator[tuple[Any, ...]]) -> int:
    from kvscope.inspector.export.events_csv import safe

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([safe(name) for name, _ in answer.columns])
    count = 0
    for row in rows:
        writer.writerow([safe(value) if isinstance(value, str) else value for value in row])
        count += 1
    return count


def _show_table(answer: Answer, rows: Iterator[tuple[Any, ...]]) -> int:
    kept = list(rows)
    cells = [[name for name, _ in answer.columns], *([_cell(value) for value in row] for row in kept)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(isinstance(row[i], int | float) for row in kept) for i in range(len(answer.columns))]
    for line in cells:
        padded = [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")
    return len(kept)


def _cell(value: Any) -> str:
    """A value on one line, without what a terminal would obey."""
    if value is None:
        return "-"
    text = f"{value:g}" if type(value) is float else str(value)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _plain(value: Any) -> Any:
    """A value as JSON knows it: what is no number, text or list of such is its text; no NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return value if value is None or isinstance(value, bool | int | str) else str(value)
