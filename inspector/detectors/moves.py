"""What moves between blocks and tiers, as the events make it: copies on write, and the slots of the host tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvscope.inspector.detectors.records import Block, Row
from kvscope.traces.schema import Kind, Reason

if TYPE_CHECKING:
    from kvscope.inspector.detectors.replay import Ledger


class Copies(dict[tuple[int, int], tuple[int, int, int, int]]):
    """Copies that have not run: life of the target -> (source block, its life, slot_lo, slot_hi)."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def of(self, row: Row) -> tuple[int, int, int, int]:
        """What a COW event says: (source block, its life, slot_lo, slot_hi)."""
        ledger = self._ledger
        detail = ledger.details[Kind.COW].get(ledger.seq)
        if detail is not None and len(detail) >= 4:
            return detail[0], detail[1], detail[2], detail[3]
        source_gen = ledger.blocks[row.aux].gen if 0 <= row.aux < ledger.num_blocks else -1
        return row.aux, source_gen, 0, max(row.fill, 0)

    def decided(self, row: Row, block: Block) -> None:
        """The target counts as written from now on."""
        ledger, copy = self._ledger, self.of(row)
        _, _, lo, hi = copy
        if row.reason != Reason.RESIZED:  # what it does not take along is to be written anew
            sequence = ledger.sequence(row.seq_id)
            sequence.issued_to = min(sequence.issued_to, row.lblock * ledger.block_size + max(hi, 0))
        if 0 <= lo < hi <= ledger.block_size:
            block.written |= (1 << hi) - (1 << lo)
            ledger.ever_written[block.id] |= (1 << hi) - (1 << lo)
        block.story["copied"] = ledger.seq
        self[block.id, block.gen] = copy

    def done(self, row: Row, block: Block) -> None:
        """A copy has run."""
        self.pop((block.id, row.gen), None)


class Arrival(NamedTuple):
    """A block that is being filled from a host slot."""

    block: int
    gen: int
    seq_id: int
    lease: int
    since: int  # its SWAP_IN event


class HostSlots:
    """Holders of host slots: parked sequences, and transfers by their lease. After lost events nothing is known."""

    def __init__(self, ledger: Ledger) -> None:
        self.known = True
        self.arriving: list[Arrival] = []
        self._ledger = ledger
        self._parked: dict[int, dict[int, int]] = {}  # sequence -> logical block -> slot
        self._coming: dict[int, dict[int, int]] = {}  # the same of those that have left the host tier last
        self._moving: dict[int, set[int]] = {}  # lease -> slots

    @property
    def used(self) -> int:
        """Slots that somebody holds."""
        parked = (slots.values() for slots in self._parked.values())
        return len(set().union(*parked, *self._moving.values()))

    def slot_of(self, seq_id: int, lblock: int) -> int | None:
        """Where a block of a sequence that comes back was put; -1: nowhere. None where nothing of it was."""
        return self._coming[seq_id].get(lblock, -1) if seq_id in self._coming else None

    def holds(self, slot: int) -> tuple[int, int] | None:
        """(sequence, logical block) of what lies in a slot; None where nobody knows."""
        every = ((seq_id, slots) for parked in (self._parked, self._coming) for seq_id, slots in parked.items())
        return next(((seq_id, at) for seq_id, slots in every for at, held in slots.items() if held == slot), None)

    def lease_of(self, row: Row) -> int:
        """The lease of a SWAP_OUT or SWAP_IN event; -1 where nothing moves, the slot has the bytes already."""
        detail = self._ledger.details[Kind(row.kind)].get(self._ledger.seq)
        return detail[1] if detail is not None and len(detail) >= 2 else -1

    def swap_out(self, row: Row, block: Block) -> None:
        """A block of a sequence goes to a slot."""
        self._parked.setdefault(row.seq_id, {})[row.lblock] = row.aux
        lease = self.lease_of(row)
        if lease >= 0:
            self._moving.setdefault(lease, set()).add(row.aux)
        block.story["swapped_out"] = self._ledger.seq

    def swap_in(self, row: Row, block: Block) -> None:
        """A block is filled from a slot: it counts as written, as the target of a copy does."""
        lease, size = self.lease_of(row), self._ledger.block_size
        self.arriving.append(Arrival(block.id, row.gen, row.seq_id, lease, self._ledger.seq))
        self._moving.setdefault(lease, set()).add(row.aux)
        if 0 < row.fill <= size:
            block.written |= (1 << row.fill) - 1
            self._ledger.ever_written[block.id] |= (1 << row.fill) - 1
        block.story["swapped_in"] = self._ledger.seq

    def left(self, seq_id: int) -> None:
        """The sequence is back on the device, or has ended."""
        self._coming.pop(seq_id, None)
        if seq_id in self._parked:
            self._coming[seq_id] = self._parked.pop(seq_id)

    def unleased(self, lease: int) -> None:
        """The transfer under this lease has run."""
        if self._moving.pop(lease, None) is not None:
            self.arriving = [arrival for arrival in self.arriving if arrival.lease != lease]

    def lose(self) -> None:
        """Events were lost."""
        self.known = False
        self.arriving, self._parked, self._coming, self._moving = [], {}, {}, {}
