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
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.limits import impossible, limits_of
from kvscope.inspector.progress import ASKING, RULE_KINDS, Waiting, watermark_of, window_of
from kvscope.inspector.screen.block_states import HELD, QUARANTINED, BlockStates
from kvscope.inspector.screen.blocks import COUNTED, BlockPass
from kvscope.inspector.screen.columns import (
    ENTRY_SIGN,
    NUMBERS,
    Chunk,
    flags,
)
from kvscope.inspector.screen.details import DetailTables, GivenDetails, part_details
from kvscope.inspector.screen.entries import Entries, EntryPass
from kvscope.inspector.screen.numbers import Numbers
from kvscope.inspector.screen.runs import ROW_BITS
from kvscope.inspector.screen.sequences import SequencePass, SequenceStates
from kvscope.inspector.screen.transfers import Steps, Transfers
from kvscope.inspector.source import Frozen, IntArray, gap_rows, size_after
from kvscope.traces.schema import Kind, Reason

CHUNK = 1 << 17
_COUNTED = np.array(COUNTED, dtype=np.int64)
_REFUSED, _WAIT, _NO_BLOCKS = np.uint8(Kind.REFUSED), np.uint8(Kind.WAIT), np.uint8(Reason.NO_BLOCKS)
_ASKING = frozenset(int(kind) for kind in ASKING)
_RESIZES = (int(Kind.GROW), int(Kind.SHRINK))
_MOST_UNASKED = 256  # chunks
_MOST_BLOCKS = 1 << 21

# Kinds whose meaning for the ledger is known here.
UNDERSTOOD = flags(k for k in Kind if k != Kind.GAP)


def understood(present: IntArray) -> bool:
    """Whether the rules here know the kinds of which there is a row; `present` counts rows by kind."""
    return bool(UNDERSTOOD[np.flatnonzero(present)].all())


@dataclass(frozen=True)
class Screened:
    """What a pass over the trace showed: `suspects` is empty where the detectors would find nothing."""

    suspects: dict[str, int]  # rule -> number of the first event that breaks it
    blocks: int  # blocks that had an event
    slots: int  # distinct slots that were written or copied
    unjudged: int = 0  # events that say nothing of what is known, after others were lost
    unknown: int = 0  # blocks of which nothing is known at the end

    @property
    def clean(self) -> bool:
        """Nothing to look at more closely."""
        return not self.suspects


def unfit_for(trace: Frozen, *, gaps: bool = False) -> str:
    """Why the trace as a whole is left to the detectors; empty where it is not.

    Args:
        gaps: whether who looks can go on behind lost events.
    """
    if not gaps and gap_rows(trace):
        return "lost events"
    present = trace.present.copy()
    present[Kind.GAP] *= not gaps
    if not understood(present):
        return "unknown kind"
    return "too large" if trace.num_blocks >= _MOST_BLOCKS else ""


def first_size(trace: Frozen) -> int:
    """Blocks of the pool before the first event."""
    resized = trace.present[Kind.GROW] or trace.present[Kind.SHRINK]
    return size_after(trace, 0) if resized or trace.before is not None else trace.num_blocks


def ordered(trace: Frozen) -> bool:
    """Whether the trace says what was computed before it is published."""
    return bool(trace.present[Kind.COMMIT] or trace.present[Kind.SCHED])


def screen(trace: Frozen) -> Screened:
    """Look at a whole trace; stops at the end of the first chunk with a suspect."""
    unfit = unfit_for(trace)
    if unfit:
        return Screened({unfit: 0}, 0, 0)
    events, kinds, present = trace.events, trace.kinds, trace.present
    whole = None if trace.on_demand else DetailTables(trace)
    made = Screen(first_size(trace), trace.block_size, ordered=ordered(trace),
                  asks=bool(present[Kind.REFUSED] or present[Kind.WAIT]))  # fmt: skip
    made.learn(trace.facts, trace.block_bytes)
    made.detail = trace.detail
    for first, end in chunks(kinds):
        part, its = events[first:end], kinds[first:end]
        details = whole or part_details(trace, first, its)
        if details.ragged:
            return Screened({"details": first}, 0, 0)
        if made.look(part, first, details, its, present):
            break
    else:
        made.finish(len(events))
    return made.result()


