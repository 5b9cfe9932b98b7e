"""Leases with holders and deadlines, lookups, sliding windows: what they forbid, and what is said of them."""

from __future__ import annotations

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.engine.windows import first_needed
from kvscope.errors import FaultyCall, OutOfBlocks
from kvscope.inspector.biography import biography
from kvscope.inspector.findings import check
from kvscope.traces import Kind, MemoryRecorder, Reason


def manager_with(tokens: list[int], blocks: int = 4, **options: object) -> tuple[BlockManager, MemoryRecorder]:
    """A recorded manager of blocks of 2 slots, sequence 0 computed."""
    sink = MemoryRecorder(num_blocks=blocks, block_size=2)
    manager = BlockManager(blocks, 2, sink=sink, hash_key=b"test", **options)  # type: ignore[arg-type]
    manager.admit(0, tokens)
    manager.write(0, 0, len(tokens))
    step(manager, len(tokens))
    return manager, sink


def step(manager: BlockManager, length: int) -> None:
    manager.begin_step([Scheduled(0, length - 1, length)])
    manager.copies_done(manager.drain_copies())
    manager.end_step()


def test_leased_block_outlives_its_sequence_and_is_nobody_elses() -> None:
    manager, sink = manager_with([1, 2, 3], share_prefixes=False)
    lease = manager.lease([0], holder="offload", slots=(0, 2))
    manager.free(0)
    assert manager.pool.counts()["in_transit"] == 1
    with pytest.raises(OutOfBlocks):
        manager.admit(1, [1] * 8)
    manager.unlease(lease.lease_id)
    manager.admit(1, [1] * 8)
    assert check(sink).findings == ()


def test_expired_lease_is_reclaimed_and_named() -> None:
    manager, sink = manager_with([1, 2, 3])
    lease = manager.lease([0, 1], holder="sender to rank 3", ttl=1)
    for token in range(2):
        assert manager.expire() == []
        manager.append(0, token)
        step(manager, 4 + token)
    assert manager.expire() == [lease]
    assert str(lease) == "lease 0 (transfer) of sender to rank 3, since 0, deadline 1"
    with pytest.raises(FaultyCall) as error:
        manager.unlease(lease.lease_id)
    assert str(error.value) == (
        "lease 0 (transfer) of sender to rank 3, since 0, deadline 1 expired at 2 already; it is ended again at 2"
    )
    ends = sink.events[sink.events["kind"] == Kind.UNLEASE]
    assert ends["reason"].tolist()[-4:] == [Reason.EXPIRED] * 2 + [Reason.BAD_CALL] * 2
    assert [f.code for f in check(sink).findings] == ["KV004", "KV004"], "the faulty end is recorded"
    assert [e.text for e in biography(sink, 0)[0].events][-2].startswith("lease 0 ended (expired)")
    assert {"type": "lease", "lease": 0, "holder": "sender to rank 3"} in sink.facts


def test_deadlines_follow_the_clock_that_is_given() -> None:
    now = [1_000]
    manager, _ = manager_with([1, 2, 3], lease_clock=lambda: now[0])
    lease = manager.lease([0], ttl=500)
    assert (lease.since, lease.deadline) == (1_000, 1_500)
    now[0] = 1_500
    assert manager.expire() == []
    now[0] = 1_501
    assert manager.expire() == [lease]


def test_holders_are_named() -> None:
    manager, _ = manager_with([1, 2, 3])
    manager.fork(0, 5)
    manager.lease([1], holder="swap", seq_id=0, slots=(0, 1))
    assert [str(holder) for holder in manager.holders(1)] == [
        "sequence 0 as its block 1", "sequence 5 as its block 1", "lease 0 (transfer) of swap, since 0, slots [0:1]",
    ]  # fmt: skip


def test_what_was_looked_up_is_still_there_at_admission() -> None:
    manager, sink = manager_with([1, 2, 3, 4], blocks=4)
    manager.free(0)
    match, lease = manager.lookup(7, [1, 2, 3, 4, 5])
    assert lease is not None
    assert match.cached_tokens == 4
    with pytest.raises(OutOfBlocks):
        manager.admit(8, [9] * 8)  # would evict it
    assert manager.admit(7, [1, 2, 3, 4, 5]) == 4
    assert manager.leases() == []
    manager.write(7, 4, 5)
    manager.begin_step([Scheduled(7, 4, 5)])
    manager.end_step()
    assert check(sink).findings == ()


def test_lookup_that_finds_nothing_holds_nothing() -> None:
    manager, _ = manager_with([1, 2, 3])
    assert manager.lookup(7, [5, 6, 7])[1] is None


