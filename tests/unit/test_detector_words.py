"""What findings say, field by field, where the numbers in them could be others; and chains of counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.units import counted
from kvscope.traces.schema import Kind, Reason, pack_range

NONE: dict[str, Any] = {"ref_before": -1, "ref_after": -1}


def said(trace: HandTrace, code: str) -> list[Finding]:
    return [finding for finding in check(trace, replay=True).findings if finding.code == code]


def codes(trace: HandTrace) -> list[str]:
    return [f"{finding.code}@{finding.seq}" for finding in check(trace, replay=True).findings]


def one(block: int = 0, seq_id: int = 1) -> HandTrace:
    """A sequence holds a block, three of its slots are written (events 0 to 2)."""
    return HandTrace().event(Kind.ADMIT, seq_id=seq_id).alloc(block, seq_id=seq_id).write(block, 0, 3, seq_id=seq_id)


# -- counts -----------------------------------------------------------------------------------------------------------

COUNTED: dict[str, tuple[int, Callable[[HandTrace], HandTrace]]] = {
    "handed out": (1, lambda trace: trace),
    "shared": (2, lambda trace: trace.share(0, seq_id=2)),
    "shared twice": (3, lambda trace: trace.share(0, seq_id=2).share(0, seq_id=3)),
    "hit": (2, lambda trace: trace.publish(0).hit(0, seq_id=2)),
    "let go": (2, lambda trace: trace.share(0, seq_id=2).share(0, seq_id=3).release(0, seq_id=2)),
    "leased": (2, lambda trace: trace.lease(0, 7, 0, 2)),
    "let go under a lease": (1, lambda trace: trace.lease(0, 7, 0, 2).release(0, seq_id=1)),
    "no longer leased": (2, lambda trace: trace.lease(0, 7, 0, 2).lease(0, 8, 0, 2).unlease(0, 7)),
    "handed out again": (1, lambda trace: trace.release(0, seq_id=1).free(0).alloc(0, seq_id=2)),
    "written": (1, lambda trace: trace.write(0, 0, 1, seq_id=1)),
}


@pytest.mark.parametrize("told", range(5))
@pytest.mark.parametrize("how", COUNTED)
@pytest.mark.parametrize("kind", [Kind.SHARE, Kind.LEASE])
def test_the_next_event_counts_from_where_the_last_one_ended(how: str, told: int, kind: Kind) -> None:
    count, history = COUNTED[how]
    trace = history(one())
    at = trace._next_seq
    place = {"seq_id": 9, "lblock": 0} if kind == Kind.SHARE else {"aux": 9}
    trace.event(kind, block=0, gen=trace._gen[0], ref_before=told, ref_after=told + 1, **place)
    lost = said(trace, "KV007")
    assert [finding.seq for finding in lost] == ([] if told == count else [at])
    for finding in lost:
        assert f"the count was {count} after the event before, and is {told} here" in finding.why
        assert dict(finding.related)["previous"] == max(
            seq for role, seq in finding.related if role != "previous" and seq < at
        )


@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize(("verb", "by"), [("share", 1), ("lease", 1), ("write", 0), ("release", -1)])
def test_an_event_counts_what_it_does(verb: str, by: int, after: int) -> None:
    trace = one().share(0, seq_id=2)
    columns = {"share": {"seq_id": 9, "lblock": 0}, "lease": {"aux": 9}, "release": {"seq_id": 2, "lblock": 0},
               "write": {"seq_id": 1, "lblock": 0, "aux": pack_range(0, 1)}}[verb]  # fmt: skip
    trace.event(Kind[verb.upper()], block=0, gen=1, ref_before=2, ref_after=after, **columns)
    why = [finding.why for finding in said(trace, "KV007") if finding.seq == 4]
    assert why == ([] if after == 2 + by else [
        f"an update of the count of b0#1 is lost: a {verb} counts 2 -> {after}"
    ])  # fmt: skip


@pytest.mark.parametrize(("history", "words"), [
    (lambda: one().release(0, seq_id=1), "the last holder of b0#1 was gone"),
    (lambda: one().release(0, seq_id=1).free(0), "b0#1 had been released: it is free"),
    (lambda: one().release(0, seq_id=1).quarantine(0), "b0#1 had been released: it is quarantined"),
    (lambda: one().release(0, seq_id=1).free(0).alloc(0, seq_id=2), "b0#1 had ended: it is b0#2 by now"),
])  # fmt: skip
def test_a_write_that_comes_too_late_says_what_the_block_is_by_now(
    history: Callable[[], HandTrace], words: str
) -> None:
    (found,) = said(history().write(0, 1, 3, seq_id=1, gen=1), "KV001")
    assert found.why == f"the write was issued after {words}"
    assert (found.slot_lo, found.slot_hi, found.gen) == (1, 3, 1)


# -- the free list, quarantine -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("history", "was"), [
    (lambda: one(), "held"), (lambda: one().release(0, seq_id=1), "unplaced"),
    (lambda: one().release(0, seq_id=1).free(0), "free"),
])  # fmt: skip
def test_what_leaves_quarantine_without_being_in_it_was_somewhere(history: Callable[[], HandTrace], was: str) -> None:
    (found,) = said(history().settle(0), "KV003")
    assert found.why == f"b0#1 leaves quarantine for the free list, but it was not in quarantine: it was {was}"


@pytest.mark.parametrize("how", ["held", "cached", "in quarantine", "leased"])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_pool_that_shrinks_gives_up_what_nobody_uses(block: int, how: str) -> None:
    trace = one(block)
    if how != "held":
        trace.publish(block) if how == "cached" else trace
        trace.lease(block, 7, 0, 3) if how == "leased" else trace
        trace.event(Kind.FINISH, seq_id=1).release(block, seq_id=1)
        trace.quarantine(block) if how == "in quarantine" else trace
    at = trace._next_seq
    found = said(trace.resize(4, 2), "KV012")
    words = {"held": "held by s1", "leased": "held by lease 7"}.get(how, how)
    assert [(finding.seq, finding.why) for finding in found] == [
        (at, f"the pool gives up b{block}#1, which is {words}") for _ in range(block >= 2)
    ]


def test_a_block_that_was_given_up_is_not_given_up_again() -> None:
    trace = one(3).resize(4, 3).resize(3, 2).resize(2, 0)
    assert codes(trace)[:1] == ["KV012@3"]
    assert [finding.seq for finding in said(trace, "KV012")] == [3]


@pytest.mark.parametrize("size", [3, 4])
def test_a_block_that_there_was_not_is_not_given_up(size: int) -> None:
    trace = HandTrace(num_blocks=5).resize(5, size)
    trace.event(Kind.ADMIT, seq_id=1).alloc(size, seq_id=1)  # it has blocks below that
    assert [code.split("@")[0] for code in codes(trace.resize(size, 2))][:2] == ["KV019"]


@pytest.mark.parametrize(("kind", "where"), [(Kind.FREE, "the free list"), (Kind.QUARANTINE, "quarantine")])
def test_a_block_in_two_places_is_told_with_both(kind: Kind, where: str) -> None:
    found = said(one().event(kind, block=0, gen=1), "KV012")[0]
    assert found.why == f"b0#1 is counted twice: in {where} and in the table of s1"


@pytest.mark.parametrize(("sharers", "words"), [
    ((2,), "s2 holds"), ((2, 3), "s2 and s3 hold"), ((), "lease 7 holds"), ((2, -1), "s2 and lease 7 hold"),
])  # fmt: skip
def test_who_holds_what_is_written_is_told(sharers: tuple[int, ...], words: str) -> None:
    trace = one()
    for seq_id in sharers:
        trace.share(0, seq_id=seq_id) if seq_id >= 0 else trace
    if -1 in sharers or not sharers:
        trace.lease(0, 7, 2, 3)
    (found,) = said(trace.write(0, 2, 3, seq_id=1), "KV006")
    assert found.why == f"s1 writes slots [2:3] of b0#1 while {words} it too"


@pytest.mark.parametrize(("lo", "hi"), [(0, 2), (1, 2), (2, 2), (0, 0), (3, 2)])
def test_what_is_freed_under_a_lease_is_told_with_its_slots(lo: int, hi: int) -> None:
    trace = one().lease(0, 7, lo, hi).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)
    over = f" of slots [{lo}:{hi}]" if lo < hi else ", which was taken before a slot was filled"
    assert said(trace, "KV017")[0].why == f"free of b0#1 under lease 7{over}"


@pytest.mark.parametrize(("kind", "way"), [(Kind.SWAP_OUT, "to"), (Kind.SWAP_IN, "from")])
def test_a_move_without_its_lease_is_told_with_its_way(kind: Kind, way: str) -> None:
    trace = one().event(kind, block=0, gen=1, seq_id=1, lblock=0, fill=3, aux=5, details=(1, 7))
    (found,) = said(trace, "KV017")
    assert found.why == f"b0#1 moves {way} host slot 5 without lease 7"


# -- witnesses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [[5, 5], [5, 3], [3, 5], [5, 0, 5], [0, 0], [1, 0, 0, 1]])
def test_a_wrong_number_of_host_slots_is_told_once_until_it_changes(told: list[int]) -> None:
    trace = one().lease(0, 7, 0, 3)
    trace.event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, fill=3, aux=5, details=(1, 7)).unlease(0, 7)
    trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1).free(0)
    expected, last = [], None
    for number in told:
        expected += [(trace._next_seq, f"the host tier counts {counted(number, 'slot')} in use, its events make 0")] * (
            number not in (0, last)
        )
        last = number
        trace.event(Kind.WITNESS, details=(4, 0, 0, 0, 0, 0, 0, 0, number))
    assert [(finding.seq, finding.why) for finding in said(trace, "KV012")] == expected


def lost(*counts: int, known: bool = True, entries: int = 1) -> HandTrace:
    """Events are lost; after them block 0 is handed out anew, and witnesses count so."""
    trace = one().lose(5)
    for block in range(4):
        trace.free(block, gen=7)
    if known:
        trace.event(Kind.ADMIT, seq_id=1)
    trace.alloc(0, seq_id=1, gen=8)
    return trace.event(Kind.WITNESS, details=(*counts, entries, 0))


@pytest.mark.parametrize(("counts", "entries", "found"), [
    ((3, 1, 0, 0, 0, 0), 1, False), ((2, 2, 0, 0, 0, 0), 1, True), ((2, 1, 0, 0, 0, 1), 1, True),
    ((3, 0, 0, 0, 0, 1), 1, True), ((2, 1, 0, 1, 0, 0), 1, True), ((2, 1, 0, 0, 1, 0), 1, True),
    ((2, 0, 1, 0, 1, 0), 1, True), ((3, 1, 0, 0, 0, 0), 2, True), ((3, 1, 0, 0, 0, 1), 1, False),
    ((0, 0, 0, 0, 0, 0), 1, True),
])  # fmt: skip
def test_behind_lost_events_a_witness_is_compared_where_the_size_of_the_pool_is_sure(
    counts: tuple[int, ...], entries: int, found: bool
) -> None:
    assert bool(said(lost(*counts, entries=entries), "KV012")) == found


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "known", [(0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3), (0, 1, 2, 3, 4), (0, 4), (0, 3, 4), (1, 2, 3)]
)
def test_behind_lost_events_the_blocks_of_a_smaller_pool_must_be_known(known: tuple[int, ...], size: int) -> None:
    trace = HandTrace(num_blocks=5).event(Kind.NOTE).lose(3)
    for block in known:
        trace.free(block, gen=7)
    trace.resize(5, size).event(Kind.WITNESS, details=(5, 0, 0, 0, 0, 0, 0, 0))
    assert bool(said(trace, "KV012")) == (set(range(size)) <= set(known))


@pytest.mark.parametrize(("entries", "known", "found"), [(1, True, False), (2, True, True), (2, False, False)])
def test_behind_lost_events_tables_are_compared_once_all_of_them_are_known(
    entries: int, known: bool, found: bool
) -> None:
    assert bool(said(lost(3, 1, 0, 0, 0, 0, known=known, entries=entries), "KV012")) == found


# -- leaks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq_id", [0, 1, 5])
def test_a_leak_names_whose_it_was(seq_id: int) -> None:
    trace = one(2, seq_id).event(Kind.FINISH, seq_id=seq_id).event(Kind.ADMIT, seq_id=8)
    (found,) = said(trace, "KV005")
    assert (found.seq, found.seq_id, found.block, found.gen) == (3, seq_id, 2, 1)
    assert found.why == f"s{seq_id} has ended (finish, seq 3), but its block 0, b2#1, was never released"
    trace = HandTrace().alloc(2, seq_id=seq_id, lblock=3).event(Kind.ADMIT, seq_id=seq_id)
    (found,) = said(trace, "KV005")
    assert (found.seq, found.seq_id, found.block, found.gen) == (0, seq_id, 2, 1)
    assert found.why == f"s{seq_id} took b2#1 before it was admitted, and never released it"


@pytest.mark.parametrize("shares", [0, 1, 2])
def test_a_count_without_holders_is_told_where_it_was_last_raised(shares: int) -> None:
    trace = HandTrace().alloc(0, seq_id=1)
    for seq_id in range(2, 2 + shares):
        trace.share(0, seq_id=seq_id)
    for seq_id in range(1, 2 + shares):
        trace.event(Kind.RELEASE, block=0, gen=1, seq_id=seq_id, lblock=0, ref_before=1 + shares, ref_after=1 + shares)
    (found,) = (finding for finding in said(trace, "KV005") if "counted" in finding.why)
    assert (found.seq, found.block) == (shares, 0)
    assert found.why == f"b0#1 is counted as held by {1 + shares}, but no table and no lease holds it"


# -- beside the moves of blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("aux", "found"), [(-4, []), (0, []), (1, ["KV021@2"]), (7, ["KV021@2"])])
def test_the_sequences_of_another_writer_are_others(aux: int, found: list[str]) -> None:
    trace = HandTrace().event(Kind.SUBMIT, seq_id=9, aux=4).event(Kind.GAP, aux=aux)
    assert codes(trace.event(Kind.REFUSED, reason=Reason.NO_BLOCKS, seq_id=9, details=(1, 3, 0))) == found


@pytest.mark.parametrize(("kind", "verb"), [(Kind.WAIT, "waits"), (Kind.REFUSED, "was refused")])
def test_waiting_and_being_refused_are_two_things(kind: Kind, verb: str) -> None:
    trace = HandTrace().event(Kind.SUBMIT, seq_id=0, aux=4)
    trace.facts.append({"type": "scheduler", "watermark": 0.0})
    for reason in (Reason.CAPACITY, Reason.NO_BLOCKS, Reason.NO_BLOCKS):
        trace.event(kind, reason=reason, seq_id=0, details=(1, 2, 1))
    (found,) = said(trace, "KV021")
    assert (found.seq, found.seq_id) == (2, 0)
    assert found.why == (f"s0 {verb} for want of blocks: it needs 1 block; 2 are free and 1 could be evicted")


@pytest.mark.parametrize("written", [7, 12, 14, 22])
@pytest.mark.parametrize("window", [1, 3, 6])
def test_a_window_that_was_cut_too_short_names_the_block(written: int, window: int) -> None:
    needed = written - window + 1
    trace = HandTrace(num_blocks=4, block_size=3)
    trace.facts.append({"type": "model", "window": window})
    for lo in (needed, needed + 1, needed + 2):
        trace.event(Kind.SCHED, seq_id=1, lblock=written, fill=1, aux=pack_range(lo, written + 1))
    (found,) = said(trace, "KV022")
    assert found.seq == 1
    assert found.why == (
        f"the step of s1 writes position {written} and attends to {window} positions, from {needed} on; its table "
        f"begins at {needed + 1}: block {needed // 3} of it was given back too early"
    )


def mismatched(reason: Reason, block: int = 0, details: tuple[int, ...] | None = None, **columns: int) -> HandTrace:
    shown = {"block": block, "gen": 1 if block >= 0 else -1, "seq_id": 1, "fill": 2, "aux": 7}
    return one().event(Kind.MISMATCH, reason=reason, details=details, **(shown | columns))


@pytest.mark.parametrize("details", [None, (), (16,), (16, 17), (16, 17, 0), (16, 17, 3, 4), (16, 17, -1, 4, 5, 6)])
def test_bytes_that_changed_are_told_with_what_is_known_of_them(details: tuple[int, ...] | None) -> None:
    expected, found, writer, step = (*(details or ()), *(0, 0, -1, -1)[len(details or ()) :])[:4]
    (mismatch,) = said(mismatched(Reason.CONTENT, details=details), "KV024")
    last = f"; its last write was s{writer}'s, step {step}" if writer >= 0 else ""
    assert mismatch.why == (
        f"the bytes of b0#1 are not those that were written: digest {found:#x} instead of {expected:#x}{last}. No "
        "event speaks of this change"
    )
    assert (mismatch.block, mismatch.gen, mismatch.slot_lo, mismatch.slot_hi) == (0, 1, 0, 2)


@pytest.mark.parametrize(("block", "gen"), [(0, 1), (2, 1), (-1, -1)])
def test_poison_is_told_with_its_block_if_there_is_one(block: int, gen: int) -> None:
    (found,) = said(mismatched(Reason.POISON, block), "KV009")
    assert (found.block, found.gen, found.seq_id) == (block, gen, 1)
    assert dict(found.related).keys() == ({"allocated", "last_write"} if block == 0 else set())


@pytest.mark.parametrize(("block", "fill", "position"), [(0, 0, 0), (1, 3, 7), (2, 2, 5), (3, 1, 14)])
def test_a_slot_of_another_prefix_is_told_with_its_place(block: int, fill: int, position: int) -> None:
    trace = mismatched(Reason.PROVENANCE, block, (77, 55, 3, 2, 0, 9), fill=fill, aux=position)
    (found,) = said(trace, "KV023")
    assert found.why.startswith(
        f"s1 reads its position {position} at b{block}#1[{fill}], its block {position // 4}, where its own prefix of "
        f"{counted(position + 1, 'token')} should lie: it holds the prefix of 9 tokens of s0, written by s3 in step 2"
    )


@pytest.mark.parametrize(("slots", "words"), [
    ((0, 3), " Slots [0:3] of b1#1 were to be copied from b0#1 (seq 4)"),
    ((2, 2), " A copy from b0#1 filled b1#1, of no slot at all (seq 4)"),
    ((3, 2), " A copy from b0#1 filled b1#1, of no slot at all (seq 4)"),
])  # fmt: skip
def test_the_copy_that_filled_a_block_is_told(slots: tuple[int, int], words: str) -> None:
    trace = one().alloc(1, seq_id=2)
    trace.event(Kind.COW, block=1, gen=1, seq_id=2, lblock=0, fill=3, aux=0, details=(0, 1, *slots))
    trace.event(Kind.MISMATCH, reason=Reason.PROVENANCE, block=1, gen=1, seq_id=2, fill=1, aux=1, details=(16, 17))
    assert [finding.why.endswith(words) for finding in said(trace, "KV023")] == [True]


def test_a_life_of_a_huge_number_is_not_searched_for_from_the_first_on() -> None:
    """A worker's row is compared with the lives that there were: a damaged number is not as many of them."""
    trace = HandTrace(num_blocks=8, block_size=4)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1)
    trace.event(Kind.ALLOC, block=3, gen=2**31 - 1, seq_id=2, lblock=0, ref_before=0, ref_after=1)
    trace.begin((1, 0, 2, [(5, 1)])).end()
    assert "KV018" in {f.code for f in check(trace).findings}
