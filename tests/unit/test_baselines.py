"""The baseline allocators by hand: who lies where, what grows, what moves, what is refused, what is wasted."""

from __future__ import annotations

import pytest

from kvscope.engine.baselines import (
    BuddySpace,
    ContiguousSpace,
    Growth,
    Region,
    RegionManager,
    ReservedSpace,
    Space,
    make_space,
)
from kvscope.engine.steps import Scheduled
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.inspector.findings import check
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind


def opened(space: Space, tokens: int) -> Region:
    region = space.open(tokens)
    assert region is not None
    return region


# -- reserved -------------------------------------------------------------------------------------------------------


def test_reserving_takes_the_limit_for_every_sequence() -> None:
    space = ReservedSpace(100, 16, 512)  # 32 blocks each: three fit, four blocks are never used
    regions = [opened(space, tokens) for tokens in (1, 512, 100)]
    assert [(r.start, r.blocks) for r in regions] == [(0, 32), (32, 32), (64, 32)]
    assert space.open(1) is None
    assert (space.free, space.held, space.largest_free()) == (4, 96, 0)
    assert space.grow(regions[0], 512) is Growth.FITS
    space.close(regions[1])
    assert opened(space, 7).start == 32
    assert space.external_fragmentation() == 0.0


def test_reserving_refuses_more_than_its_limit() -> None:
    space = ReservedSpace(100, 16, 512)
    assert not space.could_hold(513)
    assert space.open(513) is None


# -- contiguous -----------------------------------------------------------------------------------------------------


def test_first_fit_takes_the_first_hole_that_is_big_enough() -> None:
    space = ContiguousSpace(16, 1)
    a, b, c, _ = (opened(space, n) for n in (3, 2, 5, 2))
    space.close(a)
    space.close(c)
    assert space.holes() == [(0, 3), (5, 5), (12, 4)]
    assert opened(space, 4).start == 5
    assert opened(space, 3).start == 0
    space.close(b)
    assert space.holes() == [(3, 2), (9, 1), (12, 4)]


def test_holes_that_touch_become_one() -> None:
    space = ContiguousSpace(9, 1)
    a, b, c = (opened(space, 3) for _ in range(3))
    space.close(a)
    space.close(c)
    assert space.holes() == [(0, 3), (6, 3)]
    space.close(b)
    assert space.holes() == [(0, 9)]


def test_external_fragmentation_is_what_the_largest_hole_leaves() -> None:
    space = ContiguousSpace(10, 16)
    regions = [opened(space, 32) for _ in range(5)]
    assert space.external_fragmentation() is None  # nothing is free
    space.close(regions[1])
    space.close(regions[3])
    assert space.external_fragmentation() == 0.5  # two holes of two blocks
    assert space.open(48) is None  # three blocks of the four that are free
    space.close(regions[2])
    assert space.external_fragmentation() == 0.0


def test_growth_goes_in_place_else_moves_else_is_refused() -> None:
    space = ContiguousSpace(8, 4)
    a, b = opened(space, 8), opened(space, 4)  # blocks 0-1 and 2
    assert space.grow(b, 5) is Growth.IN_PLACE
    assert (b.start, b.blocks) == (2, 2)
    assert space.grow(a, 9) is Growth.MOVED  # 4-6; the old place is a hole
    assert (a.start, a.blocks) == (4, 3)
    assert space.holes() == [(0, 2), (7, 1)]
    assert space.grow(b, 9) is Growth.REFUSED  # three blocks are free, but not side by side
    assert (b.start, b.blocks) == (2, 2)
    assert (space.grown, space.moves, space.refused, space.refused_by_holes) == (1, 1, 1, 1)


def test_without_moving_the_neighbour_is_in_the_way() -> None:
    space = ContiguousSpace(8, 4, relocate=False)
    a, b = opened(space, 8), opened(space, 4)
    assert space.grow(a, 9) is Growth.REFUSED
    assert space.refused_by_holes == 1
    space.close(b)
    assert space.grow(a, 9) is Growth.IN_PLACE


# -- buddy ----------------------------------------------------------------------------------------------------------


def test_buddies_split_and_merge() -> None:
    space = BuddySpace(16, 1)
    a, b, c = opened(space, 3), opened(space, 1), opened(space, 5)
    assert [(r.start, r.blocks) for r in (a, b, c)] == [(0, 4), (4, 1), (8, 8)]
    assert space.free == 3
    assert space.largest_free() == 2  # 5, and 6-7
    space.close(b)
    assert space.largest_free() == 4
    space.close(a)
    space.close(c)
    assert space.largest_free() == 16


