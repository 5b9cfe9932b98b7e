"""`kvscope simulate`: a workload under several allocators, accounting only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvscope.errors import UsageError
from kvscope.inspector.cli._engine import interruptible
from kvscope.inspector.cli._lines import errors, say
from kvscope.inspector.units import ABSENT, number, percent, size, span

if TYPE_CHECKING:
    from kvscope.inspector.shapes import ModelShape
    from kvscope.inspector.simulate import Cell, Outcome, Settings
    from kvscope.inspector.workloads import Workload


def simulate(
    workload: Annotated[str, typer.Argument(help="A CSV or JSONL of requests, a trace folder, or gen:KEY=VALUE,...")],
    allocator: Annotated[str, typer.Option(help="Of paged, reserved, contiguous, buddy; separated by commas.")] = (
        "paged,reserved,contiguous,buddy"
    ),
    block_size: Annotated[str, typer.Option(help="Token slots per block; separated by commas.")] = "16",
    kv_memory: Annotated[str, typer.Option(help="Memory for KV, such as 16GiB.")] = "16GiB",
    max_model_len: Annotated[str | None, typer.Option(help="Where a request ends; k is 1024. The model's.")] = None,
    model: Annotated[str, typer.Option(help="A name such as llama-3-8b, or a folder with config.json.")] = "llama-3-8b",
    layers: Annotated[int | None, typer.Option(help="In place of the model's.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="In place of the model's.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="In place of the model's.")] = None,
    dtype_bytes: Annotated[int, typer.Option(help="Bytes of one number of the cache.")] = 2,
    sharing: Annotated[str, typer.Option(help="on or off: share equal prefixes and samples, in a paged pool.")] = "on",
    limit: Annotated[int | None, typer.Option(help="Only the first so many requests.")] = None,
    at_once: Annotated[bool, typer.Option("--at-once", help="All requests are there at the start.")] = False,
    max_seqs: Annotated[int, typer.Option(help="Sequences that run at once, at most.")] = 256,
    max_batched_tokens: Annotated[int, typer.Option(help="Positions computed per step.")] = 2048,
    policy: Annotated[str, typer.Option(help="Order of the queue: fcfs, priority or fair.")] = "fcfs",
    preemption: Annotated[str, typer.Option(help="recompute, or swap (the paged pool only).")] = "recompute",
    swap_space: Annotated[str | None, typer.Option(help="Host memory for --preemption swap, such as 16GiB.")] = None,
    watermark: Annotated[float, typer.Option(help="Share of the pool kept free at admission.")] = 0.01,
    step_time: Annotated[
        str, typer.Option(help="Time of a step: base, and per prompt token, live token, copied token.")
    ] = "5ms,35us,30ns,60ns",
    drive: Annotated[bool, typer.Option("--drive", help="Step the real scheduler even where counting would do.")] = (
        False
    ),
    jobs: Annotated[int, typer.Option(help="Cells that run side by side, one process each.")] = 1,
    trace: Annotated[
        Path | None, typer.Option(help="Record into this folder, for the dashboard; missing folders are made.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Run a workload under allocators without a model: how many fit, what is wasted and why, what it costs.

    Example: kvscope simulate gen:requests=500,prompt=450,output=120 --max-model-len 2048 --block-size 8,16,32
    """
    from kvscope.engine.sizing import parse_bytes
    from kvscope.inspector.shapes import model_shape, parse_tokens
    from kvscope.inspector.simulate import ServiceTime, Settings
    from kvscope.inspector.simulate import simulate as run
    from kvscope.inspector.simulate.parallel import simulate_side_by_side
    from kvscope.inspector.workloads import open_workload

    known = model_shape(model, dtype_bytes=dtype_bytes)
    given = (layers, kv_heads, head_dim)
    usual = (known.num_layers, known.num_kv_heads, known.head_dim)
    own = [theirs if mine is None else mine for mine, theirs in zip(given, usual, strict=True)]
    name = known.name if given == (None, None, None) else "own sizes"
    shape = replace(known, name=name, num_layers=own[0], num_kv_heads=own[1], head_dim=own[2])
    settings = Settings(
        kv_memory=parse_bytes(kv_memory), bytes_per_token=shape.bytes_per_token,
        max_model_len=parse_tokens("max-model-len", max_model_len) if max_model_len else shape.max_model_len,
        max_seqs=max_seqs, max_batched_tokens=max_batched_tokens, watermark=watermark, sharing=_is_on(sharing),
        at_once=at_once, service=ServiceTime.parse(step_time), policy=policy, preemption=preemption,
        swap_space=parse_bytes(swap_space) if swap_space is not None else 0,
    )  # fmt: skip
    cells = _cells(allocator, block_size)
    requests = open_workload(workload, limit=limit)
    rows: list[Outcome] = []
    places = [(cell, _folder(trace, cell, cells)) for cell in cells]
    try:
        with interruptible() as pressed, _progress(cells, requests, quiet=as_json) as advance:
            if jobs != 1:
                for cell, row in zip(cells, simulate_side_by_side(
                    requests, places, settings, jobs=jobs, stop=pressed, overwrite=overwrite, drive=drive
                ), strict=True):  # fmt: skip
                    rows.append(row)
                    advance(cell)(row.sequences_finished)
            else:
                for cell, folder in places:
                    rows.append(run(requests, cell, settings, trace=folder, overwrite=overwrite, drive=drive,
                                    on_finish=advance(cell), stop=pressed))  # fmt: skip
    except KeyboardInterrupt:
        if rows and not as_json:
            show(Console(highlight=False), requests, shape, settings, rows)
        if trace is not None:
            say(f"the trace in {trace} is whole up to here")
        raise
    if as_json:
        sys.stdout.write(json.dumps(to_json(requests, shape, settings, rows), ensure_ascii=False) + "\n")
        return
    show(Console(highlight=False), requests, shape, settings, rows)
    if trace is not None:
        say(f"trace: {trace}\n  kvscope dashboard {quote(str(_folder(trace, cells[0], cells)))}")


