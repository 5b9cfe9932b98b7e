"""The block manager under every order of operations: fuzzed like any allocator, and against the simulator."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from kvscope.engine.block_arrays import BlockState
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.machine import machine_for
from kvscope.inspector.fuzz.simulator import Simulator
from kvscope.traces import Kind, MemoryRecorder


def test_machine_finds_nothing_in_our_manager() -> None:
    run_state_machine_as_test(machine_for(EngineAllocator))


def test_machine_finds_nothing_in_the_simulator() -> None:
    run_state_machine_as_test(machine_for(Simulator))


# -- differential ---------------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "append", "append", "append", "fork", "truncate", "free"]),
        st.integers(0, 5),
        st.integers(1, 9),
    ),
    max_size=40,
)


def shape(tables: list[list[int]]) -> list[list[int]]:
    """Tables with blocks numbered by first appearance: equal for allocators that differ only in the ids they choose."""
    number: dict[int, int] = {}
    return [[number.setdefault(block, len(number)) for block in table] for table in tables]


def outcome(allocator: Simulator | EngineAllocator, operation: str, *args: object) -> str:
    try:
        getattr(allocator, operation)(*args)
    except OutOfBlocks as refusal:
        return f"refused: {refusal.needed} of {refusal.available}"
    return "done"


@given(num_blocks=st.integers(1, 6), block_size=st.integers(1, 4), operations=OPERATIONS)
def test_without_prefix_cache_it_is_the_simulator(
    num_blocks: int, block_size: int, operations: list[tuple[str, int, int]]
) -> None:
    """Same refusals, same sharing, same counts, operation by operation."""

    def unshared(*args: int, **options: object) -> BlockManager:
        return BlockManager(*args, share_prefixes=False, **options)  # type: ignore[arg-type]

    ours, model = EngineAllocator(num_blocks, block_size, manager=unshared), Simulator(num_blocks, block_size)
    live: list[int] = []
    for new, (operation, pick, amount) in enumerate(operations):
        if operation != "add" and not live:
            continue
        seq = live[pick % len(live)] if live else -1
        if operation == "add":
            args: tuple[object, ...] = (new, [0] * amount)
        elif operation == "fork":
            args = (seq, new)
        elif operation == "append":
            args = (seq, 0)
        elif operation == "truncate":
            args = (seq, max(1, model.lengths[seq] - amount))
        else:
            args = (seq,)
        result = outcome(model, operation, *args)
        assert outcome(ours, operation, *args) == result, (operation, args)
        if result == "done" and operation in ("add", "fork"):
            live.append(new)
        elif operation == "free":
            live.remove(seq)
        assert shape([ours.table(s) for s in live]) == shape([model.table(s) for s in live])
        assert ours.num_free() == model.num_free()


# -- all or nothing -------------------------------------------------------------------------------------------------


def everything(manager: BlockManager) -> tuple[object, ...]:
    """The whole state of a manager, to the byte and in order; each row and each write by itself."""
    pool = manager.pool
    for row in manager._tables.values():
        row.step_out()
        row.digest, row.digested, row.identity = 0, 0, None  # kept as far as they were asked for
    manager._steps.spell_out()
    arrays = (pool.state, pool.gen, pool.entries, pool.leases, pool.leased_slots, pool.fill, pool.last_use_step)
    return (
        tuple(array.tobytes() for array in arrays),
        (pool.free_list(), list(pool._cached), list(pool._fenced), list(pool._quarantined), pool.completed_step),
        pool.index.items(),
        [(seq, astuple(row)) for seq, row in manager._tables.items()],
        (dict(manager.prefixes._computing), astuple(manager._steps)),
        (list(manager._copies._waiting), manager._leases.state()),
    )


@given(st.permutations(range(5)), st.integers(1, 3), st.lists(st.integers(0, 4), max_size=12))
def test_forks_freed_in_any_order_leave_an_empty_pool(order: list[int], block_size: int, appends: list[int]) -> None:
    manager = EngineAllocator(40, block_size)
    manager.add(0, [1, 2, 3, 4, 5])
    for child in range(1, 5):
        manager.fork(child // 2, child)
    for seq in appends:
        manager.append(seq, seq)
    for seq in order:
        manager.free(seq)
    pool = manager.manager.pool
    assert manager.num_free() == 40
    assert not pool.entries.any()
    assert not pool.leases.any()
    assert sorted([*pool.free_list(), *pool._cached]) == list(range(40))


# -- cases found by these properties --------------------------------------------------------------------------------


def test_rolled_back_position_is_not_published_before_it_is_computed_again() -> None:
    manager = BlockManager(4, 2, hash_key=b"test")
    manager.admit(0, [7, 8])
    manager.write(0, 0, 2)
    manager.begin_step([Scheduled(0, 0, 2)])
    manager.truncate(0, 1)
    manager.append(0, 9)
    manager.end_step()  # the step that wrote token 8; token 9 has been in no step
    assert manager.pool.state[manager.table(0)[0]] != BlockState.PUBLISHED
    manager.begin_step([Scheduled(0, 1, 2)])
    manager.end_step()
    assert manager.probe([7, 9, 1]).cached_tokens == 2
    assert manager.probe([7, 8, 1]).cached_tokens == 0


def test_step_over_an_unknown_sequence_does_not_begin() -> None:
    manager = BlockManager(2, 2, hash_key=b"test")
    manager.admit(0, [1])
    manager.write(0, 0, 1)
    before = everything(manager)
    with pytest.raises(FaultyCall, match="sequence 5"):
        manager.begin_step([Scheduled(0, 0, 1), Scheduled(5, 0, 1)])
    assert everything(manager) == before


def test_blocks_forked_before_they_are_filled_are_copied_with_no_slots() -> None:
    manager = BlockManager(6, 2, hash_key=b"test")
    manager.admit(0, [1, 2, 3, 4, 5])
    manager.write(0, 0, 1)
    manager.begin_step([Scheduled(0, 0, 1)])
    manager.end_step()
    manager.fork(0, 1)
    manager.write(0, 1, 5)
    copies = manager.drain_copies()
    assert [copy.slots for copy in copies] == [1, 0, 0]
    assert manager.pool.fill.min() >= 0


def test_copy_that_another_copy_needs_is_not_cancelled() -> None:
    """A copies its tail, rolls back and is forked; the fork copies A's copy; A goes before any copy has run."""
    manager = BlockManager(6, 2, hash_key=b"test")
    manager.admit(0, [1])
    manager.write(0, 0, 1)
    manager.begin_step([Scheduled(0, 0, 1)])
    manager.end_step()
    manager.fork(0, 1)
    manager.append(1, 2)  # copy of block 0 to 1
    manager.truncate(1, 1)
    manager.fork(1, 2)
    manager.append(2, 3)  # copy of block 1 to 2
    manager.free(1)
    copies = manager.drain_copies()
    assert [(copy.source, copy.target) for copy in copies] == [(0, 1), (1, 2)]
    manager.copies_done(copies)
    assert manager.refcount(0) == 1
    assert manager.num_free() == 4


