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
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kvscope.engine.age_list import AgeList
from kvscope.engine.batch import Decodes
from kvscope.engine.block_arrays import ENTRY, STATE, BlockState
from kvscope.engine.free_list import FreeList, IntArray
from kvscope.engine.lane_move import (
    BEFORE,
    COMMITTED,
    DIGESTS,
    EXPECTED,
    FRONT,
    IDENTITIES,
    LENGTHS,
    PARENTS,
    RANGES,
    SEQ_IDS,
    WHO,
    WORDS,
    WRITING,
    Move,
)
from kvscope.engine.lane_rows import LaneRows
from kvscope.engine.lane_seats import LaneSeats
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import PrefixIndex
from kvscope.engine.prefix_cache import Entered, PrefixCache
from kvscope.engine.prefix_store import HASH
from kvscope.engine.table_matrix import TableMatrix
from kvscope.engine.tables import SequenceTable
from kvscope.engine.token_columns import TokenColumns
from kvscope.traces import compiled
from kvscope.traces.schema import Kind, Reason, life_words
from kvscope.traces.sheet import SheetWriter

LEAST = 7  # sequences from here on are cheaper as arrays
_NEXT_SLOT = 1 | 1 << 32  # the range (slot, slot + 1), one further
_PUBLISHED = ENTRY | int(BlockState.PUBLISHED) * STATE
_ONE, _ONE_SLOT = np.array(1), np.array(_NEXT_SLOT)  # numpy is faster with these than with numbers
_ONE_UP = np.array(1 << 32)
_NO_SLOT = np.array(-1)  # the range before that of slot 0
_LANDING, _FRESH = np.array(COMMITTED - WRITING), np.array(WRITING)
_HALVES = struct.Struct("<2q")  # of a hash
_STEP_END, _WITNESS = int(Kind.STEP_END), int(Kind.WITNESS)
_KINDS = (Kind.ALLOC, Kind.WRITE, Kind.COMMIT, Kind.PUBLISH, Kind.STEP_BEGIN, Kind.SCHED, Kind.STEP_END, Kind.WITNESS)
_add = np.add