def chunks(kinds: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Pieces (first row, end) that end between operations wherever a step begins soon enough."""
    start, begins = 0, np.flatnonzero(kinds == np.uint8(Kind.STEP_BEGIN))
    while start < len(kinds):
        end = min(start + CHUNK, len(kinds))
        at = int(np.searchsorted(begins, end))
        if at < len(begins) and begins[at] - start < (1 << ROW_BITS) - 1 - CHUNK:
            end = int(begins[at])
        elif len(kinds) - start < (1 << ROW_BITS) - 1:
            end = len(kinds)
        yield start, end
        start = end


def _pieces(kinds: npt.NDArray[np.uint8], present: IntArray) -> Iterable[tuple[int, int]]:
    """Cut so that a row that changes the pool's size begins a piece."""
    cuts = {0, len(kinds)}
    for kind in (Kind.GROW, Kind.SHRINK):
        if present[kind]:
            cuts.update(np.flatnonzero(kinds == NUMBERS[kind]).tolist())
    return pairwise(sorted(cuts))


def counted(chunk: Chunk, rows: IntArray, before: int) -> IntArray:
    """How many of `rows` there are up to each row of the chunk, on top of those before it."""
    out = np.zeros(chunk.length, dtype=np.int64)
    out[rows] = 1
    out[:1] += before
    return np.cumsum(out, out=out)


class Screen:
    """What is known between two chunks, and the rules over the next one."""

    def __init__(self, num_blocks: int, block_size: int, *, ordered: bool = True, asks: bool = True) -> None:
        self.num_blocks, self.block_size, self._ordered = num_blocks, block_size, ordered
        self.blocks, self.sequences = BlockStates(0), SequenceStates(64)
        self.entries, self.transfers = Entries.none(), Transfers()
        self._parents: dict[int, int] = {}  # of forks
        self.suspects: dict[str, int] = {}
        self._begun = self._ended = 0  # steps
        self._counts = np.asarray([num_blocks, 0, 0, 0, 0, 0])  # blocks by state
        self._table_entries = self._left_over = 0
        self._digest = np.uint64(0)
        self._window = 0
        self._waiting = Waiting(block_size)
        self.numbers = Numbers(block_size)
        self._asks = asks  # whether anybody ever waits or is refused
        self._unasked: list[tuple[npt.NDArray[Any], ...]] = []
        self.detail: Callable[[int], Sequence[int] | None] = lambda seq: None  # of refusals

    def learn(self, facts: Iterable[Mapping[str, Any]], block_bytes: int) -> None:
        """What the facts say of the model, the scheduler and the pool."""
        facts = list(facts)
        before, limits = self.numbers.limits, limits_of(facts, self.numbers.limits)
        self.numbers.limits = limits
        self._counts[0] += before.never_free(self.num_blocks) - limits.never_free(self.num_blocks)
        if self.numbers.limits.disagreement(self.num_blocks, self.block_size, block_bytes):
            self.suspects.setdefault("capacity", 0)
        self._window = window_of(facts) or self._window
        watermark = watermark_of(facts)
        if watermark is not None:
            self._waiting.watermark = watermark

    def look(
        self,
        events: npt.NDArray[np.void],
        first: int,
        details: DetailTables | GivenDetails,
        kinds: npt.NDArray[np.uint8],
        present: IntArray,
    ) -> bool:
        """Look at the next events, of which `first` is the number of the first; returns whether any is suspicious."""
        return any(
            self.feed(Chunk(events[lo:hi], first + lo, details, kinds[lo:hi], present))
            for lo, hi in _pieces(kinds, present)
        )

    def feed(self, chunk: Chunk) -> bool:
        """Look at the next events, of which only the first may resize; returns whether anything is suspicious."""
        found: dict[str, IntArray] = {}
        if chunk.length and chunk.kind[0] in _RESIZES and self._resized_wrongly(chunk):
            found["resize"] = np.zeros(1, dtype=np.int64)
        self.sequences.reserve(int(chunk.seq_id.max(initial=-1)) + 1)
        self.blocks.reserve(min(int(chunk.block.max(initial=-1)) + 1, self.num_blocks), self.num_blocks)
        ends = chunk.rows(Kind.STEP_END)
        begun, ended = counted(chunk, chunk.rows(Kind.STEP_BEGIN), self._begun), counted(chunk, ends, self._ended)
        unbegun = ends[ended[ends] > begun[ends]]
        if len(unbegun):
            found["step end"] = unbegun
        self._beside(chunk, found)
        self.numbers.check(chunk, found, begun, ended)
        blocks = BlockPass(chunk, self.blocks, self.num_blocks, self.block_size, found)
        blocks.lives_and_counts()
        blocks.transitions()
        if not found:  # what follows sums up what these rules make sound
            blocks.slots()
            self._entries(chunk, blocks, begun, ended, found)
        for rule, rows in found.items():
            self.suspects.setdefault(rule, chunk.first + int(np.min(rows, initial=chunk.length)))
        self._begun, self._ended = (int(begun[-1]), int(ended[-1])) if chunk.length else (self._begun, self._ended)
        return bool(self.suspects)

    def _resized_wrongly(self, chunk: Chunk) -> bool:
        """Take the pool's new size; returns whether it may not have it."""
        size, before, limits = int(chunk.aux[0]), int(chunk.lblock[0]), self.numbers.limits
        if before != self.num_blocks or not 0 <= size < _MOST_BLOCKS or limits.too_many(size):
            return True
        self._counts[0] += size - before - limits.never_free(size) + limits.never_free(before)
        self.num_blocks = size
        return self.blocks.in_use_from(size, self._ended)

    def _beside(self, chunk: Chunk, found: dict[str, IntArray]) -> None:
        """Rows that are no moves of blocks: mismatches, needless waits, windows that were cut too short."""
        mismatch = chunk.rows(Kind.MISMATCH)
        if len(mismatch):
            found["mismatch"] = mismatch
        if self._window:
            sched = chunk.rows(Kind.SCHED)
            needed = np.maximum(0, chunk.lblock[sched].astype(np.int64) - self._window + 1)
            early = sched[chunk.aux[sched] & 0xFFFFFFFF > needed]
            if len(early):
                found["window"] = early
        if self._asks:
            self._waits(chunk, found)

    def _waits(self, chunk: Chunk, found: dict[str, IntArray]) -> None:
        """Nobody waits for blocks that are there; who holds what is looked up once somebody does."""
        rows = chunk.rows(*RULE_KINDS, *ASKING)
        kinds, reasons = chunk.kind[rows], chunk.at("reason", rows)
        asking = (kinds == _REFUSED) | (kinds == _WAIT)
        for seq, kind in zip((rows[asking] + chunk.first).tolist(), kinds[asking].tolist(), strict=True):
            if impossible(kind, self.detail(seq), self.num_blocks):
                found["counters"] = np.array([seq - chunk.first])
        asking &= reasons == _NO_BLOCKS
        self._unasked.append((kinds, asking, rows + chunk.first, chunk.seq_id[rows], chunk.aux[rows]))
        if not asking.any() and len(self._unasked) < _MOST_UNASKED:
            return
        for columns in self._unasked:
            for kind, asks, seq, seq_id, aux in zip(*(column.tolist() for column in columns), strict=True):
                if asks and "needless wait" not in found:
                    if self._waiting.wrong(kind, Reason.NO_BLOCKS, seq_id, self.num_blocks, self.detail(seq)):
                        found["needless wait"] = np.array([seq - chunk.first])
                elif kind not in _ASKING:
                    self._waiting.note(kind, seq_id, aux)
        self._unasked.clear()

    def _entries(
        self, chunk: Chunk, blocks: BlockPass, begun: IntArray, ended: IntArray, found: dict[str, IntArray]
    ) -> None:
        entries = EntryPass(chunk, self.entries, self._parents)
        self.entries = entries.check(found)
        self.transfers.check(chunk, found, Steps(begun, ended, self.sequences.sched_step))
        sequences = SequencePass(chunk, self.sequences, entries, self.block_size, found)
        sequences.positions(blocks.written_of, blocks.over)
        sequences.tables()
        sequences.steps(begun)
        blocks.publication(ordered=self._ordered)
        blocks.copies()
        blocks.fences(sequences.used, ended)
        self._witnesses(chunk, blocks, sequences, found)

    def _witnesses(self, chunk: Chunk, blocks: BlockPass, sequences: SequencePass, found: dict[str, IntArray]) -> None:
        """The pool's own counters at each WITNESS are those that its events make."""
        rows, detail = chunk.detail(Kind.WITNESS)
        count, width = len(rows) + 1, len(COUNTED)
        witnessed = counted(chunk, rows, 0)
        since = witnessed.take(blocks.rows)  # the witness that first sees the row; none: the last of all
        before, after = blocks.counts()
        changes = np.bincount(since * width + after, minlength=count * width)
        changes -= np.bincount(since * width + before, minlength=count * width)
        by_state = changes.reshape(count, width)[:, _COUNTED].cumsum(axis=0) + self._counts

        sign = ENTRY_SIGN.take(sequences.kind)
        touching = np.flatnonzero(sign)
        since, sign = witnessed.take(sequences.rows[touching]), sign[touching]
        taken = np.bincount(since[sign > 0], minlength=count) - np.bincount(since[sign < 0], minlength=count)
        entries = taken.cumsum() + self._table_entries
        words = np.zeros(count, dtype=np.uint64)
        np.add.at(words, since, sequences.words[touching])
        digest = words.cumsum() + self._digest
        over = np.flatnonzero(sequences.left_over)
        lost = np.bincount(witnessed.take(sequences.rows[over]), sequences.left_over[over], count)
        left = lost.astype(np.int64).cumsum() + self._left_over

        seen = np.arange(len(rows))
        whole = detail.at >= 0
        told, here = detail.values[detail.at[whole]], seen[whole]
        made = np.column_stack([by_state[here], entries[here]])
        wrong = (made != told[:, :7]).any(axis=1)
        wrong |= (told[:, 7] != 0) & (told[:, 7] != digest[here].view(np.int64))
        bad = np.concatenate([rows[left[:-1] != 0], rows[whole][wrong]])
        if len(bad):
            found["witness"] = bad
        self._counts, self._table_entries = by_state[-1], int(entries[-1])
        self._digest, self._left_over = digest[-1], int(left[-1])

    def finish(self, end: int) -> None:
        """The trace is over: what is left behind."""
        blocks = self.blocks
        held = self.entries
        unheld = blocks.ref == 0
        done = self._ended
        left = {
            "entry left": bool(self.sequences.over[held.seq_id].any()),
            "lease left": bool(self.transfers.held),
            "block left": bool((unheld & blocks.touched & (blocks.place == HELD) & (blocks.published == 0)).any()),
            "quarantine left": bool(((blocks.place == QUARANTINED) & (blocks.last_use <= done)).any()),
        }
        self.suspects |= {rule: end for rule, suspicious in left.items() if suspicious}

    def result(self) -> Screened:
        """What was seen."""
        return Screened(dict(self.suspects), int(self.blocks.touched.sum()), int(self.blocks.ever_written.sum()))


__all__ = ["Screen", "Screened", "chunks", "counted", "first_size", "ordered", "screen", "understood", "unfit_for"]
