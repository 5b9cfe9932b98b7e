"""What one holder takes twice is told where that happens; what is given back later is no second fault."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.block_manager import BlockManager
from kvscope.errors import FaultyCall
from kvscope.inspector.findings import Finding, check
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.report import report
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason


def codes(trace: HandTrace) -> list[str]:
    return [finding.code for finding in check(trace).findings]


def published() -> HandTrace:
    """Block 0 is cached, four slots long; sequence 2 is about to be admitted."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)])).commit(0).end()
    return trace.publish(0, seq_id=1, lblock=0).event(Kind.FINISH, seq_id=1).release(0, seq_id=1)


def hit_twice() -> HandTrace:
    return published().event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2).hit(0, seq_id=2)


def forked() -> HandTrace:
    """Sequence 2 is a fork of 1, whose block 0 has three slots written."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 3, seq_id=1)
    return trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)


def guilty(trace: HandTrace) -> Finding:
    first, *others = check(trace).findings
    assert (first.code, {f.code for f in others} <= {"KV005"}) == ("KV012", True), (first, others)
    assert "counted twice for one holder" in first.why
    return first


@pytest.mark.parametrize("given_back", range(3))
def test_a_hit_of_an_entry_that_is_there_is_told_at_the_hit(given_back: int) -> None:
    trace = hit_twice().event(Kind.FINISH, seq_id=2)
    for _ in range(given_back):
        trace.release(0, seq_id=2)
    found = guilty(trace)
    assert (found.seq, found.seq_id, found.block, found.seq_of("taken")) == (12, 2, 0, 11)
    assert "counted 1 -> 2" in found.why
    assert codes(trace) == (["KV012"] if given_back == 2 else ["KV012", "KV005"])


def test_what_is_given_back_once_too_often_after_that_is_an_underflow() -> None:
    trace = hit_twice().event(Kind.FINISH, seq_id=2)
    assert codes(trace.release(0, seq_id=2).release(0, seq_id=2).release(0, seq_id=2)) == ["KV012", "KV004"]


def test_a_leak_that_follows_does_not_say_that_nothing_was_released() -> None:
    leak = check(hit_twice().event(Kind.FINISH, seq_id=2).release(0, seq_id=2)).findings[1]
    assert "was not released as often as it was taken" in leak.why


def test_the_second_count_may_go_while_the_sequence_lives() -> None:
    trace = hit_twice().release(0, seq_id=2).begin((2, 0, 4, [(0, 1)])).end()
    assert codes(trace.event(Kind.FINISH, seq_id=2).release(0, seq_id=2)) == ["KV012"]


def test_a_share_of_an_entry_that_is_there_and_a_copy_in_its_place() -> None:
    trace = forked().share(0, seq_id=2).copy_on_write(0, 1, 3, seq_id=2).copy_done(0, 1)
    trace.write(1, 3, 4, seq_id=2).write(0, 3, 4, seq_id=1)
    found = guilty(trace)
    assert (found.seq, found.seq_of("taken")) == (5, 4)
    assert codes(trace) == ["KV012"], "nobody else holds what sequence 1 writes"
    assert codes(trace.release(0, seq_id=2)) == ["KV012"]


def test_a_lease_that_is_held_is_taken_again() -> None:
    trace = forked().lease(0, 4, 0, 3).lease(0, 4, 0, 3)
    assert codes(trace.unlease(0, 4).unlease(0, 4)) == ["KV012"]
    assert guilty(trace).seq_of("taken") == 5
    assert codes(trace.unlease(0, 4)) == ["KV012", "KV004"]


def test_what_is_left_from_before_an_admission_is_a_leak_alone() -> None:
    trace = published().hit(0, seq_id=2).event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2)
    (leak,) = check(trace).findings
    assert (leak.code, leak.seq) == ("KV005", 10)


def test_what_a_preemption_left_behind_and_is_hit_again_is_a_leak_alone() -> None:
    trace = published().event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2).event(Kind.PREEMPT, seq_id=2)
    trace.event(Kind.RESUME, seq_id=2).hit(0, seq_id=2).event(Kind.FINISH, seq_id=2).release(0, seq_id=2)
    (leak,) = check(trace).findings
    assert (leak.code, leak.seq_id) == ("KV005", 2)
    assert "when it was preempted (seq 12)" in report(leak, trace)


def test_a_take_that_does_not_count_is_told_as_that_alone() -> None:
    trace = published().event(Kind.ADMIT, seq_id=2).hit(0, seq_id=2).event(Kind.HIT, block=0, gen=1, seq_id=2,
            lblock=0, ref_before=1, ref_after=1, fill=4)  # fmt: skip
    assert codes(trace.event(Kind.FINISH, seq_id=2).release(0, seq_id=2)) == ["KV007"]


def test_the_same_block_at_two_places_of_a_table_is_two_entries() -> None:
    trace = forked().share(0, seq_id=2, lblock=1).event(Kind.FINISH, seq_id=2)
    assert "KV012" not in codes(trace.release(0, seq_id=2).release(0, seq_id=2, lblock=1))


def test_the_report_tells_both_takes() -> None:
    trace = hit_twice()
    text = report(guilty(trace), trace)
    assert "held already since this, by" in text
    assert "->2 hit s2  <== here" in text


# -- over histories of the real manager --------------------------------------------------------------------------------


class TakesTwice(BlockManager):
    """What a prompt hits is taken by the match and by the admission; `back`: and given back once, too."""

    back = True

    def admit(self, seq_id: int, tokens: object, extras: object = (), *, resumed: bool = False) -> int:
        hits = self.probe(tokens, extras).hits  # type: ignore[arg-type]
        cached = super().admit(seq_id, tokens, extras, resumed=resumed)  # type: ignore[arg-type]
        for lblock, block in enumerate(hits):
            self.pool.retain(block, Kind.HIT, seq_id=seq_id, lblock=lblock, reason=Reason.PREFIX_HIT)
        for lblock, block in enumerate(hits if self.back else ()):
            self.pool.release(block, seq_id=seq_id, lblock=lblock, reason=Reason.NONE)
        return cached


class KeepsTwice(TakesTwice):
    back = False


@pytest.mark.parametrize("manager", [TakesTwice, KeepsTwice])
@given(seed=st.integers(0, 2**32))
def test_nothing_else_is_told_of_a_manager_that_takes_hits_twice(manager: type[TakesTwice], seed: int) -> None:
    rng = random.Random(seed)
    num_blocks, block_size = rng.randint(2, 6), rng.randint(1, 4)
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
    with suppress(FaultyCall, KeyError, IndexError):
        DeviceRun(num_blocks, block_size, manager=manager, sink=sink, checked=False).play(operations)
    kinds, held = sink.events["kind"], set[tuple[int, int, int]]()
    again = []
    for seq, (kind, *entry) in enumerate(
        zip(kinds, sink.events["block"], sink.events["seq_id"], sink.events["lblock"], strict=True)
    ):
        if kind == Kind.HIT and tuple(entry) in held:
            again.append(seq)
        elif kind == Kind.HIT:
            held.add(tuple(entry))
        elif kind in (Kind.FINISH, Kind.ABORT, Kind.PREEMPT, Kind.ADMIT, Kind.RESUME):
            held = {each for each in held if each[1] != entry[1]}
    found = check(sink).findings
    assert {f.seq for f in found if f.code == "KV012"} >= set(again)
    assert {f.code for f in found} <= ({"KV012"} if manager.back else {"KV012", "KV005"}), found