class Lane(LaneSeats):
    """What its rows do together, step by step; `lane_seats` says what it knows of them."""

    __slots__ = ()

    @property
    def full(self) -> IntArray:
        """Rows whose last block is full: the next token takes a fresh one."""
        turn = -self.count % self._size
        return self._order[self._bounds[turn] : self._bounds[turn + 1]]

    @property
    def needed(self) -> int:
        """How many blocks the next token takes."""
        turn = -self.count % self._size
        return self._bounds[turn + 1] - self._bounds[turn]

    @property
    def record(self) -> LaneRows:
        """Its rows of the trace, as they are now."""
        record, sink = self._record, self._pool.sink
        if record is None:
            assert sink is not None
            most = max(hi - lo for lo, hi in pairwise(self._bounds))
            record = self._record = LaneRows(sink, self._kept[SEQ_IDS], self._kept[FRONT], most, self._size)
            record.refresh(self.places.lives, self._kept[WHO])
        elif self._stale:
            record.refresh(self.places.lives, self._kept[WHO])
        self._stale = False
        return record

    def writable(self) -> bool:
        """Whether the last block of every row is still its own, so that a slot behind it may be written in place."""
        pool, blocks = self._pool, self.places.blocks
        words = pool.words[blocks]
        if words.tobytes() != self._kept[EXPECTED].tobytes():
            words[self.full] = 0
            if int(np.maximum.reduce(words)) >= _PUBLISHED:
                return False
        return not pool.open_leases or not pool.leases[blocks].any()

    def append(self, tokens: Sequence[int]) -> Decodes:
        """One more token for each row; there are blocks for those that need one, and the others are `writable`."""
        pool = self._pool
        if self._tokens.full:
            self._all_catch_up()
        self._tokens.add(tokens)
        full = self.full
        if len(full):
            self._take(full)
        words, ranges = self._kept[WORDS], self._kept[RANGES]
        self.count += 1
        _add(ranges, _ONE_SLOT, ranges)
        if self.count > self._uneven:
            _add(words, _ONE, words)
        else:  # slots behind a rollback are filled already: such a row fills none until its next block
            np.maximum(words, ranges >> 32 | WRITING, out=words)
        pool.words[self.places.blocks] = words
        if pool.sink is not None:
            self._tell_appended()
        return Decodes(self, self.ids, self.members, self.count, self._base, self.places)

    def _tell_appended(self) -> None:
        """Record the last tokens: blocks that were taken for them, and writes."""
        turn = (1 - self.count) % self._size
        full = self._order[self._bounds[turn] : self._bounds[turn + 1]]
        record = self.record
        if len(full):
            record.turn(full, self.places.lives[full], self._kept[WHO, full])
        record.append(_fills(self._kept[WORDS]), self._kept[RANGES])

    def _take(self, full: IntArray) -> None:
        """A fresh block for these rows. A step still to end knows the places as they were: then they are made anew."""
        pool = self._pool
        blocks, lives = pool.hand_out(len(full))
        if self._landed != self.count:
            self._renew()
        places = self.places
        lblocks = places.lblocks[full]
        _add(lblocks, _ONE, lblocks)
        self._kept[BEFORE, full] = places.blocks[full]
        places.blocks[full], places.lives[full], places.lblocks[full] = blocks, lives, lblocks
        self._kept[WORDS, full], self._kept[RANGES, full] = _FRESH, _NO_SLOT
        seats = self._seats
        for at, block, life in zip(full.tolist(), blocks.tolist(), lives.tolist(), strict=True):
            row = seats[at]
            row.blocks.append(block)
            row.gens.append(life >> 32)
        if self._matrix is not None:
            self._matrix.turn(full, lblocks, blocks)
        if pool.sink is not None:
            self._digest(full, lives, lblocks)
            self._stale = True

    def _renew(self) -> None:
        self._kept = self._kept.copy()
        self._look()

    def _digest(self, full: IntArray, lives: IntArray, lblocks: IntArray) -> None:
        """Count the fresh blocks of these rows in what is recorded of their tables."""
        words = life_words(lives.view(np.uint64), lblocks.view(np.uint64)).view(np.int64)
        self._kept[WHO, full] += _ONE_UP
        self._kept[DIGESTS, full] += words
        self._kept[LENGTHS, full] = lblocks + _ONE
        _add(self._totals, (len(full), words.sum()), self._totals)

    def schedule(self, members: int) -> None:
        """Record that a step of `members` sequences begins, which computes the last token of each row."""
        tables = np.ascontiguousarray(self._kept[DIGESTS : LENGTHS + 1].T)
        self.record.schedule(self._base + self.count, tables, members)

    def commit(self, decodes: Decodes) -> bool:
        """The step that computed these tokens has ended: their bytes exist. False, and nothing done, unless all of
        them are where they were written, and nothing has happened to their blocks since.
        """
        pool, places = self._pool, self.places
        blocks = places.blocks
        if not decodes.latest:
            return False
        words = pool.words[blocks]
        if words.tobytes() != self._kept[WORDS].tobytes() or pool.lives[blocks].tobytes() != places.lives.tobytes():
            return False
        if pool.open_leases and pool.leases[blocks].any():
            return False
        _add(words, _LANDING, words)
        pool.words[blocks] = words
        self._kept[EXPECTED] = words
        self._landed = self.count
        return True

    def record_commit(self) -> None:
        """Record what `commit` has done, if `publish` is not called with it next."""
        if self._pool.sink is not None:
            self.record.commit(_fills(self._kept[WORDS]))

    def publish(self, *, committed: bool = False) -> None:
        """Enter those blocks in the prefix index that are full, and computed, just now.

        Args:
            committed: `record_commit` was called; else it is recorded now.
        """
        full = self.full
        turned = self._prefixes.share and len(full) > 0
        content = self._tokens.last(full) if turned and self._ragged.isdisjoint(full.tolist()) else None
        if content is not None:
            blocks = self.places.blocks[full]
            parents = np.ascontiguousarray(self._kept[PARENTS:, full].T).reshape(-1).view(HASH)
            entered = self._prefixes.publish_alike(self._kept[BEFORE, full], blocks, parents, content)
            if entered is not None:
                self._kept[EXPECTED, full] = self._pool.words[blocks]
                self._kept[PARENTS:, full] = entered.digests.view("<i8").reshape(-1, 2).T
                for at, digest in zip(full.tolist(), entered.hashes, strict=True):
                    self._seats[at].hashes.append(digest)
                    self._seats[at].published += 1
                if self._pool.sink is not None:
                    self._tell_published(self._details(full, parents, entered), committed)
                return
        if not committed:
            self.record_commit()
        if turned:
            self._publish_singly(full)

    def record_end(self, tokens: int, sequences: int) -> bool:
        """Record that a step of so many tokens has ended, and what the pool and the tables count then.

        False, and nothing recorded, if these are the tables of more sequences than its own.
        """
        pool = self._pool
        sink = pool.sink
        if sink is None or sequences != len(self.rows):
            return False
        sink.emit(_STEP_END, aux=tokens)
        sink.detail(sink.emit(_WITNESS), (*pool.tally(), *self.tally))
        return True

    def _tell_published(self, details: IntArray, committed: bool) -> None:
        """Record that the blocks that are full just now are in the index, with what PUBLISH says of each."""
        self.record.publish(self.full, details, None if committed else _fills(self._kept[WORDS]))

    def _details(self, full: IntArray, parents: npt.NDArray[np.void], entered: Entered) -> IntArray:
        """What PUBLISH says of the blocks of these rows."""
        details = np.empty((len(full), 4), dtype=np.int64)
        details[:, 0] = parents.view("<i8")[::2]
        details[:, 1] = entered.tokens.view("<i8")[::2]
        details[:, 2] = entered.digests.view("<i8")[::2]
        details[:, 3] = self._kept[IDENTITIES, full]
        return details

    def _publish_singly(self, full: IntArray) -> None:
        rows = [self._seats[at] for at in full.tolist()]
        for row in rows:
            self.catch_up(row)
        self._prefixes.publish(*rows)
        self._ragged.difference_update(full.tolist())
        for at, row in zip(full.tolist(), rows, strict=True):
            self._kept[PARENTS:, at] = _HALVES.unpack(row.hashes[-1])

    @property
    def tally(self) -> tuple[int, int]:
        """Entries of all its tables, and their digest modulo 2**64, where they are recorded."""
        entries, digest = self._left(self._gone)
        return self._totals.item(0) + entries, self._totals.item(1) + digest

    def inputs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """[n] the last token of each row, and [n, blocks] their tables; `TableMatrix` says how."""
        if self._matrix is None:
            self._matrix = TableMatrix()
            self._matrix.have([row.blocks for row in self._seats], Move([], None))
        return self._tokens.newest(), self._matrix.copy(int(self.places.lblocks.max()) + 1)


def _fills(words: IntArray) -> npt.NDArray[np.int16]:
    return words.view("<i2")[::4]


_lanes = compiled.load("engine._lanes", edition=5)
if _lanes is not None:
    _types = (
        Lane,
        BlockPool,
        FreeList,
        AgeList,
        PrefixCache,
        PrefixIndex,
        SequenceTable,
        TokenColumns,
        TableMatrix,
        Decodes,
        SheetWriter,
    )
    _states = (WRITING, COMMITTED, _PUBLISHED)
    _numbers = (tuple(map(int, _KINDS)), int(Reason.DECODE))
    _numpy = (np.empty, np.dtype(np.int64), np.dtype(np.int32))
    compiled.stand_in(Lane, _lanes.methods(_types, _states, *_numbers, *_numpy))