def test_leased_slots_are_not_written_in_place() -> None:
    manager, _ = manager_with([1, 2, 3], share_prefixes=False)
    manager.lease([1], slots=(0, 2), holder="checkpoint")
    manager.append(0, 4)
    assert [copy.source for copy in manager.drain_copies()] == [1]


def test_copy_ends_with_the_copy_and_once() -> None:
    manager, _ = manager_with([1, 2, 3])
    manager.fork(0, 1)
    manager.append(1, 4)
    copies = manager.drain_copies()
    with pytest.raises(FaultyCall, match="it ends when the copy has run"):
        manager.unlease(copies[0].lease_id)
    manager.copies_done(copies)
    with pytest.raises(FaultyCall, match=r"lease 0 \(copy\) of sequence 1, since 0 was ended at 0 already"):
        manager.copies_done(copies)


def test_window_gives_back_what_no_position_attends_to() -> None:
    assert [first_needed(p, 4) for p in (0, 3, 4, 9)] == [0, 0, 1, 6]
    assert first_needed(9, None) == 0
    manager, sink = manager_with([1, 2, 3, 4, 5], share_prefixes=False)
    assert manager.slide(0, first_needed(5, 3)) == 1
    assert manager.table(0) == [-1, 1, 2]
    assert manager.slide(0, 3) == 0, "nothing new is behind it"
    manager.append(0, 6)
    step(manager, 6)
    gone = sink.events[sink.events["reason"] == Reason.WINDOW]
    assert gone["kind"].tolist() == [Kind.RELEASE, Kind.FREE]
    with pytest.raises(FaultyCall, match="positions below 2 were given back behind its window"):
        manager.truncate(0, 1)
    manager.fork(0, 1)
    assert manager.table(1) == [-1, 1, 2]
    manager.free(0)
    manager.free(1)
    assert manager.num_free() == 4
    assert check(sink).findings == ()


def test_window_of_an_open_step_waits_in_quarantine() -> None:
    manager, _ = manager_with([1, 2, 3, 4, 5], share_prefixes=False)
    manager.append(0, 6)
    manager.begin_step([Scheduled(0, 5, 6)])
    assert manager.slide(0, 4) == 2
    assert manager.pool.counts()["quarantined"] == 2
    manager.end_step()
    assert manager.num_free() == 3


def test_every_faulty_call_is_recorded_before_it_is_refused() -> None:
    manager, sink = manager_with([1, 2, 3])
    faulty = (
        lambda: manager.append(9, 1), lambda: manager.write(0, 0, 2), lambda: manager.fork(9, 10),
        lambda: manager.fork(0, 0), lambda: manager.truncate(0, 9), lambda: manager.free(9), manager.end_step,
        lambda: manager.begin_step([Scheduled(9, 0, 1)]), lambda: manager.admit(0, [1]), lambda: manager.slide(0, 9),
        lambda: manager.append_many([0, 0], [1, 1]), lambda: manager.swap_out(9), lambda: manager.swap_in(0),
    )  # fmt: skip
    for count, call in enumerate(faulty, 1):
        with pytest.raises(FaultyCall):
            call()
        refused = sink.events[sink.events["kind"] == Kind.REFUSED]
        assert refused["reason"].tolist() == [Reason.BAD_CALL] * count
    assert check(sink).findings == ()


def test_what_leaves_quarantine_says_why_it_was_given_back() -> None:
    manager, sink = manager_with([1, 2, 3], share_prefixes=False)
    manager.begin_step([Scheduled(0, 3, 3)])
    manager.free(0, Kind.ABORT, Reason.ABORTED)
    manager.end_step()
    settled = sink.events[sink.events["kind"] == Kind.SETTLE]
    assert settled["reason"].tolist() == [Reason.ABORTED] * 2


@pytest.mark.parametrize("ending", ["unlease", "expire"])
def test_a_copy_does_not_outlive_the_lease_that_alone_held_its_target(ending: str) -> None:
    """The device would fill a block that is free, or someone else's by then; and the source would stay held."""
    manager, sink = manager_with([1, 2, 3])
    manager.fork(0, 1)
    manager.append(1, 9)  # sequence 1 gets a copy of block 1
    target = manager.table(1)[1]
    lease = manager.lease([target], holder="checkpoint", ttl=0)
    manager.free(1)
    assert manager.pool.ref(target) == 1, "held by the lease alone, and still to be filled for it"
    if ending == "unlease":
        manager.unlease(lease.lease_id)
    else:
        manager.expire(now=10)
    assert manager.drain_copies() == []
    manager.free(0)
    assert manager.num_free() == manager.num_blocks
    assert manager.leases() == []
    assert check(sink).findings == ()