def _is_on(text: str) -> bool:
    if text not in ("on", "off"):
        raise UsageError(f"sharing is {text!r}: must be on or off")
    return text == "on"


def _cells(allocators: str, block_sizes: str) -> list[Cell]:
    """Every allocator at every block size; reserving knows no block size, so once."""
    from kvscope.inspector.simulate import Cell

    try:
        sizes = [int(text) for text in block_sizes.split(",")]
    except ValueError:
        raise UsageError(f"block size is {block_sizes!r}: wanted whole numbers, separated by commas") from None
    cells: dict[str, Cell] = {}
    for name in allocators.split(","):
        for block_size in sizes:
            cell = Cell(name.strip(), block_size)
            cells.setdefault(str(cell), cell)
    return list(cells.values())


def _folder(trace: Path | None, cell: Cell, cells: list[Cell]) -> Path | None:
    if trace is None or len(cells) == 1:
        return trace
    return trace / f"{str(cell).replace(' ', '-')}.kvtrace"


@contextmanager
def _progress(cells: list[Cell], workload: Workload, *, quiet: bool) -> Iterator[Callable[[Cell], Any]]:
    """A bar on standard error, for people; yields what makes a cell's callback."""
    if quiet or not errors.is_terminal:
        yield lambda cell: lambda done: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    total = sum(request.samples for request in workload.requests)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=total * len(cells))

        def advance(cell: Cell) -> Callable[[int], None]:
            before = cells.index(cell) * total
            bar.update(task, description=str(cell), completed=before)
            return lambda done: bar.update(task, completed=before + done)

        yield advance


def to_json(workload: Workload, shape: ModelShape, settings: Settings, rows: list[Outcome]) -> dict[str, Any]:
    """All that was asked and found."""
    return {
        "schema": "kvscope-simulate/1",
        "workload": {"name": workload.name, "kind": workload.kind, "notes": workload.notes, **lengths(workload)},
        "settings": {
            "model": shape.name, "bytes_per_token": settings.bytes_per_token, "kv_memory": settings.kv_memory,
            "max_model_len": settings.max_model_len, "max_seqs": settings.max_seqs,
            "max_batched_tokens": settings.max_batched_tokens, "watermark": settings.watermark,
            "policy": settings.policy, "preemption": settings.preemption, "swap_space": settings.swap_space,
            "sharing": settings.sharing, "at_once": settings.at_once, "step_time": str(settings.service),
            "benefit_ratio": settings.max_model_len / lengths(workload)["length_p50"],
        },
        "rows": [row.to_json() for row in rows],
    }  # fmt: skip


def lengths(workload: Workload) -> dict[str, Any]:
    """Counts and lengths of the requests, in tokens."""
    from statistics import fmean, median

    requests = workload.requests
    return {
        "requests": len(requests),
        "sequences": sum(r.samples for r in requests),
        "span_s": (requests[-1].arrival_ns - requests[0].arrival_ns) * 1e-9,
        "prompt_mean": fmean(r.prompt for r in requests),
        "output_mean": fmean(r.output for r in requests),
        "length_p50": median(r.prompt + r.output for r in requests),
        "length_max": max(r.prompt + r.output for r in requests),
    }


