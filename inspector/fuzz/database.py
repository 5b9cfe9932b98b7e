"""Programs that broke a rule, kept between runs: the next run plays them first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hypothesis.database import DirectoryBasedExampleDatabase

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.program import Program


class Database:
    """The failing programs of one target; an example database of Hypothesis, so CIs that keep `.hypothesis` keep it.

    Args:
        folder: where it lies; None keeps nothing.
        target: its name, as given on the command line.
    """

    def __init__(self, folder: str | None, target: str) -> None:
        self._kept = DirectoryBasedExampleDatabase(Path(folder)) if folder else None
        self._key = f"kvscope.fuzz/1 {target}".encode()

    def programs(self) -> Iterator[Program]:
        """All of them, the shortest first; what cannot be read is passed over."""
        found = list(self._kept.fetch(self._key)) if self._kept is not None else []
        for text in sorted(found, key=lambda text: (len(text), text)):
            with suppress(UsageError):
                yield Program.from_json(text)

    def keep(self, program: Program) -> None:
        """Add one."""
        if self._kept is not None:
            self._kept.save(self._key, program.to_json().encode())

    def clear(self) -> None:
        """Forget all of this target."""
        if self._kept is not None:
            for text in list(self._kept.fetch(self._key)):
                self._kept.delete(self._key, text)
