"""The rules, checked over a trace that grows: again and again, in a thread of its own, at a tenth of its time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvscope.errors import KVScopeError
from kvscope.inspector.findings import CheckResult, check
from kvscope.inspector.source import TraceLike

log = logging.getLogger(__name__)

MOST_EVENTS = 2_000_000  # a trace up to this long is checked while it grows
_SHARE = 10  # a check that took a second is followed by ten without one
_LEAST_S = 1.0


@dataclass(frozen=True)
class Checked:
    """What a check found, and how far it looked."""

    result: CheckResult
    events: int


class LiveCheck:
    """Checks a growing trace. Thread-safe; `look` never waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Checked | None = None
        self._of: Any = None
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def look(self, run: Any, rows: int, trace: Callable[[], TraceLike]) -> Checked | None:
        """What the last check found; None before the first one.

        Args:
            run: which run the trace is of: findings of another one are forgotten.
            rows: how many events there are now. trace: them, as they are now; called in the checking thread.
        """
        with self._lock:
            if run != self._of:
                self._of, self._found, self._due = run, None, 0.0
            known = -1 if self._found is None else self._found.events
            idle = self._thread is None or not self._thread.is_alive()
            if idle and known < rows <= MOST_EVENTS and rows and time.monotonic() >= self._due:
                self._thread = threading.Thread(
                    target=self._check, args=(run, trace), daemon=True, name="kvscope-check"
                )
                self._thread.start()
            return self._found

    def _check(self, run: Any, trace: Callable[[], TraceLike]) -> None:
        started = time.monotonic()
        found = None
        try:
            result = check(trace())
            found = Checked(result, result.events)
        except (KVScopeError, OSError) as error:
            log.warning("the live check failed: %s", error)
        with self._lock:
            self._due = time.monotonic() + max(_SHARE * (time.monotonic() - started), _LEAST_S)
            if found is not None and run == self._of:
                self._found = found
