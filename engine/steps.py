"""What one engine step computes, as the accounting half sees it."""

from __future__ import annotations

from dataclasses import dataclass

Write = tuple[int, int, int, int, int]  # seq_id, logical block, block, gen, end position


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
