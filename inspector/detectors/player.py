"""The events one after another: first the detectors look at each, then the ledger applies it."""

from __future__ import annotations

from collections.abc import Container

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.life import Slot
from kvscope.inspector.detectors.records import Row
from kvscope.inspector.detectors.replay import Handler, Ledger
from kvscope.inspector.limits import limits_of
from kvscope.inspector.source import IntArray
from kvscope.traces.fold import BLOCK_KINDS
from kvscope.traces.schema import EventArray, Kind

_WRITE = int(Kind.WRITE)
_CHUNK = 65_536  # events that stand in memory as Python ints at once
_BLOCK_KINDS = frozenset(int(k) for k in BLOCK_KINDS)


class Player:
    """Plays events to detectors and to the ledger that they share; may be fed piece by piece."""

    def __init__(self, ledger: Ledger, detectors: list[Detector]) -> None:
        self.ledger, self.detectors = ledger, detectors
        self._table: list[list[Handler]] = [[] for _ in range(256)]
        for detector in detectors:
            for kind, handler in detector.handlers().items():
                self._table[kind].append(handler)
        for number, apply in ledger.handlers().items():
            self._table[number].append(apply)
        self._slot = next((d for d in detectors if isinstance(d, Slot)), None)

    def feed(self, events: EventArray, seqs: IntArray, gap_starts: Container[int] = ()) -> None:
        """Play these events; before the rows `gap_starts` others were lost."""
        ledger, table = self.ledger, self._table
        reserved = limits_of(ledger.trace.facts).reserved
        blocks, nobody, touched = ledger.blocks, ledger.nobody, ledger.touched
        for lo in range(0, len(events), _CHUNK):
            numbers = seqs[lo : lo + _CHUNK].tolist()
            rows = map(Row._make, events[lo : lo + _CHUNK].tolist())
            for i, (number, row) in enumerate(zip(numbers, rows, strict=True), lo):
                ledger.seq = number
                if i in gap_starts:
                    ledger.lose()
                block = nobody
                if row.kind in _BLOCK_KINDS:
                    if row.block in reserved and row.kind == _WRITE and row.seq_id < 0:
                        continue  # padding
                    if not 0 <= row.block < ledger.id_end:
                        if self._slot is not None:
                            self._slot.outside(row)
                        continue
                    block = blocks[row.block]
                    touched.add(row.block)
                    if not block.known:
                        ledger.unjudged += 1
                        if row.gen > block.gen:  # its hand-out was among the lost events
                            block.forget(row.gen)
                for handler in table[row.kind]:
                    handler(row, block)

    def finish(self) -> None:
        """All events have been seen."""
        for detector in self.detectors:
            detector.finish()
