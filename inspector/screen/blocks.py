"""The rules of a block: its lives, counts, places, slots and publication, over the chunk's rows sorted by block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.screen.columns import ENTRY_SIGN, Chunk, flags, table
from kvscope.inspector.screen.runs import Runs, sorted_rows
from kvscope.inspector.source import IntArray
from kvscope.inspector.state import BLOCK_KINDS, BlockState
from kvscope.traces.schema import Kind

# Where an unheld block is; a held one is HELD.
HELD, FREE, QUARANTINED = 0, 1, 2

_BLOCK = flags(BLOCK_KINDS)
_DELTA = table({Kind.ALLOC: 1, Kind.SHARE: 1, Kind.HIT: 1, Kind.LEASE: 1, Kind.RELEASE: -1, Kind.UNLEASE: -1})
_LEASES = table({Kind.LEASE: 1, Kind.UNLEASE: -1})
_COUNTED = flags(
    (Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.LEASE, Kind.RELEASE, Kind.UNLEASE, Kind.WRITE)
)  # these must say a count before and after; others may
_PLACE = table(
    {
        Kind.ALLOC: HELD, Kind.SHARE: HELD, Kind.HIT: HELD, Kind.RELEASE: HELD, Kind.UNLEASE: HELD, Kind.FREE: FREE,
        Kind.SETTLE: FREE, Kind.QUARANTINE: QUARANTINED,
    }, -1,
)  # fmt: skip
_PUBLISHED = table(
    {
        Kind.ALLOC: 0, Kind.PUBLISH: 1, Kind.HIT: 1, Kind.UNPUBLISH: 0, Kind.EVICT: 0, Kind.FREE: 0, Kind.SETTLE: 0,
        Kind.QUARANTINE: 0,
    }, -1,
)  # fmt: skip
_UNBOUND = table({Kind.ALLOC: 0, Kind.COMMIT: 0, Kind.WRITE: 1}, -1)


# Kinds that may happen to a block only where it is in a certain place.
_ALLOC, _HIT, _LEASE, _SETTLE, _EVICT = (
    flags((kind,)) for kind in (Kind.ALLOC, Kind.HIT, Kind.LEASE, Kind.SETTLE, Kind.EVICT)
)
_KEEPS, _LEAVES = flags((Kind.SHARE, Kind.PUBLISH)), flags((Kind.FREE, Kind.QUARANTINE))
_ADMITS = flags((Kind.ADMIT, Kind.RESUME))


class BlockStates:
    """What is known of every block between two chunks: one element per block."""

    def __init__(self, num_blocks: int) -> None:
        def zeros(dtype: npt.DTypeLike) -> npt.NDArray[Any]:
            return np.zeros(num_blocks, dtype=dtype)

        self.gen = zeros(np.int64)
        self.ref = zeros(np.int64)
        self.leases = zeros(np.int64)
        self.place = np.full(num_blocks, FREE, dtype=np.int8)
        self.published = zeros(np.int8)
        self.unbound = zeros(np.int8)
        self.written = zeros(np.int64)  # slots [0, written)
        self.leased = zeros(np.int64)  # leases of this life cover slots below
        self.keys = zeros(np.uint64)  # sum of the keys of its table entries
        self.last_use = zeros(np.int64)  # 1 + the last step that used it
        self.state = np.full(num_blocks, BlockState.FREE, dtype=np.int8)
        self.words = np.zeros((num_blocks, 4), dtype=np.int64)  # what it was published as
        self.published_at = np.full(num_blocks, -1, dtype=np.int64)
        self.has_words = zeros(np.bool_)
        self.copied = np.full((num_blocks, 3), -1, dtype=np.int64)  # source, its life, slots of this life's COW
        self.ever_written = zeros(np.int64)
        self.touched = zeros(np.bool_)


def entry_key(seq_id: IntArray, lblock: IntArray) -> npt.NDArray[np.uint64]:
    """One word per table entry, its own: sums of them add and take away exactly."""
    return seq_id.astype(np.uint64) << np.uint64(32) | lblock.astype(np.uint64)


class BlockPass:
    """The rows of a chunk sorted by block. `suspects` collects, by rule, the local rows that break it."""

    def __init__(self, chunk: Chunk, states: BlockStates, block_size: int, suspects: dict[str, IntArray]) -> None:
        self.chunk, self.states, self.block_size, self.suspects = chunk, states, block_size, suspects
        rows = np.flatnonzero(_BLOCK[chunk.kind])
        block = chunk.block[rows]
        outside = (block < 0) | (block >= len(states.gen))
        self._suspect("block exists", rows[outside])
        rows, block = rows[~outside], block[~outside]
        keys, self.rows = sorted_rows(block, rows)
        self.runs = Runs(keys)
        self.kind = chunk.kind[self.rows]
        self.written_of = np.zeros(chunk.length, dtype=np.int64)  # per row: slots written of its block, after it
        self.change = np.zeros((2, chunk.length), dtype=np.int64)  # blocks by state, packed; see `counts`

    def is_(self, kind: Kind) -> npt.NDArray[np.bool_]:
        return np.asarray(self.kind == kind)

    def column(self, name: str) -> IntArray:
        out: IntArray = getattr(self.chunk, name)[self.rows]
        return out

    def _suspect(self, rule: str, rows: IntArray) -> None:
        if len(rows):
            self.suspects[rule] = rows

    def must(self, rule: str, kept: npt.NDArray[np.bool_]) -> None:
        """Every row keeps the rule."""
        if not kept.all():
            self._suspect(rule, self.rows[~kept])

    # -- the passes, in order -----------------------------------------------------------------------------------

    def lives_and_counts(self) -> None:
        """Handles are of the current life; counts chain; places follow each other."""
        runs, states = self.runs, self.states
        alloc = self.is_(Kind.ALLOC)
        gen = self.column("gen")
        before = runs.before(gen, states.gen)
        self.must("life", np.where(alloc, gen > before, gen == before))
        runs.keep(gen, states.gen)

        delta = _DELTA[self.kind].astype(np.int64)
        self.ref = runs.running(delta, states.ref)
        self.ref_before = self.ref - delta
        told_before, told = self.column("ref_before"), self.column("ref_after")
        silent = (told < 0) & (told_before < 0) & ~_COUNTED[self.kind]
        self.must("count", silent | ((told_before == self.ref_before) & (told == self.ref) & (self.ref >= 0)))
        self.leases = runs.running(_LEASES[self.kind].astype(np.int64), states.leases)
        self.entries = self.ref - self.leases
        self.must("holders", (self.leases >= 0) & (self.entries >= 0))
        runs.keep(self.ref, states.ref)
        runs.keep(self.leases, states.leases)

        said = _PLACE[self.kind]
        self.place = runs.filled(said, said >= 0, states.place)
        self.place_before = runs.before(self.place, states.place)
        runs.keep(self.place, states.place)
        said = _PUBLISHED[self.kind]
        self.published = runs.filled(said, said >= 0, states.published)
        self.published_before = runs.before(self.published, states.published)
        runs.keep(self.published, states.published)
        states.touched[runs.ids] = True

    def transitions(self) -> None:
        """Where a block may go from where it is."""
        unheld, place = self.ref_before == 0, self.place_before
        published = self.published_before == 1
        allowed = np.ones(len(self.rows), dtype=np.bool_)
        for kinds, rule in (
            (_ALLOC, unheld & (place == FREE) & ~published),
            (_KEEPS, ~unheld),
            (_HIT, published & (place == HELD)),
            (_LEASE, (published | ~unheld) & (place == HELD)),
            (_LEAVES, unheld & (place == HELD)),
            (_SETTLE, unheld & (place == QUARANTINED)),
            (_EVICT, unheld),
        ):
            allowed &= ~kinds[self.kind] | rule
        self.must("transition", allowed)

    def slots(self) -> None:
        """Slots are written in order by the only holder; copies and publications find them written."""
        runs, states, kind = self.runs, self.states, self.kind
        alloc, write, copy = self.is_(Kind.ALLOC), self.is_(Kind.WRITE), self.is_(Kind.COW)
        lo, hi = self.chunk.range_lo[self.rows], self.chunk.range_hi[self.rows]
        copies = self.chunk.copies[self.rows]
        size = self.block_size
        self.must("copy details", ~copy | ((copies >= 0) & (copies <= size)))
        reach = np.where(write, hi, np.where(copy, copies, 0)).clip(0, size)
        self.written = runs.greatest(reach, alloc, states.written)
        before = runs.before(self.written, states.written)
        self.must("slots", ~write | ((lo >= 0) & (lo < hi) & (hi <= size) & (lo <= before)))
        self.must("published full", ~self.is_(Kind.PUBLISH) | (before == size))
        runs.keep(self.written, states.written)
        self.written_of[self.rows] = self.written
        if len(runs.starts):
            most = np.maximum.reduceat(self.written, runs.starts)
            states.ever_written[runs.ids] = np.maximum(states.ever_written[runs.ids], most)

        sign = ENTRY_SIGN[kind]
        key = entry_key(self.column("seq_id"), self.column("lblock"))
        moves = np.where(sign == 0, np.uint64(0), np.where(sign > 0, key, np.uint64(0) - key))
        keys = runs.running(moves, states.keys)
        runs.keep(keys, states.keys)
        alone = (self.entries == 1) & (keys == key) & (self.published == 0)
        self.must("writer", ~write | alone)
        self._leased(write, lo, alloc)

    def _leased(self, write: npt.NDArray[np.bool_], lo: IntArray, alloc: npt.NDArray[np.bool_]) -> None:
        """No write into slots that a lease covers."""
        runs, states = self.runs, self.states
        reach = np.zeros(self.chunk.length, dtype=np.int64)
        rows, detail = self.chunk.detail(Kind.LEASE)
        if len(rows):
            values = detail.values[detail.at, 1] if len(detail.values) else np.zeros(len(rows), dtype=np.int64)
            reach[rows] = np.where(detail.at >= 0, values, self.block_size).clip(0, self.block_size)
        leased = runs.greatest(reach[self.rows], alloc, states.leased)
        self.must("lease", ~write | (self.leases == 0) | (lo >= leased))
        runs.keep(leased, states.leased)

    def publication(self, *, ordered: bool) -> None:
        """A hit finds what was published, at the same place, behind the same prefix, and its writes committed."""
        runs, states, chunk = self.runs, self.states, self.chunk
        said = _UNBOUND[self.kind]
        unbound = runs.filled(said, said >= 0, states.unbound)
        hit, published = self.is_(Kind.HIT), self.is_(Kind.PUBLISH)
        self.must("hit before its writes", ~hit | (unbound == 0) if ordered else np.ones(len(hit), dtype=np.bool_))
        runs.keep(unbound, states.unbound)
        words = np.zeros((chunk.length, 4), dtype=np.int64)
        known = np.zeros(chunk.length, dtype=np.bool_)
        for kind in (Kind.PUBLISH, Kind.HIT):
            rows, detail = chunk.detail(kind)
            whole = detail.at >= 0
            known[rows] = whole
            words[rows[whole]] = detail.values[detail.at[whole]]
        at = runs.last(published)
        hits = np.flatnonzero(hit)
        here, block = at[hits], runs.keys[hits]
        rows, source = self.rows[hits], self.rows[np.maximum(here, 0)]
        near = here >= 0
        as_known = np.where(near, known[source], states.has_words[block])
        as_words = np.where(near[:, None], words[source], states.words[block])
        as_place = np.where(near, chunk.lblock[source], states.published_at[block])
        same = (as_known == known[rows]) & (~known[rows] | (as_words == words[rows]).all(axis=1))
        lblock = chunk.lblock[rows]
        same &= (as_place < 0) | (lblock < 0) | (as_place == lblock)
        self._suspect("hit content", rows[~same])
        self._behind(np.sort(rows), words, known)
        last = at[runs.ends]
        ids, source = runs.ids[last >= 0], self.rows[last[last >= 0]]
        states.words[ids], states.has_words[ids] = words[source], known[source]
        states.published_at[ids] = chunk.lblock[source]

    def _behind(self, rows: IntArray, words: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]) -> None:
        """A hit follows the hit on the block before it in its table, or the admission that begins the table."""
        chunk = self.chunk
        rows = rows[(chunk.lblock[rows] > 0) & known[rows]]
        front = rows - 1
        kind = chunk.kind[front]
        near = (front >= 0) & (chunk.seq_id[front] == chunk.seq_id[rows])
        begins = _ADMITS[kind]
        follows = (kind == Kind.HIT) & known[front] & (chunk.lblock[front] == chunk.lblock[rows] - 1)
        follows &= words[front, 2] == words[rows, 0]
        self._suspect("hit prefix", rows[~(near & (begins | follows))])

    def copies(self) -> None:
        """A copy's source is leased by the row before it, and let go by the row after it has run."""
        runs, states, chunk = self.runs, self.states, self.chunk
        rows, detail = chunk.detail(Kind.COW)
        fields = np.full((chunk.length, 3), -1, dtype=np.int64)
        if len(rows):
            whole = detail.at >= 0
            self._suspect("copy details", rows[~whole])
            rows, values = rows[whole], detail.values[detail.at[whole]]
            fields[rows] = values[:, (0, 1, 3)]
            lease = rows - 1
            sound = (lease >= 0) & (chunk.kind[lease] == Kind.LEASE) & (chunk.block[lease] == values[:, 0])
            sound &= (chunk.gen[lease] == values[:, 1]) & (self.written_of[lease] >= values[:, 3])
            self._suspect("copy source", rows[~sound])
        done = np.flatnonzero(self.is_(Kind.COPY_DONE))
        at = runs.last(self.is_(Kind.COW) | self.is_(Kind.ALLOC))
        if len(done):
            here, local = at[done], self.rows[done]
            copied = np.where((here >= 0)[:, None], fields[self.rows[here]], states.copied[runs.keys[done]])
            after = np.minimum(local + 1, chunk.length - 1)
            sound = (chunk.kind[after] == Kind.UNLEASE) & (chunk.block[after] == copied[:, 0]) & (copied[:, 0] >= 0)
            sound &= chunk.gen[after] == copied[:, 1]
            fill = chunk.fill[local]
            sound &= (fill < 0) | (fill >= copied[:, 2])
            self._suspect("copy done", local[~sound])
        last = at[runs.ends]
        states.copied[runs.ids[last >= 0]] = fields[self.rows[last[last >= 0]]]

    def fences(self, used: IntArray, completed: IntArray) -> None:
        """A block is handed out, or leaves quarantine, when the last step that used it has completed.

        Args:
            used: per chunk row, for a RELEASE 1 + the step that used the entry, else 0. completed: per chunk row.
        """
        runs, states = self.runs, self.states
        last_use = runs.greatest(used[self.rows], np.zeros(len(self.rows), dtype=np.bool_), states.last_use) - 1
        done = completed[self.rows]
        early = (self.is_(Kind.ALLOC) & (last_use > done)) | (self.is_(Kind.SETTLE) & (last_use > done + 1))
        self.must("fence", ~early)
        runs.keep(last_use + 1, states.last_use)

    def counts(self) -> None:
        """What each row changes in the number of blocks by state: three counts of 21 bits per word."""
        state = np.where(
            self.entries > 1, BlockState.SHARED, np.where(
                self.entries == 1, BlockState.PRIVATE, np.where(
                    self.leases > 0, BlockState.IN_TRANSIT, np.where(
                        self.place == QUARANTINED, BlockState.QUARANTINED, np.where(
                            self.published == 1, BlockState.CACHED, BlockState.FREE,
                        ),
                    ),
                ),
            ),
        ).astype(np.int8)  # fmt: skip
        before = self.runs.before(state, self.states.state)
        for word, weights in enumerate(COUNT_WORDS):
            self.change[word, self.rows] = weights[state] - weights[before]
        self.runs.keep(state, self.states.state)


def _weights(*states: BlockState) -> IntArray:
    out = np.zeros(len(BlockState), dtype=np.int64)
    for i, state in enumerate(states):
        out[state] = 1 << 21 * i
    return out


COUNT_WORDS = (
    _weights(BlockState.FREE, BlockState.PRIVATE, BlockState.SHARED),
    _weights(BlockState.CACHED, BlockState.QUARANTINED, BlockState.IN_TRANSIT),
)  # in the order of a WITNESS
