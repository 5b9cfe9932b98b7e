"""`kvscope bench` in a pipe that is closed, interrupted, or given odd files: no traceback, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvscope.benchmarks import __main__ as benchmarks

START = [sys.executable, "-c", "from kvscope.inspector.cli import main; main()", "bench", "articles"]


def test_a_closed_pipe_is_quiet() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "kvscope.benchmarks", "articles", "--requests", "20"], stdout=writing,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("later_s", [0.0, 1.0])
def test_an_interrupt_is_one_line(later_s: float) -> None:
    """Whenever it comes: while the benchmark's own process begins, and later."""
    process = subprocess.Popen(START, stderr=subprocess.PIPE, text=True, start_new_session=True)
    end = time.monotonic() + 60
    while "kvscope.benchmarks" not in Path(f"/proc/{process.pid}/cmdline").read_text():
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(later_s)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert err == "kvscope: interrupted\n"
    assert process.returncode in (130, -signal.SIGINT)  # the second from Python itself, where it came within an exec()


def test_options_of_a_benchmark_are_passed_on() -> None:
    done = subprocess.run([*START, "--requests", "20", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)  # so few requests may miss a gate
    assert done.stderr == ""
    assert '"rows"' in done.stdout
    wrong = subprocess.run([*START, "--colour", "blue"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "unrecognized arguments: --colour blue" in wrong.stderr
    assert "Traceback" not in wrong.stderr


# Two programs and a folder, as `bench serve` has them; the second ends late.
HOLDER = """
import sys, tempfile, time
from contextlib import ExitStack
from kvscope.benchmarks.children import child
slow = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), exit())); print(0, flush=True)"
with tempfile.TemporaryDirectory(dir=sys.argv[1]), ExitStack() as stack:
    for work in ("print(0, flush=True)", slow):
        program = stack.enter_context(child([sys.executable, "-c", work + "; import time; time.sleep(600)"], stdout=-1))
        program.stdout.read(1)
        print(program.pid, flush=True)
    time.sleep(600)
"""


def gone(pid: int) -> bool:
    """Whether the program has ended; whoever is to reap it may take their time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(
    ("signals", "status"),
    [((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), -signal.SIGINT), ((signal.SIGTERM, signal.SIGINT), 143),
     ((signal.SIGKILL,), -signal.SIGKILL)],
)  # fmt: skip
def test_what_a_benchmark_started_ends_with_it(signals: tuple[int, ...], status: int, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL) as process:  # fmt: skip
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(2)]
        assert len(list(tmp_path.iterdir())) == 1
        for number in signals:
            process.send_signal(number)
            time.sleep(0.2)  # the second one while it cleans up; wherever it falls, the outcome is the same
        assert process.wait(60) == status
    end = time.monotonic() + 60
    while not all(map(gone, pids)):
        assert time.monotonic() < end, "a program was left behind"
        time.sleep(0.02)
    assert signals == (signal.SIGKILL,) or not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "is empty"), ("a,b\n1,2\n", "requests.csv"), ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "requests"),
     ('{"timestamp": 0, "input_length": 900, "output_length": 3, "hash_ids": [1]}\n', "hash_ids"),
     (None, "requests.csv")],
)  # fmt: skip
def test_a_load_that_makes_no_sense_is_one_line(
    text: str | None, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.csv"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["x", "serve", "--arrivals", str(path)])
    assert benchmarks.main() == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), says in err) == (1, True), err


@pytest.mark.parametrize(
    "options",
    [["serve", "--rate", "nan"], ["serve", "--rate", "inf"], ["serve", "--slo-first", "0"],
     ["frames", "--minutes", "-1"], ["follow", "--seconds", "x"]],
)  # fmt: skip
def test_numbers_that_are_none_are_refused(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", *options])
    with pytest.raises(SystemExit) as ended:
        benchmarks.main()
    assert ended.value.code == 2
    assert options[1] in capsys.readouterr().err.splitlines()[-1]
