"""`kvscope dashboard`: look at a trace in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvscope.inspector.cli._engine import say


def dashboard(
    trace: Annotated[
        Path | None, typer.Argument(help="A trace, or a folder of traces; the working directory's if left out.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback shows the trace to others.")
    ] = "127.0.0.1",
    seq: Annotated[int | None, typer.Option(help="Open at this event.")] = None,
    block: Annotated[int | None, typer.Option(help="Open at this block.")] = None,
) -> None:
    """Serve the dashboard for a trace until Ctrl-C.

    Example: kvscope dashboard run.kvtrace --seq 9412 --block 37
    """
    from kvscope.dashboard.launch import serve
    from kvscope.errors import TraceError

    if trace is not None and not trace.exists():
        raise TraceError(f"{trace} does not exist: give a .kvtrace folder, or a folder of them")
    if trace is not None and trace.is_file():
        from kvscope.traces import open_trace

        open_trace(trace)  # a packed one: what is wrong with it is said here, not in the browser
    status = serve(trace, port=port, host=host, seq=seq, block=block, on_ready=announce)
    raise typer.Exit(2 if status else 0)


def announce(link: str) -> None:
    """Say where the dashboard is."""
    say(f"dashboard: {link}   (Ctrl-C ends it)")
