"""`kvscope demo`: the real model, a planted fault, what it did to the words, and the finding that names it."""

from __future__ import annotations

import difflib
import json
import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvscope.inspector.cli._engine import load
from kvscope.inspector.cli._files import check_replaceable
from kvscope.inspector.units import counted

if TYPE_CHECKING:
    from kvscope.inspector.demo import Outcome
    from kvscope.inspector.faults import Fault
    from kvscope.inspector.findings import CheckResult

out = Console(highlight=False)


def demo(
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="End after the report.")] = False,
    folder: Annotated[
        Path, typer.Option("--out", help="Where the two traces go; those of an earlier demo are replaced.")
    ] = Path("demo-out"),
    fault: Annotated[
        str, typer.Option(help="What is planted (`kvscope faults list`); not every fault shows in this workload.")
    ] = "missing-copy",
    model: Annotated[str, typer.Option(help="The model to run.")] = "smollm2",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace traces there that no demo has made.")] = False,
    port: Annotated[int, typer.Option(help="Port of the dashboard, on loopback.")] = 8501,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes what is fastest now.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output; no dashboard.")] = False,
) -> None:
    """Run a mixed workload on the real model, clean and with a planted fault, and hunt the fault down.

    Exits 0 only if the clean run is clean and the planted fault was found by its code.

    Example: kvscope demo --no-dashboard --out demo-out
    """
    from kvscope.dashboard.launch import check_port
    from kvscope.errors import UsageError
    from kvscope.inspector.faults import FAULTS

    if fault not in FAULTS:
        raise UsageError(f"fault {fault!r} is unknown: choose one of {', '.join(FAULTS)}")
    serve_after = not no_dashboard and not as_json
    if serve_after:
        check_port("127.0.0.1", port)
    planted = FAULTS[fault]
    traces = folder / "clean.kvtrace", folder / f"{planted.name}.kvtrace"
    for trace in traces:
        check_replaceable(trace, "kvscope demo", overwrite=overwrite)
    import torch  # what can be refused without it was

    console = Console(stderr=True, highlight=False) if as_json else out
    console.print(
        "[bold]KVScope demo[/]: 8 requests behind one system prompt, one of them with 3 samples, a tight pool"
    )
    loaded = load(model, device="cpu", dtype=torch.float32, threads=threads, quiet=as_json)
    clean = _run(console, "clean run", loaded, traces[0])
    broken = _run(console, f"planted: {planted.name}", loaded, traces[1], planted)
    clean_check, broken_check = _check(clean.trace), _check(broken.trace)
    found = [finding for finding in broken_check.findings if finding.code == planted.code]
    good = not clean_check.findings and bool(found)
    if as_json:
        sys.stdout.write(json.dumps(_record(good, planted, (clean, clean_check), (broken, broken_check))) + "\n")
        raise typer.Exit(0 if good else 1)
    _texts(planted, clean, broken)
    _verdicts(planted, clean_check, broken_check, clean, broken)
    if not good:
        missed = f"{planted.name} left no {planted.code} in this workload"
        out.print(f"[bold red]the demo failed[/]: {'the clean run has findings' if found else missed}")
        raise typer.Exit(1)
    if serve_after:
        from kvscope.dashboard.launch import serve
        from kvscope.inspector.cli.dashboard import announce

        out.print("\nThe traces stay in", str(folder), "- opening the planted one in the dashboard ...")
        first = found[0]
        serve(broken.trace, port=port, others=[clean.trace], on_ready=announce,
              seq=first.seq, block=first.block if first.block >= 0 else None)  # fmt: skip