def test_a_buddy_grows_into_its_upper_half_only() -> None:
    space = BuddySpace(16, 1)
    a, b = opened(space, 2), opened(space, 2)  # 0-1 and 2-3
    assert space.grow(b, 3) is Growth.MOVED  # the buddy of 2-3 is 0-1, below it
    assert (b.start, b.blocks) == (4, 4)
    assert space.grow(a, 4) is Growth.IN_PLACE
    assert (a.start, a.blocks) == (0, 4)
    assert space.grow(b, 8) is Growth.MOVED
    assert (b.start, b.blocks) == (8, 8)


def test_a_pool_that_is_no_power_of_two() -> None:
    space = BuddySpace(13, 16)  # 8 + 4 + 1
    assert [opened(space, n * 16).start for n in (4, 8, 1)] == [8, 0, 12]
    assert space.free == 0
    assert not BuddySpace(13, 16).could_hold(9 * 16)
    assert BuddySpace(13, 16).external_fragmentation() == pytest.approx(1 - 8 / 13)


def test_a_region_is_given_back_once() -> None:
    for name in ("reserved", "contiguous", "buddy"):
        space = make_space(name, 64, 16, 128)
        region = opened(space, 20)
        space.close(region)
        with pytest.raises(FaultyCall, match="given back twice"):
            space.close(region)
        assert space.free == 64


def test_an_unknown_baseline_is_named() -> None:
    with pytest.raises(UsageError, match=r"no allocator 'slab': there are reserved, contiguous, buddy"):
        make_space("slab", 8, 16, 128)


# -- behind the block manager's interface ---------------------------------------------------------------------------


def test_a_refused_call_changes_nothing_and_says_why() -> None:
    manager = RegionManager(ContiguousSpace(4, 4))
    manager.admit(1, list(range(8)))
    manager.admit(2, list(range(4)))
    with pytest.raises(OutOfBlocks, match=r"no region of 2 blocks: 1 free of 4, at most 1 side by side"):
        manager.admit(3, list(range(5)))
    assert manager.sequences() == [1, 2]
    manager.write(1, 0, 8)
    manager.begin_step([Scheduled(1, 0, 8)])
    manager.end_step()
    with pytest.raises(OutOfBlocks):
        manager.append(1, 0)
    assert (manager.length(1), manager.table(1), manager.num_free()) == (8, [0, 1], 1)


def test_calls_in_the_wrong_order_are_refused() -> None:
    manager = RegionManager(ContiguousSpace(8, 4))
    manager.admit(1, [0] * 4)
    for call in (
        lambda: manager.admit(1, [0]),
        lambda: manager.write(1, 1, 4),
        lambda: manager.write(1, 0, 5),
        lambda: manager.free(2),
        manager.end_step,
    ):
        with pytest.raises(FaultyCall):
            call()
    manager.write(1, 0, 4)
    manager.begin_step([Scheduled(1, 0, 4)])
    with pytest.raises(FaultyCall, match="end the step first"):
        manager.free(1)
    with pytest.raises(UsageError, match="cannot share"):
        manager.fork(1, 2)


def test_events_of_a_move_are_a_legal_ledger() -> None:
    sink = MemoryRecorder(num_blocks=8, block_size=4)
    manager = RegionManager(ContiguousSpace(8, 4), sink=sink)
    for seq_id in (1, 2):
        manager.admit(seq_id, [0] * 4)
        manager.write(seq_id, 0, 4)
    manager.begin_step([Scheduled(1, 0, 4), Scheduled(2, 0, 4)])
    manager.end_step()
    manager.append(1, 0)  # block 1 is taken: it moves to 2-3
    assert manager.table(1) == [2, 3]
    (copy,) = manager.drain_copies()
    assert (copy.source, copy.target, copy.slots) == (0, 2, 4)
    manager.begin_step([Scheduled(1, 4, 5)])
    manager.end_step()
    manager.free(1)
    manager.free(2)
    kinds = sink.events["kind"]
    assert (kinds == Kind.ALLOC).sum() == (kinds == Kind.FREE).sum() == 4
    result = check(sink)
    assert result.findings == ()
    assert not result.nothing_to_check
