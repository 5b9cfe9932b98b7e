"""Sequences that decode side by side: one more token each per step, kept as arrays instead of row by row.

All rows of a lane advance together, so what a step changes is a few vectors: `slots` goes up by one, and every
`block_size`-th time, at the turn of its own, a row gets a fresh block. A row (`SequenceTable`) in a lane is behind:

    known to the row at once      blocks, gens (and so its digest), hashes, published
    known to the lane first       tokens since `since[at]`, issued, computed       until `catch_up` or `leave`

Whoever changes a row lets it leave its lane first (`SequenceTable.step_out`); then the lane is not `intact` any more,
and the next batch makes a new one. Whoever only reads tokens, issued or computed lets it catch up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvscope.engine.batch import Decodes
from kvscope.engine.block_arrays import ENTRY, FILL_MASK, STATE, BlockState
from kvscope.engine.free_list import IntArray
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import SequenceTable
from kvscope.traces.schema import Kind, Reason, digest_words
from kvscope.traces.sheet import Sheet

LEAST = 7  # sequences from here on are cheaper as arrays
_KEPT = 64  # steps after which every row catches up, so that no more tokens than that are kept here
_NEXT_SLOT = 1 | 1 << 32  # the range (slot, slot + 1), one further
_WRITING = ENTRY | int(BlockState.WRITING) * STATE
_COMMITTED = ENTRY | int(BlockState.COMMITTED) * STATE
_PUBLISHED = ENTRY | int(BlockState.PUBLISHED) * STATE


class Lane:
    """The arrays have one element per row, in the order of the batch.

    blocks, gens, lblocks: the block of the last slot that was issued, its life, and its place in the table.
    slots: that slot. issued, computed: positions, as in `SequenceTable`.
    """

    def __init__(self, rows: list[SequenceTable], pool: BlockPool) -> None:
        self.rows: list[SequenceTable | None] = list(rows)
        self.ids = [row.seq_id for row in rows]
        self.members = frozenset(self.ids)
        self.intact = True
        self.count = 0  # tokens that each row took here
        self._size = size = pool.block_size
        self._pool = pool
        self._since = [0] * len(rows)
        self._tokens: list[Sequence[int]] = []  # of the last steps
        self.seq_ids = np.array(self.ids)
        self.issued = np.array([row.issued for row in rows])
        self.computed = np.array([row.computed for row in rows])
        self.blocks = np.array([row.blocks[-1] for row in rows])
        self.gens = np.array([row.gens[-1] for row in rows])
        self.lblocks = (self.issued - 1) // size
        self.slots = self.issued - 1 - self.lblocks * size
        self._fills = np.maximum(pool.words[self.blocks] & FILL_MASK, self.slots + 1)
        phases = self.issued % size
        order = np.argsort(phases, kind="stable")
        self._turns = np.split(order, np.searchsorted(phases[order], np.arange(1, size)))  # rows by phase
        self._front = np.array([row.first for row in rows]) * size
        if pool.sink is not None:
            self._prepare(rows)
        for at, row in enumerate(rows):
            row.step_out()
            row.lane, row.at = self, at

    def _prepare(self, rows: list[SequenceTable]) -> None:
        """The rows of the trace that each step writes again."""
        self._writes = writes = Sheet.of(Kind.WRITE, Reason.DECODE, len(rows))
        writes.block[:], writes.gen[:], writes.seq_id[:] = self.blocks, self.gens, self.seq_ids
        writes.lblock[:] = self.lblocks
        writes.ref_before[:] = writes.ref_after[:] = 1
        self._commits = Sheet.of(Kind.COMMIT, Reason.NONE, len(rows))
        self._ranges = self.slots * _NEXT_SLOT + (1 << 32)
        self._scheds = scheds = Sheet.of(Kind.SCHED, Reason.NONE, len(rows))
        scheds.seq_id[:], scheds.fill[:] = self.seq_ids, 1
        self._tables = np.array([(row.table_digest(), len(row.blocks)) for row in rows], dtype=np.int64)
        self._entries = sum(len(row.blocks) - row.first for row in rows)
        self._digest = int(self._tables[:, 0].sum())

    @staticmethod
    def admits(rows: list[SequenceTable], pool: BlockPool, *, share: bool) -> bool:
        """Whether these rows can go on as a lane: each behind its last slot, in blocks that no one else holds."""
        size = pool.block_size
        for row in rows:
            row.catch_up()
            issued = row.issued
            if issued != len(row.tokens) or len(row.blocks) != -(-issued // size) or len(row.blocks) <= row.first:
                return False
            if share and row.published < row.computed // size:
                return False
        issued_all = np.array([row.issued for row in rows])
        held = issued_all % size > 0
        blocks = np.array([row.blocks[-1] for row in rows])[held]
        words, fill = pool.words[blocks], issued_all[held] % size
        state = words & ~FILL_MASK
        alone = ((state == _WRITING) | (state == _COMMITTED)) & (words & FILL_MASK >= fill)
        return bool(alone.all()) and not (pool.open_leases and pool.leases[blocks].any())

    # -- one step -------------------------------------------------------------------------------------------------

    @property
    def full(self) -> IntArray:
        """Rows whose last block is full: the next token takes a fresh one."""
        return self._turns[-self.count % self._size]

    def writable(self) -> bool:
        """Whether the last block of every row is still its own, so that a slot behind it may be written in place."""
        pool = self._pool
        words = pool.words[self.blocks]
        words[self.full] = 0
        if int(np.maximum.reduce(words)) >= _PUBLISHED:
            return False
        return not pool.open_leases or not pool.leases[self.blocks].any()

    def append(self, tokens: Sequence[int]) -> Decodes:
        """One more token for each row; there are blocks for those that need one, and the others are `writable`."""
        pool, full = self._pool, self.full
        if len(full):
            self._take(full)
        self.slots += 1
        self.issued += 1
        self.count += 1
        np.maximum(self._fills, self.slots + 1, out=self._fills)
        pool.words[self.blocks] = self._fills | _WRITING
        self._tokens.append(list(tokens))
        if pool.sink is not None:
            writes = self._writes
            self._ranges += _NEXT_SLOT
            writes.aux[:] = self._ranges
            writes.fill[:] = self._fills
            pool.sink.emit_sheet(writes)
        if len(self._tokens) > _KEPT:
            self._all_catch_up()
        return Decodes(self, self.count, self.issued - 1, self.lblocks, self.blocks, self.gens)

    def _take(self, full: IntArray) -> None:
        """A fresh block for these rows. Steps still to end know the arrays as they were: so they are made anew."""
        pool = self._pool
        lblocks = self.lblocks[full] + 1
        blocks = pool.take(len(full), seq_id=self.seq_ids[full], lblock=lblocks, reason=Reason.DECODE)
        gens = pool.gen[blocks]
        self.blocks, self.gens, self.lblocks = self.blocks.copy(), self.gens.copy(), self.lblocks.copy()
        self.blocks[full], self.gens[full], self.lblocks[full] = blocks, gens, lblocks
        self.slots[full], self._fills[full] = -1, 0
        for at, block, gen in zip(full.tolist(), blocks.tolist(), gens.tolist(), strict=True):
            row = self.rows[at]
            assert row is not None
            row.blocks.append(block)
            row.gens.append(gen)
        if pool.sink is not None:
            writes = self._writes
            writes.block[full], writes.gen[full], writes.lblock[full] = blocks, gens, lblocks
            self._ranges[full] = -1
            words = digest_words(blocks.view(np.uint64), gens.astype(np.uint64), lblocks.view(np.uint64))
            self._tables[full, 0] += words.view(np.int64)
            self._tables[full, 1] += 1
            self._entries += len(full)
            self._digest += int(np.add.reduce(words))

    def schedule(self, decodes: Decodes) -> None:
        """Record that a step computes these tokens, each with the digest of the table row that it reads through."""
        sink, scheds = self._pool.sink, self._scheds
        assert sink is not None
        scheds.lblock[:] = decodes.lo
        scheds.aux[:] = self._front | decodes.lo + 1 << 32
        sink.emit_sheet(scheds, self._tables)

    def commit(self, decodes: Decodes) -> bool:
        """The step that computed these tokens has ended: their bytes exist. False, and nothing done, unless all of
        them are where they were written, and nothing has happened to their blocks since.
        """
        pool, blocks = self._pool, self.blocks
        if not self.intact or decodes.nth != self.count:
            return False
        if (pool.words[blocks] != self._fills | _WRITING).any() or (pool.gen[blocks] != self.gens).any():
            return False
        if pool.open_leases and pool.leases[blocks].any():
            return False
        pool.words[blocks] = self._fills | _COMMITTED
        if pool.sink is not None:
            self._commits.become(self._writes)
            pool.sink.emit_sheet(self._commits)
        self.computed[:] = self.issued
        return True

    def finished(self) -> list[SequenceTable]:
        """Rows whose last block is full, and computed, just now; they have caught up."""
        rows = [row for at in self.full.tolist() if (row := self.rows[at]) is not None]
        for row in rows:
            self.catch_up(row)
        return rows

    def digest(self) -> tuple[int, int]:
        """Blocks in the tables of all rows, and the sum of their digests, modulo 2**64."""
        return self._entries, self._digest

    # -- the rows -------------------------------------------------------------------------------------------------

    def catch_up(self, row: SequenceTable) -> None:
        """Tell a row what happened to it."""
        at = row.at
        new = self.count - self._since[at]
        if new:
            row.tokens += [tokens[at] for tokens in self._tokens[-new:]]
            row.issued += new
            self._since[at] = self.count
        row.computed = int(self.computed[at])

    def leave(self, row: SequenceTable) -> None:
        """The row goes on by itself; the others wait for the next lane."""
        self.catch_up(row)
        self.intact = False
        self.rows[row.at] = row.lane = None

    def _all_catch_up(self) -> None:
        for row in self.rows:
            if row is not None:
                self.catch_up(row)
        self._tokens.clear()
