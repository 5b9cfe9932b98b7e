"""Lives of blocks that end, go on and come back: what the detectors hold against whom, and what they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest

WORDS = ((1, 2, 3, 4), (3, 6, 7, 4))


def found(trace: HandTrace) -> str:
    out = []
    for finding in check(trace, replay=True).findings:
        slots = f"[{finding.slot_lo}:{finding.slot_hi}]" if finding.slot_lo >= 0 else ""
        out.append(f"{finding.code}@{finding.seq}{slots}")
    return " ".join(out)


def full(blocks: int = 1) -> HandTrace:
    """Sequence 1 has filled its first blocks in a step that has ended."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1)
    for block in range(blocks):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 4, seq_id=1, lblock=block)
    return trace.begin((1, 0, 4 * blocks, [(block, 1) for block in range(blocks)])).end()


def lives(count: int, **last: int) -> HandTrace:
    """Block 0 is in so many lives one after the other; sequence n has the n-th, and keeps the last."""
    trace = HandTrace()
    for seq_id in range(1, count + 1):
        trace.alloc(0, seq_id=seq_id, **(last if seq_id == count else {})).write(0, 0, 3, seq_id=seq_id)
        if seq_id < count:
            trace.event(Kind.FINISH, seq_id=seq_id).release(0, seq_id=seq_id).free(0)
    return trace


def reads(trace: HandTrace, seq_id: int, hi: int) -> HandTrace:
    return trace.event(Kind.STEP_BEGIN, aux=1).event(Kind.SCHED, seq_id=seq_id, fill=1, aux=pack_range(0, hi))


def hits(trace: HandTrace, *blocks: int, words: tuple[tuple[int, ...], ...] = WORDS, seq_id: int = 2) -> HandTrace:
    for block in blocks:
        before = trace._ref[block]
        trace._ref[block] += 1
        trace.event(Kind.HIT, block=block, gen=trace._gen[block], seq_id=seq_id, lblock=block, details=words[block],
                    ref_before=before, ref_after=before + 1)  # fmt: skip
    return trace


def published(words: int = 4) -> HandTrace:
    """Two blocks of sequence 1 are published one behind the other; sequence 2 is admitted (events 0 to 10).

    words: so many are told of the first.
    """
    trace = full(2)
    for block, told in ((0, WORDS[0][:words]), (1, WORDS[1])):
        trace.event(Kind.PUBLISH, block=block, gen=1, seq_id=1, lblock=block, details=told)
    return trace.event(Kind.ADMIT, seq_id=2)


def in_place_of_another(words: tuple[int, ...]) -> HandTrace:
    """Behind the first hit its block gets another life under its holders (events 12, 13), published as `words`."""
    trace = hits(published(), 0).free(0).alloc(0, seq_id=3).write(0, 0, 4, seq_id=3)
    trace.event(Kind.PUBLISH, block=0, gen=2, seq_id=3, lblock=0, details=words)
    return hits(trace, 1)


def copied(gen: int, slots: tuple[int, int], count: int = 1) -> HandTrace:
    """Block 1 is filled with slots of block 0 in this life of it."""
    trace = lives(count).alloc(1, seq_id=9)
    return trace.event(Kind.COW, block=1, gen=1, seq_id=9, lblock=0, fill=3, aux=0, details=(0, gen, *slots))


def dead_in_front() -> HandTrace:
    """What sequence 1 has read: its first block is someone else's by now, its second one another (event 16 reads)."""
    trace = reads(full(2), 1, 8).free(0).alloc(0, seq_id=2).event(Kind.TRUNCATE, seq_id=1, aux=4)
    trace.release(1, seq_id=1, lblock=1).free(1).alloc(2, seq_id=1, lblock=1)
    return reads(trace, 1, 8)


def dead_of_three(hi: int) -> HandTrace:
    """Of three full blocks of three slots the second one is someone else's by now, and is read."""
    trace = HandTrace(block_size=3).event(Kind.ADMIT, seq_id=1)
    for block in range(3):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 3, seq_id=1, lblock=block)
    return reads(trace.free(1).alloc(1, seq_id=2), 1, hi)


def quarantined_under_a_lease() -> HandTrace:
    trace = lives(1).lease(0, 7, 0, 2).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).quarantine(0)
    return trace.unlease(0, 7).settle(0)


