"""OWN, REF, FREE and CONS: each fault is found with its code, and its legal neighbour stays clean."""

from __future__ import annotations

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report
from kvscope.traces.schema import Kind


def codes(trace: HandTrace) -> list[str]:
    return [finding.code for finding in check(trace).findings]


def only(trace: HandTrace, code: str) -> Finding:
    found = check(trace).findings
    assert [finding.code for finding in found] == [code], found
    return found[0]


def live() -> HandTrace:
    """Sequence 1 holds block 0, three slots written."""
    return HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 3, seq_id=1)


def done() -> HandTrace:
    """The same, ended and given back."""
    return live().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)


def test_a_whole_life_is_clean() -> None:
    result = check(done())
    assert result.clean
    assert (result.events, result.blocks, result.slots) == (6, 1, 3)
    assert "OWN" in result.detectors
    assert "COW" in result.detectors


# -- OWN ---------------------------------------------------------------------------------------------------------------


def test_handed_out_while_held() -> None:
    found = only(live().alloc(0, seq_id=2), "KV014")
    assert (found.block, found.gen, found.seq, found.seq_id, found.others) == (0, 1, 3, 2, (1,))
    assert found.seq_of("allocated") == 1


def test_handed_out_after_release_is_clean() -> None:
    assert codes(done().alloc(0, seq_id=2)) == []


def test_a_stranger_writes() -> None:
    found = only(live().write(0, 3, 4, seq_id=9), "KV010")
    assert (found.seq_id, found.others) == (9, (1,))
    assert "s1 does" in found.why


def test_writing_at_another_place_of_the_own_table() -> None:
    assert only(live().write(0, 3, 4, seq_id=1, lblock=5), "KV010").seq == 3


def test_a_stranger_releases() -> None:
    assert only(live().release(0, seq_id=9), "KV010").seq_id == 9


def test_a_share_of_a_free_block() -> None:
    assert "KV010" in codes(done().share(0, seq_id=2, ref_before=0, ref_after=1))


# -- REF ---------------------------------------------------------------------------------------------------------------


def test_released_twice_names_both_releases() -> None:
    trace = live().share(0, seq_id=2).release(0, seq_id=1)
    found = only(trace.release(0, seq_id=1), "KV004")
    assert found.seq_of("first_release") == 4
    assert "released at seq 4 already" in found.why


def test_release_without_any_holder() -> None:
    found = only(done().release(0, seq_id=1, ref_before=0, ref_after=-1), "KV004")
    assert "without a holder" in found.why


def test_release_of_an_older_life() -> None:
    trace = done().alloc(0, seq_id=2).release(0, seq_id=1, gen=1, ref_before=1, ref_after=0)
    assert "it is b0#2 by now" in check(trace).findings[0].why


def test_each_holder_releases_once_is_clean() -> None:
    trace = live().share(0, seq_id=2).release(0, seq_id=1).release(0, seq_id=2).free(0)
    assert codes(trace) == []


def test_a_lost_update_breaks_the_chain() -> None:
    trace = live().share(0, seq_id=2).share(0, seq_id=3, ref_before=1, ref_after=2)
    found = only(trace, "KV007")
    assert (found.seq, found.seq_of("previous")) == (4, 3)
    assert "the count was 2 after the event before, and is 1 here" in found.why


def test_an_operation_that_does_not_count() -> None:
    assert "a share counts 1 -> 1" in only(live().share(0, seq_id=2, ref_after=1), "KV007").why


def test_a_hand_out_that_counts_wrong() -> None:
    assert only(HandTrace().alloc(0, seq_id=1, ref_after=2), "KV007").seq == 0


def test_a_lease_counts_as_a_holder() -> None:
    trace = live().lease(0, 4, 0, 3).unlease(0, 4)
    assert codes(trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)) == []
    assert only(live().lease(0, 4, 0, 3).unlease(0, 4).unlease(0, 4), "KV004").seq == 5


# -- FREE --------------------------------------------------------------------------------------------------------------


def test_freed_twice() -> None:
    found = only(done().free(0), "KV003")
    assert found.seq == 6
    assert found.seq_of("freed") == 5


def test_freed_from_quarantine_without_its_fence() -> None:
    trace = live().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).quarantine(0)
    assert codes(trace.free(0)) == ["KV003"]


