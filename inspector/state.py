"""The pool as it stood just after any event, by one last-write-wins scatter over the rows before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError, UsageError
from kvscope.inspector.lost import lost_at
from kvscope.inspector.source import Frozen, IntArray, TraceLike, frozen, most_blocks, rows_until, rows_with, size_after
from kvscope.inspector.table_seek import NO_TABLES, TableSeeker, fold_tables, tables_of
from kvscope.inspector.table_seek import TABLE_KINDS as TABLE_KINDS
from kvscope.traces.fold import BLOCK_KINDS as BLOCK_KINDS
from kvscope.traces.fold import BLOCK_MASK, BlockFold, begun_anew, events_columns
from kvscope.traces.fold import kind_mask as kind_mask
from kvscope.traces.schema import EventArray, Kind


class BlockState(IntEnum):
    """What a block is, seen from outside; every block is exactly one of these at every event."""

    FREE = 0
    PRIVATE = 1
    SHARED = 2
    IN_TRANSIT = 3
    CACHED = 4
    QUARANTINED = 5
    LOST = 6


MOST_SHOWN = 1 << 22  # blocks of a pool that is shown whole
STATE_NAMES = tuple(state.name.lower() for state in BlockState)
STATE_LETTERS = "FPSTCQL"
WRITING_LETTER = "W"
URGENCY = "FCPSTWQL"  # what stands for several blocks: the state that comes last here


@dataclass(frozen=True)
class PoolState:
    """Every block of the pool just after event `seq`. Arrays have one element per block."""

    seq: int
    block_size: int
    state: npt.NDArray[np.uint8]  # BlockState
    gen: npt.NDArray[np.int32]  # life, 0 = never handed out
    entries: npt.NDArray[np.int32]  # counted as table entries
    lost: npt.NDArray[np.int32]  # of those, in no table any more: see `inspector/lost.py`
    leases: npt.NDArray[np.int32]
    fill: npt.NDArray[np.int32]  # slots filled, writes on their way included
    published: npt.NDArray[np.bool_]  # in the prefix index
    writing: npt.NDArray[np.bool_]  # a write was issued and has not committed
    last_seq: IntArray  # number of the last event that touched it, -1 = none
    first: int = 0  # the block that the arrays begin with

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, or in the part of it that was asked for."""
        return len(self.state)

    @property
    def ref(self) -> npt.NDArray[np.int32]:
        """References that the pool counts, per block: table entries, lost ones included, plus leases."""
        return self.entries + self.leases

    @property
    def held(self) -> npt.NDArray[np.bool_]:
        """Blocks that a table or a lease holds."""
        return self.ref > self.lost

    @property
    def counts(self) -> dict[str, int]:
        """Blocks in each state; the values add up to `num_blocks`."""
        found = np.bincount(self.state, minlength=len(STATE_NAMES))
        return {name: int(found[i]) for i, name in enumerate(STATE_NAMES)}

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return self._count(BlockState.FREE)

    @property
    def num_private(self) -> int:
        """Blocks with one table entry."""
        return self._count(BlockState.PRIVATE)

    @property
    def num_shared(self) -> int:
        """Blocks with more than one table entry."""
        return self._count(BlockState.SHARED)

    @property
    def num_in_transit(self) -> int:
        """Blocks that leases alone hold."""
        return self._count(BlockState.IN_TRANSIT)

    @property
    def num_cached(self) -> int:
        """Unheld blocks whose content is kept for the prefix cache."""
        return self._count(BlockState.CACHED)

    @property
    def num_quarantined(self) -> int:
        """Unheld blocks that an open step still uses."""
        return self._count(BlockState.QUARANTINED)

    @property
    def num_lost(self) -> int:
        """Blocks that are counted as held, and that nobody holds any more."""
        return self._count(BlockState.LOST)

    def letter(self, block: int) -> str:
        """One letter for a map: F Q P S C T L, or W for a private block that is being written."""
        at = block - self.first
        if self.writing[at] and self.state[at] == BlockState.PRIVATE:
            return WRITING_LETTER
        return STATE_LETTERS[int(self.state[at])]

    def _count(self, state: BlockState) -> int:
        return int(np.count_nonzero(self.state == state))


@dataclass(frozen=True, slots=True)
class Holder:
    """One named reference to a block: a table entry of a sequence, or a lease."""

    kind: str  # "table" or "lease"
    gen: int
    since_seq: int
    seq_id: int = -1
    lblock: int = -1
    lease_id: int = -1
    slot_lo: int = -1
    slot_hi: int = -1


