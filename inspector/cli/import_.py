"""`kvscope import`: a trace folder from a file of another form."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvscope.inspector.cli._files import named_after, progress
from kvscope.inspector.cli._lines import say


def import_file(
    file: Annotated[Path, typer.Argument(help="What `kvscope export --to jsonl` wrote.", metavar="FILE")],
    form: Annotated[str, typer.Option("--from", help="The form of the file; jsonl is the one there is.")] = "jsonl",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="The trace; the file's name, here, if left out. Missing folders are made."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Say what came in as one JSON object.")] = False,
) -> None:
    """Make a trace of a file: the same events, details, names and facts that were exported.

    A bad line is refused with its number, and then nothing is written.

    Example: kvscope import run.jsonl --out again.kvtrace
    """
    from kvscope.errors import UsageError
    from kvscope.inspector.importing import import_jsonl

    if form != "jsonl":
        raise UsageError(f"cannot import from {form!r:.40}: choose jsonl")
    with progress(f"reading {file}") as show:
        done = import_jsonl(file, out or named_after(file, ".kvtrace"), overwrite=overwrite, progress=show)
    for line in done.warnings:
        sys.stderr.write(f"kvscope: note: {line}\n")
    if as_json:
        told = {"schema": "kvscope-import/1", "path": str(done.path), "events": done.events, "facts": done.facts}
        sys.stdout.write(json.dumps(told | {"warnings": list(done.warnings)}) + "\n")
    else:
        say(f"{done.path}: {done.events:,} events, {done.facts:,} facts")
