"""The pool at its edges: none, one, exactly all, one more; and the rows and counters that each leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvscope.engine.block_arrays import MAX_BLOCK_SIZE, MAX_BLOCKS, BlockArrays, BlockState, check_geometry
from kvscope.engine.free_list import numbers
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason, table_digest

STOP, PREFILL = Reason.STOP, Reason.PREFILL
SHOWN = ("block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")
WIDE, FEW = 7, 6  # rows from 7 on are done as arrays


def made(blocks: int = 4, size: int = 4) -> tuple[BlockPool, MemoryRecorder]:
    sink = MemoryRecorder(num_blocks=blocks, block_size=size)
    return BlockPool(blocks, size, sink=sink), sink


def rows(sink: MemoryRecorder, since: int = 0) -> list[tuple[Any, ...]]:
    """(kind, reason, the other columns that tell something) of each event."""
    events = sink.events[since:]
    return [
        (Kind(event["kind"]).name, Reason(event["reason"]).name, *(int(event[name]) for name in SHOWN))
        for event in events
    ]


def held(pool: BlockPool, count: int, seq_id: int = 1, *, written: int = 0) -> list[int]:
    """So many blocks, with so many slots of each written and committed."""
    blocks = pool.take(count, seq_id=seq_id, lblock=0, reason=PREFILL).tolist()
    for lblock, block in enumerate(blocks if written else []):
        pool.write(block, 0, written, seq_id=seq_id, lblock=lblock, reason=PREFILL)
        assert pool.commit(block, int(pool.gen[block]), seq_id=seq_id, lblock=lblock)
    return blocks  # type: ignore[no-any-return]


def published(pool: BlockPool, count: int, seq_id: int = 1) -> list[int]:
    """So many full blocks, one behind the other in the prefix index."""
    blocks, parent = held(pool, count, seq_id, written=pool.block_size), pool.index.root(())
    for number, block in enumerate(blocks):
        tokens = [100 * seq_id + number] * pool.block_size
        digest = pool.index.child(parent, tokens)
        assert pool.publish(block, digest, parent, tokens)
        parent = digest
    return blocks


@pytest.mark.parametrize(("blocks", "size", "ok"), [
    (1, 1, True), (0, 1, False), (1, 0, False), (MAX_BLOCKS, MAX_BLOCK_SIZE, True), (MAX_BLOCKS + 1, 1, False),
    (1, MAX_BLOCK_SIZE + 1, False), (-1, 1, False), (1, -1, False),
])  # fmt: skip
def test_sizes_that_a_pool_can_have(blocks: int, size: int, ok: bool) -> None:
    assert (MAX_BLOCKS, MAX_BLOCK_SIZE) == (16_777_216, 1024)
    if ok:
        check_geometry(blocks, size)
    else:
        with pytest.raises(UsageError):
            check_geometry(blocks, size)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_what_is_there_is_handed_out_and_no_more(count: int) -> None:
    pool, sink = made(4)
    if count > 4:
        with pytest.raises(OutOfBlocks, match=r"need 5 blocks, 4 free of 4 .0 cached are evictable") as refused:
            held(pool, count)
        assert (refused.value.needed, refused.value.available) == (5, 4)
        count = 0
    else:
        assert held(pool, count) == list(range(count))
    assert rows(sink) == [("ALLOC", "PREFILL", i, 1, 0, 1, 0, 1, i, 0) for i in range(count)]
    assert pool.tally() == (4 - count, count, 0, 0, 0, 0)
    assert pool.free_list() == list(range(count, 4))
    assert pool.words.tolist() == [1 << 32 | 1 << 16] * count + [0] * (4 - count)


def test_one_block_at_a_time_until_none_is_left() -> None:
    pool, sink = made(2)
    assert [pool.take_one(1, 5 + i, PREFILL) for i in range(2)] == [0, 1]
    with pytest.raises(OutOfBlocks, match="need 1 blocks, 0 free of 2"):
        pool.take_one(1, 7, PREFILL)
    assert rows(sink) == [("ALLOC", "PREFILL", i, 1, 0, 1, 0, 1, 5 + i, 0) for i in range(2)]
    pool.release(0, 1, 5, STOP)
    assert pool.take_one(2, 0, PREFILL) == 0
    assert rows(sink, 2) == [
        ("RELEASE", "STOP", 0, 1, 1, 0, 0, 1, 5, 0), ("FREE", "STOP", 0, 1, 0, 0, 0, -1, -1, 0),
        ("ALLOC", "PREFILL", 0, 2, 0, 1, 0, 2, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, FEW, WIDE, WIDE + 1])
@pytest.mark.parametrize("fill", [0, 3])
def test_a_table_is_given_back_last_block_first(count: int, fill: int) -> None:
    pool, sink = made(16)
    blocks = np.array(held(pool, count, written=fill))
    begin = sink.next_seq
    pool.release_row(blocks, seq_id=1, lblock=0, reason=STOP)
    told = rows(sink, begin)
    assert [row for row in told if row[0] == "RELEASE"] == [
        ("RELEASE", "STOP", i, 1, 1, 0, fill, 1, i, 0) for i in reversed(range(count))
    ]
    assert [row for row in told if row[0] == "FREE"] == [
        ("FREE", "STOP", i, 1, 0, 0, 0, -1, -1, 0) for i in reversed(range(count))
    ]
    assert len(told) == 2 * count
    assert pool.tally() == (16, 0, 0, 0, 0, 0)
    assert pool.free_list() == [*range(count, 16), *reversed(range(count))]
    assert not pool.words.any()


@pytest.mark.parametrize("count", [1, FEW, WIDE, WIDE + 1])
@pytest.mark.parametrize("holders", [2, 3])
@pytest.mark.parametrize("uneven", [False, True])
def test_shared_blocks_are_counted_up_and_down(count: int, holders: int, uneven: bool) -> None:
    """uneven: one of them has another fill and a lease."""
    pool, sink = made(16)
    blocks = np.array(held(pool, count, written=2))
    extra = 0
    if uneven:
        pool.write(1 if count > 1 else 0, 2, 3, seq_id=1, lblock=0, reason=PREFILL)
        pool.lease(0, 9, 0, 2, reason=Reason.TRANSFER, seq_id=-1)
        extra = 1
    fills = pool.fill[:count].tolist()
    for holder in range(2, holders + 1):
        begin = sink.next_seq
        pool.retain_row(blocks, Kind.SHARE, seq_id=holder, lblock=3, reason=Reason.FORK)
        refs = [holder - 1 + extra * (i == 0) for i in range(count)]
        assert rows(sink, begin) == [
            ("SHARE", "FORK", i, 1, refs[i], refs[i] + 1, fills[i], holder, 3 + i, 0) for i in range(count)
        ]
        assert pool.tally()[:3] == (16 - count, 0, count)
    for holder in range(holders, 1, -1):
        begin = sink.next_seq
        pool.release_row(blocks, seq_id=holder, lblock=3, reason=STOP)
        refs = [holder + extra * (i == 0) for i in range(count)]
        assert rows(sink, begin) == [
            ("RELEASE", "STOP", i, 1, refs[i], refs[i] - 1, fills[i], holder, 3 + i, 0) for i in reversed(range(count))
        ]
        assert pool.tally()[:3] == ((16 - count, 0, count) if holder > 2 else (16 - count, count, 0))
    pool.release_row(blocks, seq_id=1, lblock=0, reason=STOP)
    assert pool.tally() == (16 - extra, 0, 0, 0, 0, extra)
    if uneven:
        assert pool.state[0] == BlockState.IN_TRANSIT
        pool.unlease(0, 9, reason=Reason.TRANSFER, seq_id=-1)
        assert rows(sink)[-2:] == [
            ("UNLEASE", "TRANSFER", 0, 1, 1, 0, fills[0], -1, -1, 9), ("FREE", "TRANSFER", 0, 1, 0, 0, 0, -1, -1, 0),
        ]  # fmt: skip
        assert pool.tally() == (16, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("count", [1, FEW, WIDE, WIDE + 1])
def test_published_blocks_stay_cached_and_are_evicted_from_the_leaf(count: int) -> None:
    pool, sink = made(8, 2)
    blocks = published(pool, count)
    pool.release_row(np.array(blocks), seq_id=1, lblock=0, reason=STOP)
    assert pool.tally() == (8 - count, 0, 0, count, 0, 0)
    assert (pool.num_cached, pool.num_evictable, pool.num_available) == (count, count, 8)
    begin = sink.next_seq
    assert len(held(pool, 9 - count, seq_id=2)) == 9 - count
    assert rows(sink, begin)[:2] == [
        ("EVICT", "CAPACITY", count - 1, 1, 0, 0, 2, -1, -1, 0), ("FREE", "CAPACITY", count - 1, 1, 0, 0, 0, -1, -1, 0),
    ]  # fmt: skip
    assert pool.tally() == (0, 9 - count, 0, count - 1, 0, 0)


@pytest.mark.parametrize("count", [1, FEW, WIDE, WIDE + 1])
def test_what_is_published_is_recorded_with_its_words(count: int) -> None:
    pool, sink = made(16, 2)
    blocks = published(pool, count)
    pool.lease(blocks[0], 3, 0, 2, reason=Reason.TRANSFER, seq_id=-1)
    begin = sink.next_seq
    pool.record_published([(block, 40 + i, i, (i, 7, 8, 9)) for i, block in enumerate(blocks)])
    assert rows(sink, begin) == [
        ("PUBLISH", "NONE", i, 1, 1 + (i == 0), 1 + (i == 0), 2, 40 + i, i, 0) for i in range(count)
    ]
    assert [sink.detail(begin + i) for i in range(count)] == [(i, 7, 8, 9) for i in range(count)]
    pool.record_published([])
    assert sink.next_seq == begin + count


def test_only_full_committed_blocks_of_this_life_are_committed_and_published() -> None:
    pool, sink = made(4, 2)
    block = held(pool, 1)[0]
    root = pool.index.root(())
    digest = pool.index.child(root, [1, 1])
    assert not pool.publish(block, digest, root, [1, 1])
    assert [pool.commit(block, gen, seq_id=1, lblock=0) for gen in (0, 2, 1, 1)] == [False, False, True, True]
    assert pool.publish(block, digest, root, [1, 1])
    assert not pool.commit(block, 1, seq_id=1, lblock=0)
    assert pool.state[block] == BlockState.PUBLISHED
    assert rows(sink, 1) == [("COMMIT", "NONE", 0, 1, 1, 1, 0, 1, 0, 0)] * 2


def test_many_are_committed_as_each_alone_would_be() -> None:
    pool, sink = made(16, 2)
    blocks = np.array([*published(pool, 2), *held(pool, 6, seq_id=2)])
    pool.write(5, 0, 2, seq_id=2, lblock=3, reason=PREFILL)
    pool.lease(6, 1, 0, 1, reason=Reason.TRANSFER, seq_id=-1)
    gens = pool.gen[blocks].copy()
    gens[2], gens[3] = 0, 2
    begin = sink.next_seq
    done = pool.commit_many(blocks, gens, seq_id=10 + blocks, lblock=20 + blocks)
    assert done == [False, False, False, False, True, True, True, True]
    assert rows(sink, begin) == [
        ("COMMIT", "NONE", i, 1, 1 + (i == 6), 1 + (i == 6), 2 * (i == 5), 10 + i, 20 + i, 0) for i in (4, 5, 6, 7)
    ]
    states = [BlockState(state).name for state in pool.state[:8]]
    assert states == ["PUBLISHED"] * 2 + ["WRITING"] * 2 + ["COMMITTED"] * 4


def test_leases_cover_the_most_and_end_once() -> None:
    pool, sink = made(4)
    block = held(pool, 1, written=3)[0]
    begin = sink.next_seq
    for lease_id, hi in ((5, 3), (6, 1)):
        pool.lease(block, lease_id, 0, hi, reason=Reason.TRANSFER, seq_id=2, deadline=None if lease_id == 5 else 70)
    assert (pool.ref(block), pool.open_leases, pool.leased_slots[block]) == (3, 2, 3)
    assert rows(sink, begin) == [
        ("LEASE", "TRANSFER", 0, 1, 1, 2, 3, 2, -1, 5), ("LEASE", "TRANSFER", 0, 1, 2, 3, 3, 2, -1, 6),
    ]  # fmt: skip
    assert [sink.detail(begin + i) for i in range(2)] == [(0, 3, -1), (0, 1, 70)]
    pool.unlease(block, 5, reason=Reason.TRANSFER, seq_id=2)
    assert (pool.ref(block), pool.open_leases, pool.leased_slots[block]) == (2, 1, 3)
    pool.unlease(block, 6, reason=Reason.TRANSFER, seq_id=2)
    assert (pool.ref(block), pool.open_leases, pool.leased_slots[block]) == (1, 0, 0)
    with pytest.raises(FaultyCall, match="lease 6 on block b0#1 ended twice"):
        pool.unlease(block, 6, reason=Reason.TRANSFER, seq_id=2)
    assert rows(sink)[-1] == ("UNLEASE", "TRANSFER", 0, 1, 1, 0, 3, 2, -1, 6)
    pool.release(block, 1, 0, STOP)
    with pytest.raises(FaultyCall, match=r"release of block b0#1 by sequence 1: no table entry .* .state free, ref 0"):
        pool.release(block, 1, 0, STOP)


def test_a_cached_block_under_a_lease_is_neither_cached_nor_free() -> None:
    pool, _ = made(4, 2)
    block = published(pool, 1)[0]
    pool.release(block, 1, 0, STOP)
    pool.lease(block, 1, 0, 2, reason=Reason.LOOKUP, seq_id=-1)
    assert pool.tally() == (3, 0, 0, 0, 0, 1)
    assert not pool.is_evictable(block)
    pool.unlease(block, 1, reason=Reason.LOOKUP, seq_id=-1)
    assert pool.tally() == (3, 0, 0, 1, 0, 0)
    pool.retain(block, Kind.HIT, seq_id=2, lblock=0, reason=Reason.PREFIX_HIT)
    assert pool.tally() == (3, 1, 0, 0, 0, 0)
    assert pool.state[block] == BlockState.PUBLISHED


def test_blocks_of_open_steps_wait_for_the_last_that_uses_them() -> None:
    pool, sink = made(8, 2)
    kept, private = published(pool, 1)[0], held(pool, 1, seq_id=2)[0]
    old = published(pool, 1, seq_id=3)[0]
    pool.begin_use(0, frozenset((1, 2)))
    pool.begin_use(1, frozenset((1,)))
    fresh = held(pool, 1, seq_id=4)[0]
    assert [pool.used_by(block, seq_id) for block, seq_id in ((kept, 1), (private, 2), (old, 3), (fresh, 1))] == [
        1, 0, -1, -1,
    ]  # fmt: skip
    for block, seq_id in ((kept, 1), (private, 2), (old, 3), (fresh, 4)):
        pool.release(block, seq_id, 0, STOP)
    assert pool.tally() == (5, 0, 0, 2, 1, 0)
    assert (pool.num_cached, pool.num_evictable, pool.num_quarantined, pool.num_free) == (2, 1, 1, 5)
    begin = sink.next_seq
    pool.settle(0)
    assert rows(sink, begin) == [("SETTLE", "STOP", private, 1, 0, 0, 0, -1, -1, 0)]
    assert (pool.num_cached, pool.num_evictable, pool.num_quarantined, pool.num_free) == (2, 1, 0, 6)
    pool.settle(1)
    assert (pool.num_cached, pool.num_evictable, pool.users) == (2, 2, [])


def test_a_block_that_was_taken_while_a_step_is_open_is_not_used_by_it() -> None:
    pool, _ = made(4, 2)
    pool.begin_use(0, frozenset((1,)))
    block = pool.take_one(1, 0, PREFILL)
    assert pool.last_use_step[block] == -2
    pool.release(block, 1, 0, STOP)
    assert pool.tally() == (4, 0, 0, 0, 0, 0)


def test_a_block_between_its_holders_leaves_the_index_and_stays_where_it_is() -> None:
    pool, sink = made(4, 2)
    block = published(pool, 1)[0]
    pool.lease(block, 1, 0, 2, reason=Reason.TRANSFER, seq_id=-1)
    pool.release(block, 1, 0, STOP)
    pool.unpublish(block, Reason.EXPIRED)
    assert rows(sink)[-1] == ("UNPUBLISH", "EXPIRED", 0, 1, 1, 1, 2, -1, -1, 0)
    assert pool.state[block] == BlockState.IN_TRANSIT
    pool.unlease(block, 1, reason=Reason.TRANSFER, seq_id=-1)
    assert pool.tally() == (4, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_a_pool_that_changes_its_size_has_free_blocks_in_it(size: int) -> None:
    pool, _ = made(4, 2)
    block = held(pool, 1)[0]
    pool.resize(size)
    assert pool.tally() == (size - 1, 1, 0, 0, 0, 0)
    assert pool.free_list() == list(range(1, size))
    pool.begin_use(0, frozenset((7,)))
    for fresh in held(pool, size - 1, seq_id=2):
        pool.release(fresh, 2, 0, STOP)
    assert pool.tally() == (size - 1, 1, 0, 0, 0, 0)
    assert [int(a[size - 1]) for a in (pool.leases, pool.leased_slots, pool.gen)] == [0, 0, 1]
    assert pool.name(block) == "b0#1"


@pytest.mark.parametrize("size", [4, 5, 6])
def test_a_block_that_is_new_was_used_by_no_step(size: int) -> None:
    arrays = BlockArrays(4, 2)
    arrays.resize(size)
    assert arrays.last_use_step.tolist() == [-1] * size
    assert arrays.lives.tolist() == list(range(size))


@pytest.mark.parametrize(("lo", "count"), [(0, 0), (0, 3), (8190, 2), (8190, 3), (9000, 2)])
def test_numbers_one_behind_the_other(lo: int, count: int) -> None:
    assert numbers(lo, count).tolist() == list(range(lo, lo + count))
    assert numbers(lo, count).dtype == np.int32


@pytest.mark.parametrize("known", [0, 1, 12])
@pytest.mark.parametrize("change", ["cut 0", "cut 3", "cut 11", "cut 12", "add 1", "add 9", "replace 0", "replace 11"])
def test_the_digest_of_a_table_follows_it(known: int, change: str) -> None:
    row = SequenceTable(1, [])
    assert (row.published, row.issued, row.computed, row.first) == (0, 0, 0, 0)
    for i in range(12):
        row.add(i, i % 3)
        if i + 1 == known:
            row.table_digest()
    verb, number = change.split()
    if verb == "cut":
        row.cut(int(number))
    elif verb == "replace":
        row.replace(int(number), 77, 5)
    for i in range(int(number) if verb == "add" else 0):
        row.add(100 + i, 1)
    for _ in range(2):
        assert row.table_digest() == table_digest(row.blocks, row.gens)
    row.add(55, 2)
    assert row.table_digest() == table_digest(row.blocks, row.gens)
