"""What one engine step computes, as the accounting half sees it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

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


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that was begun and has not ended: its sequences and the writes it will land."""

    number: int
    scheduled: tuple[Scheduled, ...]
    writes: tuple[Write, ...]

    def cut(self, seq_id: int, length: int) -> OpenStep:
        """The step after a rollback of this sequence to `length` tokens."""
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

    def wrote(self, write: Write) -> None:
        """A write was issued; the next step of its sequence lands it."""
        waiting = self.writes.get(write[0])
        if waiting is None:
            self.writes[write[0]] = [write]
        else:
            waiting.append(write)

    def writer_of(self, block: int, gen: int) -> int | None:
        """A sequence whose write into this life of the block waits for the next step."""
        waiting = (write for writes in self.writes.values() for write in writes)
        return next((write[0] for write in waiting if write[2:4] == (block, gen)), None)

    def all_writes(self) -> Iterator[Write]:
        """Writes that have not landed: those that wait for a step, and those of open steps."""
        for writes in self.writes.values():
            yield from writes
        for step in self.open:
            yield from step.writes

    def begin(self, scheduled: list[Scheduled]) -> int:
        """Open the next step over the writes of these sequences; returns its number."""
        self.number += 1
        take = self.writes.pop
        writes = [write for item in scheduled for write in take(item.seq_id, ())]
        self.open.append(OpenStep(self.number, tuple(scheduled), tuple(writes)))
        return self.number

    def drop(self, seq_id: int) -> None:
        """The sequence is gone: what it was about to write, no step will."""
        self.writes.pop(seq_id, None)

    def end(self) -> OpenStep:
        """Close the oldest open step; there must be one."""
        return self.open.pop(0)

    def cut(self, seq_id: int, length: int) -> None:
        """A rollback: what this sequence has written from position `length` on does not count."""
        if seq_id in self.writes:
            self.writes[seq_id] = [cut(write, seq_id, length) for write in self.writes[seq_id]]
        self.open = [step.cut(seq_id, length) for step in self.open]
