"""What lies in the slots of a pool, as the events have the device fill them; what lands when is told in landing.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvscope.inspector.detectors.records import Row
from kvscope.inspector.landing import Issued, Order
from kvscope.inspector.read_records import NEVER, UNKNOWN, StepRead
from kvscope.inspector.source import IntArray, TraceLike, details_map
from kvscope.traces.schema import Kind

BEYOND = 1024  # blocks behind the pool that a write or copy may go astray into


class DeviceSlots:
    """The slots of the pool and of the host behind it; each holds the row of a WRITE, or NEVER.

    Attributes:
        slots: of the pool up to the last block that events name, and of blocks beyond it.
        order: what has not landed.
    """

    def __init__(self, trace: TraceLike) -> None:
        self.trace, self.size = trace, trace.block_size
        # What no event names holds nothing; what is far outside of the pool, no device has.
        self.blocks = min(int(trace.events["block"].max(initial=-1)), trace.num_blocks + BEYOND) + 1
        self.order = Order[StepRead](trace)
        self._end = self.blocks * self.size  # of the pool as it is
        self.slots = np.full(max(self._end, 4), NEVER, dtype=np.int64)  # what lies in no block is asked for, too
        self._host: dict[int, IntArray] = {}
        self._lost = False
        self._told: dict[Kind, Any] = {
            kind: details_map(trace, kind) for kind in (Kind.COW, Kind.SWAP_OUT, Kind.SWAP_IN)
        }  # fmt: skip

    def lose(self) -> None:
        """Events are missing: nobody knows what lies where."""
        self.order.lose()
        self.slots[:] = UNKNOWN
        self._host.clear()
        self._lost = True

    def block(self, block: int) -> IntArray:
        """The slots of a block."""
        return self.slots[block * self.size : (block + 1) * self.size]

    def put(self, write: Issued, block: int) -> None:
        """A write lands in this block; it runs over the end of it where it is told to."""
        at = block * self.size
        self.slots[at + write.lo : min(at + write.hi, self._end)] = write.row

    def resized(self, at: int, row: Row) -> None:
        """The pool has another size: what was behind it is gone."""
        self._end = max(row.aux, 0) * self.size
        self.slots[self._end :] = NEVER

    # -- copies -------------------------------------------------------------------------------------------------------

    def copy(self, at: int, row: Row) -> None:
        """A COW."""
        if row.block >= 0:
            self.order.copy(at, (row.block, row.gen), row.seq_id, row.lblock, self._copied_from(at)[0])

    def copied(self, at: int, row: Row) -> None:
        """A COPY_DONE."""
        decided = self.order.copied((row.block, row.gen), row.fill)
        if decided >= 0:
            self._run(decided, row.fill)

    def run_copies(self, copies: dict[int, int]) -> None:
        """Copies run: by row, how many slots of each; -1 for all."""
        for at, moved in copies.items():
            self._run(at, moved)

    def _run(self, at: int, moved: int = -1) -> None:
        """A copy runs; `moved` slots of it, if that is told."""
        source, slots = self._copied_from(at)
        slots = min(slots, moved) if moved >= 0 else slots
        if 0 <= source < self.blocks and slots > 0:
            self.block(int(self.trace.events["block"][at]))[:slots] = self.block(source)[:slots]

    def _copied_from(self, at: int) -> tuple[int, int]:
        """The source of a COW, and how many slots of it."""
        detail: tuple[int, ...] = self._told[Kind.COW].get(int(self.trace.seqs[at])) or ()
        event = self.trace.events[at]
        source, slots = (detail[0], detail[3]) if len(detail) > 3 else (int(event["aux"]), int(event["fill"]))
        return source, min(slots, self.size)

    def will_hold(self, block: int) -> IntArray:
        """What lies in the slots of a block when all that is decided has landed."""
        holds = self.block(block).copy()
        writes, copies = self.order.waiting()
        for step in self.order.open:
            copies += [*step.copies, *step.behind]
            writes += [*step.strays, *(write for read in step.reads for write in read.writes)]
        for at in copies:
            source, slots = self._copied_from(at)
            if self.trace.events["block"][at] == block != source and 0 <= source < self.blocks and slots > 0:
                holds[:slots] = self.will_hold(source)[:slots]
        for write in sorted(writes):
            if write.block == block:
                holds[write.lo : write.hi] = write.row
        return holds

    # -- transfers ----------------------------------------------------------------------------------------------------

    def swapped(self, at: int, row: Row) -> None:
        """A SWAP_OUT or SWAP_IN."""
        _, lease = (self._told[Kind(row.kind)].get(int(self.trace.seqs[at])) or (0, 0))[:2]
        known = lease < 0 and row.aux in self._host  # lease -1: that slot of the host has these bytes already
        if not known and not self.order.move(at, lease, row.block):
            self._move(at)

    def unlease(self, at: int, row: Row) -> None:
        """An UNLEASE."""
        moved = self.order.moved(row.aux, row.block)
        if moved >= 0:
            self._move(moved)
        if row.ref_after == 0:
            self.order.give_up((row.block, row.gen))

    def _move(self, at: int) -> None:
        event = self.trace.events[at]
        block, slot = self.block(int(event["block"])), int(event["aux"])
        if event["kind"] == Kind.SWAP_OUT:
            self._host[slot] = block.copy()
        else:
            block[:] = self._host.get(slot, UNKNOWN if self._lost else NEVER)