def state_at(trace: TraceLike, seq: int, blocks: range | None = None) -> PoolState:
    """The pool just after event `seq` (before the first event for a smaller number, at the end for a larger one).

    Of a trace whose first events were let go the state before the first one that is left is known, and none before.

    Args:
        blocks: only these neighbouring blocks, where a few will do.

    Raises:
        TraceError: the events up to there, and some behind, were let go.
    """
    _check_known(trace, seq)
    if getattr(trace, "folded", False):  # a reader: too long to look at every row, or its first rows were let go
        fold = trace.fold_at(seq)  # type: ignore[attr-defined]
        return pool_state(fold, seq, trace.block_size, blocks, lost=lost_at(trace, seq, fold.gen, fold.first))
    trace = frozen(trace)
    rows = rows_until(trace, seq)
    size = size_after(trace, rows)
    first = 0 if blocks is None else blocks.start
    stop = size if blocks is None else max(min(blocks.stop, size), first)
    fold = BlockFold(size, first, stop - first)
    if trace.before is not None:
        fold.begin_as(trace.before)
    for lo in range(0, rows, _RUN):
        part = slice(lo, min(lo + _RUN, rows))
        fold.apply(events_columns(trace.events[part], trace.seqs[part]))
    lost = lost_at(trace, seq, fold.gen, first)
    return pool_state(fold, seq, trace.block_size, range(first, stop), lost=lost)


def _check_known(trace: TraceLike, seq: int) -> None:
    if seq < 0:
        return
    first = getattr(trace, "let_go", 0)  # of a reader
    if isinstance(trace, Frozen) and trace.before is not None and len(trace.seqs):
        first = int(trace.seqs[0])
    if seq < first - 1:
        raise TraceError(f"the state after event {seq} is not known: the events below {first} were let go")


def pool_state(
    fold: BlockFold, seq: int, block_size: int, blocks: range | None = None, *, lost: npt.NDArray[np.int32]
) -> PoolState:
    """The pool that a fold of all rows up to event `seq` shows; shares the fold's arrays.

    Args:
        lost: how many references are lost, of each block of the fold.
    """
    blocks = range(fold.size) if blocks is None else range(blocks.start, max(min(blocks.stop, fold.size), blocks.start))
    part = slice(blocks.start - fold.first, blocks.stop - fold.first)
    ref = np.maximum(fold.ref[part], 0).astype(np.int32)
    leases = np.clip(fold.leases[part], 0, ref).astype(np.int32)
    entries = ref - leases
    published, quarantined = fold.published[part] == 1, fold.quarantined[part] == 1
    lost = np.clip(lost[part], 0, entries)
    state = classify(entries - lost, leases, published, quarantined, lost)
    return PoolState(
        seq=seq, block_size=block_size, state=state, gen=fold.gen[part], entries=entries, lost=lost,
        leases=leases,
        fill=np.where(state == BlockState.FREE, 0, fold.fill[part]).astype(np.int32), published=published,
        writing=(fold.writing[part] == 1) & (ref > 0), last_seq=fold.last_seq[part], first=blocks.start,
    )  # fmt: skip


