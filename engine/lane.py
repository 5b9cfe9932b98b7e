"""Sequences that decode side by side: one more token each per step, kept as arrays instead of row by row.

All rows of a lane advance together, so what a step changes is a few vectors: every word of the pool goes up by one
slot, and every `block_size`-th time, at the turn of its own, a row gets a fresh block. A row (`SequenceTable`) in a
lane is behind:

    known to the row at once      blocks, gens (and so its digest, but for its cache), hashes, published
    known to the lane first       tokens, issued, computed       until `catch_up` or `leave`

Whoever changes a row lets it leave its lane first (`SequenceTable.step_out`); then the lane is not `intact` until its
next batch, which may be without that row, or with others (`have`). Whoever only reads tokens, issued or computed lets
the row catch up.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from kvscope.engine.batch import Decodes, Places
from kvscope.engine.block_arrays import ENTRY, FILL_MASK, MAX_BLOCK_SIZE, STATE, BlockState
from kvscope.engine.free_list import IntArray
from kvscope.engine.lane_rows import LaneRows
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.prefix_store import HASH
from kvscope.engine.table_matrix import TableMatrix
from kvscope.engine.tables import SequenceTable
from kvscope.engine.token_columns import TokenColumns
from kvscope.traces import compiled

LEAST = 7  # sequences from here on are cheaper as arrays
_NEXT_SLOT = 1 | 1 << 32  # the range (slot, slot + 1), one further
_WRITING = ENTRY | int(BlockState.WRITING) * STATE
_COMMITTED = ENTRY | int(BlockState.COMMITTED) * STATE
_PUBLISHED = ENTRY | int(BlockState.PUBLISHED) * STATE
_LANDED = _COMMITTED - _WRITING
_ONE, _ONE_SLOT = np.array(1), np.array(_NEXT_SLOT)  # numpy is faster with these than with numbers
_HIGH, _FIRST_SLOT = np.array(1 << 32), np.array(_WRITING + 1)
_BEFORE = np.array(-1)  # the range before that of slot 0
_LANDING, _FRESH = np.array(_LANDED), np.array(_WRITING)
_FIRST_NUMBERS = np.arange(MAX_BLOCK_SIZE + 1)
_add = np.add
_HALVES = struct.Struct("<2q")  # of a hash
_STATE = 14  # rows of `Lane._all`


class Lane:
    """The arrays have one element per row, in the order of the batch.

    places: of the last slots that were issued. issued, computed: positions, as in `SequenceTable`. An array that a step
    may still read is never written to, but replaced. `_before`: the blocks in front of the last ones, and `_parents`
    their hashes, but for the `_ragged` rows, whose next block is published by itself.
    """

    def __init__(self, pool: BlockPool, prefixes: PrefixCache) -> None:
        self.rows: dict[int, SequenceTable] = {}  # those that are in it, by id
        self.ids: list[int] = []
        self.members: frozenset[int] = frozenset()
        self.intact = True
        self.count = 0  # tokens that it took
        self._at: dict[int, int] = {}  # where each is
        self._pool, self._prefixes = pool, prefixes
        self._size = pool.block_size
        self._tokens = TokenColumns(pool.block_size)
        self._matrix: TableMatrix | None = None  # once it was asked for
        self._all: IntArray = np.empty((_STATE, 0), dtype=np.int64)

    # -- who is in it ---------------------------------------------------------------------------------------------

    @staticmethod
    def admits(rows: list[SequenceTable], pool: BlockPool, *, share: bool) -> bool:
        """Whether these rows can go on in a lane: each behind its last slot, in blocks that no one else holds."""
        size, last, filled = pool.block_size, [], []
        for row in rows:
            if row.lane is not None:
                row.catch_up()
            issued, blocks = row.issued, row.blocks
            held = len(blocks)
            if issued != len(row.tokens) or held != -(-issued // size) or held <= row.first:
                return False
            if share and row.published < row.computed // size:
                return False
            if issued % size:
                last.append(blocks[-1])
                filled.append(issued % size)
        words = pool.words[last]
        state = words & ~FILL_MASK
        alone = ((state == _WRITING) | (state == _COMMITTED)) & (words & FILL_MASK >= np.array(filled))
        return bool(alone.all()) and not (pool.open_leases and pool.leases[last].any())

    def takes_over(self, ids: list[int], members: frozenset[int]) -> list[int] | None:
        """Which of these sequences are not in it; None if these are most of them."""
        if len(ids) != len(members):
            return None
        new = members - self._at.keys()
        return None if 2 * len(new) > len(ids) else [seq_id for seq_id in ids if seq_id in new] if new else []

    def have(self, ids: list[int], joining: list[SequenceTable]) -> None:
        """These sequences are in it from now on, in this order; `joining` are those that were not, and may (`admits`).

        It costs what changes: rows that stay are moved as arrays, those that leave catch up.
        """
        members = frozenset(ids)
        for seq_id in self._at.keys() - members:
            self.leave(self.rows[seq_id])
        for row in joining:
            row.step_out()
        before = self._all.shape[1]
        facts = array("q", chain.from_iterable(map(self._facts, joining)))
        state: IntArray = np.array(facts, dtype=np.int64).reshape(-1, _STATE).T
        order: IntArray | None = None
        if before:
            where = self._at | {row.seq_id: before + i for i, row in enumerate(joining)}
            order = np.array(list(map(where.__getitem__, ids)))
            self._store()
            state = np.concatenate((self._all, state), axis=1)[:, order]
        self._tokens.have([row.tokens for row in joining], order)
        if self._matrix is not None:
            self._matrix.have([row.blocks for row in joining], order)
        self.ids, self.members, self.intact = ids, members, True
        self._at = dict(zip(ids, range(len(ids)), strict=True))
        for row in joining:
            row.lane = self
            self.rows[row.seq_id] = row
        self._load(np.ascontiguousarray(state))
        self._arrange()

    def _facts(self, row: SequenceTable) -> tuple[int, ...]:
        """What the columns of `_load` are for a row."""
        issued, blocks, recorded = row.issued, row.blocks, self._pool.sink is not None
        last, filled = (issued - 1) // self._size, issued // self._size
        identity, parent, before = 0, (0, 0), -1
        if self._prefixes.share:
            identity = self._prefixes.identity_word(row) if recorded else 0
            if filled > row.first and len(row.hashes) == row.published == filled:
                parent, before = _HALVES.unpack(row.hashes[-1]), blocks[filled - 1]
        return (
            blocks[-1], row.gens[-1] << 32 | blocks[-1], last, issued, row.computed, row.first * self._size,
            row.table_digest() if recorded else 0, len(blocks), row.seq_id, self.count, identity, before, *parent,
        )  # fmt: skip

    def _load(self, state: IntArray) -> None:
        """Take the arrays out of `state`, as `_facts` has put them in."""
        self._all = state
        self.places = Places(state[0].copy(), state[1].copy(), state[2].copy())
        self.issued, self.computed, self._front = state[3], state[4], state[5]
        self._tables = state[6:8].T.copy()
        self.seq_ids, self._identities = state[8], state[10]
        self._since = state[9]  # how many tokens the lane had taken when the row last caught up
        self._before = state[11]
        self._parents = state[12:14].T.copy().reshape(-1).view(HASH)
        self._ragged = set(np.flatnonzero(self._before < 0).tolist()) if self._prefixes.share else set()
        count = state.shape[1]
        self._expected = np.full(count, -1, dtype=np.int64)  # the words that the last commit has left

    def _store(self) -> None:
        """Put the arrays back of which `_load` has made others."""
        state = self._all
        state[0], state[1], state[2] = self.places
        state[3], state[4] = self.issued, self.computed
        if self._pool.sink is not None:
            state[6:8] = self._tables.T
        state[12:14] = self._parents.view("<i8").reshape(-1, 2).T

    def _arrange(self) -> None:
        """What follows from the arrays."""
        pool, size = self._pool, self._size
        slots = (self.issued - _ONE) % size
        self._ranges = slots * _ONE_SLOT + _HIGH
        even = slots + _FIRST_SLOT
        self._words = np.maximum(pool.words[self.places.blocks] & FILL_MASK | _WRITING, even)
        self._fills = self._words.view("<i2")[::4]
        # Slots behind a rollback are filled already: such a row fills none until its next block.
        self._uneven = self.count if self._words.tobytes() == even.tobytes() else self.count + size
        phases = (self.issued - self.count) % size
        order = np.argsort(phases, kind="stable")
        ends = np.searchsorted(phases[order], _FIRST_NUMBERS[1 : size + 1]).tolist()
        self._turns = [order[lo:hi] for lo, hi in zip([0, *ends], ends, strict=False)]
        self._turning: dict[int, list[SequenceTable]] = {}
        if pool.sink is not None:
            most = max(map(len, self._turns))
            self.record = LaneRows(
                pool.sink, self.seq_ids, self.places, self._front, self._tables, most, size, self._identities
            )  # fmt: skip

    # -- one step -------------------------------------------------------------------------------------------------

    @property
    def full(self) -> IntArray:
        """Rows whose last block is full: the next token takes a fresh one."""
        return self._turns[-self.count % self._size]

    def writable(self) -> bool:
        """Whether the last block of every row is still its own, so that a slot behind it may be written in place."""
        pool, blocks = self._pool, self.places.blocks
        words = pool.words[blocks]
        if words.tobytes() != self._expected.tobytes():
            words[self.full] = 0
            if int(np.maximum.reduce(words)) >= _PUBLISHED:
                return False
        return not pool.open_leases or not pool.leases[blocks].any()

    def append(self, tokens: Sequence[int]) -> Decodes:
        """One more token for each row; there are blocks for those that need one, and the others are `writable`."""
        pool, words, ranges = self._pool, self._words, self._ranges
        if self._tokens.full:
            self._all_catch_up()
        self._tokens.add(tokens)
        full = self.full
        if len(full):
            self._take(full)
        self.count += 1
        self.issued = self.issued + _ONE
        _add(ranges, _ONE_SLOT, ranges)
        if self.count > self._uneven:
            _add(words, _ONE, words)
        else:
            np.maximum(words, ranges >> 32 | _WRITING, out=words)
        pool.words[self.places.blocks] = words
        if pool.sink is not None:
            self.record.append(self._fills, ranges)
        return Decodes(self, self.ids, self.members, self.count, self.issued, self.places)

    def _take(self, full: IntArray) -> None:
        """A fresh block for these rows. A step still to end knows the places as they were: then they are made anew."""
        pool = self._pool
        blocks, lives = pool.hand_out(len(full))
        if self.computed is not self.issued:
            self.places = self.places.copy()
        places = self.places
        lblocks = places.lblocks[full]
        _add(lblocks, _ONE, lblocks)
        self._before[full] = places.blocks[full]
        places.blocks[full], places.lives[full], places.lblocks[full] = blocks, lives, lblocks
        self._words[full], self._ranges[full] = _FRESH, _BEFORE
        for row, block, life in zip(self._turned(full), blocks.tolist(), lives.tolist(), strict=True):
            row.blocks.append(block)
            row.gens.append(life >> 32)
        if self._matrix is not None:
            self._matrix.turn(full, lblocks, blocks)
        if pool.sink is not None:
            self.record.turn(full, lives, lblocks)

    def _turned(self, full: IntArray) -> list[SequenceTable]:
        """The rows at these places, which are those of one turn."""
        turn = self.count % self._size
        rows = self._turning.get(turn)
        if rows is None:
            rows = self._turning[turn] = [self.rows[self.ids[at]] for at in full.tolist()]
        return rows

    def commit(self, decodes: Decodes) -> bool:
        """The step that computed these tokens has ended: their bytes exist. False, and nothing done, unless all of
        them are where they were written, and nothing has happened to their blocks since.
        """
        pool, places = self._pool, self.places
        blocks = places.blocks
        if not decodes.latest:
            return False
        words = pool.words[blocks]
        if words.tobytes() != self._words.tobytes() or pool.lives[blocks].tobytes() != places.lives.tobytes():
            return False
        if pool.open_leases and pool.leases[blocks].any():
            return False
        _add(words, _LANDING, words)
        pool.words[blocks] = words
        self._expected = words
        self.computed = self.issued
        return True

    def record_commit(self) -> None:
        """Record what `commit` has done, if `publish` is not called with it next."""
        if self._pool.sink is not None:
            self.record.commit(self._fills)

    def publish(self, *, committed: bool = False) -> None:
        """Enter those blocks in the prefix index that are full, and computed, just now.

        Args:
            committed: `record_commit` was called; else it is recorded now.
        """
        full = self.full
        turned = self._prefixes.share and len(full) > 0
        content = self._tokens.last(full) if turned and self._ragged.isdisjoint(full.tolist()) else None
        if content is not None:
            blocks, parents = self.places.blocks[full], self._parents[full]
            entered = self._prefixes.publish_alike(self._before[full], blocks, parents, content)
            if entered is not None:
                self._expected[full] = self._pool.words[blocks]
                self._parents[full] = entered.digests
                for row, digest in zip(self._turned(full), entered.hashes, strict=True):
                    row.hashes.append(digest)
                    row.published += 1
                if self._pool.sink is not None:
                    details = self.record.details(full, parents, entered)
                    self.record.publish(full, details, None if committed else self._fills)
                return
        if not committed:
            self.record_commit()
        if turned:
            self._publish_singly(full)

    def _publish_singly(self, full: IntArray) -> None:
        rows = self._turned(full)
        for row in rows:
            self.catch_up(row)
        self._prefixes.publish(*rows)
        self._ragged.difference_update(full.tolist())
        for at, row in zip(full.tolist(), rows, strict=True):
            self._parents[at] = row.hashes[-1]

    def inputs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """[n] the last token of each row, and [n, blocks] their tables; `TableMatrix` says how."""
        if self._matrix is None:
            self._matrix = TableMatrix()
            self._matrix.have([self.rows[seq_id].blocks for seq_id in self.ids], None)
        return self._tokens.newest(), self._matrix.copy(int(self.places.lblocks.max()) + 1)

    # -- the rows -------------------------------------------------------------------------------------------------

    def catch_up(self, row: SequenceTable) -> None:
        """Tell a row what happened to it."""
        at = self._at[row.seq_id]
        new = self.count - int(self._since[at])
        if new:
            row.tokens += self._tokens.of(at, new)
            row.issued += new
            self._since[at] = self.count
        row.computed = int(self.computed[at])

    def leave(self, row: SequenceTable) -> None:
        """The row goes on by itself; the others wait for the next batch."""
        self.catch_up(row)
        self.intact = False
        del self.rows[row.seq_id], self._at[row.seq_id]
        row.lane = None

    def _all_catch_up(self) -> None:
        """Every row at once, so that no more tokens are kept here than there is room for."""
        new = (self.count - self._since).tolist()
        most = max(new)
        for seq_id, count, tokens in zip(self.ids, new, self._tokens.each(most), strict=True):
            row = self.rows[seq_id]
            row.tokens += tokens if count == most else tokens[most - count :]
            row.issued += count
        self._since[:] = self.count
        self._tokens.rewind()


_lanes = compiled.load("engine._lanes", edition=1)
if _lanes is not None:
    compiled.stand_in(Lane, _lanes.methods(Lane, (_WRITING, _PUBLISHED), np.empty, np.dtype(np.int64)))
