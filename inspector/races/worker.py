"""What a schedule is made of: the threads that run it, what they may wait for, and what came of it."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kvscope.errors import KVScopeError
from kvscope.inspector.fuzz.answers import message_of
from kvscope.inspector.races.schedule import Decisions

if TYPE_CHECKING:
    from kvscope.inspector.races.control import Control

Label = tuple[Any, ...]
_allocate = _thread.allocate_lock  # the real one, whatever the target is shown
_get_ident = _thread.get_ident
_MOST_WORDS = 300  # characters of a message


class Abort(BaseException):  # not an Exception: a target that catches those must not catch this
    """Thrown into the threads of a run that is over."""


class Waitable(Protocol):
    """What a thread may have to wait for."""

    def free_for(self, worker: Worker) -> bool:
        """Whether the thread could go on now."""
        ...

    def describe(self, worker: Worker | None) -> str:
        """What it is and who has it, for people, behind "waits". worker: who waits."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a schedule is a bad one.

    kind: violation, crash, deadlock, hang, stuck, finding, not-linearizable or nondeterminism. code: that of the
    sanitizer or the fuzzer, where there is one; else the kind.
    """

    kind: str
    message: str
    code: str = ""
    thread: int = -1

    def same_kind(self, other: Failure | None) -> bool:
        """Whether another failure is the same mistake, as far as shrinking goes."""
        return other is not None and (self.kind, self.code) == (other.kind, other.code)


def failure_of(error: BaseException, thread: int = -1) -> Failure:
    """What an exception means: a broken rule where it is an assertion or one of our own errors, else a crash."""
    broken = isinstance(error, AssertionError | KVScopeError)
    said = message_of(error)
    words = said if broken and said else f"{type(error).__name__}: {said}"
    code = str(getattr(error, "code", "") or "") if broken else ""
    message = str(getattr(error, "why", "") or words).split("\n")[0]
    if len(message) > _MOST_WORDS:
        message = f"{message[: _MOST_WORDS // 2]} ... {message[-_MOST_WORDS // 2 :]}"
    return Failure("violation" if broken else "crash", message, code, thread)


@dataclass(slots=True)
class Run:
    """What one schedule did."""

    decisions: Decisions
    trail: list[tuple[int, Label]] = field(default_factory=list)  # (thread, label) of every point, in order
    failure: Failure | None = None
    switches: list[int] = field(default_factory=list)  # indices into `trail` where another thread came to run
    details: list[Any] = field(default_factory=list)  # per point, in a run for showing: where in the source it is


class Worker(threading.Thread):
    """A thread that runs one body per schedule, when it is given the baton."""

    def __init__(self, control: Control, number: int) -> None:
        super().__init__(name=f"worker-{number + 1}", daemon=True)
        self.control, self.number = control, number
        self.body: Callable[[], None] | None = None
        self.wait: Waitable | None = None
        self.timed = False  # waits no longer than some time: it may also be let go on without what it waits for
        self.finished = True
        self.fresh = True  # has reached no point yet: a switch there is one that came just before
        self.thread_id = 0
        self.go = _allocate()
        self.go.acquire()

    def run(self) -> None:
        """Bodies until there are no more."""
        self.thread_id = _get_ident()
        while True:
            self.go.acquire()
            if self.body is None:
                return
            try:
                self.body()
            except Abort:
                pass
            except BaseException as error:  # noqa: BLE001 - a target may raise anything; it is reported
                self.control.fail(failure_of(error, self.number))
            self.control.finished(self)

    def able(self) -> bool:
        """Whether it could go on now with what it waits for."""
        return not self.finished and (self.wait is None or self.wait.free_for(self))
