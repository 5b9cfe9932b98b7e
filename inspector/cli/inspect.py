"""`kvscope inspect`: the measures of a run on one screen."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvscope.inspector.cli._files import readable
from kvscope.inspector.units import number, percent, size, span
from kvscope.traces.losses import Losses


def inspect(
    traces: Annotated[
        list[Path], typer.Argument(help="Traces (NAME.kvtrace, NAME.kvpack), or a folder of them.", metavar="TRACE...")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Show what a run did with its memory: pool, requests, waste, sharing, cache, evictions, trace health.

    Means are time-weighted, peaks are over all events; a dash means that there is nothing to divide by. Of several
    traces (the ranks or pools of one run) each is shown.

    Example: kvscope inspect run.kvtrace
    """
    from kvscope.inspector.measures import summary
    from kvscope.traces import find_traces, open_trace

    found, failed = readable(find_traces(traces))
    if as_json:
        told = [summary(open_trace(path)) for path in found]
        several = {
            "schema": "kvscope-summaries/1",
            "traces": [{"name": str(p)} | t for p, t in zip(found, told, strict=True)],
        }
        sys.stdout.write(json.dumps(told[0] if len(found) == 1 else several, ensure_ascii=False) + "\n")
    console = Console(highlight=False)
    for at, path in enumerate(found) if not as_json else ():
        if at:
            console.print()
        show(console, str(path), summary(open_trace(path)))
    if failed:
        raise typer.Exit(2)


def show(console: Console, name: str, m: dict[str, Any]) -> None:
    """Print a summary as one table in sections."""
    geometry, requests = m["geometry"], m["requests"]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(style="dim")
    model = f"{geometry['model']}, " if geometry["model"] else ""
    each, whole = size(geometry["block_bytes"]), size(geometry["pool_bytes"])
    console.print(Text.assemble(("kvscope inspect ", "bold"), name))
    console.print(
        f"[dim]{model}{m['events']:,} events in {m['duration_s']:.2f} s; {geometry['num_blocks']:,} blocks of "
        f"{geometry['block_size']} slots, {each} each, {whole} in all[/]"
    )
    health = m["health"]
    lost = health["lost_events"] - health["let_go_events"] + health["dropped_events"]  # but for what was to go
    if lost:
        rest = ": what follows comes from what else was written" if not m["events"] else ""
        of = f"all {lost:,}" if not m["events"] else f"{lost:,} of {lost + m['events']:,}"
        console.print(Text(f"damaged: {of} events are missing{rest}", style="bold red"))
    if any(losses := Losses(**health["lost_records"])):
        console.print(Text(f"damaged: {losses} could not be written by its recorder", style="bold red"))
    for line in health["damaged_records"]:
        console.print(Text(f"damaged: {line}", style="bold red"))
    _requests(table, m, requests)
    _blocks(table, m, geometry)
    _ratios(table, m)
    _counts(table, m)
    _times(table, m)
    console.print(table)
    _health(console, m["health"])


def _section(table: Table, title: str, *heads: str) -> None:
    cells = [Text(h, style="dim") for h in heads] + [Text("")] * (2 - len(heads))
    table.add_row()
    table.add_row(Text(title, style="bold cyan"), *cells, "")


def _requests(table: Table, m: dict[str, Any], r: dict[str, Any]) -> None:
    _section(table, "requests")
    of = f"{r['sequences']} sequences, {r['forked']} of them forked"
    of = f"in the whole run; in the events that are left {of}" if m["health"]["let_go_events"] else of
    table.add_row("requests", number(r["requests"]), "", of)
    ended = f"{r['aborted']} aborted" if r["aborted"] else ""
    table.add_row("finished", number(r["finished"]), "", ended)
    lengths = r["length_tokens"]
    if lengths["count"]:
        table.add_row("length P50", number(lengths["p50"]), "", f"tokens; P99 {number(lengths['p99'])}")
    table.add_row("benefit ratio", number(m["benefit_ratio"], 2), "", "max_model_len / P50(length): does paging pay")


