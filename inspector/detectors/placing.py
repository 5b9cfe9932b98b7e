"""What a step writes, once it is known what it computes: position p lies in slot p % size of block table[p // size]."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvscope.inspector.detectors.records import PendingWrite, Row, Sequence
from kvscope.traces.schema import unpack_range

if TYPE_CHECKING:
    from kvscope.inspector.detectors.replay import Ledger


class Misplaced(NamedTuple):
    """A write that went to the slot of another position than its step computes there."""

    write: PendingWrite
    went: int  # the position whose slot it went to
    due: int  # the one that it should have been


class Placing:
    """Compares what a step computes with the writes that were issued for it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._off = False  # one was found: from then on a slot that is filled may hold another position
        self._last: tuple[int, Misplaced | None] = (-1, None)

    def misplaced(self, row: Row) -> Misplaced | None:
        """Of a SCHED that is not applied yet, its first write that is misplaced; None where all are in place.

        Without one that was found before, a position of the step that nobody wrote must tell so.
        """
        if self._last[0] != self._ledger.seq:
            self._last = (self._ledger.seq, self._found(row))
            self._off |= self._last[1] is not None
        return self._last[1]

    def _found(self, row: Row) -> Misplaced | None:
        writes = self._ledger.issued.get(row.seq_id, [])
        due = range(row.lblock, row.lblock + row.fill)
        if not due or row.lblock < 0 or all(w.first >= due.start and w.first + w.hi - w.lo <= due.stop for w in writes):
            return None
        sequence = self._ledger.sequences.get(row.seq_id)
        if sequence is None or not sequence.known or not (self._off or self._lacks(row, sequence, due)):
            return None
        slots = sorted({w.first + i: w for w in writes for i in range(w.hi - w.lo)}.items())
        if len(slots) != len(due):
            return None  # some are missing, or some of another step are there
        return next(Misplaced(w, went, p) for (went, w), p in zip(slots, due, strict=True) if went != p)

    def _lacks(self, row: Row, sequence: Sequence, due: range) -> bool:
        """Whether the step reads one of the positions that it computes, and nobody has written it."""
        lo, hi = unpack_range(row.aux)
        for position in range(max(lo, due.start), min(hi, due.stop)):
            lblock, slot = divmod(position, self._ledger.block_size)
            block, gen = sequence.table.get(lblock, (-1, -1))
            if block >= 0:
                found = self._ledger.blocks[block]
                if found.known and found.gen == gen and not found.written >> slot & 1:
                    return True
        return False
