"""Who is in a lane changes: what becomes of its columns, and what those are that a sequence brings."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from kvscope.engine.block_arrays import ENTRY, FILL_MASK, STATE, BlockState
from kvscope.engine.free_list import IntArray
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix_cache import PrefixCache
from kvscope.engine.tables import SequenceTable

WRITING = ENTRY | int(BlockState.WRITING) * STATE
COMMITTED = ENTRY | int(BlockState.COMMITTED) * STATE
# What a lane keeps of each row, kind by kind; lanes.c has the same list.
KEPT = (
    "blocks", "lives", "lblocks",  # `Places`
    "base", "computed", "front", "seq_ids", "since", "identities", "before", "words", "ranges", "expected", "who",
    "digests", "lengths",  # of the table
    "parents", "parents_end",  # halves of the hash of the block in front of the last one
)  # fmt: skip
FRONT, SEQ_IDS, SINCE, IDENTITIES, BEFORE, WORDS, RANGES, EXPECTED, WHO, DIGESTS, LENGTHS, PARENTS = range(5, 17)
_HALVES = struct.Struct("<2q")  # of a hash
_ANY = -1  # no word of a pool
_Item = TypeVar("_Item")


class Move(NamedTuple):
    """Which columns leave, rising; and in which order those that stay, and behind them those that join, stand then."""

    gone: list[int]
    order: IntArray | None  # None: as they are

    def columns(self, kept: npt.NDArray[Any], joining: npt.NDArray[Any], axis: int = 1) -> npt.NDArray[Any]:
        """An array [kinds, rows] after the move; with `axis` 0, one [rows, ...]."""
        parts, lo = [], 0
        for at in self.gone:
            parts.append(kept[lo:at] if axis == 0 else kept[:, lo:at])
            lo = at + 1
        parts += [kept[lo:] if axis == 0 else kept[:, lo:], joining]
        together = np.concatenate(parts, axis=axis)
        return np.ascontiguousarray(together if self.order is None else together.take(self.order, axis=axis))

    def change(self, items: list[_Item], joining: Iterable[_Item]) -> None:
        """The same with a list, in place."""
        for at in reversed(self.gone):
            del items[at]
        items += joining
        if self.order is not None:
            items[:] = [items[at] for at in self.order.tolist()]


def facts_of(row: SequenceTable, pool: BlockPool, prefixes: PrefixCache, count: int) -> tuple[int, ...]:
    """What is kept of a row that joins a lane which has taken `count` tokens."""
    issued, blocks, size, recorded = row.issued, row.blocks, pool.block_size, pool.sink is not None
    block, lblock, full = blocks[-1], (issued - 1) // size, issued // size
    slot = issued - lblock * size  # behind the last one
    identity, parent, before = 0, (0, 0), -1
    if prefixes.share:
        identity = prefixes.identity_word(row) if recorded else 0
        if full > row.first and len(row.hashes) == row.published == full:
            parent, before = _HALVES.unpack(row.hashes[-1]), blocks[full - 1]
    word = WRITING | max(pool._words[block] & FILL_MASK, slot)
    return (
        block, row.gens[-1] << 32 | block, lblock,
        issued - count, row.computed, row.first * size, row.seq_id, count, identity, before, word,
        slot - 1 | slot << 32, _ANY, row.seq_id + (lblock << 32),
        row.table_digest() if recorded else 0, len(blocks), *parent,
    )  # fmt: skip


def admits(rows: list[SequenceTable], pool: BlockPool, *, share: bool) -> bool:
    """Whether these rows can go on in a lane: each behind its last slot, in blocks that no one else holds."""
    size, words, leases = pool.block_size, pool._words, pool._leases
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
            word = words[blocks[-1]]
            fill = word & FILL_MASK
            if word - fill not in (WRITING, COMMITTED) or fill < issued % size or leases[blocks[-1]]:
                return False
    return True
