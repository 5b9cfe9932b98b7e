"""`kvscope top`: what it shows of a folder and of a server is what their state is; on a pipe it is one look."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from kvscope.engine.model import load_model
from kvscope.errors import TraceError, UsageError
from kvscope.inspector import cli
from kvscope.inspector.cli import top
from kvscope.inspector.glance import LETTERS, Glance, History
from kvscope.inspector.measures import series, summary
from kvscope.inspector.palette import BY_NAME
from kvscope.inspector.remote import Unreachable
from kvscope.inspector.state import state_at
from kvscope.inspector.top import FolderSource, RecordedSource, ServerSource
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace, pack

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
LEAK = SAMPLES / "leak.kvpack"


def _told(glance: Glance, but: set[str] = frozenset()) -> list[tuple[str, str, str]]:  # type: ignore[assignment]
    """The row of numbers, without those of some names."""
    row = glance.to_json({"tokens_per_s": glance.tokens_per_s})["row"]
    return [(cell["name"], cell["value"], cell["unit"]) for cell in row if cell["name"] not in but]


def shown(history: History, width: int = 100, rows: int = 10) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(top.screen(history, width, rows))
    return console.export_text()


@pytest.mark.parametrize("name", ["clean", "missing-copy"])
def test_a_folder_is_folded_to_its_end(toy_traces: dict[str, Path], name: str) -> None:
    trace = open_trace(toy_traces[name])
    glance, measured, state = FolderSource(toy_traces[name]).look(), summary(trace), state_at(trace, 1 << 60)
    assert glance.pool["blocks"] == state.counts
    assert "".join(LETTERS[i] for i in glance.letters) == "".join(state.letter(b) for b in range(state.num_blocks))
    assert glance.pool["seq"] == int(trace.seqs[-1])
    for measure in ("cow_copies", "preemptions", "refusals", "evictions", "oom_events", "prefix_hit_tokens"):
        assert glance.totals[measure] == measured[measure], measure
    assert glance.pool["running"] == glance.pool["waiting"] == 0
    assert not glance.live


def test_a_growing_folder_is_followed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.kvtrace", pool=PoolFacts(4, 4)) as sink:
        source, history = FolderSource(tmp_path / "t.kvtrace"), History()
        history.add(source.look())
        assert history.kept[-1].pool["blocks"]["free"] == 4
        seq = sink.emit(Kind.SUBMIT, seq_id=7, aux=3)
        sink.detail(seq, (0, 5, 1))
        history.add(source.look())
        assert (history.kept[-1].pool["waiting"], history.kept[-1].pool["running"]) == (1, 0)
        sink.emit(Kind.ADMIT, seq_id=7)
        sink.emit(Kind.ALLOC, 1, 2, 1, 0, 1, 0, 7, 0)
        history.add(source.look())
        glance = history.kept[-1]
        assert (glance.pool["waiting"], glance.pool["running"], glance.live) == (0, 1, True)
        assert glance.cells(100) == (1, "FFPF")
        assert glance.cells(2) == (2, "FP")
        assert "private 1" in shown(history)
    assert not source.look().live


def test_a_server_shows_what_its_trace_does(served_engine: ModuleType, tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run.kvtrace"
    with served_engine.serving(load_model(tiny_folder), folder, sanitize=True) as (base, loop, _):
        served_engine.ask(base, prompt="the cat sat on the mat", n=2, max_tokens=9)
        served_engine.until(lambda: not loop.call(lambda engine: engine.has_work))
        seen, folded = ServerSource(base).look(), FolderSource(folder).look()
        assert cli.run(["top", base, "--json"]) == 0
    assert seen.pool["blocks"] == folded.pool["blocks"]
    assert seen.letters.tolist() == folded.letters.tolist()
    assert {k: v for k, v in seen.totals.items() if k in folded.totals} == folded.totals
    assert _told(seen, but={"Speed", "Findings"}) == _told(folded, but={"Speed", "Findings"})
    assert seen.totals["generated_tokens"] == 18
    assert seen.findings is not None
    history = History()
    history.add(seen)
    assert "Findings" in shown(history)
    for letter in LETTERS:  # the legend has every letter, of a server as of a trace
        assert re.search(rf"\b{letter} [a-z]", shown(history)), letter


def test_json_and_pipe(toy_traces: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(toy_traces["clean"], tmp_path / "t.kvpack")
    for place in (toy_traces["clean"], tmp_path / "t.kvpack"):
        assert cli.run(["top", str(place), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["schema"], len(told["map"]["cells"])) == ("kvscope-top/1", told["pool"]["num_blocks"])
        assert cli.run(["top", str(place)]) == 0
        out = capsys.readouterr().out
        assert "Held" in out
        assert "\x1b" not in out


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_every_line_fits(toy_traces: dict[str, Path], width: int) -> None:
    history = History()
    source = FolderSource(toy_traces["clean"])
    for _ in range(3):
        history.add(source.look())
    assert max(map(len, shown(history, width).splitlines())) <= width


def test_a_large_pool_keeps_what_matters() -> None:
    letters = np.zeros(1 << 20, np.uint8)
    letters[777_777] = LETTERS.index("Q")
    glance = Glance("x", False, {}, {}, letters, 0.0)
    per, cells = glance.cells(1000)
    assert (len(cells) <= 1000, cells[777_777 // per], cells.count("Q")) == (True, "Q", 1)


def _held_at(path: Path) -> np.ndarray:
    return series(open_trace(path)).held_blocks


@pytest.mark.parametrize("name", ["leak", "healthy", "fragmentation", "garbled-race", "prefix-sharing", "reserved"])
def test_a_recorded_trace_is_shown_where_most_is_in_use(name: str) -> None:
    """At its end nothing is held any more: there is nothing to see there."""
    path = SAMPLES / f"{name}.kvpack"
    held, glance = _held_at(path), RecordedSource(path).look()
    assert glance.moment is not None
    assert int(held[glance.moment.seq]) == held.max() == int(_told(glance)[0][1])
    history = History()
    history.add(glance)
    said = " ".join(shown(history).split())
    assert f"Just after event {glance.moment.seq:,}, at which most blocks were in use" in said
    assert "--seq N" in said


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_legend_bar_and_map_say_the_same(toy_traces: dict[str, Path], data: st.DataObject) -> None:
    """As on the dashboard's map: a private block that is being written is a letter of its own."""
    path = toy_traces["clean"]
    history = History()
    history.add(RecordedSource(path, data.draw(st.integers(0, int(open_trace(path).seqs[-1])))).look())
    lines = shown(history, 200).splitlines()
    cells = "".join(line.split()[1] for line in lines if re.match(r" +\d+ [PSTCQFWL]+$", line))
    (legend,) = [line for line in lines if "P private" in line]
    assert {letter: int(n) for letter, n in re.findall(r"\b([A-Z]) [a-z ]+ (\d+)", legend)} == {
        letter: cells.count(letter) for letter in LETTERS
    }
    (bar,) = [line for line in lines if re.fullmatch(r"[PSTCQFWL]{150,}", line)]
    assert {letter for letter in LETTERS if cells.count(letter)} >= set(bar)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_moment_of_a_recorded_trace(toy_traces: dict[str, Path], data: st.DataObject) -> None:
    path = toy_traces["missing-copy"]
    trace = open_trace(path)
    seq = data.draw(st.integers(0, int(trace.seqs[-1])))
    glance, state = RecordedSource(path, seq).look(), state_at(trace, seq)
    assert glance.pool["blocks"] == state.counts
    assert "".join(LETTERS[i] for i in glance.letters) == "".join(state.letter(b) for b in range(state.num_blocks))
    assert (glance.pool["seq"], glance.totals["events"]) == (seq, seq + 1)
    assert glance.moment is not None
    assert glance.moment.chosen == "asked"


