"""What a detector is: a name, and one method per kind of event that it looks at, before the event is applied."""

from __future__ import annotations

from typing import ClassVar

from kvscope.inspector.detectors.replay import Handler, Ledger
from kvscope.traces.schema import Kind


class Detector:
    """Looks at events in order and reports broken rules to the ledger.

    A method `on_<kind>(row, block)` is called for every event of that kind; `finish` once at the end.
    """

    name: ClassVar[str]
    codes: ClassVar[tuple[str, ...]]

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def handlers(self) -> dict[Kind, Handler]:
        """The kinds it looks at."""
        methods = {kind: getattr(self, f"on_{kind.name.lower()}", None) for kind in Kind}
        return {kind: method for kind, method in methods.items() if method is not None}

    def finish(self) -> None:
        """All events have been seen."""
