"""One thread at a time: real threads that hand a baton on, and a scheduler that is asked at every switch point.

Logical threads are worker threads of this process. Whoever holds the baton runs; `point` is where it may have to give
it up. A thread that waits for a controlled lock is not asked for until the lock is free, so a switch to it is never
wasted, and when nobody can go on that is a deadlock. Everything that happens is decided by the scheduler's answers:
the same answers give the same run.

    main        run() ................................................. waits for the end, or for the watchdog
    worker-1    point point | switch                    point | finished
    worker-2                  point point | finished
"""

from __future__ import annotations

import _thread
import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import extract_stack
from typing import Any

from kvscope.inspector.races.schedule import Decisions, Scheduler
from kvscope.inspector.races.worker import Abort, Failure, Label, Run, Waitable, Worker

__all__ = ["Control", "current", "enter", "leave", "point"]

_MOST_SPINS = 20
_PATIENCE = 2_000  # points in a row by one thread while others could run: then they do
_allocate = _thread.allocate_lock  # the real one, whatever the target is shown
_get_ident = _thread.get_ident
_current: list[Control] = []  # the control whose target is being built or run; at most one


class Control:
    """Runs `threads` bodies under a scheduler, one schedule per `run`.

    Args:
        threads: 2 to 8.
        max_points: a schedule with more switch points than this hangs.
        stall_s: a thread that reaches no point for so long is blocked by something else, or runs forever.
    """

    def __init__(self, threads: int, *, max_points: int = 20_000, stall_s: float = 10.0) -> None:
        self.max_points, self.stall_s = max_points, stall_s
        self.workers = [Worker(self, number) for number in range(threads)]
        self.running: Worker | None = None
        self.aborting = False
        self.builder = _get_ident()  # the thread that makes the target
        self.lost = False  # a worker is beyond our control: no more runs
        self.detail: Callable[[int, Label], Any] | None = (
            None  # where a point of this thread is, when a run is for showing
        )
        self.calls_only = False  # switch between operations only: the sequential model
        self.blocked = 0  # times that a thread of this run had to wait
        self._quiet = self._alone = 0
        self._urgent: Worker | None = None
        self._scheduler: Scheduler | None = None
        self._now = Run(Decisions())
        self._done = _allocate()
        self._done.acquire()
        for worker in self.workers:
            worker.start()

    # -- the main thread ------------------------------------------------------------------------------------------

    def run(self, bodies: Sequence[Callable[[], None]], scheduler: Scheduler) -> Run:
        """One schedule, from the start of all bodies to the end of all, or to the first failure."""
        self._now = run = Run(Decisions())
        self._scheduler, self.aborting, self._urgent = scheduler, False, None
        self._quiet = self._alone = self.blocked = 0
        for worker, body in zip(self.workers, bodies, strict=True):
            worker.body, worker.wait, worker.timed, worker.finished, worker.fresh = body, None, False, False, True
        first = self._choose(None, list(self.workers))
        self.running = first
        first.go.release()
        self._await_end()
        self.running = None
        return run

    def close(self) -> None:
        """End the workers. Those that are beyond control are left to themselves."""
        for worker in self.workers:
            if worker.finished:
                worker.body = None
                worker.go.release()

    def _await_end(self) -> None:
        seen = -1
        while not self._done.acquire(timeout=self.stall_s):
            points = len(self._now.trail)
            if points == seen:
                self._give_up()
                return
            seen = points

    def _give_up(self) -> None:
        """The running thread has reached no point for long: say where it is, and leave it there."""
        worker = self.running
        assert worker is not None
        self.lost, self.aborting = True, True
        frame = sys._current_frames().get(worker.thread_id)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.thread_id), ctypes.py_object(Abort))
        where = extract_stack(frame)[-1] if frame is not None else None
        place = f"{where.filename}:{where.lineno} in {where.name}" if where is not None else "somewhere"
        self._now.failure = Failure(
            "stuck",
            f"{worker.name} has reached no switch point for {self.stall_s:g} s: it is at {place}, blocked by something "
            "that is not controlled (a lock made before the target was built?), or in an endless loop",
            thread=worker.number,
        )

    # -- the running thread ---------------------------------------------------------------------------------------

    def mine(self) -> Worker | None:
        """The worker that calls, if it is one of ours and has the baton."""
        worker = self.running
        return worker if worker is not None and worker.thread_id == _get_ident() else None

    def point(self, label: Label) -> None:
        """A place where another thread may come to run instead."""
        me = self.running
        if me is None or me.thread_id != _get_ident():
            return
        if self.aborting:
            raise Abort
        if self._quiet:
            return
        if self.calls_only and label[0] != "call":
            self._spins(me)
            return
        self._note(me, label)
        if len(self._now.trail) > self.max_points:
            self.fail(Failure("hang", f"{self.max_points:,} switch points and no end: an endless loop?"))
            raise Abort
        if self._urgent is not None:
            if self._urgent.able():
                self._hand_to(me, self._urgent)
            return
        if me.fresh and me.wait is None:
            me.fresh = False
            return
        self._alone += 1
        others = [w for w in self._after(me) if w is not me and self._can(w)]
        if others and self._alone > _PATIENCE:  # it may spin until another thread does something
            self._hand_to(me, others[0])
        elif others:
            chosen = self._choose(me, [me, *others])
            if chosen is not me:
                self._hand_to(me, chosen)

    def _spins(self, me: Worker) -> None:
        """A point inside of a call that is not to be interrupted; unless it goes on and on, waiting for another."""
        self._alone += 1
        if self._alone > _PATIENCE:
            self.blocked += 1
            others = [w for w in self._after(me) if w is not me and self._can(w)]
            if not others or self.blocked > _MOST_SPINS:
                self.fail(Failure("hang", "a call does not come to its end"))
                raise Abort
            self._hand_to(me, others[0])

    def wait_for(self, what: Waitable, label: Label, *, timed: bool = False) -> bool:
        """A point in front of taking something; back when it can be taken. False: `timed`, and the time was over."""
        me = self.running
        assert me is not None
        if self.aborting:
            raise Abort
        me.wait, me.timed = what, timed
        try:
            if what.free_for(me):
                self.point(label)
            elif not self._quiet:
                self._note(me, label)
            while not what.free_for(me):
                if not self._give_way(me):
                    return False
        finally:
            me.wait, me.timed = None, False
        return True

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No switch points inside; a lock that another thread has is still waited for, by the shortest way."""
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def fail(self, failure: Failure) -> None:
        """The run is over, and bad; the first failure counts."""
        if self._now.failure is None and not self.aborting:
            self._now.failure = failure
        self.aborting = True

    def finished(self, me: Worker) -> None:
        """A body has ended: somebody else goes on, or the run is over."""
        me.finished = True
        me.wait = None
        if self.lost:
            return
        alive = [w for w in self._after(me) if not w.finished]
        if not alive:
            self._done.release()
            return
        if self.aborting:
            following = alive[0]
        else:
            able = [w for w in alive if self._can(w)]
            if self._urgent in able:
                following = self._urgent
            elif able:
                following = self._choose(None, able)
            else:
                self._deadlock()
                following = alive[0]
        self._switched(following)
        following.go.release()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _note(self, me: Worker, label: Label) -> None:
        self._now.trail.append((me.number, label))
        if self.detail is not None:
            self._now.details.append(self.detail(me.number, label))

    def _after(self, me: Worker) -> list[Worker]:
        """All workers in a circle, beginning behind this one."""
        return self.workers[me.number + 1 :] + self.workers[: me.number + 1]

    def _can(self, worker: Worker) -> bool:
        return worker.able() or (worker.timed and not worker.finished)

    def _choose(self, me: Worker | None, options: list[Worker]) -> Worker:
        """Ask the scheduler; the first option is what happens when nothing is switched."""
        if len(options) == 1:
            return options[0]
        options.sort(key=lambda w: not w.able())  # stable: who would only run into its time limit comes last
        assert self._scheduler is not None
        numbers = [w.number for w in options]
        choice = self._scheduler.choose(numbers, -1 if me is None else me.number, len(self._now.decisions))
        choice = choice if 0 <= choice < len(options) else 0
        self._now.decisions.add(choice, len(options), forced=me is None, at=len(self._now.trail))
        return options[choice]

    def _give_way(self, me: Worker) -> bool:
        """This thread cannot go on: another one has to. False: it was its time limit that came."""
        self.blocked += 1
        able = [w for w in self._after(me) if self._can(w)]
        if not able:
            self._deadlock()
            raise Abort
        if self._quiet and self._urgent is None:  # whoever has it runs until it lets go, and no further
            quiet, self._quiet, self._urgent = self._quiet, 0, me
            owner = getattr(me.wait, "owner", None)
            others = sorted((w for w in able if w is not me), key=lambda w: w is not owner)
            if not others:
                self._deadlock()
                raise Abort
            self._hand_to(me, others[0])
            self._quiet, self._urgent = quiet, None
            return True
        chosen = self._choose(None, able)
        if chosen is me:
            return False
        self._hand_to(me, chosen)
        assert me.wait is not None
        return me.wait.free_for(me) or not me.timed

    def _switched(self, to: Worker) -> None:
        self._alone = 0
        self._now.switches.append(len(self._now.trail))
        self.running = to

    def _hand_to(self, me: Worker, to: Worker) -> None:
        self._switched(to)
        to.go.release()
        me.go.acquire()
        if self.aborting:
            raise Abort

    def _deadlock(self) -> None:
        waits = [f"{w.name} waits {w.wait.describe(w)}" for w in self.workers if not w.finished and w.wait is not None]
        self.fail(Failure("deadlock", "; ".join(waits) or "no thread can go on"))


def enter(control: Control) -> None:
    """From here on `current()` is this."""
    _current.append(control)


def leave(control: Control) -> None:
    """No longer."""
    _current.remove(control)


def current() -> Control | None:
    """The control that builds or runs a target now, if any."""
    return _current[-1] if _current else None


def point(label: str) -> None:
    """A switch point in your own code; nothing at all outside of a race exploration."""
    if _current:
        _current[-1].point(("point", label))
