"""The rules of a block: its lives, counts, places, slots and publication, over the chunk's rows sorted by block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvscope.inspector.screen.block_states import FREE, HELD, QUARANTINED, BlockStates
from kvscope.inspector.screen.columns import ENTRY_SIGN, NUMBERS, Chunk, flags, table
from kvscope.inspector.screen.plain import beyond_writes
from kvscope.inspector.screen.runs import Runs, sorted_rows
from kvscope.inspector.source import IntArray
from kvscope.inspector.state import BLOCK_KINDS, BlockState
from kvscope.traces.schema import Kind, Reason

# The states that a WITNESS counts, in its order.
COUNTED = (
    BlockState.FREE, BlockState.PRIVATE, BlockState.SHARED, BlockState.CACHED, BlockState.QUARANTINED,
    BlockState.IN_TRANSIT,
)  # fmt: skip

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
        Kind.PUBLISH: 1, Kind.HIT: 1, Kind.UNPUBLISH: 0, Kind.EVICT: 0, Kind.FREE: 0, Kind.QUARANTINE: 0,
    }, -1,
)  # fmt: skip
_UNBOUND = table({Kind.ALLOC: 0, Kind.COMMIT: 0, Kind.WRITE: 1}, -1)


# Kinds that may happen to a block only where it is in a certain place.
_ALLOC, _HIT, _LEASE, _SETTLE, _EVICT = (
    flags((kind,)) for kind in (Kind.ALLOC, Kind.HIT, Kind.LEASE, Kind.SETTLE, Kind.EVICT)
)
_KEEPS, _LEAVES = flags((Kind.SHARE, Kind.PUBLISH)), flags((Kind.FREE, Kind.QUARANTINE))
_RESIZED = np.uint8(Reason.RESIZED)
_ADMITS = flags((Kind.ADMIT, Kind.RESUME))


def entry_key(seq_id: IntArray, lblock: IntArray) -> npt.NDArray[np.uint64]:
    """One word per table entry, its own: sums of them add and take away exactly."""
    return seq_id.astype(np.uint64) << np.uint64(32) | lblock.astype(np.uint64)


class BlockPass:
    """The rows of a chunk sorted by block. `suspects` collects, by rule, the local rows that break it."""

    def __init__(
        self, chunk: Chunk, states: BlockStates, num_blocks: int, block_size: int, suspects: dict[str, IntArray]
    ) -> None:
        self.chunk, self.states, self.block_size, self.suspects = chunk, states, block_size, suspects
        rows = np.flatnonzero(_BLOCK.take(chunk.kind))
        block = chunk.block.take(rows)
        outside = (block < 0) | (block >= num_blocks)
        if outside.any():
            self._suspect("block exists", rows[outside])
            rows, block = rows[~outside], block[~outside]
        keys, rows = sorted_rows(block, rows, len(states.gen))
        self.kept = beyond_writes(chunk, keys, rows, block_size)
        self.rows, self.kind = rows.take(self.kept.at), self.kept.kind
        self.runs = Runs(keys.take(self.kept.at))
        self._picked = chunk.picked(self.rows)
        self.written_of = np.zeros(chunk.length, dtype=np.int32)  # per row: slots written of its block, after it
        self.over = np.zeros(chunk.length, dtype=np.bool_)  # WRITE rows into slots that are written already

    def is_(self, kind: Kind) -> npt.NDArray[np.bool_]:
        return np.asarray(self.kind == NUMBERS[kind])

    def column(self, name: str) -> IntArray:
        return np.ascontiguousarray(self._picked[name])

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
        self.must("life", ((gen == before) ^ alloc) & (gen >= before))
        runs.keep(gen, states.gen)

        delta = _DELTA.take(self.kind).astype(np.int64)
        self.ref = runs.running(delta, states.ref)
        self.ref_before = self.ref - delta
        told_before, told = self.column("ref_before"), self.column("ref_after")
        silent = (told < 0) & (told_before < 0) & ~_COUNTED.take(self.kind)
        self.must("count", silent | ((told_before == self.ref_before) & (told == self.ref) & (self.ref >= 0)))
        self.leases = runs.running(_LEASES.take(self.kind).astype(np.int64), states.leases)
        self.entries = self.ref - self.leases
        self.must("holders", (self.leases >= 0) & (self.entries >= 0))
        runs.keep(self.ref, states.ref)
        runs.keep(self.leases, states.leases)

        said = _PLACE.take(self.kind)
        self.place = runs.filled(said, said >= 0, states.place)
        self.place_before = runs.before(self.place, states.place)
        runs.keep(self.place, states.place)
        said = _PUBLISHED.take(self.kind)
        self.published = runs.filled(said, said >= 0, states.published)
        self.published_before = runs.before(self.published, states.published)
        runs.keep(self.published, states.published)
        states.touched[runs.ids] = True

    def transitions(self) -> None:
        """Where a block may go from where it is; one that is elsewhere than HELD has no holder and is not published."""
        unheld, place = self.ref_before == 0, self.place_before
        published = self.published_before == 1
        allowed = np.ones(len(self.rows), dtype=np.bool_)
        for kinds, rule in (
            (_ALLOC, unheld & (place == FREE) & ~published),
            (_KEEPS, ~unheld),
            (_HIT, published & (place == HELD)),
            (_LEASE, (published | ~unheld) & (place == HELD)),
            (_LEAVES, unheld & (place == HELD) & ~published),
            (_SETTLE, unheld & (place == QUARANTINED)),
            (_EVICT, unheld),
        ):
            allowed &= ~kinds.take(self.kind) | rule
        self.must("transition", allowed)

    def slots(self) -> None:
        """Slots are written in order by the only holder; copies and publications find them written."""
        runs, states, kind = self.runs, self.states, self.kind
        alloc, write, copy = self.is_(Kind.ALLOC), self.is_(Kind.WRITE), self.is_(Kind.COW)
        aux = self.column("aux")
        lo, hi = aux & 0xFFFFFFFF, aux >> 32
        size = self.block_size
        copies = self.chunk.copies[self.rows[copy]] if self.chunk.present[Kind.COW] else None
        if copies is not None:
            self._suspect("copy details", self.rows[copy][(copies < 0) | (copies > size)])
        reach = np.minimum(np.maximum(hi, 0), size) * write
        if copies is not None:
            reach[copy] = np.minimum(copies, size)
        if self.chunk.present[Kind.SWAP_IN]:  # its slots count as written from then on
            arrives = self.is_(Kind.SWAP_IN)
            reach[arrives] = self._filled(arrives)
        written = runs.greatest(np.maximum(reach, self.kept.reach), alloc, states.written)
        before = runs.before(written, states.written)
        self.written = np.maximum(before * ~alloc, reach)
        self.over[self.rows] = write & (lo < before)
        self.must("slots", ~write | ((lo >= 0) & (lo < hi) & (hi <= size) & (lo <= before)))
        self.must("published full", ~self.is_(Kind.PUBLISH) | (before == size))
        runs.keep(written, states.written)
        self.written_of[self.rows] = self.written
        if len(runs.starts):
            most = np.maximum.reduceat(written, runs.starts)
            states.ever_written[runs.ids] = np.maximum(states.ever_written[runs.ids], most)

        sign = ENTRY_SIGN.take(kind)
        key = entry_key(self.column("seq_id"), self.column("lblock"))
        moves = key * sign.astype(np.uint64)  # a minus is 2**64 - 1, and the product wraps
        keys = runs.running(moves, states.keys)
        runs.keep(keys, states.keys)
        alone = (self.entries == 1) & (keys == key) & (self.published == 0)
        fills = write | copy | self.is_(Kind.SWAP_IN)  # slots of the table of the sequence that the row names
        self.must("writer", ~fills | alone)
        self._leased(write, lo, alloc)

    def _filled(self, which: npt.NDArray[np.bool_]) -> IntArray:
        """`fill` of these rows; 0 where it is beyond the size of a block."""
        fill = self._picked["fill"][which].astype(np.int64)
        return np.where(fill <= self.block_size, fill, 0)

    def _leased(self, write: npt.NDArray[np.bool_], lo: IntArray, alloc: npt.NDArray[np.bool_]) -> None:
        """No write into slots that a lease covers."""
        runs, states, chunk = self.runs, self.states, self.chunk
        states.lent |= bool(chunk.present[Kind.LEASE])
        if not states.lent:
            return
        reach = np.zeros(len(self.rows), dtype=np.int64)
        if chunk.present[Kind.LEASE]:
            taken = np.flatnonzero(self.is_(Kind.LEASE))
            at, values = chunk.detail_at(Kind.LEASE, self.rows[taken]), chunk.detail(Kind.LEASE)[1].values
            ends = values[at, 1] if len(values) else np.zeros(len(taken), dtype=np.int64)
            reach[taken] = np.minimum(np.where(at >= 0, ends, self.block_size), self.block_size)
        leased = runs.greatest(reach, alloc, states.leased)
        self.must("lease", ~write | (self.leases == 0) | (lo >= leased))
        runs.keep(leased, states.leased)

    def publication(self, *, ordered: bool) -> None:
        """A hit finds what was published, at the same place, behind the same prefix, and its writes committed."""
        runs, states, chunk = self.runs, self.states, self.chunk
        said = _UNBOUND.take(self.kind)
        np.copyto(said, self.kept.bound, where=self.kept.bound >= 0)
        unbound = runs.filled(said, said >= 0, states.unbound)
        hit, published = self.is_(Kind.HIT), self.is_(Kind.PUBLISH)
        self.must("hit before its writes", ~hit | (unbound == 0) if ordered else np.ones(len(hit), dtype=np.bool_))
        runs.keep(unbound, states.unbound)
        if not (chunk.present[Kind.HIT] or chunk.present[Kind.PUBLISH]):
            return
        words = np.zeros((len(hit), 4), dtype=np.int64)
        known = np.zeros(len(hit), dtype=np.bool_)
        for kind, of_kind in ((Kind.PUBLISH, published), (Kind.HIT, hit)):
            if chunk.present[kind]:
                place = np.flatnonzero(of_kind)
                said_at = chunk.detail_at(kind, self.rows[place])
                whole = said_at >= 0
                known[place] = whole
                words[place[whole]] = chunk.detail(kind)[1].values[said_at[whole]]
        at = runs.last(published)
        hits = np.flatnonzero(hit)
        here, block, lblock = at[hits], runs.keys[hits], self.column("lblock")
        near, source = here >= 0, np.maximum(here, 0)
        as_known = np.where(near, known[source], states.has_words[block])
        as_words = np.where(near[:, None], words[source], states.words[block])
        as_place = np.where(near, lblock[source], states.published_at[block])
        same = (as_known == known[hits]) & (~known[hits] | (as_words == words[hits]).all(axis=1))
        same &= (as_place < 0) | (lblock[hits] < 0) | (as_place == lblock[hits])
        self._suspect("hit content", self.rows[hits[~same]])
        self._behind()
        last = at[runs.ends]
        ids, source = runs.ids[last >= 0], last[last >= 0]
        states.words[ids], states.has_words[ids] = words[source], known[source]
        states.published_at[ids] = lblock[source]

    def _behind(self) -> None:
        """A hit follows the hit on the block before it in its table, or the admission that begins the table."""
        chunk = self.chunk
        hits, detail = chunk.detail(Kind.HIT)
        picked = np.flatnonzero((chunk.lblock[hits] > 0) & (detail.at >= 0))
        if not len(picked):
            return
        rows = hits[picked]
        front, mine = rows - 1, detail.values[detail.at[picked]]
        kind = chunk.kind[front]
        near = (front >= 0) & (chunk.seq_id[front] == chunk.seq_id[rows])
        at_front = detail.at[picked - 1]  # of the hit before: the row in front, if that is one
        follows = (kind == NUMBERS[Kind.HIT]) & (at_front >= 0)
        follows &= chunk.lblock[front] == chunk.lblock[rows] - 1
        follows &= detail.values[at_front, 2] == mine[:, 0]
        self._suspect("hit prefix", rows[~(near & (_ADMITS[kind] | follows))])

    def copies(self) -> None:
        """A copy's source is leased by the row before it, and let go by the row after it has run."""
        runs, states, chunk = self.runs, self.states, self.chunk
        states.copying |= bool(chunk.present[Kind.COW] or chunk.present[Kind.COPY_DONE])
        if not states.copying:
            return
        copy, done = self.is_(Kind.COW), np.flatnonzero(self.is_(Kind.COPY_DONE))
        at = runs.last(copy | self.is_(Kind.ALLOC))
        fields = np.full((len(copy), 3), -1, dtype=np.int64)
        place = np.flatnonzero(copy)
        if len(place):
            said_at = chunk.detail_at(Kind.COW, self.rows[place])
            whole = said_at >= 0
            rows, values = self.rows[place[whole]], chunk.detail(Kind.COW)[1].values[said_at[whole]]
            fields[place[whole]] = values[:, (0, 1, 3)]
            lease = rows - 1
            sound = (lease >= 0) & (chunk.kind[lease] == NUMBERS[Kind.LEASE]) & (chunk.block[lease] == values[:, 0])
            sound &= (chunk.at("gen", lease) == values[:, 1]) & (self.written_of[lease] >= values[:, 3])
            self._suspect("copy source", rows[~sound])
        if len(done):
            here, local = at[done], self.rows[done]
            copied = np.where((here >= 0)[:, None], fields[np.maximum(here, 0)], states.copied[runs.keys[done]])
            after = np.minimum(local + 1, chunk.length - 1)
            sound = (chunk.kind[after] == NUMBERS[Kind.UNLEASE]) & (chunk.block[after] == copied[:, 0])
            sound &= chunk.at("gen", after) == copied[:, 1]
            fill = chunk.at("fill", local)
            sound &= (fill < 0) | (fill >= copied[:, 2])
            self._suspect("copy done", local[~sound])
        last = at[runs.ends]
        states.copied[runs.ids[last >= 0]] = fields[last[last >= 0]]

    def fences(self, used: IntArray, completed: IntArray) -> None:
        """A block is handed out, or leaves quarantine, when the last step that used it has completed.

        Args:
            used: per chunk row, for a RELEASE 1 + the step that used the entry, else 0. completed: per chunk row, steps
                that have ended.
        """
        runs, states, present = self.runs, self.states, self.chunk.present
        if not (present[Kind.RELEASE] or present[Kind.ALLOC] or present[Kind.SETTLE]):
            return
        last_use = runs.greatest(used[self.rows], np.zeros(len(self.rows), dtype=np.bool_), states.last_use) - 1
        done = completed[self.rows] - 1
        early = (self.is_(Kind.ALLOC) & (last_use > done)) | (self.is_(Kind.SETTLE) & (last_use > done + 1))
        moved = self.is_(Kind.RELEASE) & (self.column("reason") == _RESIZED)
        early |= moved & (used[self.rows] - 1 > done)
        self.must("fence", ~early)
        runs.keep(last_use + 1, states.last_use)

    def counts(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]:
        """The state of each row's block before and after it."""
        code = np.minimum(self.entries, 2) * 8 + (self.leases > 0) * 4 + (self.place == QUARANTINED) * 2
        state = _STATE.take(code + (self.published == 1))
        before = self.runs.before(state, self.states.state)
        self.runs.keep(state, self.states.state)
        return before, state


def _states() -> npt.NDArray[np.int8]:
    """The state of a block by: entries (two at most), whether there are leases, quarantined, published."""
    out = np.empty((3, 2, 2, 2), dtype=np.int8)
    out[0, 0, 0] = BlockState.FREE, BlockState.CACHED
    out[0, 0, 1], out[0, 1], out[1], out[2] = (
        BlockState.QUARANTINED, BlockState.IN_TRANSIT, BlockState.PRIVATE, BlockState.SHARED,
    )  # fmt: skip
    return out.ravel()


_STATE = _states()