def test_a_moment_of_a_trace_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder(tmp_path / "t.kvtrace", pool=PoolFacts(4, 4)) as sink:
        sink.emit(Kind.ALLOC, 1, 2, 1, 0, 1, 0, 7, 0)
        sink.emit(Kind.ALLOC, 1, 3, 1, 0, 1, 0, 7, 1)
        for seq in (0, 1):
            assert cli.run(["top", str(tmp_path / "t.kvtrace"), "--seq", str(seq), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["pool"]["blocks"]["private"] == seq + 1
        assert cli.run(["top", str(tmp_path / "t.kvtrace"), "--seq", "2"]) == 2
        assert "has no event 2: it has 0 to 1" in capsys.readouterr().err


@pytest.mark.parametrize("lost", [0, 1])
def test_any_moment_of_a_damaged_trace(tmp_path: Path, lost: int) -> None:
    """An event that is missing is told, with the one that is shown; one before all that is left is refused."""
    path = tmp_path / "t.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16), sealing="inline", hot_rows=128, seal_rows=32, max_batches=2) as sink:
        for i in range(300):
            sink.emit(Kind.ALLOC, 1, i % 64, i // 64, 0, 1, 0, i, 0)
    sorted(path.glob("events-*.arrows"))[lost].unlink()
    trace = open_trace(path)
    there = set(trace.seqs.tolist())
    for seq in range(0, 300, 7):
        if seq < min(there):
            with pytest.raises(UsageError, match="has no event"):
                RecordedSource(path, seq).look()
            continue
        history = History()
        history.add(RecordedSource(path, seq).look())
        at = max(number for number in there if number <= seq)
        assert history.kept[-1].pool["seq"] == at
        assert f"Just after event {at}" in shown(history)
        assert (f"event {seq} is missing" in shown(history)) is (seq not in there)


@pytest.mark.parametrize("span_ns", [0, 11_000, 99_000_000, 100_000_000, 2_000_000_000])
def test_a_rate_is_told_where_the_time_carries_it(tmp_path: Path, span_ns: int) -> None:
    """Of a run of some microseconds "events a second" would be millions, and say nothing."""
    with Recorder(tmp_path / "t.kvtrace", pool=PoolFacts(4, 4)) as sink:
        for i in range(3):
            sink.emit(Kind.STEP_BEGIN, aux=1)
            sink.emit(Kind.STEP_END, aux=5)
            if i == 1:
                time.sleep(span_ns * 1e-9)
    trace = open_trace(tmp_path / "t.kvtrace")
    enough = int(trace.events["t_ns"][-1]) >= 100_000_000
    history = History()
    history.add(RecordedSource(tmp_path / "t.kvtrace").look())
    assert {value is not None for value in history.rates().values()} == {enough}
    assert ("a second" in shown(history)) is enough


class Scripted(ServerSource):
    """A server whose answers are given."""

    def __init__(self, *answers: Glance | BaseException) -> None:
        super().__init__("http://127.0.0.1:9")
        self._answers = list(answers)

    def look(self) -> Glance:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def followed(*answers: Glance | BaseException) -> tuple[History, str]:
    """What is left, and what was shown."""
    out, history = io.StringIO(), History()
    top._follow(Scripted(*answers), history, Console(file=out, force_terminal=True, width=200, height=40), 0.0)
    return history, out.getvalue()


def test_a_server_is_asked_until_ctrl_c_whatever_it_answers(toy_traces: dict[str, Path]) -> None:
    seen = replace(FolderSource(toy_traces["clean"]).look(), live=True, run="one")
    history, out = followed(
        Unreachable("cannot reach it"), seen, seen, Unreachable("timed out"), TraceError("it answered 503"),
        replace(seen, run="two", totals={**seen.totals, "events": 1}), KeyboardInterrupt(),
    )  # fmt: skip
    assert [word in out for word in ("cannot reach it", "timed out", "it answered 503")] == [True] * 3
    assert out.count("asking again") == 3
    assert [glance.run for glance in history.kept] == ["two"]  # no rates between two runs
    (away,) = [frame for frame in out.split("asking again") if "it answered 503" in frame]
    assert "waiting" not in away.split("it answered 503")[1].split("So far")[0]  # nobody is there to run them
    assert "-1" not in out.split("Speed")[-1]


def test_who_asks_a_server_that_refuses_is_told_at_once() -> None:
    with pytest.raises(TraceError, match="token"):
        followed(TraceError("it asks for a bearer token"))


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", b"nonsense\r\n\r\n", b"",
                                    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"])  # fmt: skip
def test_whatever_answers_is_one_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reply() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        with pytest.raises(TraceError) as told:
            ServerSource(f"http://127.0.0.1:{listener.getsockname()[1]}").look()
    assert "\n" not in str(told.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_frame_of_another_version_is_drawn_or_refused_in_a_line(
    toy_traces: dict[str, Path], data: st.DataObject
) -> None:
    """What is missing from it, or is something else, never ends in a traceback."""
    trace = open_trace(toy_traces["clean"])
    state = state_at(trace, 700)
    seen = RecordedSource(toy_traces["clean"], 700).look()
    pool = {**seen.pool, "preemptions": 0}
    frame: dict[str, Any] = {
        "run": "r", "model": "m", "failed": None, "generated_tokens": 3, "totals": dict(seen.totals), "pool": pool,
        "findings": {"checked_events": 1, "count": 2, "codes": {"KV001": 2}},
    }  # fmt: skip
    parts = (frame, pool, pool["blocks"], frame["totals"], frame["findings"])
    places = [(part, key) for part in parts for key in part]
    part, key = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        del part[key]
    else:
        part[key] = data.draw(st.sampled_from([None, "x", [], {}, -1, 1e400, float("nan"), True, 10**30]))
    source, history = ServerSource("http://127.0.0.1:9"), History()
    source._server.json, source._server.pool = lambda path: frame, lambda: state  # type: ignore[method-assign]
    with contextlib.suppress(TraceError):
        history.add(source.look())
        shown(history)
        json.dumps(history.kept[-1].to_json(history.rates()))


def test_an_engine_that_has_failed_is_told() -> None:
    history = History()
    history.add(Glance("m", True, {}, {"events": 5}, np.empty(0, np.uint8), 0.0, failed="a step failed: boom"))
    assert "boom" in shown(history)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["no-such.kvtrace"], "no-such.kvtrace"), (["http://127.0.0.1:9"], "cannot reach"),
     (["ftp://x"], "'ftp://x' is of no use here"), (["http://127.0.0.1:9", "--seq", "3"], "seq is for a trace"),
     (["x", "--interval", "0"], "interval is 0"), (["x", "--token-file", "y"], "token-file is for")],
)  # fmt: skip
def test_odd_places_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert cli.run(["top", *arguments]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), says in err) == (1, True)


