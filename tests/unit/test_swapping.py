"""Swap to the host tier, operation by operation: what is held when, what is copied once, what is refused."""

from __future__ import annotations

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.host_tier import HostTier
from kvscope.engine.steps import Scheduled
from kvscope.errors import FaultyCall, OutOfBlocks, UsageError
from kvscope.inspector.findings import check
from kvscope.inspector.measures import summary
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason


def make(blocks: int = 8, host: int = 8, *, share: bool = True) -> tuple[BlockManager, MemoryRecorder]:
    sink = MemoryRecorder(num_blocks=blocks, block_size=4)
    return BlockManager(blocks, 4, sink=sink, share_prefixes=share, hash_key=b"test", host_blocks=host), sink


def compute(manager: BlockManager, seq_id: int, lo: int, hi: int) -> None:
    manager.write(seq_id, lo, hi)
    manager.begin_step([Scheduled(seq_id, lo, hi)])
    manager.copies_done(manager.drain_copies())
    manager.end_step()


def prompt(manager: BlockManager, seq_id: int, tokens: list[int]) -> None:
    compute(manager, seq_id, manager.admit(seq_id, tokens), len(tokens))


def run(manager: BlockManager) -> list[tuple[bool, tuple[int, ...], tuple[int, ...]]]:
    swaps = manager.drain_swaps()
    manager.swaps_done(swaps)
    manager.check_integrity()
    return [(swap.out, swap.blocks, swap.slots) for swap in swaps]


def test_blocks_are_free_only_when_they_have_been_copied() -> None:
    manager, sink = make(share=False)
    prompt(manager, 1, list(range(10)))
    assert manager.num_free() == 5
    manager.swap_out(1, aux=10)
    assert (manager.num_free(), manager.host_free(), manager.in_flight()) == (5, 5, 1)
    assert manager.pool.counts()["in_transit"] == 3
    swaps = manager.drain_swaps()
    assert manager.num_free() == 5
    manager.swaps_done(swaps)
    assert (manager.num_free(), manager.in_flight(), manager.swapped()) == (8, 0, {1: 3})
    with pytest.raises(FaultyCall, match="holds no table"):
        manager.table(1)
    manager.swap_in(1)
    manager.check_integrity()
    assert (manager.num_free(), manager.host_free()) == (5, 5), "slots are read until the transfer has run"
    assert [out for out, _, _ in run(manager)] == [False]
    assert (manager.length(1), manager.host_free()) == (10, 8)
    manager.append(1, 10)
    manager.begin_step([Scheduled(1, 10, 11)])
    assert manager.drain_copies() == [], "what came back is private: nothing to copy"
    manager.end_step()
    manager.free(1)
    assert check(sink).findings == ()


def test_the_events_say_where_each_block_went() -> None:
    manager, sink = make(share=False)
    prompt(manager, 1, list(range(6)))
    manager.swap_out(1, aux=6)
    first = run(manager)
    manager.swap_in(1)
    second = run(manager)
    rows = [(i, e) for i, e in enumerate(sink.events) if e["kind"] in (Kind.SWAP_OUT, Kind.SWAP_IN)]
    assert [(int(e["kind"]), int(e["block"]), int(e["aux"])) for _, e in rows] == [
        (kind, block, slot)
        for kind, moved in ((Kind.SWAP_OUT, first), (Kind.SWAP_IN, second))
        for block, slot in zip(moved[0][1], moved[0][2], strict=True)
    ]
    assert [int(e["fill"]) for _, e in rows] == [4, 2, 4, 2]
    leases = {int(e["aux"]) for e in sink.events if e["kind"] == Kind.LEASE}
    for i, _ in rows:
        tier, lease = sink.detail(i) or (0, -1)
        assert tier == 1
        assert lease in leases
    measured = summary(sink)
    assert (measured["swapped_out_blocks"], measured["swapped_in_blocks"]) == (2, 2)
    preempt = sink.events[sink.events["kind"] == Kind.PREEMPT][0]
    assert (preempt["reason"], preempt["aux"]) == (Reason.SWAPPED, 6)


