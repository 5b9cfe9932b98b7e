"""What a client asked for, for those who tell others about requests: nothing of its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Asked:
    """One HTTP request.

    operation: chat or text_completion. id: of the reply. trace_headers: `traceparent` and `tracestate`, where the
    client sent them.
    """

    operation: str = "text_completion"
    id: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    trace_headers: Mapping[str, str] = field(default_factory=dict)


# Called with the engine's request numbers, as soon as all are queued.
Observer = Callable[[Sequence[int], Asked], None]
