"""Which blocks wait for which steps, which copies are called off, and the rows of blocks that are not alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.copies import CopyQueue
from kvscope.engine.free_list import AHEAD, FreeList
from kvscope.engine.leases import LeaseBook
from kvscope.engine.orphans import leaf, withdraw_behind
from kvscope.engine.pool import BlockPool
from kvscope.engine.tables import NULL, SequenceTable
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason

STOP, PREFILL, FORK = Reason.STOP, Reason.PREFILL, Reason.FORK
SHOWN = ("block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")


def made(blocks: int = 16, size: int = 4) -> tuple[BlockPool, MemoryRecorder]:
    sink = MemoryRecorder(num_blocks=blocks, block_size=size)
    return BlockPool(blocks, size, sink=sink), sink


def rows(sink: MemoryRecorder, since: int = 0) -> list[tuple[Any, ...]]:
    """(kind, columns) of each event; a block that is entered in the index is so for no other reason."""
    told = sink.events[since:]
    assert not told["reason"][told["kind"] == Kind.PUBLISH].any()
    return [(Kind(event["kind"]).name, *(int(event[name]) for name in SHOWN)) for event in told]


def filled(pool: BlockPool, count: int, seq_id: int = 1) -> list[int]:
    """So many blocks of a sequence, full and committed."""
    blocks: list[int] = pool.take(count, seq_id=seq_id, lblock=0, reason=PREFILL).tolist()
    for lblock, block in enumerate(blocks):
        pool.write(block, 0, pool.block_size, seq_id=seq_id, lblock=lblock, reason=PREFILL)
        assert pool.commit(block, int(pool.gen[block]), seq_id=seq_id, lblock=lblock)
    return blocks


def kept(pool: BlockPool, count: int, seq_id: int = 1) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """So many blocks that were entered in the prefix index, and what is to be recorded of each."""
    entered, parent = [], pool.index.root(())
    for lblock, block in enumerate(filled(pool, count, seq_id)):
        tokens = [100 * seq_id + lblock] * pool.block_size
        digest = pool.index.child(parent, tokens)
        assert pool.publish(block, digest, parent, tokens)
        entered.append((block, seq_id, lblock, pool.index.words(parent, tokens, digest, 0)))
        parent = digest
    return entered


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("publishes", [False, True])
@pytest.mark.parametrize("settled", [[0, 1, 2], [1, 2], [0, 2], [2], [-1, 1]])
def test_a_block_waits_for_the_last_step_that_uses_it_and_no_longer(publishes: bool, settled: list[int]) -> None:
    pool, sink = made()
    for seq_id in (1, 2, 3):
        kept(pool, 1, seq_id) if publishes else filled(pool, 1, seq_id)
    for step in range(3):  # sequence n is in the steps below n
        pool.begin_use(step, frozenset(range(step + 1, 4)))
    for seq_id in (1, 2, 3):
        pool.release(seq_id - 1, seq_id, 0, STOP)
    assert pool.tally() == (13, 0, 0, 3 * publishes, 3 * (not publishes), 0)
    for step in settled:
        begin = sink.next_seq
        waiting = [block for block in range(3) if not (pool.is_evictable(block) or pool.state[block] == 0)]
        pool.settle(step)
        gone = [block for block in waiting if block <= step]
        assert [row[1] for row in rows(sink, begin)] == ([] if publishes else gone)
        assert [block for block in range(3) if not (pool.is_evictable(block) or pool.state[block] == 0)] == [
            block for block in waiting if block > step
        ]
        assert [number for number, _ in pool.users] == list(range(step + 1, 3))
        assert pool.num_evictable == (step + 1) * publishes


@pytest.mark.parametrize("first", [0, 1])
def test_a_step_that_has_ended_leaves_the_open_one_its_users(first: int) -> None:
    pool, _ = made()
    block = filled(pool, 1)[0]
    pool.begin_use(first, frozenset((1,)))
    pool.begin_use(first + 1, frozenset((1,)))
    pool.settle(first)
    pool.release(block, 1, 0, STOP)
    assert pool.state[block] == BlockState.QUARANTINED
    pool.settle(first + 1)
    assert pool.state[block] == BlockState.FREE


def test_a_block_taken_during_a_step_and_shared_with_one_of_its_sequences_is_not_used_by_it() -> None:
    pool, _ = made()
    pool.begin_use(0, frozenset((1,)))
    block = pool.take_one(2, 0, PREFILL)
    pool.retain(block, Kind.SHARE, seq_id=1, lblock=0, reason=FORK)
    pool.release(block, 2, 0, STOP)
    assert pool.last_use_step[block] == -2
    pool.release(block, 1, 0, STOP)
    assert pool.tally() == (16, 0, 0, 0, 0, 0)


def test_a_committed_block_that_is_written_again_is_no_candidate_for_the_index() -> None:
    pool, _ = made()
    block = pool.take_one(1, 0, PREFILL)
    for lo, hi in ((0, 2), (2, 4)):
        pool.write(block, lo, hi, seq_id=1, lblock=0, reason=PREFILL)
        assert (pool.state[block], pool.fill[block]) == (BlockState.WRITING, hi)
        root = pool.index.root(())
        assert not pool.publish(block, pool.index.child(root, [7] * 4), root, [7] * 4)
        assert pool.commit(block, 1, seq_id=1, lblock=0)
        assert pool.state[block] == BlockState.COMMITTED
    pool.write(block, 1, 2, seq_id=1, lblock=0, reason=PREFILL)
    assert pool.fill[block] == 4  # what lies behind was written before


@pytest.mark.parametrize("taken", [False, True])
def test_what_nobody_holds_is_not_shared(taken: bool) -> None:
    pool, _ = made()
    if taken:
        pool.release(pool.take_one(1, 0, PREFILL), 1, 0, STOP)
    with pytest.raises(FaultyCall, match=rf"block b0#{int(taken)} is free: only a live block can be shared"):
        pool.retain(0, Kind.SHARE, seq_id=2, lblock=0, reason=FORK)
    assert pool.tally() == (16, 0, 0, 0, 0, 0)


def test_a_block_taken_during_a_later_step_is_not_used_by_an_earlier_one() -> None:
    pool, _ = made()
    for step, seq_id in enumerate((1, 2, 1)):
        pool.begin_use(step, frozenset((seq_id,)))
    block = pool.take_one(1, 0, PREFILL)
    pool.users = pool.users[:2]
    assert [pool.used_by(block, seq_id) for seq_id in (1, 2)] == [-1, -1]
    pool.release(block, 1, 0, STOP)
    assert pool.state[block] == BlockState.FREE


def test_a_block_is_entered_in_the_index_once() -> None:
    pool, _ = made()
    block = kept(pool, 1)[0][0]
    root, tokens = pool.index.root(()), [7] * 4
    assert not pool.publish(block, pool.index.child(root, tokens), root, tokens)
    assert pool.index.find(pool.index.child(root, tokens)) is None


@pytest.mark.parametrize("held", [None, 0, 1, 2])
def test_what_stands_behind_an_evicted_block_leaves_the_index_with_it(held: int | None) -> None:
    pool, sink = made()
    pool.index.track()
    kept(pool, 3)
    if held is not None:
        pool.retain(held, Kind.HIT, seq_id=2, lblock=held, reason=Reason.PREFIX_HIT)
    for block in range(3):
        pool.release(block, 1, block, STOP)
    first = 1 if held == 0 else 0
    assert leaf(pool, first) == (2, 0, 1)[held or 0]
    begin = sink.next_seq
    withdraw_behind(pool, first, STOP)
    gone = [block for block in (2, 1) if block > first]
    assert [row[:2] for row in rows(sink, begin)] == [
        row for block in gone
        for row in ([("UNPUBLISH", block)] if block == held else [("EVICT", block), ("FREE", block)])
    ]  # fmt: skip
    assert [pool.index.holds(block) for block in gone] == [False] * len(gone)
    assert all(pool.state[block] == (BlockState.COMMITTED if block == held else BlockState.FREE) for block in gone)


@pytest.mark.parametrize("leases", range(4))
def test_many_are_committed_with_all_of_their_references(leases: int) -> None:
    pool, sink = made()
    blocks = pool.take(3, seq_id=1, lblock=0, reason=PREFILL)
    for lease_id in range(leases):
        pool.lease(1, lease_id, 0, 1, reason=Reason.TRANSFER, seq_id=-1)
    begin = sink.next_seq
    assert pool.commit_many(blocks, pool.gen[blocks], seq_id=blocks, lblock=blocks) == [True] * 3
    refs = [1, 1 + leases, 1]
    assert rows(sink, begin) == [("COMMIT", i, 1, refs[i], refs[i], 0, i, i, 0) for i in range(3)]


@pytest.mark.parametrize("count", [1, 9])
@pytest.mark.parametrize("slots", [15, 16, 255, 1000])
def test_large_blocks_tell_all_of_their_slots(count: int, slots: int) -> None:
    pool, sink = made(16, 1000)
    blocks = pool.take(count, seq_id=1, lblock=0, reason=PREFILL)
    for i in range(count):
        pool.write(i, 0, slots, seq_id=1, lblock=i, reason=PREFILL)
    pool.commit_many(blocks, pool.gen[blocks], seq_id=blocks, lblock=blocks)
    pool.retain_row(blocks, Kind.SHARE, seq_id=2, lblock=0, reason=FORK)
    for seq_id in (1, 2):
        pool.release_row(blocks, seq_id=seq_id, lblock=0, reason=STOP)
    told = rows(sink, count)
    assert {row[5] for row in told if row[0] != "FREE"} == {slots}
    assert len(told) == 6 * count


@pytest.mark.parametrize("blocks", range(1, 12))
def test_blocks_come_back_in_order_however_often_they_go_round(blocks: int) -> None:
    listed, model = FreeList(blocks), list(range(blocks))
    for turn in range(60):
        count = turn * 7 % blocks + 1
        taken = listed.pop_many(count).tolist()
        assert taken == model[:count]
        model = model[count:] + taken[::-1]
        listed.push_many(np.array(taken[::-1]))
        assert listed.to_list() == model


def test_a_pool_without_a_block_says_that_none_is_available() -> None:
    pool, _ = made(1)
    pool.take_one(1, 0, PREFILL)
    with pytest.raises(OutOfBlocks) as refused:
        pool.take_one(1, 1, PREFILL)
    assert (refused.value.needed, refused.value.available) == (1, 0)


@pytest.mark.parametrize("replaced", ["_needs_copy", "_write"])
def test_a_part_of_writing_that_is_replaced_sees_each_write(replaced: str) -> None:
    seen: list[int] = []

    def watched(self: BlockManager, *given: Any) -> Any:
        seen.append(1)
        return getattr(BlockManager, replaced)(self, *given)

    manager = type("Watched", (BlockManager,), {replaced: watched})(8, 4)
    manager.admit(1, [7] * 3)
    manager.write(1, 0, 3)
    manager.fork(1, 2)
    seen.clear()
    manager.append(2, 5)
    assert (seen, manager._plain) == ([1], False)


# -- rows of blocks that are not alike ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 6, 7, 9])
@pytest.mark.parametrize("leased", [None, 0, 5])
def test_entering_the_index_is_recorded_block_by_block(count: int, leased: int | None) -> None:
    pool, sink = made()
    entered = kept(pool, count)
    if leased is not None and leased < count:
        for lease_id in (3, 4):
            pool.lease(leased, lease_id, 0, 4, reason=Reason.TRANSFER, seq_id=-1)
    begin = sink.next_seq
    pool.record_published(entered)
    refs = [3 if block == leased else 1 for block in range(count)]
    assert rows(sink, begin) == [("PUBLISH", i, 1, refs[i], refs[i], 4, 1, i, 0) for i in range(count)]
    assert [sink.detail(begin + i) for i in range(count)] == [tuple(words) for *_, words in entered]


@pytest.mark.parametrize("shared", [None, 0, 4, 8])
@pytest.mark.parametrize("fills", ["none", "some", "all"])
def test_a_row_of_blocks_that_are_not_alike_is_free_in_its_order(shared: int | None, fills: str) -> None:
    pool, sink = made(16)
    blocks = pool.take(9, seq_id=1, lblock=0, reason=PREFILL)
    written = [0 if fills == "none" or (fills == "some" and i % 3) else 4 for i in range(9)]
    for i, hi in enumerate(written):
        if hi:
            pool.write(i, 0, hi, seq_id=1, lblock=i, reason=PREFILL)
    if shared is not None:
        pool.retain(shared, Kind.SHARE, seq_id=2, lblock=0, reason=FORK)
    begin = sink.next_seq
    pool.release_row(blocks, seq_id=1, lblock=0, reason=STOP)
    refs = [1 + (i == shared) for i in range(9)]
    backwards = range(8, -1, -1)
    assert rows(sink, begin) == [
        *(("RELEASE", i, 1, refs[i], refs[i] - 1, written[i], 1, i, 0) for i in backwards),
        *(("FREE", i, 1, 0, 0, 0, -1, -1, 0) for i in backwards if i != shared),
    ]
    assert pool.free_list() == [*range(9, 16), *(i for i in backwards if i != shared)]
    assert pool.tally() == (16 - (shared is not None), shared is not None, 0, 0, 0, 0)


@pytest.mark.parametrize("count", [AHEAD - 1, AHEAD, AHEAD + 1, 2 * AHEAD])
def test_blocks_that_go_back_one_by_one_are_handed_out_in_that_order(count: int) -> None:
    pool, _ = made(2 * AHEAD)
    for block in pool.take(2 * AHEAD, seq_id=1, lblock=0, reason=PREFILL).tolist()[:count]:
        pool.release(block, 1, block, STOP)
        assert len(pool._free.behind) < AHEAD
    assert [pool.take_one(2, i, PREFILL) for i in range(count)] == list(range(count))


# -- copies ---------------------------------------------------------------------------------------------------------


def waiting(blocks: int = 3, first: int = 0) -> tuple[BlockPool, CopyQueue, SequenceTable, MemoryRecorder]:
    """A row whose first entries are gone and whose others all wait for copies of a row that keeps its blocks."""
    pool, sink = made(16)
    queue = CopyQueue(pool, LeaseBook(pool, lambda: 0), sink)
    for lblock in range(blocks):
        pool.take_one(1, lblock, PREFILL)
        pool.retain(lblock, Kind.SHARE, seq_id=2, lblock=first + lblock, reason=FORK)
    row = SequenceTable(
        2, [], first=first, blocks=[NULL] * first + list(range(blocks)), gens=[0] * first + [1] * blocks
    )
    for lblock in range(first, first + blocks):
        queue.decide(row, lblock, 2)
    assert row.blocks[first:] == list(range(blocks, 2 * blocks))
    return pool, queue, row, sink


@pytest.mark.parametrize("keep", range(6))
@pytest.mark.parametrize("first", [0, 1, 2])
def test_copies_into_what_is_given_up_are_called_off_last_first(first: int, keep: int) -> None:
    pool, queue, row, sink = waiting(3, first)
    begin = sink.next_seq
    queue.cancel_row(row, keep)
    gone = [block for block in (2, 1, 0) if first + block >= keep]
    assert [row[:5] for row in rows(sink, begin)] == [("UNLEASE", block, 1, 2, 1) for block in gone]
    assert [(copy.source, copy.target, copy.target_gen, copy.slots) for copy in queue.drain()] == [
        (block, block + 3, 1, 2) for block in range(3) if block not in gone
    ]
    assert pool.open_leases == 3 - len(gone)
    queue.cancel_row(row, keep)  # none waits any more


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_copy_is_called_off_and_no_other(which: int) -> None:
    pool, queue, _, _ = waiting()
    queue.cancel(3 + which, 2)  # another life
    queue.cancel(3 + which, 0)
    pool.retain(3 + which, Kind.SHARE, seq_id=5, lblock=0, reason=FORK)
    queue.cancel(3 + which, 1)  # its block is someone else's, too
    assert pool.open_leases == 3
    pool.release(3 + which, 5, 0, STOP)
    queue.cancel(3 + which, 1)
    assert pool.open_leases == 2
    assert [copy.target for copy in queue.drain()] == [block for block in (3, 4, 5) if block != 3 + which]


@pytest.mark.parametrize("runs", [[0], [1, 2], [0, 1, 2]])
def test_copies_that_have_run_let_their_sources_go(runs: list[int]) -> None:
    pool, queue, _, sink = waiting()
    copies = queue.drain()
    begin = sink.next_seq
    queue.done(copies[i] for i in runs)
    assert rows(sink, begin) == [
        row for i in runs
        for row in (("COPY_DONE", 3 + i, 1, -1, -1, -1, -1, -1, i), ("UNLEASE", i, 1, 2, 1, 0, 2, -1, i))
    ]  # fmt: skip
    assert pool.leases[:3].tolist() == [int(i not in runs) for i in range(3)]
