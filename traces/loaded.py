"""All rows of a trace decoded and kept, with their details; grows as the trace does."""

from __future__ import annotations

import numpy as np

from kvscope.traces.details import DetailStore
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.sealed import Batch, SealedRows, Unreadable
from kvscope.traces.tables import Names


class Loaded:
    """Views of `events` that were handed out stay as they are."""

    def __init__(self, sealed: SealedRows) -> None:
        self._sealed = sealed
        self._store: EventArray = np.empty(0, EVENT_DTYPE)
        self._decoded: list[Batch] = []
        self._rows = 0  # in them
        self._removed = 0
        self._tail: EventArray | None = None
        self._count = 0
        self.details = DetailStore()

    @property
    def rows(self) -> int:
        """How many rows have been decoded so far."""
        return self._rows

    @property
    def events(self) -> EventArray:
        """The rows, as of the last update."""
        return self._store[: self._count]

    def update(self, tail: EventArray, names: Names) -> None:
        """Decode the batches that are new, and put the rows of the hot tail behind them."""
        if (
            self._tail is tail
            and len(self._decoded) == len(self._sealed.batches)
            and self._removed == self._sealed.removed
        ):
            return
        while not self._decode(names, len(tail)):
            pass
        self._store[self._rows : self._rows + len(tail)] = tail
        self._count = self._rows + len(tail)
        self._tail = tail

    def _decode(self, names: Names, beside: int) -> bool:
        """False when a batch turned out to be unreadable, and there is one less now."""
        if self._removed != self._sealed.removed:
            if self._removed_known():
                self._store, self._count = np.empty(0, EVENT_DTYPE), 0  # what was handed out stays as it is
                self._decoded, self._rows = [], 0
                self.details.forget_sealed()
            self._removed = self._sealed.removed
        self._reserve(self._sealed.rows + beside)
        try:
            for number in range(len(self._decoded), len(self._sealed.batches)):
                batch = self._sealed.batches[number]
                events = self._store[self._rows : self._rows + batch.rows]
                details = self._sealed.batch_events(number, events)
                names.need(events)
                self.details.add(batch.first_seq - batch.skip, details)
                self._decoded.append(batch)
                self._rows += batch.rows
        except Unreadable:
            return False
        return True

    def _removed_known(self) -> bool:
        """Whether a batch that is decoded here has been taken out since."""
        there = self._sealed.batches[: len(self._decoded)]
        return len(there) < len(self._decoded) or any(a is not b for a, b in zip(there, self._decoded, strict=True))

    def _reserve(self, rows: int) -> None:
        if rows > len(self._store):
            store = np.empty(rows if not len(self._store) else rows + rows // 4, EVENT_DTYPE)
            store[: self._count] = self._store[: self._count]
            self._store = store
