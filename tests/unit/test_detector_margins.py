"""Where each detector draws its line: the smallest history on the wrong side of it, and what is said of it.

One row per line: a name, the rules broken as `code@event[slots]`, and the history. Without one, the neighbour on the
right side is clean; `?` where the screen alone doubts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces.schema import Kind, Reason, pack_range

Case = tuple[str, str, Callable[[], HandTrace]]
NONE: dict[str, Any] = {"ref_before": -1, "ref_after": -1}


def found(trace: HandTrace) -> str:
    out = []
    for finding in check(trace, replay=True).findings:
        slots = f"[{finding.slot_lo}:{finding.slot_hi}]" if finding.slot_lo >= 0 else ""
        out.append(f"{finding.code}@{finding.seq}{slots}")
    suspected = bool(screen(frozen(trace)).suspects)
    assert suspected or not out
    return " ".join(out) or "?" * suspected


def one() -> HandTrace:
    """Sequence 1 holds block 0, three of its slots are written in a step that has ended (events 0 to 4)."""
    return HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)])).end()


def publish(trace: HandTrace, block: int, lblock: int, words: tuple[int, ...] | None) -> HandTrace:
    shown = {"block": block, "gen": 1, "seq_id": 1, "lblock": lblock}
    return trace.event(Kind.PUBLISH, details=words, **shown)


def hit(trace: HandTrace, block: int, lblock: int, words: tuple[int, ...] | None) -> HandTrace:
    trace._ref[block] += 1
    shown = {"block": block, "gen": 1, "seq_id": 2, "lblock": lblock}
    return trace.event(Kind.HIT, details=words, ref_before=trace._ref[block] - 1, ref_after=trace._ref[block], **shown)


def full(lblock: int = 0) -> HandTrace:
    """Sequence 1 has written block 0 and published it (events 0 to 7)."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)])).end().commit(0)
    return publish(trace, 0, lblock, (1, 2, 3, 4))


def copied(source: int, slots: tuple[int, int] | None, fill: int = 3, gen: int = 1) -> HandTrace:
    """Block 3 becomes a copy of slots of a block that sequence 1 has filled and keeps; None: the row does not say."""
    trace = HandTrace().alloc(source, seq_id=1).write(source, 0, 3, seq_id=1).alloc(3, seq_id=2)
    details = None if slots is None else (source, gen, *slots)
    return trace.event(Kind.COW, block=3, gen=1, seq_id=2, lblock=0, fill=fill, aux=source, details=details)


def reads(trace: HandTrace, seq_id: int, hi: int) -> HandTrace:
    """A step of a sequence that reads its positions up to `hi`; of its table nothing is told."""
    trace.event(Kind.STEP_BEGIN, aux=1)
    return trace.event(Kind.SCHED, seq_id=seq_id, lblock=hi - 1, fill=1, aux=pack_range(0, hi))


def shared_then_freed(hi: int) -> HandTrace:
    """The second of two blocks of a table is freed under its holder, who then reads `hi` positions."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1)
    for block in (0, 1):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 4, seq_id=1, lblock=block)
    return reads(trace.free(1), 1, hi)


def third_anew() -> HandTrace:
    """Sequence 1 has read its three blocks, and has another one in the place of the third (events 0 to 12)."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1)
    for block in (0, 1, 2):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 4, seq_id=1, lblock=block)
    reads(trace, 1, 12).end().event(Kind.TRUNCATE, seq_id=1, aux=8)
    return trace.release(2, seq_id=1, lblock=2).free(2).alloc(3, seq_id=1, lblock=2)


def unnamed(lives: int) -> HandTrace:
    """Block 0 has had so many lives when it is handed out in one that the row does not name."""
    trace = HandTrace()
    for _ in range(lives):
        trace.alloc(0, seq_id=1).release(0, seq_id=1).free(0)
    return trace.alloc(0, seq_id=2, gen=-1)


def compared(reason: Reason) -> HandTrace:
    """The checker beside the engine says that three slots of block 0 are not what they should be (event 5)."""
    return one().event(Kind.MISMATCH, reason=reason, block=0, gen=1, seq_id=1, fill=3, aux=1, details=(16, 17))


