"""The pool checked against the tables: what must be true between any two operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.leases import LeaseBook
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import SequenceTable
from kvscope.errors import FaultyCall
from kvscope.traces.schema import table_digest, to_signed

_HELD = (BlockState.WRITING, BlockState.COMMITTED, BlockState.PUBLISHED)


def witness(pool: BlockPool, tables: Mapping[int, SequenceTable]) -> tuple[int, ...]:
    """The values of a WITNESS row (schema.DETAIL_FIELDS): the pool's own counters, and a digest of all tables."""
    entries = digest = 0
    others: Iterable[SequenceTable] = tables.values()
    for row in others:
        lane = row.lane
        if lane is not None:
            entries, digest = lane.tally
            others = () if len(lane.rows) == len(tables) else [row for row in others if row.lane is not lane]
            break
    for row in others:
        entries += len(row.blocks) - row.first
        digest += row.digest if row.digested == len(row.blocks) else row.table_digest()
    return (*pool.tally(), entries, to_signed(digest))


def check_integrity(pool: BlockPool, tables: Mapping[int, SequenceTable], leases: LeaseBook | None = None) -> None:
    """Recount everything from the tables and compare.

    Raises:
        FaultyCall: the first disagreement, with the block and both values.
    """
    entries = np.zeros(len(pool.entries), dtype=np.int32)
    for row in tables.values():
        blocks, gens = row.held()
        np.add.at(entries, blocks, 1)
        digest = table_digest(blocks, gens, row.first)
        _require(row.table_digest() == digest, f"sequence {row.seq_id} has digest {digest}, not {row.table_digest()}")
        for block, gen in zip(blocks, gens, strict=True):
            _require(pool.gen[block] == gen, f"sequence {row.seq_id} holds b{block}#{gen}, the pool {pool.name(block)}")
    for block in np.flatnonzero(entries != pool.entries).tolist():
        raise FaultyCall(f"{pool.name(block)} counts {pool.entries[block]} table entries, the tables {entries[block]}")
    if leases is not None:
        held = Counter(block for lease in leases.open() for block in lease.blocks)
        for block in range(pool.num_blocks):
            counted = int(pool.leases[block])
            _require(counted == held[block], f"{pool.name(block)} counts {counted} leases, the book {held[block]}")
    _check_index(pool)
    free = pool.free_list()
    distinct = set(free)
    _require(len(distinct) == len(free), f"the free list holds a block twice: {sorted(free)}")
    for block in range(pool.num_blocks):
        _check_block(pool, block, on_free_list=block in distinct)
    many = (int(np.count_nonzero(pool.entries > 0)), int(np.count_nonzero(pool.entries > 1)))
    _require(many == (pool.num_held, pool.num_shared), f"{many} blocks are held and shared, the pool's counters say "
             f"{(pool.num_held, pool.num_shared)}")  # fmt: skip
    _require(pool.open_leases == int(pool.leases.sum()), f"the pool counts {pool.open_leases} leases")
    total = sum(pool.counts().values())
    _require(total == pool.num_blocks, f"the states add up to {total} blocks of {pool.num_blocks}: {pool.counts()}")


def _check_index(pool: BlockPool) -> None:
    """Whatever is in the index can be found: so is the block in front of it, unless that is the first one."""
    entries = dict(pool.index.items())
    digests = {entry.digest for entry in entries.values()}
    for block, entry in entries.items():
        _require(
            entry.parent in digests or pool.index.is_root(entry.parent),
            f"{pool.name(block)} is in the prefix index, the block in front of it is not",
        )


def _check_block(pool: BlockPool, block: int, *, on_free_list: bool) -> None:
    state = BlockState(int(pool.state[block]))
    entries, leases = int(pool.entries[block]), int(pool.leases[block])
    name = f"{pool.name(block)} is {pool.state_name(block)} with {entries} entries and {leases} leases"
    _require(on_free_list == (state == BlockState.FREE), f"{name}: on the free list is {on_free_list}")
    _require((entries > 0) == (state in _HELD), f"{name}: that cannot be")
    _require((entries == 0 and leases > 0) == (state == BlockState.IN_TRANSIT), f"{name}: that cannot be")
    published = state in (BlockState.PUBLISHED, BlockState.CACHED)
    if state != BlockState.IN_TRANSIT:
        _require(pool.index.holds(block) == published, f"{name}: in the prefix index is {pool.index.holds(block)}")
    _require(0 <= pool.fill[block] <= pool.block_size, f"{name}: fill {pool.fill[block]} of {pool.block_size}")


def _require(ok: object, message: str) -> None:
    if not ok:
        raise FaultyCall(f"integrity: {message}")
