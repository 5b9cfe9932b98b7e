"""Programs that a benchmark starts: they end with it, however it ends, and so does what it has written.

SIGTERM and Ctrl-C unwind the benchmark once; what comes while it cleans up is ignored, or folders would be left behind.
A benchmark that is killed takes its programs with it: the kernel tells them (Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

TERMINATED = 128 + signal.SIGTERM
_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_once() -> Iterator[None]:
    """Inside, SIGTERM raises SystemExit and Ctrl-C KeyboardInterrupt, the first of them only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(TERMINATED)

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in _ENDING:
        signal.signal(number, end)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)  # `kvscope bench` holds them back until here
        yield
    finally:
        if all(signal.getsignal(number) is end for number in _ENDING):  # else the process is on its way out
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def child(argv: Sequence[str], *, patience_s: float = 60.0, **more: Any) -> Iterator[subprocess.Popen[Any]]:
    """A program in a session of its own, ended with SIGTERM at the end of the block; killed where that does not help.

    Args:
        argv: the program and its arguments.
        patience_s: what it gets to end.
        more: as `subprocess.Popen` takes it.
    """
    with ending_once():
        process = subprocess.Popen(list(argv), start_new_session=True, preexec_fn=_die_with(os.getpid()), **more)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(patience_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _die_with(parent: int) -> Any:
    """Run in the new process: it gets SIGTERM when the thread that started it is gone."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before it could be asked
            os._exit(TERMINATED)

    return ask