LIVES: list[Case] = [
    *((f"a write as the life before the one that came after {n}", f"KV001@{3 * n + 1}[0:1]",
       lambda n=n: unnamed(n).write(0, 0, 1, seq_id=2, gen=n)) for n in range(4)),
    *((f"a write as the life that came after {n}", "?", lambda n=n: unnamed(n).write(0, 0, 1, seq_id=2, gen=n + 1))
      for n in range(4)),
    *((f"a copy of slots [{lo}:{hi}], which is read", "KV009@5[0:4]",
       lambda lo=lo, hi=hi: reads(copied(0, (lo, hi)), 2, 4))
      for lo, hi in ((3, 1), (3, 2), (3, 3), (1, 3))),
    ("a write backwards", "KV019@5[3:2] KV009@7[3:4]", lambda: reads(one().write(0, 3, 2, seq_id=1), 1, 4)),
    ("other bytes", "KV024@5[0:3]", lambda: compared(Reason.CONTENT)),
    ("hit under another identity behind lost events", "?", lambda: hit(full().lose(5), 0, 0, (1, 2, 3, 9))),
    ("a dead block beyond what is read", "KV012@5", lambda: shared_then_freed(4)),
    ("a dead block of which one position is read", "KV012@5 KV002@7[0:1]", lambda: shared_then_freed(5)),
    ("a copy that nobody had decided on", "?", lambda: one().event(Kind.COPY_DONE, block=0, gen=1, aux=3, fill=0)),
    ("a copy of slots that exist", "?", lambda: copied(0, (0, 3))),
    ("a copy of one slot more", "KV009@3[3:4]", lambda: copied(0, (0, 4))),
    ("a copy of no slots", "?", lambda: copied(0, (3, 3))),
    ("a copy of more slots than there are", "?", lambda: copied(0, (0, 5))),
    ("a copy out of block 0, which says no more", "?", lambda: copied(0, None)),
    ("a copy out of block 0 of one slot more, which says no more", "KV009@3[3:4]", lambda: copied(0, None, fill=4)),
    ("a copy out of block 1, which says no more", "KV009@3[3:4]", lambda: copied(1, None, fill=4)),
    ("a copy of which nothing is told", "KV009@5[0:1]", lambda: reads(copied(0, None, fill=-1), 2, 1)),
    ("a copy of slots behind the first, which is read", "KV009@5[0:1]", lambda: reads(copied(0, (1, 3)), 2, 3)),
    ("a copy of all slots that are read", "?", lambda: reads(copied(0, (0, 3)), 2, 3)),
    ("a copy that moved all", "?", lambda: copied(0, (0, 3)).event(Kind.COPY_DONE, block=3, gen=1, aux=0, fill=3)),
    ("a copy that moved one less", "KV009@4[2:3]",
     lambda: copied(0, (0, 3)).event(Kind.COPY_DONE, block=3, gen=1, aux=0, fill=2)),
    ("a copy that moved none", "KV009@4[0:3]",
     lambda: copied(0, (0, 3)).event(Kind.COPY_DONE, block=3, gen=1, aux=0, fill=0)),
    ("a write of no slot", "KV019@5[3:3]", lambda: one().write(0, 3, 3, seq_id=1)),
    ("a write of the last slot", "", lambda: one().write(0, 3, 4, seq_id=1)),
    ("a write behind the last slot", "KV019@5[3:5]", lambda: one().write(0, 3, 5, seq_id=1)),
    ("a free that names no life", "?", lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0, gen=-1)),
    ("a free that names no life leaves it free", "KV001@8[3:4]",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0, gen=-1)
     .write(0, 3, 4, seq_id=1, **NONE)),
    ("a hand-out that names no life begins one", "KV001@9[0:1]",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).alloc(0, seq_id=2, gen=-1)
     .write(0, 0, 1, seq_id=2, gen=1)),
    ("a write that names no life", "?", lambda: one().write(0, 3, 4, seq_id=1, gen=-1)),
    ("a read of a third block that is another one by now", "KV009@15[0:4]", lambda: reads(third_anew(), 1, 12)),
    ("a read up to there", "", lambda: reads(third_anew(), 1, 8)),
    ("a read of what is not written", "KV009@2[0:1]", lambda: reads(HandTrace().alloc(0, seq_id=1), 1, 1)),
    ("a read of one slot too many", "KV009@6[3:4]", lambda: reads(one(), 1, 4)),
    ("a read of what is written", "", lambda: reads(one(), 1, 3)),
    ("a read beyond the table", "KV018@7", lambda: reads(one().write(0, 3, 4, seq_id=1), 1, 5)),
]  # fmt: skip