def show(console: Console, workload: Workload, shape: ModelShape, settings: Settings, rows: list[Outcome]) -> None:
    """Print the rows as one table, and what they mean."""
    facts = lengths(workload)
    console.width = max(console.width, 120)
    when = "at once" if settings.at_once or not facts["span_s"] else f"over {span(facts['span_s'])}"
    console.print(Text.assemble(("kvscope simulate ", "bold"), workload.name))
    console.print(
        f"[dim]{facts['requests']:,} requests {when}; "
        f"prompts {facts['prompt_mean']:,.0f}, outputs {facts['output_mean']:,.0f} tokens on average; "
        f"limit {settings.max_model_len:,} = {settings.max_model_len / facts['length_p50']:.1f} x the P50 length\n"
        f"{shape.name}: {size(settings.bytes_per_token)} per token, {size(settings.kv_memory)} for KV = "
        f"{settings.kv_memory // settings.bytes_per_token:,} tokens\na step takes {settings.service}[/]\n"
    )
    console.print(_table(rows))
    for line in _remarks(workload, settings, rows):
        console.print(Text(line, style="dim"))


_GROUPS = 8  # users or priorities that are named at most
COLUMNS = ("allocator", "block", "at once", "peak", "used", "tail", "reserved", "holes", "waits", "preempted", "copies",
           "hits", "makespan", "tokens/s", "sim. req/s")  # fmt: skip


def _table(rows: list[Outcome]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold cyan")
    for i, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(
            row.allocator, str(row.block_size or ABSENT), number(row.concurrency_mean, 1), number(row.concurrency_peak),
            percent(row.utilization), percent(row.tail_waste), percent(row.reservation_waste),
            percent(row.external_fragmentation), percent(row.blocked), number(row.preemptions),
            number(row.cow_copies + row.moves), percent(row.prefix_hit_rate), span(row.makespan_s),
            number(row.output_tokens_per_s), number(row.requests_per_cpu_s),
        )  # fmt: skip
    return table


def _remarks(workload: Workload, settings: Settings, rows: list[Outcome]) -> Iterator[str]:
    yield ""
    yield "at once, peak: sequences running. used: filled / held memory; tail and reserved are the rest of it. holes:"
    yield "external fragmentation of what is free. waits: share of the time in which the queue waits for memory."
    yield "copies: copies on write, or regions that moved. sim. req/s: requests simulated per CPU second."
    base = next((row for row in rows if row.allocator == "reserved" and row.concurrency_mean), None)
    paged = max((r for r in rows if r.allocator == "paged"), key=lambda r: r.concurrency_mean or 0, default=None)
    if base is not None and paged is not None and base.concurrency_mean and paged.concurrency_mean:
        times = paged.concurrency_mean / base.concurrency_mean
        yield f"paged {paged.block_size} runs {times:.2f} x as many sequences at once as reserving, on the same memory"
    full = sum(row.concurrency_peak == settings.max_seqs and not row.blocked for row in rows)
    if full:
        yield f"note: max-seqs {settings.max_seqs} limits {full} rows, not memory: raise it to see how many fit"
    for reason, counts in (
        (f"too long for max-model-len {settings.max_model_len:,}", [row.rejected_too_long for row in rows]),
        ("too large to ever fit", [row.rejected_too_big for row in rows]),
        ("cut at max-model-len", [row.cut_at_max_model_len for row in rows]),
    ):
        if any(counts):
            many = f"{min(counts):,} to {max(counts):,}" if min(counts) != max(counts) else f"{counts[0]:,}"
            yield f"note: {many} requests {reason}"
    yield from _policy_remarks(workload, settings, rows)
    if settings.sharing and not workload.names_prefixes and any(row.allocator == "paged" for row in rows):
        yield "note: the workload names no common prefixes and no samples: there is nothing to share"
    for note in workload.notes:
        yield f"note: {note}"


def _policy_remarks(workload: Workload, settings: Settings, rows: list[Outcome]) -> Iterator[str]:
    """Who waited how long, and what the chosen policy could not do here."""
    if settings.plain:
        return
    yield f"policy {settings.policy}, preemption by {settings.preemption}: the real scheduler was stepped for every row"
    for row in rows:
        for name, wait in list((row.first_token_by or {}).items())[:_GROUPS]:
            usual, late = span(wait["mean_s"]), span(wait["p99_s"])
            yield f"{row.allocator}: {name}, {wait['sequences']:,} sequences: first token after {usual}, p99 {late}"
        if row.swapped_tokens:
            yield f"{row.allocator}: {row.swapped_tokens:,} tokens moved to or from host memory"
    if settings.policy == "fair" and not workload.names_users:
        yield "note: the workload names no users: turns by user are turns in order of arrival"
    if settings.policy == "priority" and not workload.names_priorities:
        yield "note: the workload names no priorities: the order is that of arrival"
    if settings.preemption == "swap" and any(row.allocator != "paged" for row in rows):
        yield "note: only the paged pool has a host tier: the other allocators recompute"
