"""Where content comes from: forks, copies and transfers take what stands at their own place."""

from __future__ import annotations

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.explain import explain
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import Finding, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.reads import reads_of
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces import compiled
from kvscope.traces.schema import Kind, Reason


def found(trace: HandTrace) -> list[Finding]:
    """The findings: the same by the replay, and through the screen in C and by columns."""
    replayed = check(trace, replay=True).findings
    for on in (True, False):
        with compiled.using(on):
            assert check(trace).findings == replayed
    assert screen(frozen(trace)).clean == (not replayed)
    return list(replayed)


def codes(trace: HandTrace) -> set[str]:
    return {finding.code for finding in found(trace)}


def parent(blocks: int = 2, *, size: int = 2) -> HandTrace:
    """Sequence 1 has written this many full blocks."""
    trace = HandTrace(num_blocks=8, block_size=size).request(0, "story", [1, 2], prompt_tokens=blocks * size)
    trace.event(Kind.ADMIT, seq_id=1)
    for block in range(blocks):
        trace.alloc(block, seq_id=1, lblock=block)
    for block in range(blocks):
        trace.write(block, 0, size, seq_id=1, lblock=block)
    return trace.begin((1, 0, blocks * size, [(block, 1) for block in range(blocks)])).end()


def let_go(trace: HandTrace, tables: dict[int, list[int]]) -> HandTrace:
    """Every sequence ends and gives its blocks back."""
    held = [block for table in tables.values() for block in table]
    for seq_id, table in tables.items():
        trace.event(Kind.FINISH, seq_id=seq_id)
        for lblock in reversed(range(len(table))):
            trace.release(table[lblock], seq_id=seq_id, lblock=lblock)
            held.remove(table[lblock])
            if table[lblock] not in held:
                trace.free(table[lblock])
    return trace


def fork(order: list[int]) -> HandTrace:
    """Sequence 2 is a fork of 1, whose blocks 0 and 1 it takes in this order."""
    trace = parent().event(Kind.FORK, seq_id=2, aux=1)
    for lblock, block in enumerate(order):
        trace.share(block, seq_id=2, lblock=lblock)
    return let_go(trace, {2: order, 1: [0, 1]})


def test_a_fork_takes_the_blocks_of_its_parent_in_their_order() -> None:
    assert codes(fork([0, 1])) == set()
    (first, second) = found(fork([1, 0]))
    assert (first.code, second.code, first.block) == ("KV010", "KV010", 1)
    assert "takes a share of b1#1 as its block 0, but story, whose fork it is, has b0#1 there" in first.why


@pytest.mark.parametrize("kept", [[0], [1], [0, 2], [1, 2]])
def test_a_fork_that_forgets_a_block_is_found_when_it_reads(kept: list[int]) -> None:
    trace = parent(3).event(Kind.FORK, seq_id=2, aux=1)
    for lblock in kept:
        trace.share(lblock, seq_id=2, lblock=lblock)
    trace.event(Kind.STEP_BEGIN, aux=1).event(Kind.SCHED, seq_id=2, lblock=6, fill=0, aux=6 << 32).end()
    lacking = next(lblock for lblock in range(3) if lblock not in kept)
    (finding,) = [each for each in found(trace) if each.code == "KV018"]
    assert f"its table has no block {lacking}" in finding.why
    told = explain(trace, "story/1")
    assert (told.verdict, told.read.position if told.read else -1) == ("damaged", 2 * lacking)
    assert told.cause is not None
    assert told.cause.code == "KV018"


def copied(source: int) -> HandTrace:
    """Sequence 2, a fork of 1, appends behind one slot of block 1; its copy is of `source`."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1, 2], prompt_tokens=3)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).alloc(1, seq_id=1, lblock=1)
    trace.write(0, 0, 2, seq_id=1).write(1, 0, 1, seq_id=1, lblock=1).begin((1, 0, 3, [(0, 1), (1, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).share(1, seq_id=2, lblock=1)
    trace.alloc(2, seq_id=2, lblock=1, reason=Reason.COPY_ON_WRITE).lease(source, 1, 0, 1)
    trace.event(Kind.COW, block=2, gen=1, fill=1, seq_id=2, lblock=1, aux=source, details=(source, 1, 0, 1))
    trace.release(1, seq_id=2, lblock=1, reason=Reason.COPY_ON_WRITE).write(2, 1, 2, seq_id=2, lblock=1)
    trace.begin((2, 3, 4, [(0, 1), (2, 1)])).copy_done(source, 2).end()
    return let_go(trace, {2: [0, 2], 1: [0, 1]})


def test_a_copy_is_of_the_block_that_it_replaces() -> None:
    assert codes(copied(1)) == set()
    (finding,) = found(copied(0))
    assert (finding.code, finding.block) == ("KV010", 0)
    assert "copies b0#1 into b2#1 for its block 1, but b1#1 stood there" in finding.why
    told = explain(copied(0), "story/1")
    assert told.verdict == "damaged"
    assert told.should == "the copy should have been of the block that it takes the place of, into another one"
    assert told.cause is not None
    assert told.cause.seq == finding.seq


def onto_itself() -> HandTrace:
    """Block 0, which sequences 1 and 2 hold, is handed to 2 as the copy of itself; both write slot 1."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1, 2], prompt_tokens=1)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1).begin((1, 0, 1, [(0, 1)])).end()
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).lease(0, 1, 0, 1)
    trace.event(Kind.COW, block=0, gen=1, fill=1, seq_id=2, lblock=0, aux=0, details=(0, 1, 0, 1))
    trace.write(0, 1, 2, seq_id=1).write(0, 1, 2, seq_id=2)
    trace.begin((1, 1, 2, [(0, 1)]), (2, 1, 2, [(0, 1)])).copy_done(0, 0).end()
    trace.write(0, 1, 2, seq_id=9)
    return trace