def test_a_block_that_stays_findable_is_not_copied_twice() -> None:
    manager, sink = make(blocks=12)
    tokens = list(range(9))
    prompt(manager, 1, tokens)
    prompt(manager, 2, [*tokens[:8], 50])
    assert manager.table(1)[:2] == manager.table(2)[:2]
    assert manager.swap_cost([1, 2]) == 4
    manager.swap_out(1)
    manager.swap_out(2)
    (_, _, slots), (_, moved, _) = run(manager)
    assert len(slots) == 3
    assert len(moved) == 1, "the two common blocks are in host memory already"
    assert manager.host_free() == 4
    assert manager.swapped() == {1: 3, 2: 3}
    manager.swap_in(1)
    assert [len(blocks) for _, blocks, _ in run(manager)] == [1], "the common blocks were still cached on the device"
    manager.forget_swapped(2, Kind.ABORT, Reason.ABORTED)
    assert manager.host_free() == 8
    manager.free(1)
    assert check(sink).findings == ()


def test_what_was_evicted_meanwhile_comes_back_and_is_findable_again() -> None:
    manager, sink = make(blocks=4)
    prompt(manager, 1, list(range(9)))
    manager.swap_out(1)
    run(manager)
    prompt(manager, 2, list(range(100, 115)))  # takes the whole pool
    manager.free(2)
    manager.swap_in(1)
    assert [len(blocks) for _, blocks, _ in run(manager)] == [3]
    assert manager.probe(list(range(9))).cached_tokens == 8
    manager.free(1)
    assert check(sink).findings == ()


def test_blocks_that_moved_age_as_those_did_that_were_there_already() -> None:
    """The common front of two prefixes is not copied the second time; all the same it must not be evicted first."""
    manager, sink = make(blocks=10, host=16)
    common = list(range(8))
    prompt(manager, 1, [*common, 20, 21, 22, 23, 24])
    prompt(manager, 2, [*common, 30, 31, 32, 33, 34])
    for seq_id in (1, 2):
        manager.swap_out(seq_id)
        run(manager)
    for tokens in range(1, 40, 4):  # evict block by block
        manager.admit(9, [99] * tokens)
        manager.check_integrity()
        manager.free(9)
    assert check(sink).findings == ()


def test_abort_at_any_moment() -> None:
    manager, sink = make(share=False)
    for seq_id in range(4):
        prompt(manager, seq_id, list(range(6)))
    manager.swap_out(0)
    manager.forget_swapped(0, Kind.ABORT, Reason.ABORTED)  # decided, not handed out
    assert manager.host_free() == 6, "a transfer still writes its slots"
    swaps = manager.drain_swaps()
    manager.swap_out(1)
    mine = manager.drain_swaps()
    manager.forget_swapped(1, Kind.ABORT, Reason.ABORTED)  # on its way out
    manager.swaps_done([*swaps, *mine])
    assert manager.host_free() == 8
    manager.swap_out(2)
    run(manager)
    manager.forget_swapped(2, Kind.ABORT, Reason.ABORTED)  # in the host tier
    manager.swap_out(3)
    run(manager)
    manager.swap_in(3)
    back = manager.drain_swaps()
    manager.free(3, Kind.ABORT, Reason.ABORTED)  # on its way in
    assert (manager.num_free(), manager.host_free()) == (6, 6)
    manager.swaps_done(back)
    manager.check_integrity()
    assert (manager.num_free(), manager.host_free(), manager.in_flight()) == (8, 8, 0)
    assert check(sink).findings == ()


def test_refusals_change_nothing_and_say_why() -> None:
    manager, sink = make(host=2, share=False)
    prompt(manager, 1, list(range(10)))
    assert manager.swap_cost([1]) == 3
    with pytest.raises(OutOfBlocks, match=r"host tier exhausted: need 3 blocks, 2 free of 2; enlarge the swap space"):
        manager.swap_out(1)
    assert sink.events[-1]["reason"] == Reason.NO_HOST
    manager.write(1, 10, 11) if manager.length(1) < 10 else manager.append(1, 7)
    assert manager.swap_cost([1]) is None
    with pytest.raises(FaultyCall, match="a step still writes its blocks"):
        manager.swap_out(1)
    manager.begin_step([Scheduled(1, 10, 11)])
    with pytest.raises(FaultyCall, match="a step still writes its blocks"):
        manager.swap_out(1)
    manager.end_step()
    with pytest.raises(FaultyCall, match="sequence 9 is not in the host tier"):
        manager.swap_in(9)
    manager.check_integrity()
    manager.free(1)
    manager.admit(2, [1, 2])
    with pytest.raises(FaultyCall, match="it holds nothing yet"):
        manager.swap_out(2)
    assert make(host=0)[0].host_free() == 0


def test_a_parked_sequence_cannot_be_admitted_as_if_it_were_new() -> None:
    manager, _ = make()
    prompt(manager, 1, list(range(5)))
    manager.swap_out(1)
    with pytest.raises(FaultyCall, match="sequence 1 waits in the host tier"):
        manager.admit(1, list(range(5)))


