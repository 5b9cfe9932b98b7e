"""GEN, FENCE, INIT, TABLE and SLOT: each fault is found with its code, and its legal neighbour stays clean."""

from __future__ import annotations

from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.traces.schema import Kind


def codes(trace: HandTrace) -> list[str]:
    return [finding.code for finding in check(trace).findings]


def first(trace: HandTrace, *expected: str) -> Finding:
    found = check(trace).findings
    assert [finding.code for finding in found] == list(expected), found
    return found[0]


def ended(fate: str = "free") -> HandTrace:
    """Sequence 1 wrote block 0 in a step, and has ended."""
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)])).end()
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    return trace.free(0) if fate == "free" else trace.quarantine(0)


# -- GEN ---------------------------------------------------------------------------------------------------------------


def test_a_write_after_free() -> None:
    found = first(ended().write(0, 3, 4, seq_id=1, ref_before=-1, ref_after=-1), "KV001")
    assert (found.block, found.gen, found.slot_lo, found.slot_hi) == (0, 1, 3, 4)
    assert found.seq_of("freed") == 7


def test_a_write_with_a_stale_handle() -> None:
    trace = ended().alloc(0, seq_id=2).write(0, 3, 4, seq_id=1, gen=1)
    found = first(trace, "KV001")
    assert "it is b0#2 by now" in found.why
    assert found.others == (2,)


def test_a_write_issued_in_quarantine() -> None:
    trace = ended("quarantine").write(0, 3, 4, seq_id=1, ref_before=-1, ref_after=-1).settle(0)
    assert codes(trace) == ["KV001"]


def test_a_write_that_lands_in_quarantine_is_clean() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)]))
    trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1).quarantine(0).settle(0).end()
    assert codes(trace.alloc(0, seq_id=2)) == []


def test_a_step_reads_a_freed_block() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).begin((1, 0, 4, [(0, 1)])).end()
    trace.free(0).alloc(1, seq_id=1, lblock=1).write(1, 0, 1, seq_id=1, lblock=1)
    trace.begin((1, 4, 5, [(0, 1), (1, 1)]))
    found = check(trace).findings
    assert [f.code for f in found] == ["KV012", "KV002"]
    assert (found[1].block, found[1].gen, found[1].seq_id) == (0, 1, 1)


def test_a_step_reads_a_block_that_another_owns_now() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)])).end()
    trace.alloc(0, seq_id=2).begin((1, 3, 4, [(0, 1)]))
    found = check(trace).findings
    assert [f.code for f in found] == ["KV014", "KV002"]
    assert "b0#1, after b0#1 had ended: it is b0#2 by now" in found[1].why


def test_a_copy_of_a_freed_block() -> None:
    trace = ended().alloc(1, seq_id=2)
    trace.event(Kind.COW, block=1, gen=1, seq_id=2, lblock=0, fill=3, aux=0, details=(0, 1, 0, 3))
    assert codes(trace) == ["KV002"]


def test_the_source_of_a_copy_is_reused_before_it_ran() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).alloc(1, seq_id=2)
    trace.event(Kind.COW, block=1, gen=1, seq_id=2, lblock=0, fill=3, aux=0, details=(0, 1, 0, 3))
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).alloc(0, seq_id=3)
    assert codes(trace.event(Kind.COPY_DONE, block=1, gen=1, aux=0)) == ["KV002"]


# -- FENCE -------------------------------------------------------------------------------------------------------------


def open_step() -> HandTrace:
    """A step of sequence 1 is open when it is aborted."""
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)]))
    return trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1)


def test_reused_while_the_step_is_open() -> None:
    trace = open_step().free(0).alloc(0, seq_id=2)
    found = first(trace, "KV013")
    assert (found.block, found.gen, found.seq, found.seq_of("step_begin")) == (0, 1, 7, 2)


def test_reused_after_the_step_is_clean() -> None:
    assert codes(open_step().quarantine(0).settle(0).end().alloc(0, seq_id=2)) == []
    assert codes(open_step().free(0).end().alloc(0, seq_id=2)) == []


def test_handed_out_from_quarantine() -> None:
    assert codes(open_step().quarantine(0).alloc(0, seq_id=2)) == ["KV013"]


def test_the_open_write_lands_in_the_next_life() -> None:
    trace = open_step().free(0).alloc(0, seq_id=2).end()
    found = check(trace).findings
    assert [f.code for f in found] == ["KV001", "KV013"]
    assert (found[0].seq, found[0].gen, found[0].seq_of("landed")) == (1, 1, 8)
    assert "landed (seq 8) after the block was handed out again as b0#2" in found[0].why


def test_a_write_that_no_step_took_never_lands() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1)
    trace.event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1).free(0).alloc(0, seq_id=2).begin().end()
    assert codes(trace) == []


def test_a_block_taken_after_the_step_began_is_not_used_by_it() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).begin((1, 0, 4, [(0, 1)]))
    trace.alloc(1, seq_id=1, lblock=1).release(1, seq_id=1, lblock=1).free(1).alloc(1, seq_id=2)
    assert codes(trace) == []


