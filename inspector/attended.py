"""Which positions a step attends to, and in which steps a checker beside the tensors found the right prefix there."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.progress import reaches_back, window_of
from kvscope.inspector.read_records import GIVEN_BACK, NEVER, Foreign, StepRead
from kvscope.inspector.source import TraceLike
from kvscope.traces.schema import DETAIL_FIELDS, Kind, Reason


class Attended:
    """What a trace says of the reads of its steps, beside their SCHED rows."""

    def __init__(self, trace: TraceLike) -> None:
        events = trace.events
        self._window = window_of(trace.facts)
        told = events[events["reason"] == Reason.PROVENANCE]
        self._compared = frozenset(told["step"][(told["kind"] == Kind.CHECK) & (told["aux"] > 0)].tolist())
        self._wrong: dict[int, int] = {}  # sequence -> the first step in which it read another prefix
        self._rows: dict[tuple[int, int], int] = {}
        for row in np.flatnonzero((events["kind"] == Kind.MISMATCH) & (events["reason"] == Reason.PROVENANCE)).tolist():
            seq_id, step = int(events["seq_id"][row]), int(events["step"][row])
            self._wrong[seq_id] = min(step, self._wrong.get(seq_id, step))
            self._rows.setdefault((seq_id, step), row)

    def start(self, first_written: int, read_from: int) -> int:
        """The first position that a step attends to: further on than its table begins, or in front of that."""
        back = reaches_back(first_written, read_from, self._window)
        return back if back >= 0 else max(read_from, first_written - self._window + 1 if self._window else 0)

    def mismatch(self, seq_id: int, step: int) -> int:
        """The row that tells what the sequence read wrong in this step; -1 where there is none."""
        return self._rows.get((seq_id, step), -1)

    def right(self, seq_id: int, step: int) -> bool:
        """Whether every slot that the sequence read in this step was compared, and held its own prefix."""
        return step in self._compared and step < self._wrong.get(seq_id, step + 1)


def _told(trace: TraceLike, row: int) -> dict[str, int]:
    """What the MISMATCH at a row says of the write whose content it found; nothing where there is none."""
    told = dict(zip(DETAIL_FIELDS[Kind.MISMATCH], trace.detail(int(trace.seqs[row])) or (), strict=False))
    return told if told.get("found") and told.get("writer", NEVER) >= 0 else {}


def writer_found(trace: TraceLike, row: int) -> tuple[int, int] | None:
    """Sequence and step of the write whose content the MISMATCH at a row found, also where no WRITE tells of it."""
    told = _told(trace, row)
    return (told["writer"], told["written_step"]) if told.get("written_step", NEVER) >= 0 else None


def write_found(trace: TraceLike, row: int, block_size: int) -> int:
    """The row of the write whose content the MISMATCH at a row found; NEVER where nobody wrote it, or it is not told.

    Of the writes of that sequence in that step it is one that ran over the end of its block into that very slot, or
    that of the last token of the prefix that was found; where none is, one to the slot, or else to the block.
    """
    told = _told(trace, row)
    if not told:
        return NEVER
    events = trace.events[:row]
    mine = (events["kind"] == Kind.WRITE) & (events["seq_id"] == told["writer"])
    rows = np.flatnonzero(mine & (events["step"] == told.get("written_step", NEVER)))
    wrote, there = events[rows], trace.events[row]
    lo, hi = wrote["aux"] & 0xFFFFFFFF, wrote["aux"] >> 32
    slot = int(there["block"]) * block_size + int(there["fill"]) - wrote["block"].astype(np.int64) * block_size
    place = told.get("owner_tokens", 0) - 1 - wrote["lblock"].astype(np.int64) * block_size
    here, due = (slot >= lo) & (slot < hi), (place >= lo) & (place < hi)
    for chosen in (here & (slot >= block_size), due, here, wrote["block"] == there["block"], rows >= 0):
        if chosen.any():
            return int(rows[np.flatnonzero(chosen)[-1]])
    return NEVER


def found_beside(trace: TraceLike, read: StepRead, row: int, blocks: int, block_size: int) -> Foreign | None:
    """What a step really read, as the MISMATCH at a row says; None: what the table has."""
    event = trace.events[row]
    block, position, fill = int(event["block"]), int(event["aux"]), int(event["fill"])
    if block >= blocks:
        return None
    found = write_found(trace, row, block_size)
    at = position - read.lo
    expected = int(read.counts_on[at]) if 0 <= at < len(read.counts_on) else NEVER
    slot = block * block_size + max(fill, 0) if block >= 0 else GIVEN_BACK
    writer = writer_found(trace, row) if found == NEVER else None
    return Foreign(read.row, position, slot, found, expected, 1, writer)
