"""A watchdog for targets that run in the process of the caller: a call that hangs is thrown out of."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.harness import WATCH, Call, words

_LOOK_S = 0.1


class Hang(KeyboardInterrupt):
    """Thrown into a call that does not return. Hypothesis lets an interrupt through untouched, and nothing else."""


@contextmanager
def watched(hang_seconds: float) -> Iterator[None]:
    """Inside, a call of a target that has not returned for so long ends.

    By a signal, which interrupts Python and what waits in the kernel; a loop in C it does not. Where signals are not
    to be had (outside of the main thread), nothing is watched.

    Raises:
        UsageError: a call hung; says which, where it stood, and after what.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_kill"):
        yield
        return
    ended, told = threading.Event(), list[str]()

    def out(_signal: int, frame: FrameType | None) -> None:
        if not ended.is_set() and WATCH.call is not None:
            told.append(_told(WATCH.call, hang_seconds, frame))
            raise Hang

    before: Any = signal.signal(signal.SIGUSR2, out)
    WATCH.call, WATCH.calls = None, ()
    guard = threading.Thread(target=_guard, args=(threading.get_ident(), hang_seconds, ended), daemon=True)
    guard.start()
    try:
        yield
    except Hang:
        ended.set()
        raise UsageError(told[0]) from None
    finally:
        ended.set()
        guard.join()
        signal.signal(signal.SIGUSR2, before)


def _guard(thread: int, hang_seconds: float, ended: threading.Event) -> None:
    """Looks whether calls return; once one does not, throws until that has an effect: a target may catch it."""
    answered, since = WATCH.answered, time.monotonic()
    while not ended.wait(_LOOK_S):
        if WATCH.call is None or WATCH.answered != answered:
            answered, since = WATCH.answered, time.monotonic()
        elif time.monotonic() - since > hang_seconds:
            signal.pthread_kill(thread, signal.SIGUSR2)


def _told(call: Call, hang_seconds: float, frame: FrameType | None) -> str:
    place = f" (it is at {Path(frame.f_code.co_filename).name}:{frame.f_lineno})" if frame is not None else ""
    before = "; ".join(words(*c) for c in list(WATCH.calls)[-8:] if c != call)
    return f"{words(*call)} did not return within {hang_seconds:g} s{place}{f', after {before}' if before else ''}"