def two_holders(*, quarantined: bool = False) -> HandTrace:
    """Of two holders one lets go while its step is open; the block is handed out again all the same."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).begin((1, 0, 4, [(0, 1)]))
    return trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1)


def swapped(lease: tuple[int, ...]) -> HandTrace:
    """Block 0 of sequence 1 goes to slot 5 under lease 7, which is held."""
    return one().lease(0, 7, 0, 3).event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, aux=5, details=lease)


def arriving(steps: int) -> HandTrace:
    """Block 0 is filled from a slot while steps of others begin and end."""
    trace = HandTrace().event(Kind.RESUME, seq_id=1).alloc(0, seq_id=1).lease(0, 7, 0, 4)
    trace.event(Kind.SWAP_IN, block=0, gen=1, seq_id=1, lblock=0, fill=4, aux=5, details=(1, 7))
    for _ in range(steps):
        trace.event(Kind.STEP_BEGIN, aux=0).end()
    return trace.unlease(0, 7)


FENCES: list[Case] = [
    ("handed out while another holds it", "KV014@9", lambda: two_holders().alloc(0, seq_id=3)),
    ("settled though it was not in quarantine", "KV003@8",
     lambda: reads(reads(HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1), 1, 4), 1, 4).event(
         Kind.ABORT, seq_id=1).release(0, seq_id=1).settle(0)),
    ("settled one step too early", "KV013@9",
     lambda: reads(reads(HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1), 1, 4), 1, 4).event(
         Kind.ABORT, seq_id=1).release(0, seq_id=1).quarantine(0).settle(0)),
    ("settled just before its step ends", "",
     lambda: reads(reads(HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1), 1, 4), 1, 4).event(
         Kind.ABORT, seq_id=1).release(0, seq_id=1).quarantine(0).end().settle(0).end()),
    ("let go twice, and kept", "?", lambda: one().share(0, seq_id=2).release(0, seq_id=2)),
    ("quarantined as an earlier life", "KV003@8",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).quarantine(0, gen=0)),
    ("freed as an earlier life under a lease", "KV003@6",
     lambda: one().lease(0, 1, 0, 3).free(0, gen=0)),
    ("quarantined as an earlier life, and handed out", "KV003@8",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).quarantine(0, gen=0).alloc(0, seq_id=2)),
    ("freed as an earlier life under a lease alone", "KV003@8",
     lambda: one().lease(0, 1, 0, 3).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0, gen=0)),
    ("freed as a later life under a lease alone", "KV017@8",
     lambda: one().lease(0, 1, 0, 3).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0, gen=2)),
    ("freed as this life under a lease alone", "KV017@8",
     lambda: one().lease(0, 1, 0, 3).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0)),
    ("let go as an earlier life, and as this one", "KV004@9",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).alloc(0, seq_id=2)
     .event(Kind.RELEASE, block=0, gen=1, seq_id=2, lblock=0, ref_before=1, ref_after=0)
     .release(0, seq_id=2).free(0)),
    ("a write of sequence 0 lands in the next life", "KV001@1[0:3] KV013@6",
     lambda: HandTrace().alloc(0, seq_id=0).write(0, 0, 3, seq_id=0).begin((0, 0, 3, [(0, 1)])).release(0, seq_id=0)
     .free(0).alloc(0, seq_id=2).end()),
    ("moved under its lease", "?", lambda: swapped((1, 7))),
    ("moved under its lease, with more details", "?", lambda: swapped((1, 7, 0))),
    ("moved under no lease", "?", lambda: swapped((1,))),
    ("moved under another lease", "KV017@6", lambda: swapped((1, 8))),
    ("moved under lease 0", "KV017@6", lambda: swapped((1, 0))),
    ("on its way in while others compute", "", lambda: arriving(1)),
    ("on its way in while others compute twice", "", lambda: arriving(2)),
]  # fmt: skip


def chained(first: tuple[int, ...] = (1, 2, 3, 4), second: tuple[int, ...] = (3, 6, 7, 4)) -> HandTrace:
    """Blocks 0 and 1 of sequence 1 are published one behind the other, and let go (events 0 to 12)."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1)
    for block in (0, 1):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 4, seq_id=1, lblock=block)
    trace.begin((1, 0, 8, [(0, 1), (1, 1)])).end()
    publish(publish(trace, 0, 0, first), 1, 1, second)
    trace.event(Kind.FINISH, seq_id=1)
    return trace.release(1, seq_id=1, lblock=1).release(0, seq_id=1, lblock=0)


def both(trace: HandTrace, one: tuple[int, ...] | None = (1, 2, 3, 4), two: tuple[int, ...] | None = (3, 6, 7, 4),
         place: int = 1, front: int = 0) -> HandTrace:  # fmt: skip
    """Sequence 2 hits blocks 0 and 1 as its blocks `front` and `place`."""
    trace.event(Kind.ADMIT, seq_id=2, aux=8)
    return hit(hit(trace, 0, front, one), 1, place, two)


