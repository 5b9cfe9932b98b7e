"""`kvscope models`: the models with a name, and fetching them."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    help="The embedded model: where it is, and fetching it.\n\nExample: kvscope models get smollm2",
    no_args_is_help=True,
)


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A name that `kvscope models list` shows.")] = "smollm2",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Fetch a model into the cache and check its hash; does nothing when it is there.

    Example: kvscope models get smollm2
    """
    from kvscope.engine.model import registry

    console = Console(stderr=True)
    with console.status(f"looking for {name} ...") if console.is_terminal else _Still() as status:

        def progress(what: str, done: int, total: int) -> None:
            if status is not None and total:
                status.update(f"{what}: {done / 2**20:.0f} of {total / 2**20:.0f} MiB")

        path = registry.get(name, progress)
    if as_json:
        sys.stdout.write(json.dumps({"name": name, "path": str(path)}) + "\n")
    else:
        sys.stdout.write(f"{name}: {path}\n")


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False) -> None:
    """The models with a name, and whether they are on this machine.

    Example: kvscope models list
    """
    from kvscope.engine.model import registry

    entries = registry.list_models()
    if as_json:
        rows = [
            {"name": e.name, "title": e.title, "license": e.license, "size_bytes": e.size_bytes,
             "path": str(e.path) if e.path else None}
            for e in entries
        ]  # fmt: skip
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    for e in entries:
        where = e.path or f"not here: kvscope models get {e.name}"
        sys.stdout.write(f"{e.name:10} {e.title} ({e.license}, {e.size_bytes / 2**20:.0f} MiB)\n{'':10} {where}\n")


class _Still:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None