def _run(console: Console, title: str, loaded: Any, trace: Path, fault: Fault | None = None) -> Outcome:
    """One run with a progress bar."""
    from kvscope.inspector import demo as workload

    bar = Progress(TextColumn("  {task.description:24}"), BarColumn(24), MofNCompleteColumn(), TextColumn("tokens"),
                   TimeElapsedColumn(), console=console)  # fmt: skip
    with bar:
        most = sum(samples for _, _, samples in workload.REQUESTS) * workload.MAX_TOKENS
        task = bar.add_task(title, total=most)
        start = time.perf_counter()
        outcome = workload.run(
            loaded, trace, manager=fault.manager() if fault else None, fault=fault.name if fault else None,
            on_token=lambda done: bar.update(task, completed=done), overwrite=True,
            provenance=fault is not None and fault.code == "KV023",
        )  # fmt: skip
        bar.update(task, total=outcome.tokens)
    seconds = time.perf_counter() - start
    console.print(
        f"  {'':24} {outcome.tokens} tokens in {seconds:.1f} s, {outcome.preemptions} preempted, "
        f"trace {trace}", style="dim", soft_wrap=True, markup=False,
    )  # fmt: skip
    return outcome


def _check(trace: Path) -> CheckResult:
    from kvscope.inspector.findings import check
    from kvscope.traces import open_trace

    return check(open_trace(trace))


def _texts(fault: Fault, clean: Outcome, broken: Outcome) -> None:
    """The samples of the forked request side by side; words that differ are marked."""
    from kvscope.inspector.demo import REQUESTS, STORY

    out.print(f'\n[bold]"{REQUESTS[STORY][1]}"[/]   3 samples, same seeds in both runs')
    table = Table(box=None, padding=(0, 2, 1, 0), show_header=True, header_style="bold", expand=True)
    table.add_column("", width=2)
    table.add_column("clean", ratio=1)
    table.add_column(fault.name, ratio=1)
    for number, (before, after) in enumerate(zip(clean.texts[STORY], broken.texts[STORY], strict=True)):
        table.add_row(str(number), Text(before), _marked(before, after))
    out.print(table)


def _marked(before: str, after: str) -> Text:
    a, b = before.split(), after.split()
    text = Text()
    for tag, _, _, lo, hi in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if lo < hi:
            text.append(" ".join(b[lo:hi]) + " ", style="" if tag == "equal" else "bold red")
    return text


def _verdicts(fault: Fault, clean_check: Any, broken_check: Any, clean: Outcome, broken: Outcome) -> None:
    from kvscope.inspector.reads import reads_of
    from kvscope.inspector.report import report
    from kvscope.inspector.source import Names, joined
    from kvscope.traces import open_trace

    found = counted(len(clean_check.findings), "finding")
    state = "[green]clean[/]" if not clean_check.findings else f"[red]{found}[/]"
    out.print(f"clean run: {state}, checked {clean_check.events:,} events, {clean_check.blocks:,} blocks, "
              f"{clean_check.slots:,} slots")  # fmt: skip
    found = counted(len(broken_check.findings), "finding")
    out.print(f"planted run: [red]{found}[/]; the fault: {fault.title}")
    if broken.stopped:
        out.print(f"the broken manager ended it: {broken.stopped}", soft_wrap=True, markup=False)
    trace = open_trace(broken.trace)
    sys.stdout.write("\n" + report(broken_check, trace, name=str(broken.trace), most=1, code_first=fault.code) + "\n\n")
    damage, names = reads_of(trace, broken_check).damage, Names(trace.facts)
    hurt = [names(seq_id) for seq_id in sorted(damage, key=lambda seq_id: damage[seq_id].first_row)]
    if not hurt:
        sys.stdout.write("nobody read foreign KV in this run\n")
        return
    sys.stdout.write(f"foreign KV was read by {joined(hurt)}\n")
    sys.stdout.write(f"Explain: kvscope explain {quote(str(broken.trace))} --request {quote(hurt[0])}\n")


def _record(good: bool, fault: Fault, *runs: tuple[Outcome, Any]) -> dict[str, Any]:
    """The demo as one JSON object."""
    names = ("clean", "planted")
    return {
        "ok": good,
        "fault": fault.name,
        "code": fault.code,
        **{
            name: {
                "trace": str(outcome.trace), "tokens": outcome.tokens, "preemptions": outcome.preemptions,
                "texts": outcome.texts, "events": check.events, "stopped": outcome.stopped or None,
                "codes": sorted({finding.code for finding in check.findings}),
            }
            for name, (outcome, check) in zip(names, runs, strict=True)
        },
    }  # fmt: skip
