"""What recording costs a running engine, measured in one step of many: its sink is timed there, and left alone else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

EVERY = 64  # steps; a timed one is a little slower
_CALLS = (
    "begin", "begin_at", "emit", "emit_many", "emit_alloc", "emit_end", "emit_lives", "emit_ends", "emit_sheet",
    "detail", "fact",
)  # fmt: skip


class RecordingCost:
    """Seconds in the sink, and of the steps in which they were measured.

    The time of the measuring itself counts as recording, so the ratio is too high rather than too low.
    """

    def __init__(self, sink: Any, every: int = EVERY) -> None:
        self.recording_s = 0.0
        self.steps_s = 0.0
        self._sink, self._every = sink, every
        self._left = every
        self._inside = 0.0
        self._timing = False
        self._began = 0.0
        self._before: dict[str, Any] = {}
        sink.skip_frames([__file__])  # no call site is here

    @property
    def ratio(self) -> float | None:
        """Share of a step that recording takes; None before one was measured."""
        return self.recording_s / self.steps_s if self.steps_s else None

    def before_step(self) -> None:
        """A step begins; in the engine's thread."""
        self._left -= 1
        if self._left <= 0:
            self._left = self._every
            self._start()

    def after_step(self) -> None:
        """It is over."""
        if self._began:
            self._stop()

    def _start(self) -> None:
        for name in _CALLS:
            if name in vars(self._sink):
                self._before[name] = vars(self._sink)[name]
            setattr(self._sink, name, self._timed(getattr(self._sink, name)))
        self._inside, self._began = 0.0, time.perf_counter()

    def _stop(self) -> None:
        self.steps_s += time.perf_counter() - self._began
        self.recording_s += self._inside
        self._began = 0.0
        for name in _CALLS:
            if name in self._before:
                setattr(self._sink, name, self._before.pop(name))
            else:
                delattr(self._sink, name)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        clock = time.perf_counter

        def timed(*args: Any, **more: Any) -> Any:
            if self._timing:  # one call of the sink may be made of others
                return call(*args, **more)
            start, self._timing = clock(), True
            try:
                return call(*args, **more)
            finally:
                self._timing = False
                self._inside += clock() - start

        return timed