def test_settled_by_a_step_that_is_not_the_last_user() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)]))
    trace.write(0, 3, 4, seq_id=1).begin((1, 3, 4, [(0, 1)]))
    trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1).quarantine(0)
    assert codes(trace.settle(0)) == ["KV013"]


# -- INIT --------------------------------------------------------------------------------------------------------------


def test_a_read_of_unwritten_slots() -> None:
    found = first(HandTrace().alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).begin((1, 0, 4, [(0, 1)])), "KV009")
    assert (found.slot_lo, found.slot_hi) == (2, 4)


def test_a_later_step_that_reads_unwritten_slots_behind_what_was_read_before() -> None:
    trace = HandTrace().alloc(0, seq_id=1).alloc(1, seq_id=1, lblock=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)])).end().write(1, 0, 2, seq_id=1, lblock=1)
    found = first(trace.begin((1, 4, 8, [(0, 1), (1, 1)])), "KV009")
    assert (found.block, found.slot_lo, found.slot_hi) == (1, 2, 4)


def test_slots_written_in_an_earlier_life_do_not_count() -> None:
    trace = ended().alloc(0, seq_id=2).write(0, 1, 3, seq_id=2).begin((2, 1, 3, [(0, 2)]))
    assert (first(trace, "KV009").slot_lo, first(trace, "KV009").slot_hi) == (0, 1)


def test_copied_and_hit_slots_are_written() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).share(0, seq_id=2)
    trace.copy_on_write(0, 1, 3, seq_id=2).write(1, 3, 4, seq_id=2).begin((2, 3, 4, [(1, 1)])).copy_done(0, 1).end()
    trace.publish(1).event(Kind.FINISH, seq_id=2).release(1, seq_id=2)
    trace.hit(1, seq_id=3).alloc(2, seq_id=3, lblock=1).write(2, 0, 1, seq_id=3, lblock=1)
    assert codes(trace.begin((3, 4, 5, [(1, 1), (2, 1)]))) == []


def test_a_copy_of_unwritten_slots() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).share(0, seq_id=2).copy_on_write(0, 1, 3, seq_id=2)
    assert codes(trace.copy_done(0, 1)) == ["KV009"]


def test_a_copy_that_moves_too_little() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).share(0, seq_id=2).copy_on_write(0, 1, 3, seq_id=2)
    trace.event(Kind.COPY_DONE, block=1, gen=1, aux=0, fill=2).unlease(0, 1)
    found = first(trace, "KV009")
    assert (found.block, found.slot_lo, found.slot_hi) == (1, 2, 3)


# -- TABLE -------------------------------------------------------------------------------------------------------------


def test_a_stale_row_at_the_worker() -> None:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).share(0, seq_id=2).copy_on_write(0, 1, 3, seq_id=2)
    trace.write(1, 3, 4, seq_id=2)
    found = first(trace.begin((2, 3, 4, [(0, 1)])), "KV018")
    assert (found.seq_id, "not the same" in found.why) == (2, True)


def test_the_right_row_and_a_leading_part_of_it_are_clean() -> None:
    trace = HandTrace().alloc(2, seq_id=1).alloc(3, seq_id=1, lblock=1).write(2, 0, 4, seq_id=1)
    assert codes(trace.begin((1, 0, 4, [(2, 1), (3, 1)])).end().begin((1, 0, 4, [(2, 1)])).end()) == []


def test_a_row_that_is_too_long_and_one_that_is_in_another_order() -> None:
    trace = HandTrace().alloc(2, seq_id=1).alloc(3, seq_id=1, lblock=1).write(2, 0, 4, seq_id=1)
    assert codes(trace.begin((1, 0, 4, [(2, 1), (3, 1), (0, 1)]))) == ["KV018"]
    trace = HandTrace().alloc(2, seq_id=1).alloc(3, seq_id=1, lblock=1).write(2, 0, 4, seq_id=1)
    assert codes(trace.begin((1, 0, 4, [(3, 1), (2, 1)]))) == ["KV018"]


# -- SLOT --------------------------------------------------------------------------------------------------------------


def test_slots_and_blocks_that_do_not_exist() -> None:
    assert codes(HandTrace().alloc(0, seq_id=1).write(0, 2, 9, seq_id=1)) == ["KV019"]
    assert codes(HandTrace().alloc(0, seq_id=1).write(0, 2, 2, seq_id=1)) == ["KV019"]
    assert codes(HandTrace().alloc(0, seq_id=1).event(Kind.FREE, block=77, gen=1)) == ["KV019"]
    assert codes(HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)) == []


def test_before_the_first_step_has_ended_nothing_is_in_use() -> None:
    trace = HandTrace(num_blocks=2, block_size=2)
    for seq_id in (1, 2, 3):
        trace.event(Kind.ADMIT, seq_id=seq_id).alloc(0, seq_id=seq_id)
        if seq_id < 3:
            trace.event(Kind.ABORT, seq_id=seq_id).release(0, seq_id=seq_id).free(0)
    trace.write(0, 0, 1, seq_id=3).begin((3, 0, 1, [(0, 3)])).end()
    trace.event(Kind.FINISH, seq_id=3).release(0, seq_id=3).free(0)
    assert check(trace, replay=True).findings == ()
    assert check(trace).findings == ()