def test_slot_that_a_waiting_copy_reads_is_not_written() -> None:
    """One sample copies the shared tail; before the copy has run, the other one rolls back into the copied slots."""
    manager = BlockManager(6, 4, hash_key=b"test")
    manager.admit(0, [1, 2])
    manager.write(0, 0, 2)
    manager.begin_step([Scheduled(0, 0, 2)])
    manager.end_step()
    manager.fork(0, 1)
    manager.append(1, 3)
    manager.truncate(0, 1)
    manager.append(0, 4)
    copies = manager.drain_copies()
    assert [(copy.source, copy.target, copy.slots) for copy in copies] == [(0, 1, 2), (0, 2, 1)]
    assert [manager.table(0), manager.table(1)] == [[2], [1]]
    manager.copies_done(copies)
    manager.append(0, 5)
    assert manager.table(0) == [2], "an append behind the copied slots needs no copy"
    assert manager.num_free() == 4


# -- one token for each of many -------------------------------------------------------------------------------------


def sequences_of(manager: BlockManager, lengths: list[int], forks: list[int]) -> list[int]:
    """Admit and compute prompts of these lengths, then fork some of them; the ids."""
    for seq, length in enumerate(lengths):
        manager.admit(seq, [seq + 1] * length)
        manager.write(seq, 0, length)
    manager.begin_step([Scheduled(seq, 0, length) for seq, length in enumerate(lengths)])
    manager.end_step()
    for number, parent in enumerate(forks):
        manager.fork(parent % len(lengths), len(lengths) + number)
    return list(range(len(lengths) + len(forks)))


class Lanes(BlockManager):
    """Every batch is a lane, however small."""

    _least_lane = 1


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    forks=st.lists(st.integers(0, 4), max_size=3),
    block_size=st.integers(1, 4),
    rounds=st.integers(1, 6),
)
def test_many_appends_at_once_are_the_single_ones(
    lengths: list[int], forks: list[int], block_size: int, rounds: int
) -> None:
    """Same state to the byte, and the same rows apart from their order within the operation."""
    views = []
    for together in (True, False):
        sink = MemoryRecorder(num_blocks=200, block_size=block_size, clock=lambda: 0)
        manager = Lanes(200, block_size, sink=sink, hash_key=b"test")
        ids = sequences_of(manager, lengths, forks)
        states = []
        for turn in range(rounds):
            at = [manager.length(seq) for seq in ids]
            if together:
                assert manager.can_append_many(ids)
                manager.append_many(ids, [turn] * len(ids))
            else:
                for seq in ids:
                    manager.append(seq, turn)
            states.append(everything(manager))
            manager.begin_step([Scheduled(seq, lo, lo + 1) for seq, lo in zip(ids, at, strict=True)])
            manager.copies_done(manager.drain_copies())
            manager.end_step()
            manager.check_integrity()
        rows = sink.events.copy()
        rows["site"] = 0
        views.append((states, sorted(rows.tolist())))
    assert views[0] == views[1]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4))
def test_refused_batch_changes_nothing_and_is_recorded(lengths: list[int], block_size: int) -> None:
    blocks = sum(-(-length // block_size) for length in lengths)
    sink = MemoryRecorder(num_blocks=blocks, block_size=block_size)
    manager = BlockManager(blocks, block_size, sink=sink, hash_key=b"test")
    ids = sequences_of(manager, lengths, [])
    while manager.can_append_many(ids):
        manager.append_many(ids, [0] * len(ids))
    before, rows = everything(manager), len(sink.events)
    with pytest.raises(OutOfBlocks):
        manager.append_many(ids, [0] * len(ids))
    assert everything(manager) == before
    assert sink.events["kind"][rows:].tolist() == [Kind.REFUSED]
    with pytest.raises(FaultyCall, match="twice"):
        manager.append_many([ids[0], ids[0]], [0, 0])
    assert everything(manager) == before
