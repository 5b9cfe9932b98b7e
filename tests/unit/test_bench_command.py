"""`kvscope bench` in a pipe that is closed, or interrupted: no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

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


def test_an_interrupt_is_one_line() -> None:
    process = subprocess.Popen(START, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    assert err.count("\n") <= 1


def test_options_of_a_benchmark_are_passed_on() -> None:
    done = subprocess.run([*START, "--requests", "20", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1)  # so few requests may miss a gate
    assert done.stderr == ""
    assert '"rows"' in done.stdout
    wrong = subprocess.run([*START, "--colour", "blue"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "unrecognized arguments: --colour blue" in wrong.stderr
    assert "Traceback" not in wrong.stderr
