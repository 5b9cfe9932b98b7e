"""Starts the dashboard as a program of its own, `python -m streamlit run app.py ...`; imports no Streamlit."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from kvscope.errors import KVScopeError, MissingDependency, UsageError
from kvscope.inspector.link import DEFAULT_PORT, url

log = logging.getLogger(__name__)

APP = Path(__file__).resolve().parent / "app.py"  # the script of every page, run by the server
SERVER = APP.with_name("server.py")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def command(
    trace: Path | None,
    *,
    port: int = DEFAULT_PORT,
    host: str = "127.0.0.1",
    seq: int | None = None,
    block: int | None = None,
    others: Sequence[Path] = (),
    servers: Sequence[str] = (),
    token_file: Path | None = None,
    results: Sequence[Path] = (),
) -> list[str]:
    """The argv that serves the dashboard.

    Args:
        trace: a trace, or a folder of traces; None takes the traces of the working directory, unless a server is named.
        seq, block: where the first page opens.
        others: further traces or folders that may be shown. A link can name none but these.
        servers: URLs of running servers with debug routes. token_file: where their bearer token is read from.
        results: files of property runs and of `kvscope bench overhead --json`, or folders of them.
    """
    flags = {
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "server.address": host,
        "server.port": str(port),
        "browser.gatherUsageStats": "false",
        "browser.serverAddress": host,
        "global.developmentMode": "false",
        "logger.level": "warning",
        # A full collection after every run, refreshes included, takes longer than the refresh: Python's own will do.
        "runner.postScriptGC": "false",
    }
    argv = [sys.executable, "-m", "streamlit", "run", str(SERVER)]
    argv += [f"--{name}={value}" for name, value in flags.items()]
    argv.append("--")
    for server in servers:
        argv += ["--server", server]
    if token_file is not None:
        argv += ["--token-file", str(token_file.resolve())]
    for path in results:
        argv += ["--results", str(path.resolve())]
    first = trace if trace is not None or servers or results else Path.cwd()
    for path in (*(() if first is None else (first,)), *others):
        argv += ["--trace", str(Path(path).resolve())]
    for name, value in (("--seq", seq), ("--block", block)):
        if value is not None:
            argv += [name, str(value)]
    return argv


def check_port(host: str, port: int) -> None:
    """Raises UsageError unless the port can be listened on now."""
    if not 1 <= port <= 65535:
        raise UsageError(f"port {port} does not exist: choose 1..65535 with --port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise UsageError(f"port {port} is not allowed to this user: choose another with --port") from None
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise UsageError(f"{host} is not an address of this machine: choose another with --host") from None
            raise UsageError(f"port {port} is in use: choose another with --port") from None


def serve(
    trace: Path | None,
    *,
    port: int = DEFAULT_PORT,
    host: str = "127.0.0.1",
    seq: int | None = None,
    block: int | None = None,
    others: Sequence[Path] = (),
    servers: Sequence[str] = (),
    token_file: Path | None = None,
    results: Sequence[Path] = (),
    on_ready: Callable[[str], None] = lambda link: None,
) -> int:
    """Serve until Ctrl-C or until the server ends; returns 0 after Ctrl-C, else the server's exit status.

    Args:
        on_ready: called once with the link when the server answers.

    Raises:
        UsageError: the port is in use. MissingDependency: Streamlit or Plotly is not installed.
    """
    for name in ("streamlit", "plotly"):
        if importlib.util.find_spec(name) is None:
            raise MissingDependency(f"the dashboard needs {name}: pip install 'kvscope[dashboard]'")
    check_port(host, port)
    argv = command(trace, port=port, host=host, seq=seq, block=block, others=others, servers=servers,
                   token_file=token_file, results=results)  # fmt: skip
    # A session of its own: Ctrl-C reaches this process alone, which then stops the server in good order.
    process = subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               env=_environment(), preexec_fn=_dies_with(os.getpid()))  # fmt: skip
    try:
        with _terminated_as_interrupt():
            _wait_until_healthy(process, host, port)
            page = "biography" if block is not None else "blocks" if seq is not None else None
            on_ready(url(port=port, host=host, seq=seq, block=block, page=page))
            return process.wait()
    except KeyboardInterrupt:
        log.info("stopping the dashboard")
        return 0
    finally:
        stop(process)


def wait_until_healthy(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    """Return once the server answers `/_stcore/health`; raises KVScopeError if it ends or stays silent."""
    _wait_until_healthy(process, host, port)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server: politely, then by force.

    With SIGTERM, not SIGINT: what a shell starts in the background, and all its children, have SIGINT ignored.
    """
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_healthy(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    shown = f"[{host}]" if ":" in host else host
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise KVScopeError(f"the dashboard ended while starting, with exit status {process.returncode}")
        address = f"http://{shown}:{port}/_stcore/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise KVScopeError(f"the dashboard did not answer on port {port} within {START_TIMEOUT_S:.0f} s")


def _dies_with(parent: int) -> Callable[[], None] | None:
    """What a child does first so that it ends when this process is killed outright, which no handler here sees.

    Linux only; elsewhere the server outlives a SIGKILL of the command.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork: the child may not load anything

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was killed before we asked
            os._exit(1)

    return ask


def _environment() -> dict[str, str]:
    """The child's environment: proxies must not be asked for loopback."""
    local = ",".join(filter(None, [os.environ.get("NO_PROXY", ""), "127.0.0.1,localhost"]))
    return {**os.environ, "NO_PROXY": local}


@contextlib.contextmanager
def _terminated_as_interrupt():  # type: ignore[no-untyped-def]  # a generator context manager
    """SIGTERM ends the server as Ctrl-C does, where signals can be set (the main thread)."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
