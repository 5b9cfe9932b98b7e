"""The pool as it stood just after any event, by one last-write-wins scatter over the rows before it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.inspector.source import IntArray, TraceLike, frozen, rows_until, size_after
from kvscope.traces.schema import EventArray, Kind


class BlockState(IntEnum):
    """What a block is, seen from outside; every block is exactly one of these at every event."""

    FREE = 0
    PRIVATE = 1
    SHARED = 2
    IN_TRANSIT = 3
    CACHED = 4
    QUARANTINED = 5


STATE_NAMES = ("free", "private", "shared", "in_transit", "cached", "quarantined")
STATE_LETTERS = "FPSTCQ"
WRITING_LETTER = "W"

# Kinds that say something about one block, and among them those that decide where it is.
BLOCK_KINDS = frozenset(
    {
        Kind.ALLOC, Kind.SHARE, Kind.RELEASE, Kind.FREE, Kind.WRITE, Kind.COMMIT, Kind.PUBLISH, Kind.UNPUBLISH,
        Kind.HIT, Kind.EVICT, Kind.COW, Kind.COPY_DONE, Kind.QUARANTINE, Kind.SETTLE, Kind.LEASE, Kind.UNLEASE,
        Kind.SWAP_OUT, Kind.SWAP_IN,
    }
)  # fmt: skip
TABLE_KINDS = (Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.RELEASE)


def kind_mask(kinds: frozenset[Kind] | tuple[Kind, ...]) -> npt.NDArray[np.bool_]:
    """A 256-entry lookup table: `mask[events["kind"]]` picks the rows of these kinds."""
    mask = np.zeros(256, dtype=np.bool_)
    mask[[int(k) for k in kinds]] = True
    return mask


_BLOCK_MASK = kind_mask(BLOCK_KINDS)


@dataclass(frozen=True)
class PoolState:
    """Every block of the pool just after event `seq`. Arrays have one element per block."""

    seq: int
    block_size: int
    state: npt.NDArray[np.uint8]  # BlockState
    gen: npt.NDArray[np.int32]  # life, 0 = never handed out
    entries: npt.NDArray[np.int32]  # table entries that hold it
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
        """Table entries plus leases, per block."""
        return self.entries + self.leases

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

    def letter(self, block: int) -> str:
        """One letter for a map: F Q P S C T, or W for a private block that is being written."""
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

    Args:
        blocks: only these neighbouring blocks, where a few will do.
    """
    trace = frozen(trace)
    rows_of_seq = rows_until(trace, seq)
    size = size_after(trace, rows_of_seq)
    blocks = range(size) if blocks is None else range(blocks.start, max(min(blocks.stop, size), blocks.start))
    n = len(blocks)
    events = trace.events[:rows_of_seq]
    rows = block_rows(events, trace.num_blocks)
    rows = rows[(events["block"][rows] >= blocks.start) & (events["block"][rows] < blocks.stop)]
    block = events["block"][rows].astype(np.int64) - blocks.start
    last_row = np.full(n, -1, dtype=np.int64)
    last_row[block] = rows
    gen = np.zeros(n, dtype=np.int32)
    np.maximum.at(gen, block, events["gen"][rows])
    alive = events["gen"][rows] >= gen[block]  # a row of an older life, or of a stale handle, says nothing about this
    rows, block = rows[alive], block[alive]
    kind = events["kind"][rows]

    ref = _last(n, block, events["ref_after"][rows], kept=events["ref_after"][rows] >= 0, default=0)
    leases = np.zeros(n, dtype=np.int32)
    unheld = events["ref_before"][rows] == 0
    since = _last(n, block, rows, kept=unheld, default=0)  # before, no lease can be left (its end may be lost)
    moves = (kind == Kind.LEASE).astype(np.int32) - (kind == Kind.UNLEASE)
    np.add.at(leases, block, np.where(rows >= since[block], moves, 0))
    leases = np.clip(leases, 0, np.maximum(ref, 0)).astype(np.int32)
    entries = (np.maximum(ref, 0) - leases).astype(np.int32)
    starts = kind == Kind.ALLOC
    says_fill = starts | ((events["fill"][rows] >= 0) & (kind != Kind.COPY_DONE))
    fill = _last(n, block, np.where(starts, 0, events["fill"][rows]), kept=says_fill, default=0)
    index_step = INDEX_EFFECT[kind]
    published = _last(n, block, index_step, kept=index_step >= 0, default=0) == 1
    place = PLACE_EFFECT[kind]
    quarantined = _last(n, block, place, kept=place >= 0, default=0) == 1
    writing = _last(n, block, kind == Kind.WRITE, kept=(kind == Kind.WRITE) | (kind == Kind.COMMIT), default=0) == 1
    state = classify(entries, leases, published, quarantined)
    held = entries + leases > 0
    return PoolState(
        seq=seq, block_size=trace.block_size, state=state, gen=gen, entries=entries, leases=leases,
        fill=np.where(state == BlockState.FREE, 0, fill).astype(np.int32), published=published,
        writing=writing & held,
        last_seq=np.where(last_row >= 0, np.asarray(trace.seqs, dtype=np.int64)[last_row], -1),
        first=blocks.start,
    )  # fmt: skip