def hit_as_second(front: bool) -> HandTrace:
    trace = chained().event(Kind.ADMIT, seq_id=2, aux=4)
    return hit(trace, 1, 0 if front else 1, (3, 6, 7, 4))


SHARING: list[Case] = [
    ("hits on two blocks", "?", lambda: both(chained())),
    ("hits of which nothing is told", "?", lambda: both(chained(), None, None)),
    ("a hit with other tokens", "KV011@14", lambda: both(chained(), (1, 9, 3, 4))),
    ("a hit behind another prefix", "KV011@14", lambda: both(chained(), (9, 2, 3, 4))),
    ("a hit under another identity", "KV011@14", lambda: both(chained(), (1, 2, 3, 9))),
    ("the second block hit as the first", "KV011@14", lambda: hit_as_second(front=True)),
    ("the second block hit alone", "?", lambda: hit_as_second(front=False)),
    ("the second block hit as the third", "KV011@15", lambda: both(chained(), place=2)),
    ("a block behind one that says another hash", "KV011@15",
     lambda: both(chained((1, 2, 5, 4)), (1, 2, 5, 4))),
    ("a block behind one that says no hash", "?", lambda: both(chained((1, 2)), (1, 2))),
    ("a block whose place was not told", "?",
     lambda: hit(full(lblock=-1), 0, 3, (1, 2, 3, 4))),
    ("a hit that tells no place", "?", lambda: hit(full(), 0, -1, (1, 2, 3, 4))),
    ("a hit on what is not published", "KV011@5", lambda: hit(one(), 0, 0, (1, 2, 3, 4))),
    ("a hit that counts nothing, after lost events", "?",
     lambda: one().lose(5).hit(0, seq_id=2, **NONE).release(0, seq_id=1)),
    ("a hit that counts from 0, after lost events", "KV010@11",
     lambda: one().lose(5).hit(0, seq_id=2, ref_before=0, ref_after=1).release(0, seq_id=1, ref_before=1, ref_after=0)),
    ("a hit on what was never handed out", "KV003@5 KV011@6",
     lambda: one().quarantine(1).publish(1).hit(1, seq_id=2)),
    ("evicted while held", "KV020@8", lambda: full().event(Kind.EVICT, block=0, gen=1, fill=4)),
    ("published with a slot missing", "KV016@6", lambda: one().commit(0).publish(0)),
]  # fmt: skip


def left(*, step: bool, quarantine: bool = True) -> HandTrace:
    """A block goes into quarantine while a step is open, and stays there; `step`: that step ends."""
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)]))
    trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1)
    trace.quarantine(0) if quarantine else trace
    return trace.end() if step else trace


LEDGER: list[Case] = [
    ("left in quarantine behind an open step", "", lambda: left(step=False)),
    ("left in quarantine", "KV005@6", lambda: left(step=True)),
    ("left nowhere", "KV005@5", lambda: left(step=True, quarantine=False)),
    ("a count that begins at one", "KV007@0 KV010@0",
     lambda: HandTrace().share(0, seq_id=1, ref_before=1, ref_after=2)),
    ("a hand-out from one", "KV007@0", lambda: HandTrace().alloc(0, seq_id=1, ref_before=1, ref_after=1)),
    ("a hand-out to two", "KV007@0", lambda: HandTrace().alloc(0, seq_id=1, ref_before=0, ref_after=2)),
    ("a hand-out that counts nothing", "?", lambda: HandTrace().alloc(0, seq_id=1, **NONE)),
    ("ended before anything else", "KV005@0", lambda: HandTrace().event(Kind.FINISH, seq_id=1).alloc(0, seq_id=1)),
    ("taken before it was admitted", "KV005@0", lambda: HandTrace().alloc(0, seq_id=1).event(Kind.ADMIT, seq_id=1)),
    ("admitted before it took", "", lambda: HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)),
    ("taken in an earlier life of the sequence", "KV005@2",
     lambda: HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).event(Kind.PREEMPT, seq_id=1)
     .event(Kind.RESUME, seq_id=1)),
    ("taken between two lives of the sequence", "KV005@2",
     lambda: HandTrace().event(Kind.ADMIT, seq_id=1).event(Kind.PREEMPT, seq_id=1).alloc(0, seq_id=1)
     .event(Kind.RESUME, seq_id=1)),
    ("the host tier counts what was never told", "", lambda: one().witness(3, 1, 0, 0, 0, 0, 1, table=[(0, 1)])),
    ("grows in its first event", "", lambda: HandTrace(num_blocks=4).resize(2, 4).alloc(3, seq_id=1)),
    ("speaks of a block before it has it", "KV019@0",
     lambda: HandTrace(num_blocks=4).alloc(3, seq_id=1).resize(2, 4)),
    ("refused for another reason", "",
     lambda: one().event(Kind.SUBMIT, seq_id=9, aux=4).event(Kind.REFUSED, seq_id=9, reason=Reason.CAPACITY,
                                                             details=(1, 3, 0))),
    ("refused though there is room", "KV021@6",
     lambda: one().event(Kind.SUBMIT, seq_id=9, aux=4).event(Kind.REFUSED, seq_id=9, reason=Reason.NO_BLOCKS,
                                                             details=(1, 3, 0))),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "history"), [pytest.param(*case[1:], id=case[0])
                                                   for case in (*LIVES, *FENCES, *SHARING, *LEDGER)])  # fmt: skip
