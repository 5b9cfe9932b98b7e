"""`kvscope dashboard`: look at a trace or a running server in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvscope.inspector.cli._engine import say


def dashboard(
    trace: Annotated[
        str | None,
        typer.Argument(
            help="A trace, a folder of traces, or the URL of a server with --debug-routes; the working "
            "directory's if left out."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback shows the trace to others.")
    ] = "127.0.0.1",
    seq: Annotated[int | None, typer.Option(help="Open at this event.")] = None,
    block: Annotated[int | None, typer.Option(help="Open at this block.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the server's bearer token.")] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Results to show beside it (JSON of fuzz, races and bench overhead, JUnit XML); repeatable."),
    ] = None,
) -> None:
    """Serve the dashboard for a trace, or for a running server, until Ctrl-C.

    Example: kvscope dashboard run.kvtrace --seq 9412 --block 37

    Example: kvscope dashboard http://127.0.0.1:8000
    """
    from kvscope.dashboard.launch import serve
    from kvscope.errors import UsageError
    from kvscope.inspector.remote import is_url

    for given in results or ():
        if not given.exists():
            raise UsageError(f"results {given} do not exist: give a file of JSON or XML, or a folder of them")
    if trace is not None and is_url(trace):
        _check_server(trace, token_file)
        status = serve(None, port=port, host=host, seq=seq, block=block, servers=[trace], token_file=token_file,
                       results=results or (), on_ready=announce)  # fmt: skip
        raise typer.Exit(2 if status else 0)
    if token_file is not None:
        raise UsageError("token-file is for a server's URL, and none was given")
    path = None if trace is None else Path(trace)
    if path is not None:
        _check_trace(path)
    status = serve(path, port=port, host=host, seq=seq, block=block, results=results or (), on_ready=announce)
    raise typer.Exit(2 if status else 0)


def _check_server(url: str, token_file: Path | None) -> None:
    """Say now what would stop it for good; a server that is not there yet is waited for in the browser."""
    from kvscope.errors import TraceError
    from kvscope.inspector.remote import Server, Unreachable, read_token

    server = Server(url, read_token(token_file), timeout_s=5.0)
    try:
        recorded = bool(server.json("/run").get("recorded"))
    except Unreachable as error:
        say(f"{error} It is shown as soon as it is there.")
        return
    if not recorded:
        raise TraceError(f"{server.url} records nothing: start it with --trace")


def _check_trace(path: Path) -> None:
    from kvscope.errors import TraceError

    if not path.exists():
        raise TraceError(f"{path} does not exist: give a .kvtrace folder, a folder of them, or a server's URL")
    if path.is_file():
        from kvscope.traces import open_trace

        open_trace(path)  # a packed one: what is wrong with it is said here, not in the browser


def announce(link: str) -> None:
    """Say where the dashboard is."""
    say(f"dashboard: {link}   (Ctrl-C ends it)")