def begins(kind: Kind, told: int) -> HandTrace:
    """The first entry that sequence 1 gets is its second one; its worker's table has `told`."""
    trace = HandTrace().alloc(0, seq_id=5).write(0, 0, 4, seq_id=5).event(kind, seq_id=1, aux=5 * (kind == Kind.FORK))
    trace.share(0, seq_id=1, lblock=1).event(Kind.STEP_BEGIN, aux=1)
    return trace.event(Kind.SCHED, seq_id=1, lblock=7, fill=1, aux=pack_range(4, 8),
                       details=(table_digest([0], [1], 1), told))  # fmt: skip


def by_another_writer(aux: int) -> HandTrace:
    """Block 0 is in its third life when another writer goes on, whose first life of it is written and read."""
    trace = lives(3).event(Kind.FINISH, seq_id=3).release(0, seq_id=3).free(0).event(Kind.GAP, aux=aux)
    trace._gen[0] = 0
    return trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)


def slid(*lblocks: int, told: int) -> HandTrace:
    """Sequence 1 gives back these of its four blocks behind its window; its worker's table has `told` entries."""
    trace, left = full(4), [block for block in range(4) if block not in lblocks]
    for block in lblocks:
        trace.release(block, seq_id=1, lblock=block, reason=Reason.WINDOW).free(block)
    trace.event(Kind.STEP_BEGIN, aux=1)
    digest = table_digest(left, [1] * len(left), left[0])
    return trace.event(Kind.SCHED, seq_id=1, lblock=15, fill=1, aux=pack_range(4 * left[0], 16), details=(digest, told))


