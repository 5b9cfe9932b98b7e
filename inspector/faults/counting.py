"""Faults of reference counting."""

from __future__ import annotations

from collections.abc import Sequence

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.tables import SequenceTable
from kvscope.traces.schema import Kind, Reason


class DoubleFree(BlockManager):
    """The free path runs twice over the first block of a sequence; nobody looks whether it is free already."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        first = row.blocks[0]
        super()._release_tail(row, keep, reason)
        if keep == 0 and self.pool.state[first] == BlockState.FREE:
            self.pool._to_free_list(first)
            self.pool._record(Kind.FREE, first, reason)


class LeakOnPreempt(BlockManager):
    """Preemption gives back all blocks but the first."""

    def _release_tail(self, row: SequenceTable, keep: int, reason: Reason) -> None:
        super()._release_tail(row, 1 if reason == Reason.CAPACITY else keep, reason)


class HalfDoneAdmission(BlockManager):
    """Cached blocks are taken before it is known whether the rest fits, and kept when it does not."""

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        hits = self.probe(tokens, extras).hits
        for lblock, block in enumerate(hits):
            self.pool.retain(block, Kind.HIT, seq_id=seq_id, lblock=lblock, reason=Reason.PREFIX_HIT)
        cached = super().admit(seq_id, tokens, extras, resumed=resumed)
        for lblock, block in enumerate(hits):
            self.pool.release(block, seq_id=seq_id, lblock=lblock, reason=Reason.NONE)
        return cached
