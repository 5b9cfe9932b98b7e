"""What one engine step computes, as the accounting half sees it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.engine.batch import Decodes

Write = tuple[int, int, int, int, int]  # seq_id, logical block, block, gen, end position


def cut(write: Write, seq_id: int, length: int) -> Write:
    """A write after a rollback: positions from `length` on do not count as computed when its step ends."""
    return (*write[:4], min(write[4], length)) if write[0] == seq_id else write


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One sequence's share of a step: it computes positions [lo, hi) and attends to [0, hi)."""

    seq_id: int
    lo: int
    hi: int


@dataclass(slots=True)
class OpenStep:
    """A step that was begun and has not ended: its sequences and the writes it will land, those of a batch first."""

    number: int
    scheduled: Sequence[Scheduled]
    writes: tuple[Write, ...]
    decodes: Decodes | None = None  # of its sequences and writes, those that are a batch

    def tokens(self) -> int:
        """Positions that it computes."""
        batch = 0 if self.decodes is None else len(self.decodes.ids)
        return batch + sum([item.hi - item.lo for item in self.scheduled]) if self.scheduled else batch

    def spelled_out(self) -> OpenStep:
        """The step with every write by itself."""
        if self.decodes is None:
            return self
        scheduled = (*self.decodes, *self.scheduled)
        return OpenStep(self.number, scheduled, (*self.decodes.writes(), *self.writes))

    def cut(self, seq_id: int, length: int) -> OpenStep:
        """The step after a rollback of this sequence to `length` tokens."""
        self = self.spelled_out()
        return replace(self, writes=tuple(cut(write, seq_id, length) for write in self.writes))


@dataclass(slots=True)
class StepLedger:
    """The steps of one manager: which is the last begun, which are open, and the writes that no step has taken yet.

    A step lands the writes of the sequences that it schedules and of no others: whoever drives other sequences, from
    another thread, begins a step of its own for them.
    """

    number: int = -1  # of the step begun last
    writes: dict[int, list[Write]] = field(default_factory=dict)  # by sequence, issued and in no step yet
    open: list[OpenStep] = field(default_factory=list)  # begun and not ended, oldest first
    decoding: list[Decodes] = field(default_factory=list)  # like `writes`, of whole batches; no sequence is in both

    def spell_out(self) -> None:
        """Every write that waits for a step by itself."""
        decoding, self.decoding = self.decoding, []
        for decodes in decoding:
            for write in decodes.writes():
                self.writes.setdefault(write[0], []).append(write)

    def await_any(self, seq_ids: frozenset[int]) -> bool:
        """Whether a write of one of these sequences waits for a step."""
        if self.writes and not seq_ids.isdisjoint(self.writes):
            return True
        return any(not seq_ids.isdisjoint(decodes.members) for decodes in self.decoding) if self.decoding else False

    def wrote(self, write: Write) -> None:
        """A write was issued; the next step of its sequence lands it."""
        if any(write[0] in decodes.members for decodes in self.decoding):
            self.spell_out()
        waiting = self.writes.get(write[0])
        if waiting is None:
            self.writes[write[0]] = [write]
        else:
            waiting.append(write)

    def writer_of(self, block: int, gen: int) -> int | None:
        """A sequence whose write into this life of the block waits for the next step."""
        self.spell_out()
        waiting = (write for writes in self.writes.values() for write in writes)
        return next((write[0] for write in waiting if write[2:4] == (block, gen)), None)

    def all_writes(self) -> Iterator[Write]:
        """Writes that have not landed: those that wait for a step, and those of open steps."""
        for decodes in self.decoding:
            yield from decodes.writes()
        for writes in self.writes.values():
            yield from writes
        for step in self.open:
            yield from step.spelled_out().writes

    def begin(self, scheduled: Sequence[Scheduled], decodes: Decodes | None = None) -> int:
        """Open the next step over the writes of these sequences, those of a waiting batch first; returns its number."""
        self.number += 1
        if decodes is not None:
            self.decoding.remove(decodes)
        if self.decoding:
            self.spell_out()
        if scheduled:
            take = self.writes.pop
            writes = [write for item in scheduled for write in take(item.seq_id, ())]
            self.open.append(OpenStep(self.number, tuple(scheduled), tuple(writes), decodes))
        else:
            self.open.append(OpenStep(self.number, (), (), decodes))
        return self.number

    def drop(self, seq_id: int) -> None:
        """The sequence is gone: what it was about to write, no step will."""
        if self.decoding:
            self.spell_out()
        self.writes.pop(seq_id, None)

    def end(self) -> OpenStep:
        """Close the oldest open step; there must be one."""
        return self.open.pop(0)

    def cut(self, seq_id: int, length: int) -> None:
        """A rollback: what this sequence has written from position `length` on does not count."""
        self.spell_out()
        if seq_id in self.writes:
            self.writes[seq_id] = [cut(write, seq_id, length) for write in self.writes[seq_id]]
        self.open = [step.cut(seq_id, length) for step in self.open]