def tables_at(trace: TraceLike, seq: int) -> dict[int, list[tuple[int, int]]]:
    """The block table of every sequence that holds blocks just after event `seq`, as (block, gen) in logical order."""
    events = trace.events[: rows_until(trace, seq)]
    rows = np.flatnonzero(_TABLE_MASK[events["kind"]] & (events["seq_id"] >= 0))
    tables: dict[int, dict[int, tuple[int, int]]] = {}
    for row in _latest_of_entry(events, rows).tolist():
        event = events[row]
        if event["kind"] != Kind.RELEASE:
            entry = (int(event["block"]), int(event["gen"]))
            tables.setdefault(int(event["seq_id"]), {})[int(event["lblock"])] = entry
    return {s: [entries[i] for i in sorted(entries)] for s, entries in sorted(tables.items())}


def holders(trace: TraceLike, block: int, seq: int) -> list[Holder]:
    """Who holds a block just after event `seq`: table entries in the order taken, then leases."""
    trace = frozen(trace)
    check_block(trace, block)
    events = trace.events[: rows_until(trace, seq)]
    rows = np.flatnonzero(events["block"] == block)
    entries: dict[tuple[int, int], Holder] = {}
    leases: dict[int, Holder] = {}
    for row in rows.tolist():
        event, number = events[row], int(trace.seqs[row])
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
            lo, hi = (trace.detail(number) or (0, trace.block_size))[:2]
            lease_id = int(event["aux"])
            leases[lease_id] = Holder("lease", gen, number, lease_id=lease_id, slot_lo=lo, slot_hi=hi)
        elif kind == Kind.UNLEASE:
            leases.pop(int(event["aux"]), None)
    return [*entries.values(), *leases.values()]


def check_block(trace: TraceLike, block: int) -> None:
    """Raises UsageError unless the pool has such a block."""
    if not 0 <= block < trace.num_blocks:
        raise UsageError(f"block {block} does not exist: the pool has blocks 0..{trace.num_blocks - 1}")


def block_rows(events: EventArray, num_blocks: int) -> IntArray:
    """Rows that say something about a block of the pool."""
    block = events["block"]
    return np.flatnonzero(_BLOCK_MASK[events["kind"]] & (block >= 0) & (block < num_blocks))


def classify(
    entries: npt.NDArray[np.int32],
    leases: npt.NDArray[np.int32],
    published: npt.NDArray[np.bool_],
    quarantined: npt.NDArray[np.bool_],
) -> npt.NDArray[np.uint8]:
    """The one state of each block.

    An unheld block that is neither cached nor quarantined counts as free: between the last RELEASE and the FREE
    or QUARANTINE row that follows it in the same operation, no other place could be named.
    """
    held = np.where(entries > 1, BlockState.SHARED, np.where(entries == 1, BlockState.PRIVATE, BlockState.IN_TRANSIT))
    unheld = np.where(quarantined, BlockState.QUARANTINED, np.where(published, BlockState.CACHED, BlockState.FREE))
    return np.where(entries + leases > 0, held, unheld).astype(np.uint8)


def _table(values: dict[Kind, int]) -> npt.NDArray[np.int8]:
    table = np.full(256, -1, dtype=np.int8)
    for kind, value in values.items():
        table[kind] = value
    return table


# What a kind sets, -1 where it leaves it: whether the block is in the prefix index, whether it is in quarantine.
INDEX_EFFECT = _table(
    {Kind.ALLOC: 0, Kind.PUBLISH: 1, Kind.UNPUBLISH: 0, Kind.EVICT: 0, Kind.FREE: 0, Kind.SETTLE: 0, Kind.HIT: 1}
)
PLACE_EFFECT = _table({Kind.ALLOC: 0, Kind.QUARANTINE: 1, Kind.FREE: 0, Kind.SETTLE: 0, Kind.SHARE: 0, Kind.HIT: 0})
_TABLE_MASK = kind_mask(TABLE_KINDS)


def _last(
    size: int, block: IntArray, value: npt.NDArray[np.generic], *, kept: npt.NDArray[np.bool_], default: int
) -> npt.NDArray[np.int32]:
    """Per block the last kept value: numpy assigns repeated indices in order, so the last one stays."""
    out = np.full(size, default, dtype=np.int32)
    out[block[kept]] = value[kept]
    return out


def _latest_of_entry(events: EventArray, rows: IntArray) -> IntArray:
    """Of the rows that speak of the same table entry (sequence, logical block, block) the last one, in row order."""
    picked = events[rows]
    order = np.lexsort((rows, picked["block"], picked["lblock"], picked["seq_id"]))
    keys = np.stack([picked[name][order] for name in ("seq_id", "lblock", "block")])
    if not len(order):
        return rows
    is_last = np.append((keys[:, 1:] != keys[:, :-1]).any(axis=0), True)
    return np.sort(rows[order[is_last]])
