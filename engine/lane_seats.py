"""Who is in a lane: rows join and leave it, and are told what happened to them."""

from __future__ import annotations

from array import array
from bisect import insort
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from kvscope.engine.batch import Places
from kvscope.engine.block_arrays import FILL_MASK
from kvscope.engine.free_list import IntArray
from kvscope.engine.lane_move import BEFORE, DIGESTS, FRONT, KEPT, LENGTHS, RANGES, SINCE, WORDS, Move, facts_of
from kvscope.engine.lane_rows import LaneRows
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.table_matrix import TableMatrix
from kvscope.engine.tables import SequenceTable
from kvscope.engine.token_columns import TokenColumns
from kvscope.traces.schema import to_signed
from kvscope.traces.sheet import stores_rows

if TYPE_CHECKING:
    from kvscope.engine.lane import Lane

NEVER = -1
_OTHER = object()
_BASE, _COMPUTED = KEPT.index("base"), KEPT.index("computed")


class Taken(NamedTuple):
    """What `takes_over` found: the sequences that are not in the lane, and whether `have` has it easy."""

    new: list[int]
    straight: bool


class LaneSeats:
    """`_kept` has a column for each row, in the order of the batch; `lane_move` says what is in it.

    It is made anew when the batch changes, and by `_take` while a step is still to end, which may read `places` and
    `_base`, parts of it; else it is written to. `before`: the blocks in front of the last ones, and `parents` their
    hashes, but for the `_ragged` rows, whose next block is published by itself. `_order` has the rows turn by turn, and
    `_bounds` where in it each turn begins. `_landed`: how many tokens of the lane are computed; until one is,
    `computed` says how far each row is. `_totals`: entries and digest (modulo 2**64) of all tables, where they are
    recorded; those that left since the last batch are in it.
    """

    __slots__ = (
        "_at", "_base", "_bounds", "_desk", "_gone", "_kept", "_landed", "_matrix", "_order", "_pool", "_prefixes",
        "_ragged", "_record", "_seats", "_size", "_stale", "_straight", "_tokens", "_totals", "_uneven", "count", "ids",
        "intact", "members", "places", "rows",
    )  # fmt: skip

    def __init__(self, pool: BlockPool, prefixes: PrefixCache) -> None:
        self.rows: dict[int, SequenceTable] = {}  # those that are in it, by id
        self.ids: list[int] = []
        self.members: frozenset[int] = frozenset()
        self.intact = True
        self.count = 0  # tokens that it took
        self._at: dict[int, int] | None = None  # where each is, once that was asked for
        self._gone: list[int] = []  # where those were that left since the last batch, rising
        self._pool, self._prefixes = pool, prefixes
        self._size = pool.block_size
        self._tokens = TokenColumns(pool.block_size)
        self._matrix: TableMatrix | None = None  # once it was asked for
        self._seats: list[SequenceTable] = []  # the rows in order
        self._kept: IntArray = np.empty((len(KEPT), 0), dtype=np.int64)
        self._totals: IntArray = np.zeros(2, dtype=np.int64)
        self._uneven = 0
        self._desk: Any = None  # where the part in C has found the arrays
        # The sink whose rows the part in C stores by itself, None for no sink; another one is told in Python.
        self._straight: object = pool.sink if pool.sink is None or stores_rows(pool.sink) else _OTHER
        self._landed = NEVER

    # -- who is in it ---------------------------------------------------------------------------------------------

    def takes_over(self, ids: list[int], members: frozenset[int]) -> Taken | None:
        """Which of these sequences are not in it; None if these are most of them."""
        if len(ids) != len(members):
            return None
        stay = self.ids.copy()
        Move(self._gone, None).change(stay, ())
        count = len(stay)
        straight = ids[:count] == stay
        new = ids[count:] if straight else [seq_id for seq_id in ids if seq_id not in self.rows]
        return None if 2 * len(new) > len(ids) else Taken(new, straight)

    def have(
        self, ids: list[int], members: frozenset[int], joining: list[SequenceTable], *, straight: bool = True
    ) -> None:
        """These sequences are in it from now on, in this order; `joining` are those that were not, and may (`admits`).

        It costs what changes: rows that stay are moved as arrays, those that leave catch up.

        Args:
            straight: all that are in it stay, in their order, and those that join come behind them.
        """
        for row in joining:
            row.step_out()
        move = Move(self._gone, None)
        if not straight:
            for seq_id in self.rows.keys() - members:
                self.leave(self.rows[seq_id])
            stand = self.ids.copy()
            move.change(stand, [row.seq_id for row in joining])
            at = dict(zip(stand, range(len(stand)), strict=True))
            move = Move(self._gone, np.array([at[seq_id] for seq_id in ids]))
        move.change(self._seats, joining)
        self.ids, self.members, self.intact, self._at, self._gone = ids, members, True, None, []
        for row in joining:
            row.lane = cast("Lane", self)
            self.rows[row.seq_id] = row
        self._put(move, joining)
        self._look()
        self._arrange()

    def _put(self, move: Move, joining: list[SequenceTable]) -> None:
        """Move what is kept of the rows that stay, and put that of the rows that join in."""
        facts = [facts_of(row, self._pool, self._prefixes, self.count) for row in joining]
        if self._landed != self.count or any(row.computed != row.issued for row in joining):
            if self._landed != NEVER:
                self._kept[_COMPUTED] = self._base + self._landed
            self._landed = NEVER
        entries, digest = self._left(move.gone)
        for of in facts:
            if of[WORDS] & FILL_MASK != of[RANGES] >> 32:
                self._uneven = self.count + self._size
            entries += of[LENGTHS] - of[FRONT] // self._size
            digest += of[DIGESTS]
        self._totals += (entries, to_signed(digest))
        tokens = [row.tokens for row in joining]
        self._move(move, facts, tokens)
        if self._matrix is not None:
            self._matrix.have([row.blocks for row in joining], move)

    def _left(self, gone: list[int]) -> tuple[int, int]:
        """What these rows, which have left, take from `_totals`."""
        if not gone:
            return 0, 0
        of = self._kept[:, gone]
        return int(of[FRONT].sum()) // self._size - int(of[LENGTHS].sum()), -int(of[DIGESTS].sum())

    def _move(self, move: Move, facts: list[tuple[int, ...]], tokens: list[list[int]]) -> None:
        """Move the columns; of each row that joins, the facts and all tokens."""
        new: IntArray = np.array(array("q", chain.from_iterable(facts)), dtype=np.int64).reshape(-1, len(KEPT)).T
        self._kept = move.columns(self._kept, new)
        self._tokens.have(tokens, move)

    def _look(self) -> None:
        """Find the parts of `_kept` that steps are told of."""
        kept = self._kept
        self._base = kept[_BASE]
        self.places = Places(kept[0], kept[1], kept[2])

    def _arrange(self) -> None:
        """What follows from who is in it."""
        before = self._kept[BEFORE]
        self._ragged: set[int] = set(np.flatnonzero(before < 0).tolist()) if self._prefixes.share else set()
        phases = (self._base % self._size).astype(np.uint16)
        self._order: IntArray = phases.argsort(kind="stable")
        self._bounds: list[int] = [0, *np.bincount(phases, minlength=self._size).cumsum().tolist()]
        self._record: LaneRows | None = None  # once they are asked for
        self._stale = False  # what they have of blocks is not what is in the arrays

    # -- what they are told -----------------------------------------------------------------------------------------

    def _place(self, row: SequenceTable) -> int:
        if self._at is None:
            self._at = dict(zip(self.ids, range(len(self.ids)), strict=True))
        return self._at[row.seq_id]

    def catch_up(self, row: SequenceTable) -> None:
        """Tell a row what happened to it."""
        at, kept = self._place(row), self._kept
        new = self.count - kept.item(SINCE, at)
        if new:
            row.tokens += self._tokens.of(at, new)
            row.issued += new
            kept[SINCE, at] = self.count
        landed = self._landed
        row.computed = kept.item(_COMPUTED, at) if landed == NEVER else kept.item(_BASE, at) + landed

    def leave(self, row: SequenceTable) -> None:
        """The row goes on by itself; the others wait for the next batch."""
        self.catch_up(row)
        self.intact = False
        at = self._place(row)
        insort(self._gone, at)
        del self.rows[row.seq_id]
        row.lane = None

    def _all_catch_up(self) -> None:
        """Every row at once, so that no more tokens are kept here than there is room for."""
        new = (self.count - self._kept[SINCE]).tolist()
        most = max(new)
        for row, count, tokens in zip(self._seats, new, self._tokens.each(most), strict=True):
            row.tokens += tokens if count == most else tokens[most - count :]
            row.issued += count
        self._kept[SINCE] = self.count
        self._tokens.rewind()
