"""Locks, RLocks and Conditions of a target under the control of the explorer.

While a target is built and run, `threading.Lock`, `RLock`, `Condition` and what is made of them (`Semaphore`, `Event`,
`Barrier`, `queue.Queue`) give controlled ones to our threads, and real ones to everybody else's. Names that a module
of the target imported for itself (`from threading import Lock`) and locks that it made when it was imported are
replaced as well. A lock that escapes this (made by a C extension, or kept as a default argument) blocks its thread for
real; the watchdog of `control` says so.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.races.control import Control, current, enter, leave
from kvscope.inspector.races.worker import Abort, Worker

_get_ident = _thread.get_ident
_real_lock, _real_rlock, _real_sleep = threading.Lock, threading.RLock, time.sleep
_real_start = threading.Thread.start
_LOCK_TYPES = (type(_real_lock()), type(_real_rlock()))
_OUTSIDE = "the thread that builds the target"


class ControlledLock:
    """`threading.Lock` under control; `reentrant` makes it an RLock."""

    reentrant = False

    def __init__(self) -> None:
        self.owner: Worker | str | None = None
        self.count = 0

    def free_for(self, worker: Worker) -> bool:
        """Whether this thread could take it now."""
        return self.owner is None or (self.reentrant and self.owner is worker)

    def describe(self, worker: Worker | None) -> str:
        """What it is and who has it. worker: who waits for it."""
        owner = self.owner.name if isinstance(self.owner, Worker) else self.owner
        owner = "it has itself" if worker is not None and self.owner is worker else f"{owner or 'nobody'} has"
        return f"for {'an RLock' if self.reentrant else 'a Lock'} that {owner}"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; another thread may run first."""
        control = current()
        me = control.mine() if control is not None else None
        if control is None or me is None:
            return self._acquire_outside(blocking and timeout < 0)
        label = ("acquire", "RLock" if self.reentrant else "Lock")
        if not blocking:
            control.point(("try", *label[1:]))
            if not self.free_for(me):
                return False
        elif not control.wait_for(self, label, timed=timeout >= 0):
            return False
        self.owner = me
        self.count += 1
        return True

    def release(self) -> None:
        """Give it back; another thread may run next. A Lock may be released by any thread, as Python's."""
        control = current()
        me = control.mine() if control is not None else None
        if self.count == 0 or (self.reentrant and self.owner != (me or _OUTSIDE)):
            if control is not None and control.aborting:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if self.count == 0:
            self.owner = None
        if control is not None and not control.aborting:
            control.point(("release", "RLock" if self.reentrant else "Lock"))

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # What threading.Condition asks of its lock, without switch points of its own.

    def _is_owned(self) -> bool:
        control = current()
        me = control.mine() if control is not None else None
        return self.owner is not None and self.owner == (me if me is not None else _OUTSIDE)

    def _release_save(self) -> int:
        count, self.count, self.owner = self.count, 0, None
        return count

    def _acquire_restore(self, count: int) -> None:
        if (control := current()) is not None and control.aborting:
            return
        self.acquire()
        self.count = count

    def _acquire_outside(self, forever: bool) -> bool:
        if self.owner is None or (self.reentrant and self.owner == _OUTSIDE):
            self.owner = _OUTSIDE
            self.count += 1
            return True
        if forever:
            control = current()
            if control is not None and control.aborting:
                raise Abort
            raise RuntimeError(f"this would wait forever, outside of any schedule, {self.describe(None)}")
        return False


class ControlledRLock(ControlledLock):
    """`threading.RLock` under control."""

    reentrant = True


class Notification(ControlledLock):
    """What `Condition.wait` waits for: a lock that the waiting thread holds until it is notified."""

    def describe(self, worker: Worker | None) -> str:
        """Nobody has it: somebody is to notify."""
        return "to be notified"


def make_lock() -> Any:
    """A lock for whoever asks: controlled for the builder and our threads, a real one for others."""
    return ControlledLock() if _ours() else _real_lock()


def make_notification() -> Any:
    """The same for what a Condition waits with."""
    return Notification() if _ours() else _real_lock()


def make_rlock() -> Any:
    """The same for RLocks."""
    return ControlledRLock() if _ours() else _real_rlock()


def sleep(seconds: float) -> None:
    """A switch point for our threads, and no time passes."""
    control = current()
    if control is not None and control.mine() is not None:
        control.point(("sleep",))
    else:
        _real_sleep(seconds)


def _ours() -> bool:
    control = current()
    return control is not None and (control.mine() is not None or _get_ident() == control.builder)


def _no_threads(thread: threading.Thread) -> None:
    if _ours():
        raise UsageError(
            f"the target starts a thread of its own ({thread.name}), which the explorer cannot hold back: "
            "give its body as one of the threads"
        )
    _real_start(thread)


class Controlled:
    """While one of these is entered, our threads and the caller get controlled locks.

    Args:
        control: what runs the threads.
        modules: names of the target's modules, whose own names and locks are replaced too.
    """

    def __init__(self, control: Control, modules: Iterable[str] = ()) -> None:
        self.control = control
        self._new: list[tuple[Any, str, Callable[[], Any]]] = [
            (threading, "Lock", lambda: make_lock),
            (threading, "RLock", lambda: make_rlock),
            (threading, "_allocate_lock", lambda: make_notification),
            (threading.Thread, "start", lambda: _no_threads),
            (time, "sleep", lambda: sleep),
        ]
        found = [sys.modules[name] for name in modules if name in sys.modules]
        self._new += [(module, name, make) for module in found for name, make in _replaced(module)]
        self._saved: list[Any] = []

    def __enter__(self) -> Control:
        self.control.builder = _get_ident()
        self._saved = [getattr(where, name) for where, name, _ in self._new]
        for where, name, make in self._new:
            setattr(where, name, make())
        enter(self.control)
        return self.control

    def __exit__(self, *exc: object) -> None:
        leave(self.control)
        for (where, name, _), saved in zip(self._new, self._saved, strict=True):
            setattr(where, name, saved)


def _replaced(module: ModuleType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names of a module that mean a real lock, or how to make one, and what makes their meaning under control."""
    for name, value in list(vars(module).items()):
        if value is _real_lock:
            yield name, lambda: make_lock
        elif value is _real_rlock:
            yield name, lambda: make_rlock
        elif value is _real_sleep:
            yield name, lambda: sleep
        elif isinstance(value, _LOCK_TYPES):
            yield name, ControlledRLock if isinstance(value, _LOCK_TYPES[1]) else ControlledLock