def test_settled_but_never_quarantined() -> None:
    assert only(done().settle(0), "KV003").seq == 6


def test_quarantine_then_settle_is_clean() -> None:
    assert codes(live().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).quarantine(0).settle(0)) == []


# -- CONS --------------------------------------------------------------------------------------------------------------


def test_a_leaked_block_names_its_last_holder() -> None:
    found = only(live().event(Kind.FINISH, seq_id=1), "KV005")
    assert (found.block, found.seq, found.seq_id) == (0, 3, 1)
    assert "was never released" in found.why


def test_a_running_sequence_leaks_nothing() -> None:
    assert codes(live()) == []


def test_an_interrupted_run_leaks_nothing_in_its_last_step() -> None:
    trace = live().event(Kind.FINISH, seq_id=1)
    trace.clean = False
    result = check(trace)
    assert result.findings == ()
    assert "not closed" in result.notes[0]


def test_an_old_leak_of_an_interrupted_run_is_one() -> None:
    trace = live().event(Kind.FINISH, seq_id=1).begin().end()
    trace.clean = False
    assert codes(trace) == ["KV005"]


def test_a_leak_by_preemption_is_found_after_the_resume() -> None:
    trace = live().event(Kind.PREEMPT, seq_id=1).event(Kind.RESUME, seq_id=1).alloc(1, seq_id=1)
    trace.event(Kind.FINISH, seq_id=1).release(1, seq_id=1).free(1)
    assert only(trace, "KV005").block == 0


def _kept(times: int, given_back: int = 0) -> HandTrace:
    """A sequence that is preempted so often, keeps its block each time and finds it again; some holds end late."""
    trace = HandTrace(num_blocks=2, block_size=4).event(Kind.ADMIT, seq_id=1)
    trace.alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)])).publish(0).end()
    for _ in range(times):
        trace.event(Kind.PREEMPT, seq_id=1).begin().end()
        trace.event(Kind.ADMIT, seq_id=1).hit(0, seq_id=1).begin().end()
    for _ in range(given_back):
        trace.release(0, seq_id=1)
    return trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).begin().end()


@pytest.mark.parametrize("times", [1, 2, 5])
def test_each_preemption_that_keeps_a_block_is_told_where_it_happens(times: int) -> None:
    """Also where the sequence takes the same block again: at the preemption, not at the innocent hit."""
    trace = _kept(times)
    preempted = [seq for seq, event in enumerate(trace.events) if event["kind"] == Kind.PREEMPT]
    found = check(trace).findings
    assert [(f.code, f.seq, f.seq_id) for f in found] == [("KV005", seq, 1) for seq in preempted]
    assert all(f"was preempted (seq {f.seq})" in f.why for f in found)


def test_what_is_given_back_late_is_no_leak() -> None:
    assert [f.code for f in check(_kept(3, given_back=3)).findings] == []
    assert [f.code for f in check(_kept(3, given_back=2)).findings] == ["KV005"]
    assert [f.code for f in check(_kept(3, given_back=4)).findings] == ["KV004"]


def test_preempted_and_resumed_is_clean() -> None:
    trace = live().event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1).free(0).event(Kind.RESUME, seq_id=1)
    assert codes(trace.alloc(0, seq_id=1).event(Kind.ABORT, seq_id=1).release(0, seq_id=1).free(0)) == []


def test_released_but_never_put_back() -> None:
    found = only(live().event(Kind.FINISH, seq_id=1).release(0, seq_id=1), "KV005")
    assert (found.seq, "free list" in found.why) == (4, True)


def test_a_lease_that_never_ends() -> None:
    trace = live().lease(0, 4, 0, 3).event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    assert "lease 4" in only(trace, "KV005").why


def test_still_in_quarantine_though_the_step_is_over() -> None:
    trace = live().begin((1, 0, 3, [(0, 1)])).event(Kind.ABORT, seq_id=1).release(0, seq_id=1).quarantine(0)
    assert codes(trace) == []  # the step is open
    assert only(trace.end(), "KV005").block == 0


def test_cached_blocks_are_not_leaks() -> None:
    trace = live().write(0, 3, 4, seq_id=1).publish(0).event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    assert codes(trace) == []