def test_a_server_without_debug_routes_is_told_apart() -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Bare(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Bare) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert httpx.get(f"http://127.0.0.1:{server.server_port}").status_code == 404
        with pytest.raises(TraceError, match="--debug-routes"):
            ServerSource(f"http://127.0.0.1:{server.server_port}").look()
        server.shutdown()


def test_on_a_terminal_a_server_is_watched_until_ctrl_c(
    served_engine: ModuleType, tiny_folder: Path, tmp_path: Path
) -> None:
    """Before it is there, while it is there, while it is gone, and when it is there again as another run."""
    columns, lines = 60, 30
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    loaded = load_model(tiny_folder)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines)}
    process = subprocess.Popen(
        [sys.executable, "-c", "from kvscope.inspector.cli import main; main()", "top", f"http://127.0.0.1:{port}",
         "--interval", "0.1"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    said = b""

    def read_until(word: bytes, count: int = 1) -> None:
        nonlocal said
        before = len(said)
        while said.count(word, before) < count:
            assert select.select([ours], [], [], 60)[0], said.decode()
            said += os.read(ours, 65536)

    try:
        read_until(b"Waiting. The server does not answer")
        with served_engine.serving(loaded, tmp_path / "one.kvtrace", port=port, run_id="one"):
            read_until(b"  live")
        read_until(b"as it last was")
        with served_engine.serving(loaded, tmp_path / "two.kvtrace", sanitize=True, port=port, run_id="two") as (
            base,
            *_,
        ):
            served_engine.ask(base, prompt="the cat sat on the mat", max_tokens=20, n=2)
            read_until(b"  live")
            read_until(b"\x1b[1A", 40)  # a few frames, each drawn over the one before
            os.write(ours, b"\x03")
            with contextlib.suppress(OSError):  # how a terminal says that its other end is gone
                while select.select([ours], [], [], 60)[0] and (more := os.read(ours, 65536)):
                    said += more
        assert process.wait(60) == 0, said.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = said.decode()
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back, and nothing was said behind the last frame
    assert "Traceback" not in text
    last = [
        re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", line) for line in text.replace("\r", "").split("\x1b[2K")[-1].split("\n")
    ]
    assert last[0].startswith("m  live  seq ")
    assert all(len(line) <= columns for line in last)
    names = " ".join(last)
    for word in ("Held", "Running", "prefix hits", "Speed", "Findings", "P private", "F free"):
        assert word in names
    cells = "".join(line[9:] for line in last if re.match(r" +\d+ [PSTCQFW]+$", line))
    assert len(cells) == 64
    assert "C" in cells


def test_the_terminal_has_the_letters_and_colours_of_the_dashboard() -> None:
    """What is lost stands out there as well: by its letter, and with its number in the legend."""
    history = History()
    history.add(FolderSource(LEAK).look())
    console = Console(width=120, record=True, force_terminal=True, color_system="truecolor", file=io.StringIO())
    console.print(top.screen(history, 120, 24))
    red, green, blue = (int(BY_NAME["lost"].colour[i : i + 2], 16) for i in (1, 3, 5))
    assert f"38;2;{red};{green};{blue}" in console.export_text(clear=False, styles=True)
    text = console.export_text()
    assert "L lost 24" in text
    assert text.rstrip().rsplit("\n", 1)[1].count("L") == 24
