"""What a detector is: a name, and one method per kind of event that it looks at, before the event is applied."""

from __future__ import annotations

import functools
from typing import ClassVar

from kvscope.inspector.detectors.replay import Handler, Ledger
from kvscope.inspector.source import TraceLike
from kvscope.traces.schema import Kind


class Detector:
    """Looks at events in order and reports broken rules to the ledger.

    A method `on_<kind>(row, block)` is called for every event of that kind; `finish` once at the end.
    """

    name: ClassVar[str]
    codes: ClassVar[tuple[str, ...]]

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @classmethod
    @functools.cache
    def kinds(cls) -> tuple[Kind, ...]:
        """The kinds it looks at."""
        return tuple(kind for kind in Kind if hasattr(cls, f"on_{kind.name.lower()}"))

    @classmethod
    def idle(cls, trace: TraceLike) -> str:
        """Why it had nothing to look at although there are such events; empty where it had."""
        return ""

    def handlers(self) -> dict[Kind, Handler]:
        """What it does with an event of each of them."""
        return {kind: getattr(self, f"on_{kind.name.lower()}") for kind in self.kinds()}

    def finish(self) -> None:
        """All events have been seen."""