def _blocks(table: Table, m: dict[str, Any], geometry: dict[str, Any]) -> None:
    _section(table, "blocks", "peak", "mean")
    lost = m["blocks"]["lost"]
    notes = {"private": "one table entry", "shared": "more than one", "in_transit": "held by leases alone",
             "lost": f"in use, and held by nobody any more; {number(lost['last'])} at the end",
             "cached": "unheld, content kept", "quarantined": "unheld, an open step uses it", "free": ""}  # fmt: skip
    for name, note in notes.items():
        values = m["blocks"][name]
        if name != "lost":
            table.add_row(name.replace("_", " "), number(values["peak"]), number(values["mean"], 1), note)
        elif values["peak"]:
            table.add_row(name, number(values["peak"]), number(values["mean"], 1), note, style="red")
    held = m["held_blocks"]
    share = f"{percent(held['peak'] / geometry['num_blocks'], 0)} of the pool at the peak" if held["peak"] else ""
    table.add_row("in use", number(held["peak"]), number(held["mean"], 1), share)


def _ratios(table: Table, m: dict[str, Any]) -> None:
    _section(table, "waste and sharing", "peak", "mean")
    for name, note in (
        ("tail_waste", "empty slots of blocks that are held"),
        ("utilization", "live tokens / memory in use"),
        ("pool_utilization", "live tokens / whole pool"),
    ):
        table.add_row(name.replace("_", " "), percent(m[name]["peak"]), percent(m[name]["mean"]), note)
    pieces = m["holes"] or {}
    note = "free memory outside the largest hole" if pieces else "a paged pool has none"
    found = [percent(pieces["peak"]), percent(pieces["mean"])] if pieces else [percent(m["external_fragmentation"]), ""]
    table.add_row("external fragmentation", *found, note)
    if first := pieces.get("first"):
        note = f"needed {first['needed']} side by side at event {first['seq']:,}, when it first refused"
        table.add_row("largest hole", number(first["largest"]), f"of {number(first['free'])} free", note)
    factor, saved = m["sharing_factor"], m["saved_blocks"]
    table.add_row("sharing factor", number(factor["peak"], 2), number(factor["mean"], 2), "table entries per block")
    table.add_row("saved blocks", number(saved["peak"]), number(saved["mean"], 1), size(m["saved_bytes"]["peak"]))
    table.add_row("copies on write", number(m["cow_copies"]), "", size(m["cow_bytes"]))


def _counts(table: Table, m: dict[str, Any]) -> None:
    _section(table, "prefix cache and pressure")
    tokens = f"{m['prefix_hit_tokens']:,} of {m['prefix_query_tokens']:,} prompt tokens"
    table.add_row("prefix hit rate", percent(m["prefix_hit_rate"]), "", tokens)
    table.add_row("evictions", number(m["evictions"]), "", "")
    if m["swapped_out_blocks"]:
        table.add_row("blocks swapped out", number(m["swapped_out_blocks"]), "", "")
        table.add_row("blocks swapped in", number(m["swapped_in_blocks"]), "", "")
    table.add_row("preemptions", number(m["preemptions"]), "", "")
    table.add_row("refusals", number(m["refusals"]), "", f"{m['oom_events']} for want of blocks{_by_holes(m)}")


def _by_holes(m: dict[str, Any]) -> str:
    """Of the refusals those that free blocks would have served, had they lain side by side."""
    caused = m["holes"]["refusals"] if m["holes"] else 0
    return f"; in {caused} enough was free, in holes too small" if caused else ""


def _times(table: Table, m: dict[str, Any]) -> None:
    _section(table, "block times", "P50", "P99")
    for name, note in (
        ("lifetime_s", "handed out to free again"),
        ("idle_before_evict_s", "last taken to evicted"),
        ("reuse_gap_s", "between two touches"),
    ):
        values = m[name]
        count = f"{values['count']:,} times; {note}"
        table.add_row(name.removesuffix("_s").replace("_", " "), span(values["p50"]), span(values["p99"]), count)


def _health(console: Console, health: dict[str, Any]) -> None:
    losses = Losses(**health["lost_records"])
    bad = health["dropped_events"] or health["lost_events"]
    closed = "closed cleanly" if health["clean_close"] else "not closed by its writer (interrupted, or still running)"
    state = (
        f"{health['dropped_events']:,} events dropped, {health['lost_events']:,} missing" if bad else "no event lost"
    )
    state += f", {losses} not written" if any(losses) else ""
    style = "red" if bad or any(losses) else "green" if health["clean_close"] else "yellow"
    console.print(f"\n[bold]trace[/]  [{style}]{closed}, {state}[/]")
    for line in health["warnings"]:
        if line in health["damaged_records"]:  # said above
            continue
        console.print(Text(f"       {line}", style="yellow"))
