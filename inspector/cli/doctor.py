"""`kvscope doctor`: why paging helps here, or does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from kvscope.inspector.doctor import Diagnosis, Evidence, Verdict

MARKS = {True: ("found", "bold red"), False: ("no", "green"), None: ("cannot tell", "yellow")}


_OF_WORKLOADS = ("kv_memory", "max_model_len", "model", "block_size", "limit")


def doctor(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="A trace, a workload file, or gen:KEY=VALUE,...")],
    kv_memory: Annotated[str, typer.Option(help="For a workload: memory for KV, such as 16GiB.")] = "16GiB",
    max_model_len: Annotated[str | None, typer.Option(help="For a workload: the limit; the model's.")] = None,
    model: Annotated[str, typer.Option(help="For a workload: a name, or a folder with config.json.")] = "llama-3-8b",
    block_size: Annotated[int, typer.Option(help="For a workload: token slots per block.")] = 16,
    limit: Annotated[int | None, typer.Option(help="For a workload: only the first so many requests.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Diagnose: does paging pay, which layer loses memory, which of the known complaints apply, and what next.

    Exit code 1 when a complaint was found.

    Example: kvscope doctor run.kvtrace
    """
    from kvscope.inspector.doctor import diagnose

    given = [name for name in _OF_WORKLOADS if str(context.get_parameter_source(name)).endswith("COMMANDLINE")]
    evidence = _evidence(source, kv_memory, max_model_len, model, block_size, limit, given)
    found = diagnose(evidence)
    if as_json:
        sys.stdout.write(json.dumps({**found.to_json(), "source": evidence.source}, ensure_ascii=False) + "\n")
    else:
        _show(Console(highlight=False), source, evidence, found)
    raise typer.Exit(1 if found.complaints else 0)


def _evidence(source: str, kv_memory: str, max_model_len: str | None, model: str, block_size: int,
              limit: int | None, given: list[str]) -> Evidence:  # fmt: skip
    """A trace is read; anything else is a workload, and simulated."""
    from kvscope.inspector.doctor import of_trace, of_workload
    from kvscope.inspector.workloads.opening import is_trace, open_workload

    if not source.startswith("gen:") and is_trace(Path(source)):
        from kvscope.errors import UsageError
        from kvscope.traces import open_trace

        if given:
            option = "--" + given[0].replace("_", "-")
            raise UsageError(f"{option} is for a workload: {source} is a trace, which says what it ran with")
        return of_trace(open_trace(Path(source)))
    from kvscope.engine.sizing import parse_bytes
    from kvscope.inspector.shapes import model_shape, parse_tokens
    from kvscope.inspector.simulate import Settings

    shape = model_shape(model)
    tokens = parse_tokens("max-model-len", max_model_len) if max_model_len else shape.max_model_len
    settings = Settings(parse_bytes(kv_memory), shape.bytes_per_token, tokens)
    return of_workload(open_workload(source, limit=limit), settings, block_size)


def _show(console: Console, source: str, evidence: Evidence, found: Diagnosis) -> None:
    if not console.is_terminal:
        console.width = max(console.width, 100)
    console.print(Text.assemble(("kvscope doctor ", "bold"), source))
    if found.benefit_ratio is None:
        console.print("the limit or the lengths are not known: whether paging pays cannot be told")
    else:
        word = "pays" if found.pays else "does not pay"
        console.print(
            f"limit {found.max_model_len:,} = {found.benefit_ratio:.1f} x the P50 length of {found.p50:,.0f} tokens: "
            f"paging [bold]{word}[/]" + (" (simulated)" if evidence.source == "workload" else "")
        )
    for note in found.notes:
        console.print(Text(f"note: the evidence is not complete: {note}", style="bold red"))
    console.print("\n[bold]Three layers, three cures[/]")
    for layer in found.layers:
        said = Text.assemble(layer.name, (f" ({layer.cause})", "dim"), f": {layer.evidence}")
        console.print(Padding(said, (0, 0, 0, 2)))
        console.print(Padding(Text(f"cure: {layer.cure}", style="dim"), (0, 0, 0, 4)))
    for title, verdicts in (
        ("Why it might not have helped", found.symptoms),
        ("When it does not pay", found.does_not_pay),
    ):
        console.print(f"\n[bold]{title}[/]")
        for verdict in verdicts:
            _verdict(console, verdict)


def _verdict(console: Console, verdict: Verdict) -> None:
    mark, style = MARKS[verdict.found]
    console.print(Text.assemble("  ", (f"{mark:12}", style), verdict.title, (f"  ({verdict.confidence})", "dim")))
    console.print(Padding(Text(verdict.evidence, style="dim"), (0, 0, 0, 4)))
    if verdict.found is not False:
        console.print(Padding(Text(f"next: {verdict.next_step}", style="dim"), (0, 0, 0, 4)))