def test_a_swap_cannot_be_done_twice_and_nothing_else_is_then() -> None:
    manager, _ = make(share=False)
    for seq_id in (1, 2):
        prompt(manager, seq_id, list(range(5)))
        manager.swap_out(seq_id)
    first, second = manager.drain_swaps()
    with pytest.raises(FaultyCall, match="the swap of sequence 1 is not under way"):
        manager.swaps_done([second, first, first])
    assert manager.in_flight() == 2
    with pytest.raises(FaultyCall, match="is a swap's: it ends when the swap has run"):
        manager.unlease(first.leases[0])
    manager.swaps_done([second, first])
    manager.check_integrity()


def test_the_tier_counts_what_it_is_told() -> None:
    tier = HostTier(2)
    slot, known = tier.hold(b"a")
    assert (known, tier.hold(b"a"), tier.missing([b"a", None, b"b", b"b"])) == (False, (slot, True), 2)
    tier.drop([slot, slot])
    assert tier.num_free == 2
    with pytest.raises(FaultyCall, match=f"host slot {slot} is given back, but nobody holds it"):
        tier.drop([slot])
    with pytest.raises(UsageError, match="the host tier has -1 blocks"):
        HostTier(-1)


# -- what the check says of a host tier that goes wrong -------------------------------------------------------------


class LeakySlots(BlockManager):
    """Forgets to give the slots of an ended sequence back."""

    def forget_swapped(self, seq_id: int, kind: Kind, reason: Reason, aux: int = 0) -> None:
        self._host.hold_again(self._host.parked[seq_id].slots)
        super().forget_swapped(seq_id, kind, reason, aux)


def found(sink: MemoryRecorder) -> list[tuple[str, str]]:
    return [(finding.code, finding.why) for finding in check(sink).findings]


def test_a_host_slot_that_is_never_given_back_is_found() -> None:
    sink = MemoryRecorder(num_blocks=8, block_size=4)
    manager = LeakySlots(8, 4, sink=sink, host_blocks=8)
    prompt(manager, 1, list(range(6)))
    manager.swap_out(1)
    manager.swaps_done(manager.drain_swaps())
    manager.forget_swapped(1, Kind.ABORT, Reason.ABORTED)
    prompt(manager, 2, [1, 2])
    manager.free(2)
    assert found(sink) == [("KV012", "the host tier counts 2 slots in use, its events make 0")]
    report = check(sink)
    assert report.findings[0].seq_id == -1


def test_a_step_that_reads_a_swapped_sequence_is_found() -> None:
    manager, sink = make(share=False)
    prompt(manager, 1, list(range(6)))
    row = manager._row(1)
    blocks, gens = list(row.blocks), list(row.gens)
    manager.swap_out(1)
    row.blocks, row.gens = blocks, gens
    manager._tables[1] = row  # the worker still has the table
    manager.begin_step([Scheduled(1, 5, 6)])
    del manager._tables[1]
    manager.end_step()
    manager.swaps_done(manager.drain_swaps())
    (told,) = found(sink)
    assert (told[0], told[1].split(":")[0]) == (
        "KV018",
        "the worker's table of s1 has 2 blocks, by the events it has 0",
    )


def test_a_step_that_reads_before_its_blocks_have_arrived_is_found() -> None:
    manager, sink = make(share=False)
    prompt(manager, 1, list(range(6)))
    manager.swap_out(1)
    run(manager)
    manager.swap_in(1)
    swaps = manager.drain_swaps()
    compute_at = manager.length(1)
    manager.append(1, 9)
    manager.begin_step([Scheduled(1, compute_at, compute_at + 1)])
    manager.end_step()
    manager.swaps_done(swaps)
    manager.free(1)
    assert [code for code, _ in found(sink)] == ["KV017", "KV017"]
    assert "while it was still on its way in from the host tier" in found(sink)[0][1]


def test_a_block_that_moves_without_a_lease_is_found() -> None:
    manager, sink = make(share=False)
    prompt(manager, 1, list(range(4)))
    block, gen = manager.table(1)[0], int(manager.pool.gen[manager.table(1)[0]])
    seq = sink.emit(Kind.SWAP_OUT, Reason.SWAPPED, block, gen, fill=4, seq_id=1, lblock=0, aux=3)
    sink.detail(seq, (1, 77))
    assert found(sink) == [("KV017", f"b{block}#{gen} moves to host slot 3 without lease 77")]
