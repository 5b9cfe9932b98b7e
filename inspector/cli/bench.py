"""`kvscope bench`: the benchmarks, each beside its baseline in the same run."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

# name -> what it measures; each is a program of its own in kvscope.benchmarks
BENCHMARKS = {
    "pool": "what the block pool costs per block, and a decode step, beside vLLM's pool",
    "overhead": "decode runs with and without recording, in pairs",
    "replay": "opening, drawing and seeking in a trace of ten million events",
    "dashboard": "the first picture of ten million events, and moving about in them",
    "frames": "refreshes of the live page in a real browser, beside a Plotly heatmap of the same trace",
    "follow": "a reader beside a writer of a million events per second, for a minute",
    "trace": "what recording costs per event, beside appending tuples to a list",
    "generate": "tokens per second on the CPU, beside transformers, with and without recording",
    "schedule": "what a step is planned in while 20, 2,000 and 20,000 requests wait, beside a plain queue",
    "simulate": "requests simulated per second, beside the real scheduler on the same requests",
    "export": "events per second and memory of exports and queries, beside the plainest way to write the same",
    "sanitizer": "what checking a trace costs beside replaying it, and a live engine beside emitting its events",
    "races": "schedules and seconds until every planted concurrency fault is found, and none where there is none",
    "provenance": "what comparing shadow words before attention costs a decode step on the CPU",
    "serve": "load on the HTTP server, with recording off, on and sanitized: first token, gaps, goodput",
    "telemetry": "decode runs served without recording, with it, and watched by Prometheus and OpenTelemetry as well",
    "fuzz_faults": "what the fuzzing suite needs to find each planted fault: examples and seconds, ten seeds",
    "articles": "how many requests run at once and how much memory is used, paged beside reserving",
    "kernels": "attention, KV write and block copy on a GPU, beside torch and published peers",
}


def bench(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help=f"One of {', '.join(BENCHMARKS)}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help='{"rows": [...]} on standard output.')] = False,
) -> None:
    """Run one benchmark; without a name, list them.

    Further options are the benchmark's own; `kvscope bench serve -- --help` tells them.

    Example: kvscope bench serve --rate 80
    """
    from kvscope.errors import UsageError

    if name is None:
        for known, what in BENCHMARKS.items():
            sys.stdout.write(f"{known:12} {what}\n")
        return
    if name not in BENCHMARKS:
        raise UsageError(f"benchmark {name!r} is unknown: choose one of {', '.join(BENCHMARKS)}")
    # In this one's place: what it has imported must not weigh on the figures, and signals reach who must clean up.
    command = [sys.executable, "-m", "kvscope.benchmarks", name, *(["--json"] if as_json else []), *context.args]
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until it can answer them
    os.execv(sys.executable, command)


# Options that are not known here are passed on.
CONTEXT = {"ignore_unknown_options": True, "allow_extra_args": True}
