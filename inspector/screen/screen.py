"""The screen itself: a trace chunk by chunk, in memory that does not grow with its length.

What it relies on, in short. If every handle is of the current life, every count follows from the one before, every
place in a table is taken and given back alternately, and every block goes only where it may from where it is, then
the ledger of the detectors is exactly the running sums kept here, and each detector's question becomes a comparison
of columns. A trace that breaks a rule, has a kind of event that is not known here, or has lost events, is left to the
detectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvscope.inspector.progress import ASKING, RULE_KINDS, Waiting, watermark_of, window_of
from kvscope.inspector.screen.blocks import HELD, QUARANTINED, BlockPass, BlockStates
from kvscope.inspector.screen.columns import ENTRY_SIGN, Chunk, DetailTables, PartDetails, flags
from kvscope.inspector.screen.entries import Entries, EntryPass, Leases
from kvscope.inspector.screen.runs import ROW_BITS
from kvscope.inspector.screen.sequences import MOST_SEQUENCES, SequencePass, SequenceStates
from kvscope.inspector.source import Frozen, IntArray, gap_rows
from kvscope.traces.schema import EventArray, Kind, Reason

CHUNK = 1 << 15
_MOST_BLOCKS = 1 << 21

# Kinds whose meaning for the ledger is known here.
UNDERSTOOD = flags(k for k in Kind if k not in (Kind.SWAP_OUT, Kind.SWAP_IN, Kind.GROW, Kind.SHRINK, Kind.GAP))


def understood(events: EventArray) -> bool:
    """Whether the rules here know what every row means."""
    return bool(UNDERSTOOD[events["kind"]].all())


@dataclass(frozen=True)
class Screened:
    """What a pass over the trace showed: `suspects` is empty where the detectors would find nothing."""

    suspects: dict[str, int]  # rule -> number of the first event that breaks it
    blocks: int  # blocks that had an event
    slots: int  # distinct slots that were written or copied

    @property
    def clean(self) -> bool:
        """Nothing to look at more closely."""
        return not self.suspects


def screen(trace: Frozen) -> Screened:
    """Look at a whole trace; stops at the end of the first chunk with a suspect."""
    events = trace.events
    if gap_rows(trace):
        return Screened({"lost events": 0}, 0, 0)
    kinds = np.bincount(events["kind"], minlength=256).astype(np.bool_)
    if not understood(events):
        return Screened({"unknown kind": 0}, 0, 0)
    blocks, sequences = _most(trace, "block") + 1, _most(trace, "seq_id") + 1
    if max(blocks, trace.num_blocks) >= _MOST_BLOCKS or sequences > MOST_SEQUENCES:
        return Screened({"too large": 0}, 0, 0)
    whole = None if trace.on_demand else DetailTables(trace)
    made = Screen(trace.num_blocks, min(blocks, trace.num_blocks), 1, trace.block_size,
                  ordered=bool(kinds[Kind.COMMIT] | kinds[Kind.SCHED]))  # fmt: skip
    made.learn(trace.facts, trace.detail)
    for first, part in _chunks(events):
        details = whole or PartDetails(trace, first, part["kind"])
        if details.ragged:
            return Screened({"details": first}, 0, 0)
        if made.feed(Chunk(part, first, details)):
            break
    else:
        made.finish(len(events))
    return made.result()


def _most(trace: Frozen, name: str) -> int:
    """The greatest value of a column, -1 in an empty trace."""
    if not trace.on_demand:
        return int(trace.events[name].max(initial=-1))
    return max((int(part[name].max()) for part in trace.source.chunks((name,))), default=-1)  # type: ignore[attr-defined]


def _chunks(events: EventArray) -> Iterator[tuple[int, EventArray]]:
    """Pieces that end between operations wherever a step begins soon enough."""
    start, begins = 0, np.flatnonzero(events["kind"] == Kind.STEP_BEGIN)
    while start < len(events):
        end = min(start + CHUNK, len(events))
        at = int(np.searchsorted(begins, end))
        if at < len(begins) and begins[at] - start < (1 << ROW_BITS) - 1 - CHUNK:
            end = int(begins[at])
        elif len(events) - start < (1 << ROW_BITS) - 1:
            end = len(events)
        yield start, events[start:end]
        start = end


class Screen:
    """What is known between two chunks, and the rules over the next one."""

    def __init__(self, num_blocks: int, touched: int, sequences: int, block_size: int, *, ordered: bool) -> None:
        self.num_blocks, self.block_size, self._ordered = num_blocks, block_size, ordered
        self.blocks = BlockStates(touched)
        self.sequences = SequenceStates(sequences)
        self.entries, self.leases = Entries.none(), Leases({})
        self.suspects: dict[str, int] = {}
        self._begun = self._ended = 0  # steps
        self._counts = [num_blocks, 0]  # blocks by state, packed; all free
        self._table_entries = self._left_over = 0
        self._digest = np.uint64(0)
        self._window = 0
        self._waiting = Waiting(block_size)
        self._detail: Callable[[int], Sequence[int] | None] = lambda seq: None

    def learn(self, facts: Iterable[Mapping[str, Any]], detail: Callable[[int], Sequence[int] | None]) -> None:
        """What the facts say of the model and the scheduler, and where the details of refusals are to be had."""
        facts = list(facts)
        self._window = window_of(facts) or self._window
        watermark = watermark_of(facts)
        if watermark is not None:
            self._waiting.watermark = watermark
        self._detail = detail

    @classmethod
    def growing(cls, num_blocks: int, block_size: int) -> Screen:
        """A screen for events that are still to come."""
        return cls(num_blocks, num_blocks, 64, block_size, ordered=True)

    def feed(self, chunk: Chunk) -> bool:
        """Look at the next events; returns whether anything is suspicious."""
        self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 1)
        found: dict[str, IntArray] = {}
        begun = self._begun + np.cumsum(chunk.kind == Kind.STEP_BEGIN, dtype=np.int64)
        ended = self._ended + np.cumsum(chunk.kind == Kind.STEP_END, dtype=np.int64)
        if (ended > begun).any():
            found["step end"] = np.flatnonzero(ended > begun)
        self._beside(chunk, found)
        blocks = BlockPass(chunk, self.blocks, self.block_size, found)
        blocks.lives_and_counts()
        blocks.transitions()
        if not found:  # what follows sums up what these rules make sound
            blocks.slots()
            self._entries(chunk, blocks, begun, ended, found)
        for rule, rows in found.items():
            self.suspects.setdefault(rule, chunk.first + int(np.min(rows, initial=chunk.length)))
        self._begun, self._ended = (int(begun[-1]), int(ended[-1])) if chunk.length else (self._begun, self._ended)
        return bool(self.suspects)

    def _beside(self, chunk: Chunk, found: dict[str, IntArray]) -> None:
        """Rows that are no moves of blocks: mismatches, needless waits, windows that were cut too short."""
        mismatch = chunk.rows(Kind.MISMATCH)
        if len(mismatch):
            found["mismatch"] = mismatch
        if self._window:
            sched = chunk.rows(Kind.SCHED)
            needed = np.maximum(0, chunk.lblock[sched].astype(np.int64) - self._window + 1)
            early = sched[chunk.range_lo[sched] > needed]
            if len(early):
                found["window"] = early
        rows = chunk.rows(*RULE_KINDS, *ASKING)
        columns = (chunk.kind, chunk.reason, chunk.seq_id, chunk.aux)
        for row, kind, reason, seq_id, aux in zip(rows.tolist(), *(c[rows].tolist() for c in columns), strict=True):
            if kind not in ASKING:
                self._waiting.note(kind, seq_id, aux)
            elif reason == Reason.NO_BLOCKS and "needless wait" not in found:
                details = self._detail(chunk.first + row)
                if self._waiting.wrong(kind, reason, seq_id, self.num_blocks, details):
                    found["needless wait"] = np.array([row])

    def _entries(
        self, chunk: Chunk, blocks: BlockPass, begun: IntArray, ended: IntArray, found: dict[str, IntArray]
    ) -> None:
        entries = EntryPass(chunk, self.entries)
        self.entries = entries.check(found)
        self.leases.check(chunk, found)
        sequences = SequencePass(chunk, self.sequences, entries, self.block_size, found)
        sequences.positions(blocks.written_of)
        sequences.tables()
        sequences.steps(begun - 1)
        blocks.publication(ordered=self._ordered)
        blocks.copies()
        blocks.fences(sequences.used, ended - 1)
        blocks.counts()
        self._witnesses(chunk, blocks, sequences, found)

    def _witnesses(self, chunk: Chunk, blocks: BlockPass, sequences: SequencePass, found: dict[str, IntArray]) -> None:
        """The pool's own counters at each WITNESS are those that its events make."""
        rows, detail = chunk.detail(Kind.WITNESS)
        sign = np.zeros(chunk.length, dtype=np.int64)
        sign[sequences.rows] = ENTRY_SIGN[sequences.kind]
        packed = np.cumsum(blocks.change, axis=1) + np.asarray(self._counts)[:, None]
        entries = self._table_entries + np.cumsum(sign)
        digest = np.cumsum(sequences.words, dtype=np.uint64) + self._digest
        left = self._left_over + np.cumsum(sequences.left_over)
        bad = rows[left[rows] != 0].tolist()
        whole = detail.at >= 0
        rows, told = rows[whole], detail.values[detail.at[whole]]
        made = np.stack([packed[i // 3, rows] >> 21 * (i % 3) & (1 << 21) - 1 for i in range(6)] + [entries[rows]], 1)
        wrong = (made != told[:, :7]).any(axis=1)
        wrong |= (told[:, 7] != 0) & (told[:, 7] != digest[rows].view(np.int64))
        bad += rows[wrong].tolist()
        if bad:
            found["witness"] = np.asarray(bad, dtype=np.int64)
        if chunk.length:
            self._counts, self._table_entries = packed[:, -1].tolist(), int(entries[-1])
            self._digest, self._left_over = digest[-1], int(left[-1])

    def finish(self, end: int) -> None:
        """The trace is over: what is left behind."""
        blocks = self.blocks
        held = self.entries
        unheld = blocks.ref == 0
        done = self._ended
        left = {
            "entry left": bool(self.sequences.over[held.seq_id].any()),
            "lease left": bool(self.leases.held),
            "block left": bool((unheld & blocks.touched & (blocks.place == HELD) & (blocks.published == 0)).any()),
            "quarantine left": bool(((blocks.place == QUARANTINED) & (blocks.last_use <= done)).any()),
        }
        self.suspects |= {rule: end for rule, suspicious in left.items() if suspicious}

    def result(self) -> Screened:
        """What was seen."""
        return Screened(dict(self.suspects), int(self.blocks.touched.sum()), int(self.blocks.ever_written.sum()))


__all__ = ["Screen", "Screened", "screen"]
