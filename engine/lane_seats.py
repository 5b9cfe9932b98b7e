"""Who is in a lane: rows join and leave it, and are told what happened to them."""

from __future__ import annotations

from bisect import insort
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from kvscope.engine.batch import Places
from kvscope.engine.block_arrays import MAX_BLOCK_SIZE
from kvscope.engine.free_list import IntArray
from kvscope.engine.lane_move import KEPT, WHERE, Joining, Move
from kvscope.engine.lane_rows import LaneRows
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.prefix_store import HASH
from kvscope.engine.table_matrix import TableMatrix
from kvscope.engine.tables import SequenceTable
from kvscope.engine.token_columns import TokenColumns
from kvscope.traces.sheet import stores_rows

if TYPE_CHECKING:
    from kvscope.engine.lane import Lane

_FIRST_NUMBERS = np.arange(MAX_BLOCK_SIZE + 1, dtype=np.uint16)
NEVER = -1
_OTHER = object()
_COMPUTED, _FRONT = KEPT.index("computed"), KEPT.index("front")


class LaneSeats:
    """The arrays have one element per row, in the order of the batch; `lane_move` says which there are.

    places: of the last slots that were issued. A step that is still to end may read it, so `_take` makes it anew then.
    The other arrays are written to, and made anew when the batch changes. `before`: the blocks in front of the last
    ones, and `_parents` their hashes, but for the `_ragged` rows, whose next block is published by itself.
    `_landed`: how many tokens of the lane are computed; until one is, `computed` says how far each row is.
    `_totals`: entries and digest (modulo 2**64) of all tables, once they are recorded.
    """

    __slots__ = (
        "_at", "_base", "_before", "_bounds", "_desk", "_expected", "_fills", "_gone", "_kept", "_landed", "_matrix",
        "_order", "_parents", "_pool", "_prefixes", "_ragged", "_ranges", "_record", "_seats", "_since", "_size",
        "_stale", "_straight", "_tables", "_tokens", "_totals", "_turns", "_uneven", "_where", "_who", "_words",
        "count", "ids", "intact", "members", "places", "rows",
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
        self._where: IntArray = np.empty((len(WHERE), 0), dtype=np.int64)
        self._kept: IntArray = np.empty((len(KEPT), 0), dtype=np.int64)
        self._tables: IntArray = np.empty((0, 2), dtype=np.int64)
        self._parents: npt.NDArray[np.void] = np.empty(0, dtype=HASH)
        self._totals: IntArray = np.zeros(2, dtype=np.int64)
        self._uneven = 0
        self._desk: Any = None  # where the part in C has found the arrays
        # The sink whose rows the part in C stores by itself, None for no sink; another one gets them from Python.
        self._straight: object = pool.sink if pool.sink is None or stores_rows(pool.sink) else _OTHER
        self._landed = NEVER

    # -- who is in it ---------------------------------------------------------------------------------------------

    def takes_over(self, ids: list[int], members: frozenset[int]) -> list[int] | None:
        """Which of these sequences are not in it; None if these are most of them."""
        if len(ids) != len(members):
            return None
        stay = Move(self._gone, None).items(self.ids, ())
        count = len(stay)
        new = ids[count:] if ids[:count] == stay else [seq_id for seq_id in ids if seq_id not in self.rows]
        return None if 2 * len(new) > len(ids) else new

    def have(self, ids: list[int], joining: list[SequenceTable]) -> None:
        """These sequences are in it from now on, in this order; `joining` are those that were not, and may (`admits`).

        It costs what changes: rows that stay are moved as arrays, those that leave catch up.
        """
        members = frozenset(ids)
        for seq_id in self.rows.keys() - members:
            self.leave(self.rows[seq_id])
        for row in joining:
            row.step_out()
        move = Move(self._gone, None)
        stand = move.items(self.ids, [row.seq_id for row in joining])
        if stand != ids:
            at = dict(zip(stand, range(len(stand)), strict=True))
            move = Move(self._gone, np.array([at[seq_id] for seq_id in ids]))
        self._seats = move.items(self._seats, joining)
        self.ids, self.members, self.intact, self._at, self._gone = ids, members, True, None, []
        for row in joining:
            row.lane = cast("Lane", self)
            self.rows[row.seq_id] = row
        self._move(move, joining)
        self._arrange()

    def _move(self, move: Move, joining: list[SequenceTable]) -> None:
        """Move the columns of the rows that stay, and put those of the rows that join in."""
        new = Joining.of(joining, self._pool, self._prefixes, self.count)
        if not (self._landed == self.count and new.landed):
            if self._landed != NEVER:
                self._kept[_COMPUTED] = self._base + self._landed
            self._landed = NEVER
        if not new.even:
            self._uneven = self.count + self._size
        self._where = move.columns(self._where, new.where)
        self._kept = move.columns(self._kept, new.kept)
        self._tables = move.columns(self._tables, new.tables, axis=0)
        parents = move.columns(self._parents.view("<i8").reshape(-1, 2), new.parents, axis=0)
        self._parents = parents.reshape(-1).view(HASH)
        self._tokens.have([row.tokens for row in joining], move)
        if self._matrix is not None:
            self._matrix.have([row.blocks for row in joining], move)

    def _arrange(self) -> None:
        """What follows from the arrays."""
        self.places = Places(*self._where)
        self._base, _, front, _, self._since, _, before, self._words, self._ranges, self._expected, self._who = (
            self._kept
        )
        self._before = before
        self._fills = self._words.view("<i2")[::4]
        self._ragged: set[int] = set()
        if self._prefixes.share and int(before.min()) < 0:
            self._ragged.update(np.flatnonzero(before < 0).tolist())
        phases = (self._base % self._size).astype(np.uint16)
        self._order: IntArray = np.argsort(phases, kind="stable")
        self._bounds: IntArray = np.searchsorted(phases[self._order], _FIRST_NUMBERS[: self._size + 1])
        ends = self._bounds.tolist()
        self._turns = [self._order[lo:hi] for lo, hi in pairwise(ends)]
        self._record: LaneRows | None = None  # once they are asked for
        self._stale = False  # what they have of blocks is not what is in the arrays
        if self._pool.sink is not None:
            self._totals[0] = int(self._tables[:, 1].sum()) - int(front.sum()) // self._size
            self._totals[1] = self._tables[:, 0].sum()

    # -- what they are told -----------------------------------------------------------------------------------------

    def _place(self, row: SequenceTable) -> int:
        if self._at is None:
            self._at = dict(zip(self.ids, range(len(self.ids)), strict=True))
        return self._at[row.seq_id]

    def catch_up(self, row: SequenceTable) -> None:
        """Tell a row what happened to it."""
        at = self._place(row)
        new = self.count - self._since.item(at)
        if new:
            row.tokens += self._tokens.of(at, new)
            row.issued += new
            self._since[at] = self.count
        landed, computed = self._landed, self._kept[_COMPUTED]
        row.computed = computed.item(at) if landed == NEVER else self._base.item(at) + landed

    def leave(self, row: SequenceTable) -> None:
        """The row goes on by itself; the others wait for the next batch."""
        self.catch_up(row)
        self.intact = False
        at = self._place(row)
        insort(self._gone, at)
        self._totals -= self._tables[at, ::-1]
        self._totals[0] += self._kept.item(_FRONT, at) // self._size
        del self.rows[row.seq_id]
        row.lane = None

    def _all_catch_up(self) -> None:
        """Every row at once, so that no more tokens are kept here than there is room for."""
        new = (self.count - self._since).tolist()
        most = max(new)
        for row, count, tokens in zip(self._seats, new, self._tokens.each(most), strict=True):
            row.tokens += tokens if count == most else tokens[most - count :]
            row.issued += count
        self._since[:] = self.count
        self._tokens.rewind()
