"""One look at a served engine for all who ask: gauges from its thread, counts of its trace, its sanitizer's findings.

However many scrape or listen, the engine is asked and the trace is read once per moment.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.errors import EngineFailed
from kvscope.inspector.telemetry.counted import Counted, totals
from kvscope.inspector.telemetry.gauges import Gauges, gauges
from kvscope.traces.follow import Follower

if TYPE_CHECKING:
    from kvscope.engine.server.loop import EngineLoop
    from kvscope.inspector.findings import Finding
    from kvscope.inspector.online import OnlineSanitizer
    from kvscope.inspector.telemetry.cost import RecordingCost

STALE_S = 2.0  # how long a step may hold up who asks
FRESH_S = 0.05  # a look this young will do


@dataclass(frozen=True)
class Look:
    """What was seen at one moment."""

    at_ns: int  # wall clock
    up: bool
    gauges: Gauges | None  # None: the engine is gone, or in the middle of a long step
    counted: Counted | None  # None: nothing is recorded; it goes on counting
    dropped: int


class Watch:
    """A served engine and, where it is recorded, its trace; safe from any thread.

    Args:
        loop: the engine's thread.
        trace: the folder it records into.
        run_id: the run's name in replies and in the trace.
        model: the name that clients ask for.
        sanitizer: what checks the events, where something does.
        cost: what measures the recording, where something does.
    """

    def __init__(
        self, loop: EngineLoop, trace: Path | None = None, *, run_id: str = "", model: str = "",
        sanitizer: OnlineSanitizer | None = None, cost: RecordingCost | None = None,
    ) -> None:  # fmt: skip
        self.cost = cost
        self.block_bytes = loop.engine.config.block_size * loop.engine.cache.bytes_per_token
        self.max_model_len = loop.engine.loaded.config.max_model_len
        self.loop, self.trace, self.run_id, self.model, self.sanitizer = loop, trace, run_id, model, sanitizer
        self.follower = Follower(trace) if trace is not None else None
        self._counted = Counted() if self.follower is not None else None
        self._counted_to = 0
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._last_at = 0.0

    def look(self, fresh_s: float = FRESH_S) -> Look:
        """The engine and its trace now, or as they were at most `fresh_s` seconds ago."""
        with self._lock:
            if self._last is None or time.monotonic() - self._last_at > fresh_s:
                self._last = Look(time.time_ns(), self.loop.failed is None, self._gauges(), *self._count())
                self._last_at = time.monotonic()
            return self._last

    def findings(self) -> tuple[int, list[Finding]] | None:
        """(events checked, findings) so far of the sanitizer; None where none runs."""
        return None if self.sanitizer is None else (self.sanitizer.checked, list(self.sanitizer.findings))

    def frame(self) -> dict[str, Any]:
        """A summary for people: pool, queue, totals of events, findings."""
        seen = self.look()
        now, found = seen.gauges, self.findings()
        return {
            "run": self.run_id, "model": self.model, "wall_ns": seen.at_ns, "up": seen.up,
            "failed": self.loop.failed, "requests": self.loop.live, "served": self.loop.served,
            "generated_tokens": self.loop.tokens, "busy": now is None and seen.up,
            "pool": None if now is None else now.to_json(),
            "totals": None if seen.counted is None else totals(seen.counted, seen.dropped),
            "findings": None if found is None else {
                "checked_events": found[0], "count": len(found[1]), "codes": dict(Counter(f.code for f in found[1])),
            },
        }  # fmt: skip

    def reading(self) -> threading.Lock:
        """What must be held while the follower is used."""
        return self._lock

    def _gauges(self) -> Gauges | None:
        try:
            now = self.loop.call(gauges, STALE_S)
        except (TimeoutError, EngineFailed):
            return None
        return now if isinstance(now, Gauges) else None

    def _count(self) -> tuple[Counted | None, int]:
        if self.follower is None or self._counted is None:
            return None, 0
        self.follower.refresh()
        for part in self.follower.rows(self._counted_to):
            self._counted.add(part.events)
            self._counted_to = int(part.seqs[-1]) + 1
        return self._counted, self.follower.dropped