def test_a_copy_of_a_block_onto_itself_is_found_and_hides_nothing() -> None:
    trace = onto_itself()
    first = next(finding for finding in found(trace) if finding.code == "KV010")
    assert "copies b0#1 into itself" in first.why
    assert reads_of(trace).damage.keys() == {1}, "the write of 2 lies over that of 1"


@pytest.mark.parametrize("slots", [(3, 4), (4, 3), (3, 3), (5, 4)])
def test_what_comes_back_comes_from_its_own_host_slot(slots: tuple[int, int]) -> None:
    trace = parent()
    trace.event(Kind.PREEMPT, seq_id=1, reason=Reason.SWAPPED)
    for block in (0, 1):
        trace.lease(block, 1, 0, 2)
    for block in (0, 1):
        trace.event(Kind.SWAP_OUT, block=block, gen=1, fill=2, seq_id=1, lblock=block, aux=3 + block, details=(1, 1))
    for block in (1, 0):
        trace.release(block, seq_id=1, lblock=block)
    for block in (0, 1):
        trace.unlease(block, 1).free(block)
    trace.event(Kind.RESUME, seq_id=1, reason=Reason.SWAPPED).alloc(2, seq_id=1).alloc(3, seq_id=1, lblock=1)
    for block in (2, 3):
        trace.lease(block, 2, 0, 2)
    for lblock, slot in enumerate(slots):
        trace.event(Kind.SWAP_IN, block=2 + lblock, gen=1, fill=2, seq_id=1, lblock=lblock, aux=slot, details=(1, 2))
    for block in (2, 3):
        trace.unlease(block, 2)
    trace.begin((1, 4, 4, [(2, 1), (3, 1)])).end()
    trace = let_go(trace, {1: [2, 3]})
    wrong = [lblock for lblock, slot in enumerate(slots) if slot != 3 + lblock]
    assert [(finding.code, finding.block) for finding in found(trace)] == [("KV010", 2 + at) for at in wrong]
    assert explain(trace, "story").verdict == ("damaged" if wrong else "clean")
    if slots == (4, 3):
        assert (
            "filled from host slot 4, which has block 1 of story; its own content went to slot 3" in found(trace)[0].why
        )


def test_a_sequence_does_not_write_over_what_it_has() -> None:
    trace = parent(1).alloc(1, seq_id=1, lblock=1)
    trace.write(0, 1, 2, seq_id=1).begin((1, 2, 3, [(0, 1), (1, 1)])).end()
    finding = found(let_go(trace, {1: [0, 1]}))[0]
    assert finding.code == "KV019"
    assert "its position 1, over what it has there: it goes on at 2" in finding.why
    told = explain(trace, "story")
    assert told.verdict == "damaged"
    assert told.cause is not None
    assert told.cause.seq == finding.seq
    rolled = parent(1).event(Kind.TRUNCATE, seq_id=1, aux=1).write(0, 1, 2, seq_id=1).begin((1, 1, 2, [(0, 1)])).end()
    assert codes(let_go(rolled, {1: [0]})) == set()


@pytest.mark.parametrize("kind", [Kind.FREE, Kind.QUARANTINE])
def test_a_published_block_is_withdrawn_before_it_is_free(kind: Kind) -> None:
    trace = parent(1).commit(0).publish(0, seq_id=1, lblock=0).event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    (finding,) = found(trace.event(kind, block=0, gen=1, ref_before=0, ref_after=0, fill=2))[:1]
    assert finding.code == "KV011"
    assert "while the prefix index still leads to it" in finding.why
    good = parent(1).commit(0).publish(0, seq_id=1, lblock=0).event(Kind.FINISH, seq_id=1).release(0, seq_id=1)
    assert codes(good.evict(0)) == set()


def shrunk(*, ended: bool, moves: bool) -> HandTrace:
    """A pool of 8 is cut to 4 while the step that uses block 5 is open, or behind it; 5 has moved, or was freed."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=1).alloc(5, seq_id=1).write(5, 0, 2, seq_id=1).begin((1, 0, 2, [(5, 1)]))
    trace = trace.end() if ended else trace
    if moves:
        trace.alloc(0, seq_id=1, reason=Reason.RESIZED).lease(5, 1, 0, 2)
        trace.event(Kind.COW, block=0, gen=1, fill=2, seq_id=1, lblock=0, aux=5, reason=Reason.RESIZED,
                    details=(5, 1, 0, 2))  # fmt: skip
        trace.release(5, seq_id=1, reason=Reason.RESIZED).copy_done(5, 0).free(5)
    else:
        trace.event(Kind.FINISH, seq_id=1).release(5, seq_id=1).free(5)
    trace.resize(8, 4)
    trace = trace if ended else trace.end()
    return let_go(trace, {1: [0]}) if moves else trace


@pytest.mark.parametrize("moves", [True, False])
def test_nothing_moves_or_goes_under_an_open_step(moves: bool) -> None:
    assert codes(shrunk(ended=True, moves=moves)) == set()
    (finding,) = found(shrunk(ended=False, moves=moves))
    assert (finding.code, finding.block) == ("KV013", 5)
    assert f"b5#1 {'is moved' if moves else 'goes with the end of the pool'} while a step that uses it" in finding.why


def test_right_managers_are_passed_by_both_screens() -> None:
    """What they suspect of a right run costs a replay, so it must be rare; a finding is a false alarm."""
    suspected = 0
    for trace in [play.run(BlockManager) for play in PLAYS.values()] + [improvise(seed).sink for seed in range(60)]:
        assert check(trace, replay=True).findings == ()
        suspected += not screen(frozen(trace)).clean
    assert suspected <= 3
