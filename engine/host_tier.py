"""The host tier, counted: slots of host memory that keep the blocks of preempted sequences.

A slot holds the bytes of one block. It is held by the sequences that are parked on it and by the transfers that have
not run yet; when the last of them is gone it is free. A published block is known by the hash of its prefix, so that
the same block of a second sequence needs no second slot: it is copied once, as it was computed once.

No bytes are moved here (`kvscope.kernels.SwapSpace` does that) and nothing is locked: its owner does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvscope.engine.tables import SequenceTable
from kvscope.errors import FaultyCall, UsageError

MAX_SLOTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Parked:
    """A sequence in the host tier: its table as it was, and the slot of each logical block that holds tokens."""

    row: SequenceTable
    size: int  # entries its table had
    slots: tuple[int, ...]  # of logical blocks first, first + 1, ...


@dataclass(frozen=True, slots=True)
class Swap:
    """A transfer that has to be run: `blocks` to host `slots` (out), or back; under leases until it has run."""

    out: bool
    seq_id: int
    blocks: tuple[int, ...]
    gens: tuple[int, ...]
    lblocks: tuple[int, ...]
    slots: tuple[int, ...]
    leases: tuple[int, ...]


class HostTier:
    """`num_slots` slots, each free or held by so many; and the sequences that are parked."""

    def __init__(self, num_slots: int) -> None:
        if not 0 <= num_slots <= MAX_SLOTS:
            raise UsageError(f"the host tier has {num_slots} blocks: must be 0..{MAX_SLOTS}")
        self.num_slots = num_slots
        self.parked: dict[int, Parked] = {}
        self._free = list(range(num_slots - 1, -1, -1))
        self._holders = [0] * num_slots
        self._slot_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def missing(self, digests: Iterable[bytes | None]) -> int:
        """Slots that blocks with these prefix hashes (None: not published) would take, each hash once."""
        seen: set[bytes] = set()
        count = 0
        for digest in digests:
            if digest is None or (digest not in self._slot_of and digest not in seen):
                count += 1
            if digest is not None:
                seen.add(digest)
        return count

    def hold(self, digest: bytes | None) -> tuple[int, bool]:
        """A slot for a block, and whether it has the block's bytes already; there must be one."""
        slot = None if digest is None else self._slot_of.get(digest)
        known = slot is not None
        if slot is None:
            slot = self._free.pop()
            if digest is not None:
                self._slot_of[digest], self._digest_of[slot] = slot, digest
        self._holders[slot] += 1
        return slot, known

    def hold_again(self, slots: Iterable[int]) -> None:
        """A transfer holds these slots too."""
        for slot in slots:
            self._holders[slot] += 1

    def drop(self, slots: Iterable[int]) -> None:
        """One holder of each of these slots is gone.

        Raises:
            FaultyCall: a slot has none.
        """
        for slot in slots:
            if self._holders[slot] < 1:
                raise FaultyCall(f"host slot {slot} is given back, but nobody holds it")
            self._holders[slot] -= 1
            if not self._holders[slot]:
                digest = self._digest_of.pop(slot, None)
                if digest is not None:
                    del self._slot_of[digest]
                self._free.append(slot)

    def check(self, moving: Sequence[Swap]) -> None:
        """Recount the holders of every slot.

        Raises:
            FaultyCall: a count is wrong, or a slot is free and held.
        """
        held = [0] * self.num_slots
        for parked in self.parked.values():
            for slot in parked.slots:
                held[slot] += 1
        for swap in moving:
            for slot in swap.slots:
                held[slot] += 1
        if held != self._holders:
            raise FaultyCall(f"integrity: host slots count {self._holders} holders, the sequences make {held}")
        free = [slot for slot, count in enumerate(held) if not count]
        if sorted(self._free) != free:
            raise FaultyCall(f"integrity: free host slots are {sorted(self._free)}, by their holders {free}")
