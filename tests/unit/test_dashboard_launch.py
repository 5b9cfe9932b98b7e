"""Starting the dashboard: its argv, its links, the port check, and that the launcher stays light."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
import typer

from kvscope.dashboard import launch
from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector import cli
from kvscope.traces import PoolFacts, Recorder


def test_command_listens_on_loopback_alone_and_phones_nobody() -> None:
    argv = launch.command(Path("a.kvtrace"), port=9001, seq=7, block=3, others=[Path("b.kvtrace")])
    flags, script = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    for flag in ("--server.headless=true", "--server.fileWatcherType=none", "--server.address=127.0.0.1",
                 "--browser.gatherUsageStats=false", "--server.port=9001"):  # fmt: skip
        assert flag in flags
    assert script == ["--trace", str(Path("a.kvtrace").resolve()), "--trace", str(Path("b.kvtrace").resolve()),
                      "--seq", "7", "--block", "3"]  # fmt: skip
    assert Path(argv[4]) == launch.SERVER
    assert Path(argv[4]).exists()


def test_command_without_a_trace_takes_the_working_directory() -> None:
    argv = launch.command(None)
    assert argv[-2:] == ["--trace", str(Path.cwd())]


def test_url_names_the_place() -> None:
    link = urlparse(launch.url(port=9001, seq=812, block=5, page="blocks", trace="a b"))
    assert link.netloc == "127.0.0.1:9001"
    assert parse_qs(link.query) == {"page": ["blocks"], "seq": ["812"], "block": ["5"], "trace": ["a b"]}
    assert launch.url() == "http://127.0.0.1:8501/"


def test_port_in_use_is_one_line_with_a_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"^port {port} is in use: choose another with --port$"):
            launch.check_port("127.0.0.1", port)
        with pytest.raises(UsageError, match="in use"):
            launch.serve(None, port=port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_impossible_port(port: int) -> None:
    with pytest.raises(UsageError, match=r"choose 1\.\.65535"):
        launch.check_port("127.0.0.1", port)


def test_foreign_address() -> None:
    with pytest.raises(UsageError, match="not an address of this machine"):
        launch.check_port("192.0.2.1", 9001)


def test_server_that_ends_while_starting_is_said() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    with pytest.raises(KVScopeError, match="exit status 3"):
        launch.wait_until_healthy(process, "127.0.0.1", 1)


def _ignoring(name: str) -> subprocess.Popen[bytes]:
    """A process that ignores this signal and runs a minute."""
    code = f"import signal, time; signal.signal(signal.{name}, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_stop_ends_a_process_that_ignores_the_polite_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "STOP_TIMEOUT_S", 0.3)
    process = _ignoring("SIGTERM")
    launch.stop(process)
    assert process.returncode == -signal.SIGKILL


def test_stop_needs_no_force_where_interrupts_are_ignored() -> None:
    """Children of a shell's background job have SIGINT ignored."""
    process = _ignoring("SIGINT")
    launch.stop(process)
    assert process.returncode == -signal.SIGTERM


def test_served_in_the_background_ends_on_sigterm(toy_traces: dict[str, Path]) -> None:
    """A real server, started with SIGINT ignored: SIGTERM ends it and its child, with exit status 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    code = (
        "import signal, sys; from pathlib import Path; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from kvscope.dashboard.launch import serve;"
        "sys.exit(serve(Path(sys.argv[1]), port=int(sys.argv[2]), on_ready=lambda link: print(link, flush=True)))"
    )
    argv = [sys.executable, "-c", code, str(toy_traces["clean"]), str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == launch.url(port=port)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    launch.check_port("127.0.0.1", port)  # nobody listens there any more


def test_a_server_is_asked_before_anybody_opens_a_page() -> None:
    """What it has is there at once, and what it did before it ended is not missed."""
    with socket.create_server(("127.0.0.1", 0)) as engine, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
        probe.close()
        engine.settimeout(60)
        url = f"http://127.0.0.1:{engine.getsockname()[1]}"
        process = subprocess.Popen(launch.command(None, port=port, servers=[url]), start_new_session=True)
        try:
            asked, _ = engine.accept()
            with asked:
                assert asked.recv(200).startswith(b"GET /debug/kv/events?from_seq=0 ")
        finally:
            launch.stop(process)


def test_launcher_imports_no_streamlit() -> None:
    code = (
        "import sys, kvscope.dashboard.launch; print([m for m in ('streamlit', 'plotly', 'numpy') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_an_empty_folder_is_served_and_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from kvscope.inspector.cli import dashboard as command

    given: list[Path] = []
    monkeypatch.setattr(launch, "serve", lambda trace, **options: given.append(trace) or 0)
    with pytest.raises(typer.Exit):
        command.dashboard([str(tmp_path)])
    assert given == [tmp_path]
    assert "holds no trace yet" in capsys.readouterr().err


@pytest.mark.parametrize("inside", [[], ["notes.txt"], ["src/a.py"]], ids=["empty", "a file", "a folder"])
@pytest.mark.parametrize("name", ["run.kvtrace", "home"])
def test_what_is_no_trace_is_refused_by_every_command_that_shows_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, inside: list[str]
) -> None:
    """In the same words. An empty folder is no mistake for the dashboard: it waits for the first trace in it."""
    served: list[Path] = []
    monkeypatch.setattr(launch, "serve", lambda trace, **options: served.append(trace) or 0)
    folder = tmp_path / name
    folder.mkdir()
    for file in inside:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).touch()
    waits = name == "home" and not inside
    assert cli.run(["dashboard", str(folder)]) == (0 if waits else 2)
    assert bool(served) is waits
    told = capsys.readouterr().err
    assert cli.run(["top", str(folder)]) == 2
    said = capsys.readouterr().err
    assert (told.count("\n"), said.count("\n")) == (1, 1)
    assert said == told or waits
    assert "is not a trace" in said
    assert ("holds no trace yet" in told) is waits


@pytest.mark.parametrize("command", ["top", "dashboard"])
def test_a_recorder_that_is_only_just_beginning_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setattr(launch, "serve", lambda trace, **options: 0)
    folder = tmp_path / "run.kvtrace"
    folder.mkdir()  # the first thing that it does
    begun = threading.Timer(0.2, lambda: Recorder(folder, pool=PoolFacts(4, 4)).close())
    begun.start()
    assert cli.run([command, str(folder)]) == 0
    begun.join()


@pytest.mark.parametrize("place", ["ftp://x", "file:///run.kvtrace", "ws://127.0.0.1:8000"])
@pytest.mark.parametrize("command", ["top", "dashboard"])
def test_a_url_of_another_kind_is_refused_as_one(capsys: pytest.CaptureFixture[str], command: str, place: str) -> None:
    assert cli.run([command, place]) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), repr(place) in said, "http://" in said) == (1, True, True)


def test_several_traces_and_servers_are_shown_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a shell hands them over for `*.kvpack`; the first one named is the first one shown."""
    from kvscope.inspector.cli import dashboard as command

    given: dict[str, Any] = {}
    monkeypatch.setattr(launch, "serve", lambda trace, **options: given.update(options, trace=trace) or 0)
    monkeypatch.setattr(command, "_check_server", lambda url, token: None)
    samples = sorted((Path(__file__).parents[2] / "traces" / "samples").glob("*.kvpack"))[:3]
    with pytest.raises(typer.Exit):
        command.dashboard([*map(str, samples), "http://127.0.0.1:1"])
    assert (given["trace"], given["others"], given["servers"]) == (samples[0], samples[1:], ["http://127.0.0.1:1"])
