"""`kvscope pack` and `kvscope unpack`: a trace folder as one file, and back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from kvscope.errors import UsageError
from kvscope.inspector.cli._files import STDOUT, named_after
from kvscope.inspector.cli._lines import say


def pack(
    trace: Annotated[Path, typer.Argument(help="A trace folder (NAME.kvtrace).", metavar="TRACE")],
    file: Annotated[
        Path | None,
        typer.Argument(help="The file; NAME.kvpack, here, if left out. Missing folders are made.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Make one file of a trace, for a bug report; every command reads it like the folder.

    Example: kvscope pack run.kvtrace
    """
    from kvscope.traces.pack import pack as pack_trace

    _refuse_stream(file, "run.kvpack")
    made = pack_trace(trace, file or named_after(trace, ".kvpack"), overwrite=overwrite)
    _told("kvscope-pack/1", made, made.stat().st_size, as_json)


def unpack(
    file: Annotated[Path, typer.Argument(help="A packed trace (NAME.kvpack).", metavar="FILE")],
    folder: Annotated[
        Path | None,
        typer.Argument(help="The folder; NAME.kvtrace, here, if left out. Missing folders are made.", metavar="DIR"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Make a trace folder of a packed trace again; nothing outside that folder is written.

    Example: kvscope unpack run.kvpack again.kvtrace
    """
    from kvscope.traces.pack import unpack as unpack_trace

    _refuse_stream(folder, "run.kvtrace")
    made = unpack_trace(file, folder or named_after(file, ".kvtrace"))
    _told("kvscope-unpack/1", made, sum(path.stat().st_size for path in made.iterdir()), as_json)


def _refuse_stream(target: Path | None, like: str) -> None:
    if target == STDOUT:
        raise UsageError(f"a trace cannot go to standard output: give a name, like {like}")


def _told(schema: str, made: Path, size: int, as_json: bool) -> None:
    """What was made, and what is wrong with the trace in it."""
    from kvscope.traces import open_trace

    notes = list(open_trace(made).warnings)
    for note in notes:
        say(f"kvscope: note: {note}")
    if as_json:
        sys.stdout.write(json.dumps({"schema": schema, "path": str(made), "bytes": size, "notes": notes}) + "\n")
    else:
        say(f"{made}: {size:,} bytes")
