"""COW, PUB, INDEX, EVICT and LEASE: each fault is found with its code, and its legal neighbour stays clean."""

from __future__ import annotations

from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.traces.schema import Kind


def codes(trace: HandTrace) -> list[str]:
    return [finding.code for finding in check(trace).findings]


def only(trace: HandTrace, code: str) -> Finding:
    found = check(trace).findings
    assert [finding.code for finding in found] == [code], found
    return found[0]


def forked() -> HandTrace:
    """Sequences 1 and 2 share block 0 with three slots written."""
    return HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).share(0, seq_id=2)


def published() -> HandTrace:
    """Block 0 of sequence 1 is full and in the prefix index."""
    return HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).begin((1, 0, 4, [(0, 1)])).commit(0).publish(0).end()


# -- COW ---------------------------------------------------------------------------------------------------------------


def test_a_missing_copy() -> None:
    found = only(forked().write(0, 3, 4, seq_id=2), "KV006")
    assert (found.block, found.gen, found.slot_lo, found.slot_hi) == (0, 1, 3, 4)
    assert (found.seq_id, found.others, found.seq) == (2, (1,), 3)
    assert found.seq_of("last_write") == 1
    assert found.seq_of("shared") == 2


def test_every_unshared_write_of_a_faulty_run_is_found() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 1, seq_id=1).share(0, seq_id=2)
    for slot in (1, 2):
        trace.write(0, slot, slot + 1, seq_id=1).write(0, slot, slot + 1, seq_id=2)
    assert codes(trace) == ["KV006"] * 4


def test_writing_a_copy_is_clean() -> None:
    trace = forked().copy_on_write(0, 1, 3, seq_id=2).write(1, 3, 4, seq_id=2)
    assert codes(trace.copy_done(0, 1)) == []


def test_the_last_holder_writes_behind_a_lease() -> None:
    # n samples make n - 1 copies: sequence 1 keeps the source, whose slots [0:3] are leased until the copy has run.
    trace = forked().copy_on_write(0, 1, 3, seq_id=2).write(0, 3, 4, seq_id=1)
    assert codes(trace.copy_done(0, 1)) == []


def test_a_write_under_a_lease() -> None:
    found = only(forked().copy_on_write(0, 1, 3, seq_id=2).write(0, 2, 3, seq_id=1).copy_done(0, 1), "KV006")
    assert "lease 1 holds it too" in found.why


def test_full_shared_blocks_are_never_written() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).share(0, seq_id=2)
    assert codes(trace.alloc(1, seq_id=2, lblock=1).write(1, 0, 1, seq_id=2, lblock=1)) == []


def test_a_write_to_a_published_block() -> None:
    found = only(published().write(0, 3, 4, seq_id=1), "KV015")
    assert found.seq_of("published") == 5


def test_a_write_after_withdrawal_is_clean() -> None:
    cut = published().event(Kind.TRUNCATE, seq_id=1, aux=3).event(Kind.UNPUBLISH, block=0, gen=1)
    assert codes(cut.write(0, 3, 4, seq_id=1)) == []


# -- PUB ---------------------------------------------------------------------------------------------------------------


def test_published_before_it_is_full() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)])).end()
    assert "1 of 4 slots not written" in only(trace.publish(0), "KV016").why


def test_hit_before_the_writing_step_has_begun() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).publish(0).hit(0, seq_id=2)
    assert only(trace.begin((1, 0, 4, [(0, 1)])), "KV016").seq == 3


def test_hit_behind_the_writing_step_is_clean() -> None:
    # The follower's step runs after the writer's on the same stream, so the bytes are there when it reads them.
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).begin((1, 0, 4, [(0, 1)])).publish(0)
    assert codes(trace.hit(0, seq_id=2).commit(0).end()) == []


def test_without_steps_a_write_counts_as_done() -> None:
    assert codes(HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).publish(0).hit(0, seq_id=2)) == []


# -- INDEX -------------------------------------------------------------------------------------------------------------


def cached() -> HandTrace:
    return published().event(Kind.FINISH, seq_id=1).release(0, seq_id=1)


def test_a_hit_on_a_cached_block_is_clean() -> None:
    assert codes(cached().hit(0, seq_id=2)) == []
    assert codes(published().hit(0, seq_id=2)) == []


def test_a_hit_on_an_evicted_block() -> None:
    assert "a life that is over" in only(cached().evict(0).hit(0, seq_id=2), "KV011").why


def test_a_hit_on_the_next_life() -> None:
    trace = cached().evict(0).alloc(0, seq_id=2).write(0, 0, 4, seq_id=2).begin((2, 0, 4, [(0, 2)])).end()
    assert "not published in this life" in only(trace.hit(0, seq_id=3), "KV011").why


def test_handed_out_with_its_hash() -> None:
    assert only(cached().alloc(0, seq_id=2), "KV011").seq_of("published") == 5


def test_a_hit_with_other_tokens() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.event(Kind.PUBLISH, block=0, gen=1, details=(1, 2, 3), lblock=0)
    trace.event(Kind.HIT, block=0, gen=1, seq_id=2, lblock=0, ref_before=1, ref_after=2, details=(1, 2, 3))
    assert codes(trace) == []
    trace.event(Kind.HIT, block=0, gen=1, seq_id=3, lblock=0, ref_before=2, ref_after=3, details=(1, 9, 3))
    assert codes(trace) == ["KV011"]


def chain(second_parent: int, second_at: int = 1) -> HandTrace:
    """Blocks 0 and 1 of sequence 1 are published as a chain; sequence 2 hits both."""
    trace = HandTrace().alloc(0, seq_id=1).alloc(1, seq_id=1, lblock=1)
    trace.write(0, 0, 4, seq_id=1).write(1, 0, 4, seq_id=1, lblock=1)
    trace.event(Kind.PUBLISH, block=0, gen=1, details=(100, 7, 101), lblock=0)
    trace.event(Kind.PUBLISH, block=1, gen=1, details=(second_parent, 8, 102), lblock=1)
    trace.event(Kind.HIT, block=0, gen=1, seq_id=2, lblock=0, ref_before=1, ref_after=2, details=(100, 7, 101))
    return trace.event(Kind.HIT, block=1, gen=1, seq_id=2, lblock=second_at, ref_before=1, ref_after=2,
                       details=(second_parent, 8, 102))  # fmt: skip


def test_hits_follow_the_chain() -> None:
    assert codes(chain(101)) == []
    assert "behind another prefix than b0#1" in only(chain(555), "KV011").why
    assert "holds logical block 1 of its writer, and is hit as block 2" in only(chain(101, 2), "KV011").why


# -- EVICT, LEASE ------------------------------------------------------------------------------------------------------


def test_evicted_while_held() -> None:
    found = check(published().evict(0)).findings[0]
    assert (found.code, found.others) == ("KV020", (1,))


def test_evicted_when_unheld_is_clean() -> None:
    assert codes(cached().evict(0).alloc(0, seq_id=2)) == []


def test_freed_under_a_lease() -> None:
    trace = forked().lease(0, 5, 0, 3).release(0, seq_id=1).release(0, seq_id=2).free(0)
    assert "KV017" in codes(trace)


def test_freed_after_the_lease_is_clean() -> None:
    trace = forked().lease(0, 5, 0, 3).release(0, seq_id=1).release(0, seq_id=2)
    assert codes(trace.unlease(0, 5).free(0)) == []
