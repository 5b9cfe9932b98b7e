"""`kvscope dashboard`: look at a trace or a running server in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvscope.inspector.cli._lines import say


def dashboard(
    trace: Annotated[
        list[str] | None,
        typer.Argument(
            help="Traces, folders of traces (also of traces still to come), and URLs of servers with --debug-routes; "
            "the working directory's traces if left out. The first one is opened, of a folder the newest."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port on loopback.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback shows the trace to others.")
    ] = "127.0.0.1",
    seq: Annotated[int | None, typer.Option(min=0, help="Open at this event.")] = None,
    block: Annotated[int | None, typer.Option(min=0, help="Open at this block.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the server's bearer token.")] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Results to show beside it (JSON of fuzz, races and bench overhead, JUnit XML); repeatable."),
    ] = None,
) -> None:
    """Serve the dashboard for a trace, or for a running server, until Ctrl-C.

    Example: kvscope dashboard run.kvtrace --seq 9412 --block 37

    Example: kvscope dashboard http://127.0.0.1:8000

    Example: kvscope dashboard before.kvtrace after.kvtrace
    """
    from kvscope.dashboard.launch import serve
    from kvscope.errors import UsageError
    from kvscope.inspector.cli._places import check_scheme
    from kvscope.inspector.remote import is_url

    for given in results or ():
        if not given.exists():
            raise UsageError(f"results {given} do not exist: give a file of JSON or XML, or a folder of them")
    named = trace or []
    for name in named:
        check_scheme(name)
    servers, paths = [name for name in named if is_url(name)], [Path(name) for name in named if not is_url(name)]
    if token_file is not None and not servers:
        raise UsageError("token-file is for a server's URL, and none was given")
    for path in paths:
        _check_trace(path)
    for server in servers:
        _check_server(server, token_file)
    status = serve(
        paths[0] if paths else None, others=paths[1:], port=port, host=host, seq=seq, block=block, servers=servers,
        token_file=token_file, results=results or (), on_ready=announce,
    )  # fmt: skip
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
    from kvscope.inspector.cli._places import check_folder, holds_no_trace_yet

    if not path.exists():
        raise TraceError(f"{path} does not exist: give a .kvtrace folder, a folder of them, or a server's URL")
    if not path.is_dir():
        from kvscope.traces import open_trace

        open_trace(path)  # a packed one: what is wrong with it is said here, not in the browser
    check_folder(path)
    if holds_no_trace_yet(path):
        say(f"{path} holds no trace yet. One is shown as soon as it is there.")


def announce(link: str) -> None:
    """Say where the dashboard is."""
    say(f"dashboard: {link}   (Ctrl-C ends it)")
