"""`kvscope export`: a trace in the format of another tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from kvscope.inspector.cli._files import STDOUT, named_after, parse_range, progress
from kvscope.inspector.cli._lines import say


def export(
    trace: Annotated[Path, typer.Argument(help="A trace (NAME.kvtrace).", metavar="TRACE")],
    to: Annotated[str, typer.Option("--to", help="perfetto, parquet, jsonl, csv, ilens or html.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Where to; the trace's name, here, if left out; - for standard output. Missing folders are made.",
        ),
    ] = None,
    seq_range: Annotated[
        str | None, typer.Option("--seq-range", metavar="A:B", help="Only events from number A to below B.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an export that is there.")] = False,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="html: also the texts of requests, where the trace holds them.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was written as one JSON object.")] = False,
) -> None:
    """Write a trace for another tool, or as one HTML file: Perfetto, Parquet tables, JSON lines, CSV, InferLens.

    Example: kvscope export run.kvtrace --to html      then open run.html in a browser; it needs no network
    """
    from kvscope.errors import UsageError
    from kvscope.inspector import export as exports
    from kvscope.traces import open_trace

    form = exports.FORMATS.get(to) if to != "html" else _html(trace.stem, with_text)
    if form is None:
        raise UsageError(f"cannot export to {to!r:.40}: choose one of {', '.join((*exports.FORMATS, 'html'))}")
    if with_text and to != "html":
        raise UsageError("--with-text is for --to html: the other formats hold what the trace holds")
    if as_json and out == STDOUT:
        raise UsageError("--json and --out - both write to standard output: give a file")
    seqs = parse_range(seq_range)
    opened = open_trace(trace)
    for line in opened.warnings:
        sys.stderr.write(f"kvscope: note: {line}\n")
    target = sys.stdout.buffer if out == STDOUT else out or named_after(trace, form.suffix)
    if isinstance(target, Path) and trace.resolve() in (target.resolve(), *target.resolve().parents):
        raise UsageError(f"cannot write {target}: it lies in the trace itself; choose a place outside")
    with progress(f"writing {to}") as show:
        done = exports.export(opened, to, target, seqs=seqs, overwrite=overwrite, progress=show, form=form)
    if as_json:
        sys.stdout.write(json.dumps(done.to_json()) + "\n")
    else:
        say(f"{done.path}: {done.events:,} events as {done.count:,} {done.unit}"
            + (f", {done.size_bytes:,} bytes" if done.size_bytes >= 0 else ""))  # fmt: skip


def _html(name: str, with_text: bool) -> Any:
    """The report of the dashboard's room, which this room does not know."""
    from functools import partial

    from kvscope.dashboard.report_page import write_html
    from kvscope.inspector.export.formats import Format

    return Format(".html", partial(write_html, name=name, with_text=with_text), "figures", "a report for a browser")
