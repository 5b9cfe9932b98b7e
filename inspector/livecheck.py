"""The rules, checked over a trace that grows: again and again, by a program of its own, at a tenth of one core's time.

What draws pictures while a run goes on must not wait for the interpreter that a check keeps busy; so each check is a
child of the lowest priority, which reads the folder itself and hands its result back.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvscope.inspector.findings import CheckResult, Finding, check

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
    """Checks the growing trace in a folder. Thread-safe; `look` never waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._found: Checked | None = None
        self._of: Any = None
        self._due = 0.0
        self._thread: threading.Thread | None = None

    def look(self, run: Any, rows: int) -> Checked | None:
        """What the last check found; None before the first one.

        Args:
            run: which run the trace is of: findings of another one are forgotten.
            rows: how many events there are now.
        """
        with self._lock:
            if run != self._of:
                self._of, self._found, self._due = run, None, 0.0
            known = -1 if self._found is None else self._found.events
            idle = self._thread is None or not self._thread.is_alive()
            if idle and known < rows <= MOST_EVENTS and rows and time.monotonic() >= self._due:
                self._thread = threading.Thread(target=self._check, args=(run,), daemon=True, name="kvscope-check")
                self._thread.start()
            return self._found

    def _check(self, run: Any) -> None:
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", __name__, str(self._path.resolve())], check=False,
                              capture_output=True, stdin=subprocess.DEVNULL)  # fmt: skip
        result = None
        try:
            if done.returncode:
                raise ValueError(done.stderr.decode(errors="replace").strip()[-400:])
            result = result_of(done.stdout)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("the live check failed: %s", error)
        with self._lock:
            self._due = time.monotonic() + max(_SHARE * (time.monotonic() - started), _LEAST_S)
            if result is not None and run == self._of:
                self._found = Checked(result, result.events)


def result_of(text: bytes) -> CheckResult:
    """The result that `main` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is something else.
    """
    said = json.loads(text)
    findings = tuple(
        Finding(**found | {"others": tuple(found["others"]), "related": _pairs(found["related"])})
        for found in said["findings"]
    )
    told = {"detectors": tuple(said["detectors"]), "idle": _pairs(said["idle"]), "notes": tuple(said["notes"])}
    return CheckResult(**said | told | {"findings": findings})


def _pairs(value: Any) -> tuple[Any, ...]:
    return tuple((name, held) for name, held in value)


def main(path: str) -> None:
    """Check a trace, and write the result to standard output, as JSON."""
    from kvscope.traces import open_trace

    os.nice(19)
    json.dump(asdict(check(open_trace(path))), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
