"""`kvscope serve`: the paged engine behind OpenAI's HTTP interface."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from kvscope.errors import MissingDependency, UsageError
from kvscope.inspector.cli._engine import (
    PoolOptions,
    check_recording,
    checked,
    choose_device,
    load,
    recorder,
)
from kvscope.inspector.cli._lines import say
from kvscope.inspector.cli._newest import TraceAge, TraceSize, kept_newest
from kvscope.inspector.cli._serving import Serving


def serve(
    model: Annotated[str, typer.Argument(help="smollm2, a folder with config.json and safetensors, or a .gguf file.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback lets others in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    name: Annotated[str | None, typer.Option(help="The model's name for clients; MODEL's last part.")] = None,
    block_size: Annotated[int, typer.Option(help="Token slots per block.")] = 16,
    num_blocks: Annotated[int, typer.Option(help="Blocks in the pool.")] = 256,
    kv_memory: Annotated[
        str | None, typer.Option(help="Pool size instead, such as 512MiB, or 60% of what is free.")
    ] = None,
    max_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 64,
    max_batched_tokens: Annotated[int, typer.Option(help="Positions computed per step.")] = 512,
    policy: Annotated[str, typer.Option(help="Order of the queue: fcfs, or fair between users.")] = "fcfs",
    preemption: Annotated[str, typer.Option(help="Who finds no block is computed again: recompute; or swap.")] = (
        "recompute"
    ),
    swap_space: Annotated[str | None, typer.Option(help="Host memory for --preemption swap, such as 64MiB.")] = None,
    max_requests: Annotated[int, typer.Option(help="Requests queued and running; more get 429.")] = 256,
    max_tokens: Annotated[int, typer.Option(help="Tokens of one answer, at most.")] = 4096,
    max_body: Annotated[str, typer.Option(help="Size of a request, at most.")] = "4MiB",
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token that clients must send.")] = None,
    debug_routes: Annotated[bool, typer.Option("--debug-routes", help="Serve /debug/kv/... as well.")] = False,
    trace: Annotated[Path | None, typer.Option(help="Record into this folder (NAME.kvtrace).")] = None,
    trace_size: TraceSize = None,
    trace_age: TraceAge = None,
    record: Annotated[str, typer.Option(help="off, trace, or sanitize (adds call stacks).")] = "trace",
    on_finding: Annotated[
        str, typer.Option(help="With sanitize: log, or raise, which stops the server with the report.")
    ] = "log",
    metrics_aliases: Annotated[str, typer.Option(help="Also name metrics as another engine does: none, or vllm.")] = (
        "none"
    ),
    provenance: Annotated[
        bool, typer.Option(help="With sanitize: check before attention that each slot holds the sequence's own prefix.")
    ] = True,
    content: Annotated[
        bool, typer.Option("--content", help="With sanitize: poison freed blocks, and compare digests of the others.")
    ] = False,
    watch: Annotated[
        list[str] | None, typer.Option(help="Tell who touches this block next: b37, or b37#12; may be repeated.")
    ] = None,
    record_text: Annotated[bool, typer.Option("--record-text", help="Put prompts and outputs in the trace.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is there.")] = False,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Keep a trace that is there, as NAME-1.kvtrace and so on.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes what is fastest now.")] = 0,
    grace: Annotated[float, typer.Option(help="Seconds that running requests get at shutdown.")] = 10.0,
) -> None:
    """Serve a model over HTTP as OpenAI's API does, with /metrics; follow it with `kvscope dashboard` on its trace.

    Example: kvscope serve smollm2 --trace live.kvtrace
    """
    from kvscope.engine.model.registry import locate
    from kvscope.engine.scheduler import SchedulerConfig
    from kvscope.engine.server import ServerConfig
    from kvscope.engine.sizing import parse_bytes
    from kvscope.inspector.telemetry.switch import wanted

    if record == "sanitize" and trace is None:
        raise UsageError("record is sanitize, and nothing is recorded: give --trace as well")
    if name is not None and not name.strip():
        raise UsageError("name is empty: give the name that clients ask for, or leave it out")
    check_recording(trace, record, overwrite=overwrite, on_finding=on_finding, watch=watch or (), content=content,
                    num_blocks=num_blocks if kv_memory is None else None, provenance=provenance,
                    claim=not rotate)  # fmt: skip
    newest = kept_newest(trace, trace_size, trace_age)
    if trace is not None and rotate:
        _not_written_now(trace)
    if metrics_aliases not in ("none", "vllm"):
        raise UsageError(f"metrics-aliases is {metrics_aliases!r}: must be none or vllm")
    otel = wanted(os.environ)
    if policy == "priority":
        raise UsageError("policy is 'priority': requests over HTTP have no priority; take fcfs or fair")
    limits = SchedulerConfig(
        max_seqs=max_seqs, max_batched_tokens=max_batched_tokens, policy=policy, preemption=preemption
    )
    pool = PoolOptions(block_size, num_blocks, kv_memory, swap_space)
    pool.check(swaps=preemption == "swap")
    if not 1 <= max_requests <= 1 << 16:
        raise UsageError(f"max-requests is {max_requests}: must be 1..{1 << 16}")
    body, token = parse_bytes(max_body), _token(token_file)
    locate(model)
    settings = ServerConfig(max_body=body, max_tokens=max_tokens, token=token, grace_s=grace)
    _require_server(otel=otel is not None)
    listener = _listen(host, port)
    say(f"loading {model}")  # at once: what comes now takes seconds
    from kvscope.engine.engine import Engine, EngineConfig

    device, dtype = choose_device(device)
    loaded = load(model, device=device, dtype=dtype, threads=threads)
    config = EngineConfig(
        num_blocks=pool.blocks(loaded, dtype.itemsize, device), block_size=block_size, scheduler=limits,
        record_text=record_text, dtype=dtype, device=device, host_blocks=pool.host_blocks(loaded, dtype.itemsize),
    )  # fmt: skip
    if trace is not None and rotate:
        _rotate(trace)
    with recorder(
        trace, record, config, loaded, overwrite=overwrite, on_finding=on_finding, watch=watch or (), kept=newest
    ) as sink:  # fmt: skip
        engine = Engine(loaded, config, sink=sink)
        with checked(engine, record, provenance=provenance, content=content, on_finding=on_finding):
            serving = Serving(
                engine, trace if sink is not None else None, name or Path(model).name or model,
                max_requests=max_requests, debug_routes=debug_routes, aliases=metrics_aliases, otel=otel,
            )  # fmt: skip
            serving.run(listener, settings)
    if serving.trace is not None:
        say(f"trace: {serving.trace}\n  kvscope check {quote(str(serving.trace))}")


def _rotate(trace: Path) -> None:
    """Move a trace out of the way, whatever state its writer left it in.

    Raises:
        UsageError: somebody is writing it.
    """
    _not_written_now(trace)
    if not trace.exists():
        return
    number = 1
    while (kept := trace.with_name(f"{trace.stem}-{number}{trace.suffix}")).exists():
        number += 1
    trace.rename(kept)
    say(f"kept the trace that was there: {kept}")


def _not_written_now(trace: Path) -> None:
    from kvscope.traces import open_trace

    if trace.exists() and open_trace(trace).live:
        raise UsageError(f"{trace} is being written by another process: choose another --trace")


def _require_server(*, otel: bool) -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingDependency(f"serving needs {error.name}: pip install 'kvscope[server]'") from None
    if otel and importlib.util.find_spec("opentelemetry") is None:
        raise MissingDependency("OpenTelemetry is asked for by its variables: pip install 'kvscope[otel]'")


def _listen(host: str, port: int) -> socket.socket:
    """The listening socket, before anything heavy is loaded.

    Raises:
        UsageError: the address cannot be had.
    """
    if not 0 <= port < 1 << 16:
        raise UsageError(f"port is {port}: must be 0..65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(4096)
    except (OSError, UnicodeError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from None
    return listener


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    text = path.read_text(encoding="utf-8", errors="replace")[:4096].strip()
    if not text:
        raise UsageError(f"{path} holds no token: write one line of printable characters")
    return text