@pytest.mark.parametrize(("expected", "history"), [
    pytest.param(*case[1:], id=case[0]) for case in [
        ("the second of two hits", "", lambda: hits(published(), 0, 1)),
        ("a hit under a lesser identity", "KV011@11", lambda: hits(published(), 0, words=((1, 2, 3, 0),))),
        ("a hit under a greater identity", "KV011@11", lambda: hits(published(), 0, words=((1, 2, 3, 9),))),
        ("a hit behind another life, published as the same", "KV012@12 KV014@13",
         lambda: in_place_of_another(WORDS[0])),
        ("a hit behind another life, published as another", "KV012@12 KV014@13",
         lambda: in_place_of_another((1, 2, 9, 4))),
        ("a hit of a life that is not published, told otherwise", "KV011@6",
         lambda: hits(full(1), 0, words=((1, 2, 3, 9),))),
        *((f"a copy of slots [{lo}:{hi}]", expected, lambda lo=lo, hi=hi: copied(1, (lo, hi))) for lo, hi, expected in (
            (0, 3, ""), (0, 4, "KV009@3[3:4]"), (3, 4, "KV009@3[3:4]"), (2, 2, ""), (3, 2, ""), (4, 3, ""))),
        ("a copy of a life that is over", "KV002@8[0:4]", lambda: copied(1, (0, 4), 2)),
        ("a copy of a life that has not begun", "", lambda: copied(3, (0, 4), 2)),
        ("a read behind a dead block", "KV012@10 KV014@11 KV002@17[0:4] KV009@17[0:4]", dead_in_front),
        ("in quarantine under a lease, which ends", "KV017@5 KV003@7", quarantined_under_a_lease),
        *((f"{kind.name.lower()}, the second entry first, {told} told",
           " ".join(["KV010@3"] * (kind == Kind.FORK) + ["KV018@5"] * (told == 3 or (told, kind) == (1, Kind.FORK))),
           lambda kind=kind, told=told: begins(kind, told))
          for kind in (Kind.ADMIT, Kind.RESUME, Kind.FORK) for told in (1, 2, 3)),
        *((f"another writer, {aux}", "" if aux <= 0 else "KV001@18[0:4]", lambda aux=aux: by_another_writer(aux))
          for aux in (-5, -1, 0, 1)),
        *((f"blocks {gone} behind a window, {told} told", "" if told == 4 else f"KV018@{13 + 2 * len(gone)}",
           lambda gone=gone, told=told: slid(*gone, told=told))
          for gone in ((0,), (0, 1), (1, 0), (0, 1, 2)) for told in (2, 3, 4, 5)),
        *((f"freed under a lease as life {gen} of 2", f"KV005@7 KV0{code:02}@10",
           lambda gen=gen: lives(2).lease(0, 1, 0, 3).event(Kind.FINISH, seq_id=2).release(0, seq_id=2)
           .free(0, gen=gen))
          for gen, code in ((-1, 17), (0, 3), (1, 3), (2, 17), (3, 17))),
        *((f"written as life {gen} of 2, and read", expected, lambda gen=gen: reads(
            lives(2).write(0, 3, 4, seq_id=2, gen=gen), 2, 4)) for gen, expected in (
                (-1, ""), (0, "KV001@7[3:4] KV009@9[3:4]"), (1, "KV001@7[3:4] KV009@9[3:4]"), (2, ""), (3, ""))),
        ("a stranger lets go of an earlier life", "KV004@7",
         lambda: lives(2).event(Kind.RELEASE, block=0, gen=0, seq_id=9, lblock=0, ref_before=1, ref_after=0)),
        ("let go as no life that there is, and read through its table", "KV004@7",
         lambda: lives(2).event(Kind.RELEASE, block=0, gen=0, seq_id=2, lblock=0, ref_before=1, ref_after=0)
         .begin((2, 0, 3, [(0, 2)]))),
        ("a write that names no life, landing in the next one", "",
         lambda: HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1, gen=-1).begin((1, 0, 3, [(0, 1)]))
         .event(Kind.ABORT, seq_id=1).release(0, seq_id=1).free(0).end()),
        ("a copy of slots behind some that are not written", "",
         lambda: HandTrace().alloc(0, seq_id=8).write(0, 2, 4, seq_id=8).alloc(1, seq_id=9).event(
             Kind.COW, block=1, gen=1, seq_id=9, lblock=0, fill=2, aux=0, details=(0, 1, 2, 4))),
        ("another writer names no life", "",
         lambda: HandTrace().event(Kind.GAP, aux=0).alloc(0, seq_id=1, gen=-1).write(0, 0, 4, seq_id=1)
         .begin((1, 0, 4, [(0, 1)]))),
        ("another writer, in whose trace lives were seen, names no life", "",
         lambda: lives(2).event(Kind.FINISH, seq_id=2).release(0, seq_id=2).free(0).event(Kind.GAP, aux=0)
         .event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1, gen=-1).write(0, 0, 4, seq_id=1, gen=1)
         .begin((1, 0, 4, [(0, 1)]))),
        *((f"slot {lo} is written under a lease that tells no slots", f"KV005@2 KV006@4[{lo}:{lo + 1}]",
           lambda lo=lo: lives(1).event(Kind.LEASE, block=0, gen=1, aux=7, ref_before=1, ref_after=2).event(Kind.NOTE)
           .write(0, lo, lo + 1, seq_id=1, ref_before=2, ref_after=2)) for lo in range(4)),
        *((f"a dead block of three slots, read up to {hi}", f"KV012@7 KV014@8 KV002@10[0:{min(hi - 3, 3)}]",
           lambda hi=hi: dead_of_three(hi)) for hi in range(4, 10)),
        ("a copy out of no block", "", lambda: HandTrace().alloc(1, seq_id=9).event(
            Kind.COW, block=1, gen=1, seq_id=9, lblock=0, fill=3, details=(-1, 0, 0, 3))),
        ("a read of a dead block, and of one that is not written", "KV012@3 KV014@4 KV002@6[0:4]",
         lambda: reads(HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).alloc(1, seq_id=1, lblock=1).free(0)
                       .alloc(0, seq_id=2), 1, 8)),
        *((f"{kind.name.lower()} as no life that is named", expected, lambda kind=kind: hits(
            published().event(kind, block=0, gen=-1), 0))
          for kind, expected in ((Kind.UNPUBLISH, "KV011@12"), (Kind.EVICT, "KV020@11 KV011@12"))),
        ("published as no life that is named", "", lambda: hits(full(1).event(
            Kind.PUBLISH, block=0, gen=-1, seq_id=1, lblock=0, details=WORDS[0]), 0)),
        *((f"two hits, published and hit with {count} words", "", lambda count=count: hits(
            published(count), 0, 1, words=(WORDS[0][:count], WORDS[1]))) for count in (0, 1, 2, 3)),
        *((f"let go as life {gen} of 2", expected, lambda gen=gen: lives(2).event(Kind.FINISH, seq_id=2)
           .event(Kind.RELEASE, block=0, gen=gen, seq_id=2, lblock=0, ref_before=1, ref_after=0).free(0))
          for gen, expected in ((-1, ""), (0, "KV005@7 KV004@8 KV012@9"), (1, "KV005@7 KV004@8 KV012@9"), (2, ""))),
        *((f"life {count} handed out as {gen}", "", lambda gen=gen, count=count: lives(count, gen=gen))
          for count, gen in ((1, -1), (2, -1), (3, -1), (2, 1), (3, 1))),
    ]
])  # fmt: skip
def test_what_is_held_against_it(expected: str, history: Callable[[], HandTrace]) -> None:
    assert found(history()) == expected
