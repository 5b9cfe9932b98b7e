"""What the replay keeps: an event as plain ints, and one record per block, sequence, pending write and open step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvscope.traces.schema import Reason

FREE, UNPLACED, QUARANTINED = "free", "unplaced", "quarantined"  # where an unheld, unpublished block is

_LEAVES = (Reason.COPY_ON_WRITE, Reason.RESIZED, Reason.TRUNCATED, Reason.WINDOW)  # its place in the table, for good


class Row(NamedTuple):
    """One event as plain ints; the field order is that of EVENT_DTYPE."""

    t_ns: int
    aux: int
    step: int
    block: int
    gen: int
    seq_id: int
    lblock: int
    ref_before: int
    ref_after: int
    fill: int
    site: int
    kind: int
    reason: int
    actor: int
    tier: int


@dataclass(slots=True)
class Block:
    """One physical block and its current life."""

    id: int
    gen: int = 0
    known: bool = True
    place: str = FREE
    published: bool = False
    ref: int = 0  # what the last event said
    ref_other: int = -1  # what it is if the last, refused call was carried out all the same
    entries: dict[tuple[int, int], int] = field(default_factory=dict)  # (seq_id, lblock) -> since event
    leases: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # id -> (slot_lo, slot_hi, since event)
    written: int = 0  # bit per slot
    last_use: int = -1  # ordinal of the last step that used it, known once it is released
    unbound_write: int = -1  # event of a write that no begun step has taken yet
    released: dict[tuple[int, int], int] = field(default_factory=dict)  # entries that are gone -> release event
    story: dict[str, int] = field(default_factory=dict)  # role -> event
    published_as: tuple[int, ...] | None = None  # parent hash, tokens, own hash
    published_at: int = -1  # logical block in its writer's table
    # Entries, and leases as (-1, id), that were taken more than once -> the further takes that are not given back.
    extra: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether a table or a lease holds it."""
        return bool(self.entries or self.leases)

    @property
    def holders(self) -> tuple[int, ...]:
        """The sequences that hold it."""
        return tuple(dict.fromkeys(seq_id for seq_id, _ in self.entries))

    def adds_one(self, row: Row) -> bool:
        """Whether an event counts one holder more than there were; one without counts is taken by its word."""
        return row.ref_before < 0 or row.ref_before == row.ref_after - 1 == self.ref

    def take_again(self, key: tuple[int, int], row: Row, seq: int) -> None:
        """What is held is taken once more; a take that does not count so adds nothing that could be given back."""
        held = key in self.entries or (key[0] < 0 and key[1] in self.leases)
        if held and self.adds_one(row):
            self.extra.setdefault(key, []).append(seq)

    def give_back_extra(self, key: tuple[int, int]) -> bool:
        """One of the further takes is given back; False where there is none."""
        return bool(self.extra.get(key)) and self.extra[key].pop() >= 0

    def gives_extra(self, row: Row, seq: int, *, stands: bool) -> bool:
        """Whether a release gives back a further take of an entry, and the table stays as it is.

        Args:
            stands: the entry is in its table.
        """
        key = (row.seq_id, row.lblock)
        goes = not stands or row.reason in _LEAVES or row.ref_after == 0  # the entry itself
        if (0 <= row.gen != self.gen) or (key in self.entries and goes) or not self.give_back_extra(key):
            return False
        self.ref, self.ref_other = row.ref_after, -1
        self.story["released"] = seq
        return True

    def forget(self, gen: int) -> None:
        """What was known of it before events were lost does not hold any more."""
        self.entries, self.leases, self.released, self.extra, self.story = {}, {}, {}, {}, {}
        self.gen = max(self.gen, gen)
        self.ref, self.ref_other, self.last_use, self.unbound_write = 0, -1, -1, -1
        self.place, self.published, self.published_as, self.published_at = UNPLACED, False, None, -1


class Blocks(dict[int, Block]):
    """The blocks that the events speak of, by id; each is made when first asked for, whatever the pool's size."""

    def __init__(self) -> None:
        super().__init__()
        self._known = True  # what no event has touched is free, until events are lost

    def __missing__(self, block: int) -> Block:
        made = self[block] = Block(block, known=self._known)
        return made

    def lose(self) -> None:
        """Events were lost: nothing is known of any block."""
        self._known = False
        for block in self.values():
            block.known = False


@dataclass(slots=True)
class Sequence:
    """One sequence and its block table."""

    id: int
    known: bool = True
    table: dict[int, tuple[int, int]] = field(default_factory=dict)  # logical block -> (block, gen)
    digest: int = 0
    began: int = -1  # event of its last ADMIT, RESUME or FORK
    ended: int = -1  # event of its last FINISH, ABORT or PREEMPT
    ended_kind: int = -1
    sched_seq: int = -1  # its last SCHED event
    sched_step: int = -1  # ordinal of that step
    checked_to: int = 0  # positions below are known to be written
    parent: int = -1  # whose fork it is
    replaced: tuple[int, int, int] = (-1, -1, -1)  # its last entry that another took the place of: block, life, place
    issued_to: int = 0  # positions below are written by itself, or will be by a step
    slid: int = 0  # leading logical blocks that it gave back behind its attention window
    suspect: bool = False  # a block of its table may be dead

    @property
    def over(self) -> bool:
        """Whether it ended and was not admitted again."""
        return self.ended > self.began


class PendingWrite(NamedTuple):
    """A write that was issued and has not landed."""

    block: int
    gen: int
    lo: int
    hi: int
    seq: int
    seq_id: int
    first: int  # the position that its first slot is
    fresh: int  # bits of the slots that nothing had been written into before


@dataclass(slots=True)
class OpenStep:
    """A step that has begun and not ended."""

    ordinal: int
    begin_seq: int
    writes: list[PendingWrite] = field(default_factory=list)


WORD = (1 << 64) - 1


def mixed(block: int, gen: int, lblock: int) -> int:
    """The word that one table entry adds to `schema.table_digest`."""
    x = ((block | gen << 32) ^ (lblock + 1) * 0x9E3779B97F4A7C15) & WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)