def test_the_line_is_drawn_there(expected: str, history: Callable[[], HandTrace]) -> None:
    assert found(history()) == expected


@pytest.mark.parametrize(("slots", "looked_at"), [((0, 3), 6), ((1, 3), 5), ((2, 3), 4), ((3, 3), 3), ((0, 5), 3)])
def test_slots_of_a_copy_are_looked_at(slots: tuple[int, int], looked_at: int) -> None:
    assert check(copied(0, slots), replay=True).slots == looked_at


@pytest.mark.parametrize(("reason", "details", "numbers"), [
    (Reason.PROVENANCE, None, ""), (Reason.PROVENANCE, (16,), ""), (Reason.PROVENANCE, (16, 17), "s-1 -1"),
    (Reason.PROVENANCE, (16, 17, 5), "s5 -1"), (Reason.PROVENANCE, (16, 17, 5, 6), "s5 6"),
    (Reason.PROVENANCE, (16, 17, 5, 6, 0), "-1 s0 s5 6"), (Reason.PROVENANCE, (16, 17, 5, 6, 7, 8), "8 s7 s5 6"),
    (Reason.CONTENT, (16, 17), "0x11 0x10"), (Reason.CONTENT, (16, 17, 0), "0x11 0x10 s0 -1"),
    (Reason.CONTENT, (16, 17, 5, 6), "0x11 0x10 s5 6"),
])  # fmt: skip
def test_a_mismatch_says_what_its_checker_has_told(
    reason: Reason, details: tuple[int, ...] | None, numbers: str
) -> None:
    trace = one().event(Kind.MISMATCH, reason=reason, block=0, gen=1, seq_id=1, fill=1, aux=1, details=details)
    (said,) = check(trace).findings
    told = said.why.split(":", 1)[1] if ":" in said.why else said.why
    assert " ".join(re.findall(r"0x\d+|s?-?\d+", told)) == numbers


@pytest.mark.parametrize(("gen", "details", "told"), [
    (1, (0, 1, 0, 3), True), (1, (0, 1, 0, 3, 9), True), (1, (0, 1, 0), False), (1, None, False),
    (0, (0, 1, 0, 3), False), (2, (0, 1, 0, 3), False),
])  # fmt: skip
@pytest.mark.parametrize("into", [3, 2])
def test_a_mismatch_tells_of_the_copy_that_filled_this_life(
    gen: int, details: tuple[int, ...] | None, told: bool, into: int
) -> None:
    trace = copied(0, (0, 3)).alloc(2, seq_id=3)
    trace._details = {} if details is None else {3: details}
    trace.event(Kind.MISMATCH, reason=Reason.PROVENANCE, block=into, gen=gen, seq_id=2, fill=1, aux=1, details=(16, 17))
    said = [finding.why for finding in check(trace).findings if finding.code == "KV023"]
    copy = " Slots [0:3] of b3#1 were to be copied from b0#1 (seq 3)"
    assert [why.endswith(copy) for why in said] == [told and into == 3]
    assert [" to be copied " in why for why in said] == [told and into == 3]


@pytest.mark.parametrize("reason", [Reason.NONE, Reason.CAPACITY, Reason.TOKEN_BUDGET, Reason.SWAPPED])
@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.WAIT, Kind.MISMATCH])
def test_rows_for_other_reasons_say_nothing(kind: Kind, reason: Reason) -> None:
    trace = one().event(Kind.SUBMIT, seq_id=9, aux=4)
    trace.facts.append({"type": "scheduler", "watermark": 0.0})
    trace.event(kind, seq_id=9, reason=reason, details=(1, 3, 0))
    assert found(trace) == ("?" if kind == Kind.MISMATCH else "")