def longest_free(state: PoolState) -> int:
    """The most free blocks that lie side by side: what an allocator that wants one piece can have at once."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], state.state == BlockState.FREE, [False]]).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def tables_at(trace: TraceLike, seq: int) -> dict[int, list[tuple[int, int]]]:
    """The block table of every sequence that holds blocks just after event `seq`, as (block, gen) in logical order."""
    if getattr(trace, "long", False):  # a reader
        return TableSeeker(trace).at(seq)
    return tables_of(fold_tables(NO_TABLES, trace.events[: rows_until(trace, seq)]))


def holders(trace: TraceLike, block: int, seq: int) -> list[Holder]:
    """Who holds a block just after event `seq`: table entries in the order taken, then leases.

    It is known from the events that the trace holds: where the first ones were let go, or some are missing, a holder
    that took the block in one of those is not among them, though `state_at` counts it.
    """
    seqs, events = _rows_where(trace, "block", block, seq)
    entries: dict[tuple[int, int], Holder] = {}
    leases: dict[int, Holder] = {}
    for event, number in zip(events, seqs.tolist(), strict=True):
        kind, gen, lblock = int(event["kind"]), int(event["gen"]), int(event["lblock"])
        seq_id = int(event["seq_id"])
        if kind == Kind.ALLOC:
            entries, leases = {}, {}
        if kind in (Kind.ALLOC, Kind.SHARE, Kind.HIT):
            entries[seq_id, lblock] = Holder("table", gen, number, seq_id, lblock)
        elif kind == Kind.RELEASE:
            held = entries.get((seq_id, lblock))
            if held is not None and held.gen == gen:
                del entries[seq_id, lblock]
        elif kind == Kind.LEASE:
            lease_id = int(event["aux"])
            leases[lease_id] = Holder("lease", gen, number, lease_id=lease_id)
        elif kind == Kind.UNLEASE:
            leases.pop(int(event["aux"]), None)
    return [*entries.values(), *(_with_slots(trace, lease) for lease in leases.values())]


def _with_slots(trace: TraceLike, lease: Holder) -> Holder:
    lo, hi = (trace.detail(lease.since_seq) or (0, trace.block_size))[:2]
    return replace(lease, slot_lo=lo, slot_hi=hi)


def sequence_blocks(trace: TraceLike, seq_id: int, seq: int) -> list[tuple[int, int]]:
    """The block table of one sequence just after event `seq`, as (block, gen) in logical order.

    It is known from the events that the trace holds: where the first ones were let go, or some are missing, the entries
    that the sequence took in those are not in it, and what follows them moves up.
    """
    _, events = _rows_where(trace, "seq_id", seq_id, seq)
    table: dict[int, tuple[int, int]] = {}
    for event in events[_TABLE_MASK[events["kind"]]]:
        entry, lblock = (int(event["block"]), int(event["gen"])), int(event["lblock"])
        if event["kind"] != Kind.RELEASE:
            table[lblock] = entry
        elif table.get(lblock) == entry:
            del table[lblock]
    return [table[lblock] for lblock in sorted(table)]


def _rows_where(trace: TraceLike, name: str, value: int, seq: int) -> tuple[IntArray, EventArray]:
    """(seqs, rows) up to event `seq` with that value in a column; a reader decodes no more than it must."""
    where = getattr(trace, "where", None)
    if where is None:
        trace = frozen(trace)
        if name == "block":
            check_block(trace, value)
        events = trace.events[: rows_until(trace, seq)]
        rows, gaps = rows_with(events, name, value), rows_with(events, "kind", Kind.GAP)
        seqs, found, marks = trace.seqs[rows], trace.events[rows], (trace.seqs[gaps], trace.events[gaps])
    else:
        seqs, found = where(name, max(value, 0), seq)
        if name == "block" and (value < 0 or not len(seqs)):  # one with rows exists, also where the pool has grown
            check_block(trace, value)
        marks = where("kind", Kind.GAP, seq)
    anew = marks[0][begun_anew(marks[1]["kind"], marks[1]["aux"])]
    since = int(np.searchsorted(seqs, anew[-1])) if len(anew) else 0  # what a writer before knew ends there
    return seqs[since:], found[since:]


def check_block(trace: TraceLike, block: int) -> None:
    """Raises UsageError unless the pool has such a block at some time."""
    most, where = trace.num_blocks, getattr(trace, "where", None)
    if block >= most and where is not None:  # a reader says what its manifest says: the pool may have grown
        _, grown = where("kind", Kind.GROW)
        most = most_blocks(most, grown, grown["kind"])
    if not 0 <= block < most:
        raise UsageError(f"block {block} does not exist: the pool has blocks 0..{most - 1}")


def check_shown(num_blocks: int, where: str) -> None:
    """Raises TraceError where a pool has too many blocks to be shown one by one."""
    if num_blocks > MOST_SHOWN:
        raise TraceError(
            f"the pool has {num_blocks:,} blocks: {where} shows a pool of at most {MOST_SHOWN:,}; "
            "kvscope inspect shows its measures"
        )


def block_rows(events: EventArray, num_blocks: int) -> IntArray:
    """Rows that say something about a block of the pool."""
    block = events["block"]
    return np.flatnonzero(BLOCK_MASK[events["kind"]] & (block >= 0) & (block < num_blocks))


def classify(
    entries: npt.NDArray[np.int32],
    leases: npt.NDArray[np.int32],
    published: npt.NDArray[np.bool_],
    quarantined: npt.NDArray[np.bool_],
    lost: npt.NDArray[np.int32] | int = 0,
) -> npt.NDArray[np.uint8]:
    """The one state of each block, from what really holds it; `lost` are the references that nobody will give back.

    An unheld block that is neither cached nor quarantined counts as free: between the last RELEASE and the FREE
    or QUARANTINE row that follows it in the same operation, no other place could be named.
    """
    held = np.where(entries > 1, _SHARED, np.where(entries == 1, _PRIVATE, _IN_TRANSIT))
    unheld = np.where(quarantined, _QUARANTINED, np.where(published, _CACHED, _FREE))
    unheld = np.where(np.asarray(lost) > 0, _LOST, unheld)
    return np.where(entries + leases > 0, held, unheld)


_FREE, _PRIVATE, _SHARED, _IN_TRANSIT, _CACHED, _QUARANTINED, _LOST = np.arange(len(BlockState), dtype=np.uint8)
_TABLE_MASK = kind_mask(TABLE_KINDS)
_RUN = 1 << 20  # rows folded in at a time
