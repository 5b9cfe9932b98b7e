"""When waiting for blocks is a mistake, and what a window must still hold: rules of single rows, shared by both checks.

The detectors (inspector/detectors) and the screen (inspector/screen) ask the same questions here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvscope.inspector.units import agrees, counted
from kvscope.traces.schema import Kind, Reason

RULE_KINDS = (Kind.SUBMIT, Kind.PREEMPT, Kind.ADMIT, Kind.RESUME, Kind.FORK, Kind.FINISH, Kind.ABORT)
ASKING = (Kind.REFUSED, Kind.WAIT)


def window_of(facts: Iterable[Mapping[str, Any]]) -> int:
    """Positions that attention sees in the model of a trace; 0 = all, or not known."""
    window = 0
    for fact in facts:
        if fact.get("type") == "model" and isinstance(fact.get("window"), int):
            window = max(0, fact["window"])
    return window


def watermark_of(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Share of the pool that admission keeps free; None = not known."""
    found = None
    for fact in facts:
        value = fact.get("watermark") if fact.get("type") == "scheduler" else None
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found = float(value)
    return found


class Waiting:
    """Whether a refusal or a wait for want of blocks was right, from what the pool itself said it had.

    Hits on cached blocks give no credit, since they may be the very blocks that could be evicted: an admission is
    only wrong when all of its blocks, hits included, could be had.
    """

    def __init__(self, block_size: int, watermark: float | None = None) -> None:
        self.block_size, self.watermark = block_size, watermark
        self._tokens: dict[int, int] = {}
        self._holding: set[int] = set()

    def note(self, kind: int, seq_id: int, aux: int) -> None:
        """A row of one of `RULE_KINDS`."""
        if kind == Kind.SUBMIT:
            self._tokens[seq_id] = aux
        elif kind == Kind.PREEMPT:
            self._holding.discard(seq_id)
            if seq_id in self._tokens:  # who did not submit it may not say how long it is either
                self._tokens[seq_id] = max(self._tokens[seq_id], aux + 1)
        elif kind in (Kind.FINISH, Kind.ABORT):
            self._holding.discard(seq_id)
        else:
            self._holding.add(seq_id)

    def wrong(self, kind: int, reason: int, seq_id: int, num_blocks: int, details: Sequence[int] | None) -> str:
        """Why this REFUSED or WAIT row is a mistake; empty if it is none, or nothing tells."""
        if reason != Reason.NO_BLOCKS or details is None or len(details) < 3 or seq_id < 0:
            return ""
        needed, free, evictable = details[:3]
        there = free + evictable
        if kind == Kind.REFUSED and len(details) > 3:
            there = min(there, details[3])  # this allocator needs them side by side
        if kind == Kind.REFUSED and seq_id in self._holding:
            most, kept = needed, 0
        else:
            tokens = self._tokens.get(seq_id)
            if tokens is None or (kind == Kind.WAIT and self.watermark is None):
                return ""
            most = max(needed, -(-tokens // self.block_size))
            kept = int((self.watermark or 0.0) * num_blocks) if kind == Kind.WAIT else 0
        if most + kept > there or most < 1:
            return ""
        reserve = f" and {kept} kept free" if kept else ""
        free_now = f"{free} {agrees(free, 'is', 'are')} free"
        return f"needs {counted(needed, 'block')}{reserve}; {free_now} and {evictable} could be evicted"


def reaches_back(first_written: int, read_from: int, window: int) -> int:
    """The first position that a step's queries attend to, if it lies in front of what the step reads; -1 if not."""
    needed = max(0, first_written - window + 1)
    return needed if window and read_from > needed else -1
