"""`kvscope samples`: small recorded runs to look at."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from kvscope.inspector.cli._lines import say


def samples(
    names: Annotated[list[str] | None, typer.Argument(help="Which ones; all if left out.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to make them in.")] = Path("kvscope-samples"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Only say what there is.")] = False,
) -> None:
    """Make small traces, each with one point to see: a healthy run, a garbled race, a leak, sharing, waste.

    Example: kvscope samples && kvscope dashboard kvscope-samples
    """
    from kvscope.inspector.gallery import make, named

    for sample in named(names or ()):
        if only_list:
            sys.stdout.write(f"{sample.name:16} {sample.point}\n")
        else:
            say(f"{make(sample, out, overwrite=overwrite)}: {sample.point}")
    if not only_list:
        say(f"  kvscope dashboard {quote(str(out))}")
