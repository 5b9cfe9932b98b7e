"""`kvscope faults`: the catalogue of planted faults."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

app = typer.Typer(help="The planted faults: broken block managers that the sanitizer must find.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `list` a command of its own."""


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False) -> None:
    """Every fault by name, with the code it is found as.

    Example: kvscope faults list
    """
    from kvscope.inspector.faults import FAULTS

    if as_json:
        rows = [{"name": f.name, "code": f.code, "title": f.title} for f in FAULTS.values()]
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for fault in FAULTS.values():
        sys.stdout.write(f"{fault.name:24} {fault.code}  {fault.title}\n")
