"""Rows of blocks that go back together, of one sequence or of many; and copies that wait for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvscope.engine.block_arrays import BlockArrays
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.copies import CopyQueue
from kvscope.engine.free_list import FreeList
from kvscope.engine.leases import LeaseBook
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import NULL, SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason, table_digest, to_signed

STOP, PREFILL, FORK = Reason.STOP, Reason.PREFILL, Reason.FORK
COUNTS = (1, 6, 7, 8)  # rows from 7 on are done as arrays
SHOWN = ("block", "ref_before", "ref_after", "seq_id", "lblock")


def made(blocks: int = 16) -> tuple[BlockPool, MemoryRecorder]:
    sink = MemoryRecorder(num_blocks=blocks, block_size=4)
    return BlockPool(blocks, 4, sink=sink), sink


def rows(sink: MemoryRecorder, since: int) -> list[tuple[Any, ...]]:
    return [(Kind(event["kind"]).name, *(int(event[name]) for name in SHOWN)) for event in sink.events[since:]]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("holders", [1, 2, 32, 33])
@pytest.mark.parametrize("uneven", [False, True])
def test_a_block_of_each_of_many_sequences_goes_back(count: int, holders: int, uneven: bool) -> None:
    """uneven: one of them has a slot written and one more holder."""
    pool, sink = made()
    seq_ids, lblocks = 50 + 3 * np.arange(count), 20 - np.arange(count)
    blocks = pool.take(count, seq_id=seq_ids, lblock=lblocks, reason=PREFILL)
    assert rows(sink, 0) == [("ALLOC", i, 0, 1, 50 + 3 * i, 20 - i) for i in range(count)]
    for holder in range(1, holders):
        pool.retain_row(blocks, Kind.SHARE, seq_id=holder, lblock=0, reason=FORK)
    refs = [holders] * count
    if uneven:
        pool.write(0, 0, 1, seq_id=50, lblock=20, reason=PREFILL)
        pool.retain(0, Kind.SHARE, seq_id=99, lblock=0, reason=FORK)
        refs[0] += 1
    begin = sink.next_seq
    pool.release_row(blocks, seq_id=seq_ids, lblock=lblocks, reason=STOP)
    told = rows(sink, begin)
    assert [row for row in told if row[0] == "RELEASE"] == [
        ("RELEASE", i, refs[i], refs[i] - 1, 50 + 3 * i, 20 - i) for i in reversed(range(count))
    ]
    assert [row[1] for row in told if row[0] == "FREE"] == [i for i in reversed(range(count)) if refs[i] == 1]
    assert pool.entries[:count].tolist() == [ref - 1 for ref in refs]
    assert pool.num_shared == sum(ref > 2 for ref in refs)
    assert pool.num_held == sum(ref > 1 for ref in refs)


@pytest.mark.parametrize("leased", [False, True])
def test_of_a_row_that_goes_back_what_a_step_reads_waits_and_the_others_are_free(leased: bool) -> None:
    pool, sink = made()
    used = pool.take(3, seq_id=1, lblock=6, reason=PREFILL)
    pool.begin_use(0, frozenset((1,)))
    fresh = pool.take(6, seq_id=1, lblock=0, reason=PREFILL)
    if leased:
        pool.lease(4, 7, 0, 1, reason=Reason.TRANSFER, seq_id=-1)
    begin = sink.next_seq
    pool.release_row(np.concatenate([fresh, used]), seq_id=1, lblock=0, reason=STOP)
    freed = [8, 7, 6, 5, 3] if leased else [8, 7, 6, 5, 4, 3]
    assert [(kind, block) for kind, block, *_ in rows(sink, begin)] == [
        *(("RELEASE", block) for block in (2, 1, 0, 8, 7, 6, 5, 4, 3)), *(("FREE", block) for block in freed),
        *(("QUARANTINE", block) for block in (2, 1, 0)),
    ]  # fmt: skip
    assert pool.tally() == (13 - leased, 0, 0, 0, 3, int(leased))
    assert pool.free_list() == [*range(9, 16), *freed]


def test_each_waiting_copy_is_found_by_the_block_that_it_fills() -> None:
    pool, sink = made()
    queue = CopyQueue(pool, LeaseBook(pool, lambda: 0), sink)
    source = pool.take_one(1, 0, PREFILL)
    for seq_id in (2, 3, 4):
        pool.retain(source, Kind.SHARE, seq_id=seq_id, lblock=0, reason=FORK)
        queue.decide(SequenceTable(seq_id, [5], blocks=[source], gens=[1]), 0, 1)
    found = [queue.into(block) for block in range(5)]
    assert [copy and (copy.source, copy.target, copy.slots) for copy in found] == [
        None, (0, 1, 1), (0, 2, 1), (0, 3, 1), None,
    ]  # fmt: skip
    assert [copy.target for copy in queue.drain()] == [1, 2, 3]
    assert queue.into(2) is None


@pytest.mark.parametrize("singly", [0, 1, 3])
@pytest.mark.parametrize("together", [0, 1, 4])
def test_blocks_come_in_the_order_they_were_freed_wherever_the_ring_begins(singly: int, together: int) -> None:
    """Some are taken one by one, so that more were looked up in advance, and go back into the ring."""
    listed, model = FreeList(4), [0, 1, 2, 3]
    for _ in range(30):
        taken = [listed.pop() for _ in range(singly)]
        taken += listed.pop_many(together if len(listed) >= together else 0).tolist()
        assert taken == model[: len(taken)]
        del model[: len(taken)]
        listed.push_many(np.array(taken[1:], dtype=np.int64))
        model += taken[1:]
        for block in taken[:1]:
            listed.push(block)
            model.append(block)
        assert listed.to_list() == model
        assert len(listed) == listed.count == len(model)


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_a_pool_of_another_size_keeps_what_it_knows(size: int) -> None:
    arrays = BlockArrays(4, 2)
    arrays.leases[0], arrays.gen[3] = 5, 6
    arrays.resize(size)
    assert (len(arrays.words), arrays.leases[0], arrays.gen[3]) == (max(size, 4), 5, 6)
    assert arrays.num_blocks == size
    assert arrays.free_list() == list(range(size))


@pytest.mark.parametrize("lo", range(1, 6))
@pytest.mark.parametrize("hi", range(1, 8))
def test_a_write_begins_where_the_kv_ends_and_ends_where_the_tokens_do(lo: int, hi: int) -> None:
    sink = MemoryRecorder(num_blocks=4, block_size=2)
    manager = BlockManager(4, 2, sink=sink)
    manager.admit(1, [7] * 6)
    manager.write(1, 0, 3)
    begin = sink.next_seq
    if lo == 3 < hi <= 6:
        manager.write(1, lo, hi)
        assert all(row[0] == "WRITE" for row in rows(sink, begin))
    else:
        with pytest.raises(FaultyCall, match=r"its KV ends at 3 and it has 6 tokens"):
            manager.write(1, lo, hi)
        assert [row[0] for row in rows(sink, begin)] == ["REFUSED"]


@pytest.mark.parametrize(("hi", "needed"), [(4, 1), (5, 2), (9, 3), (13, 4)])
@pytest.mark.parametrize("free", range(4))
def test_a_write_takes_a_copy_and_fresh_blocks_or_nothing(hi: int, needed: int, free: int) -> None:
    manager = BlockManager(1 + free, 4)
    manager.admit(1, [7] * 3)
    manager.write(1, 0, 3)
    manager.fork(1, 2)
    manager._tables[2].tokens += [7] * (hi - 3)
    if needed <= free:
        manager.write(2, 3, hi)
        assert manager.num_free() == free - needed
    else:
        with pytest.raises(OutOfBlocks) as refused:
            manager.write(2, 3, hi)
        assert (refused.value.needed, refused.value.available) == (needed, free)
        assert manager.num_free() == free


@pytest.mark.parametrize("first", [0, 1, 3])
@pytest.mark.parametrize("digested", [0, 4, 9, 15])
@pytest.mark.parametrize("added", [0, 1, 7, 8])
def test_a_row_that_is_cut_has_the_digest_of_what_is_left(first: int, digested: int, added: int) -> None:
    for keep in range(first, first + digested + added + 1):
        row = SequenceTable(1, [], first=first, blocks=[NULL] * first, gens=[0] * first)
        for number in range(digested + added):
            row.add(10 + number, 1 + number % 3)
            if number + 1 == digested:
                row.table_digest()
        row.cut(keep)
        blocks, gens = map(list, row.held())
        assert blocks == list(range(10, 10 + keep - first))
        assert row.table_digest() == to_signed(table_digest(blocks, gens, first))
        row.add(99, 5)
        assert row.table_digest() == to_signed(table_digest([*blocks, 99], [*gens, 5], first))
