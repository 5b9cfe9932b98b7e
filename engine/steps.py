"""What one engine step computes, as the accounting half sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