def test_free_and_held_at_once() -> None:
    found = only(live().free(0), "KV012")
    assert "counted twice: in the free list and in the table of s1" in found.why


def test_the_pools_own_counters() -> None:
    table = [(0, 1)]
    assert codes(live().begin().end().witness(3, 1, 0, 0, 0, 0, 1, table=table)) == []
    wrong = live().begin().end().witness(2, 1, 0, 0, 0, 0, 1, table=table)
    found = only(wrong, "KV012")
    assert "free 2 (its events: 3)" in found.why
    assert "they add up to 3, the pool has 4" in found.why


def test_a_lasting_difference_is_said_once() -> None:
    trace = live()
    for _ in range(3):
        trace.begin().end().witness(2, 1, 0, 0, 0, 0, 1, table=[(0, 1)])
    assert codes(trace) == ["KV012"]


def test_the_pools_tables() -> None:
    entries = live().begin().end().witness(3, 1, 0, 0, 0, 0, 2, table=[(0, 1)])
    assert "counts 2 table entries, its events make 1" in only(entries, "KV012").why
    others = live().begin().end().witness(3, 1, 0, 0, 0, 0, 1, table=[(1, 1)])
    assert "they lead to other blocks" in only(others, "KV012").why


# -- what was checked --------------------------------------------------------------------------------------------------


def test_nothing_to_check_is_not_clean() -> None:
    for trace in (HandTrace(), HandTrace().event(Kind.SUBMIT, seq_id=1, aux=3)):
        result = check(trace)
        assert result.nothing_to_check
        assert not result.clean


def test_idle_detectors_are_named() -> None:
    idle = dict(check(live()).idle)
    assert "EVICT" in idle
    assert "the trace has no" in idle["EVICT"]
    assert "REF" not in idle


def test_only_some_detectors() -> None:
    trace = live().alloc(0, seq_id=2).free(0)
    assert {f.code for f in check(trace, only=["OWN"]).findings} == {"KV014"}
    with pytest.raises(UsageError, match="no detector is called 'BOGUS'"):
        check(trace, only=["BOGUS"])


# -- lost events -------------------------------------------------------------------------------------------------------


def test_after_a_gap_the_unknown_is_not_judged() -> None:
    # Lost: the release and free of block 0, its hand-out to 2, and that of block 1.
    trace = live().lose(5).release(0, seq_id=2, gen=2, ref_before=1, ref_after=0).free(0, gen=2)
    trace.write(1, 0, 2, seq_id=7, gen=4, ref_before=1, ref_after=1)
    result = check(trace)
    assert result.findings == ()
    assert "5 events are missing in 1 place" in result.notes[0]
    assert "could not be judged" in result.notes[0]


def test_after_a_gap_what_is_seen_again_is_judged() -> None:
    trace = live().lose(5).alloc(1, seq_id=7).alloc(1, seq_id=8)
    assert only(trace, "KV014").block == 1


def test_a_gap_row_counts_as_a_gap() -> None:
    trace = live().event(Kind.GAP, aux=2).write(0, 0, 2, seq_id=5)
    result = check(trace)
    assert result.findings == ()
    assert "2 events are missing" in result.notes[0]


def test_a_leak_is_not_made_up_by_a_gap() -> None:
    assert codes(live().event(Kind.FINISH, seq_id=1).lose(2).event(Kind.STEP_BEGIN).event(Kind.STEP_END)) == []


def test_a_trace_that_is_all_faults_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.inspector.detectors.replay.MAX_FINDINGS", 3)
    trace = done()
    for _ in range(5):
        trace.free(0)
    result = check(trace)
    assert len(result.findings) == 3
    assert result.notes[0].startswith("2 more findings")


@pytest.mark.parametrize("lost", [False, True])
def test_a_check_costs_what_the_trace_holds_not_what_its_pool_could(lost: bool) -> None:
    trace = done().release(0, seq_id=1)
    trace = trace.lose(2).alloc(1, seq_id=2) if lost else trace
    small = check(trace)
    text = report(small, trace)
    trace.num_blocks = 2**31 - 1
    huge = check(trace)
    assert (huge.findings, huge.blocks, huge.slots) == (small.findings, small.blocks, small.slots)
    assert small.findings
    assert len(report(huge, trace)) >= len(text)
