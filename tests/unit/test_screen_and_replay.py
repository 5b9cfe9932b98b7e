"""Small histories beside a line that screen and replay both draw: what the one doubts, and what the other finds.

One row per line: a name, the suspicions as `rule@event`, the findings as `code@event[slots]`, and the history.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen import plain
from kvscope.inspector.screen import screen as screens
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.screen.whole import by_rows
from kvscope.inspector.source import frozen
from kvscope.traces import compiled
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest

Case = tuple[str, str, str, Callable[[], HandTrace]]
WORDS = (1, 2, 3, 4)


def doubted(trace: HandTrace) -> str:
    """What the screen doubts first: at once, without its short cuts, and in pieces of an operation each."""
    goes_on = (Kind.LEASE, Kind.COW, Kind.UNLEASE, Kind.HIT)

    def pieces(kinds: np.ndarray) -> Any:
        return pairwise([0, *(np.flatnonzero(~np.isin(kinds[1:], goes_on)) + 1).tolist(), len(kinds)])

    def first() -> str:
        suspects = sorted(screen(frozen(trace)).suspects.items())
        seq = min((seq for _, seq in suspects), default=-1)
        return ", ".join(f"{rule}@{seq}" for rule, at in suspects if at == seq)

    said = first()
    for module, name, value in ((plain, "FEW", 0), (screens, "chunks", pieces)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, name, value)
            assert first() == said
    return said


def found(trace: HandTrace) -> str:
    out = []
    for finding in check(trace, replay=True).findings:
        slots = f"[{finding.slot_lo}:{finding.slot_hi}]" if finding.slot_lo >= 0 else ""
        out.append(f"{finding.code}@{finding.seq}{slots}")
    return " ".join(out)


def one(slots: int = 4) -> HandTrace:
    """Sequence 1 holds block 0, some of its slots are written in a step that has ended (events 0 to 5)."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, slots, seq_id=1)
    return trace.begin((1, 0, slots, [(0, 1)])).end()


def over(trace: HandTrace) -> HandTrace:
    """Sequence 1 ends and lets block 0 go (two events)."""
    return trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1)


def again() -> HandTrace:
    """Block 0 is handed to sequence 1, which was admitted again, for the second time (events 6 to 10)."""
    return over(one()).free(0).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)


def step(trace: HandTrace, lo: int, hi: int, table: list[tuple[int, int]] | None = None, *, first: int = 0,
         length: int | None = None) -> HandTrace:  # fmt: skip
    """A step of sequence 1 that reads [lo, hi); the worker's table begins with logical block `first`."""
    trace.event(Kind.STEP_BEGIN, aux=1)
    told = None
    if table is not None:
        digest = table_digest([b for b, _ in table], [g for _, g in table], first)
        told = (digest, first + len(table) if length is None else length)
    return trace.event(Kind.SCHED, seq_id=1, lblock=hi - 1, fill=1, aux=pack_range(lo, hi), details=told)


def publish(trace: HandTrace, block: int, lblock: int, words: tuple[int, ...] = WORDS, gen: int = 1) -> HandTrace:
    return trace.event(Kind.PUBLISH, block=block, gen=gen, seq_id=1, lblock=lblock, details=words)


def hit(trace: HandTrace, block: int, lblock: int, words: tuple[int, ...] | None = WORDS, *, seq_id: int = 2,
        gen: int = 1) -> HandTrace:  # fmt: skip
    before = trace._ref[block]
    trace._ref[block] += 1
    return trace.event(Kind.HIT, block=block, gen=gen, seq_id=seq_id, lblock=lblock, details=words, ref_before=before,
                       ref_after=before + 1, reason=Reason.PREFIX_HIT)  # fmt: skip


def row_of(blocks: int) -> HandTrace:
    """Sequence 1 holds so many full blocks, computed by a step that has ended."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1)
    for block in range(blocks):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 4, seq_id=1, lblock=block)
    return trace.begin((1, 0, 4 * blocks, [(block, 1) for block in range(blocks)])).end()


def slid(reason: int = Reason.WINDOW) -> HandTrace:
    """Sequence 1 gives back the first of its two blocks (events 7 and 8)."""
    return row_of(2).release(0, seq_id=1, reason=reason).free(0)


def slid_and_back(*, told: int) -> HandTrace:
    """It ends, is admitted again with a table of its own, and its worker's table has `told` entries."""
    trace = slid().event(Kind.FINISH, seq_id=1).release(1, seq_id=1, lblock=1).free(1)
    trace.event(Kind.ADMIT, seq_id=1).alloc(2, seq_id=1).write(2, 0, 4, seq_id=1)
    return step(trace, 0, 4, [(2, 1)], length=told)


def decided(details: tuple[int, ...] | None) -> HandTrace:
    """Block 3 becomes a copy of slots of block 0, which sequence 1 keeps (events 6 to 8)."""
    trace = one(3).event(Kind.ADMIT, seq_id=2).alloc(3, seq_id=2)
    return trace.event(Kind.COW, block=3, gen=1, seq_id=2, lblock=0, fill=3, aux=0, details=details)


def ran_late(details: tuple[int, ...]) -> HandTrace:
    """The copy runs after its source was freed (event 12)."""
    return over(decided(details)).free(0).event(Kind.COPY_DONE, block=3, gen=1, aux=0, fill=3)


def copied(*, anew: bool) -> HandTrace:
    """The source of a copy is let go when it has run (event 13); anew: it is another life by then (event 19)."""
    trace = one(3).event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).copy_on_write(0, 1, 3, seq_id=2)
    if anew:
        over(trace.unlease(0, 1)).free(0).event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3).lease(0, 1, 0, 0)
    return trace.event(Kind.COPY_DONE, block=1, gen=1, aux=0).unlease(0, 1)


def arriving(*scheduled: int) -> HandTrace:
    """Block 0 of sequence 1 is still on its way in while a step of these sequences begins and ends."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).event(Kind.ADMIT, seq_id=0).event(Kind.ADMIT, seq_id=2)
    trace.alloc(0, seq_id=1).lease(0, 7, 0, 4)
    trace.event(Kind.SWAP_IN, block=0, gen=1, seq_id=1, lblock=0, fill=4, aux=5, details=(1, 7))
    trace.event(Kind.STEP_BEGIN, aux=len(scheduled))
    for seq_id in scheduled:
        trace.event(Kind.SCHED, seq_id=seq_id, lblock=0, fill=0, aux=pack_range(0, 0))
    return trace.end().unlease(0, 7)


def leased(lo: int, hi: int) -> HandTrace:
    """Slots [lo, hi) of block 0 are leased while its holder writes slot 1 once more (event 7)."""
    return one().lease(0, 1, lo, hi).write(0, 1, 2, seq_id=1).unlease(0, 1)


def filled_elsewhere(kind: Kind) -> HandTrace:
    """Slots are filled for block 0 of sequence 1, but of another block (event 8 or 5); then it reads them."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).event(Kind.ADMIT, seq_id=2).alloc(3, seq_id=2)
    if kind == Kind.SWAP_IN:
        trace.lease(3, 7, 0, 4).event(kind, block=3, gen=1, seq_id=1, lblock=0, fill=4, aux=5, details=(1, 7))
        return step(trace.unlease(3, 7), 0, 3, [(0, 1)]).end()
    trace.event(Kind.ADMIT, seq_id=3).alloc(1, seq_id=3).write(1, 0, 4, seq_id=3).lease(1, 7, 0, 3)
    trace.event(kind, block=3, gen=1, seq_id=1, lblock=0, fill=3, aux=1, details=(1, 1, 0, 3))
    return step(trace, 0, 3, [(0, 1)]).end().event(Kind.COPY_DONE, block=3, gen=1, fill=3).unlease(1, 7)


def copied_into_itself() -> HandTrace:
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(1, seq_id=1).lease(1, 7, 0, 1)
    trace.event(Kind.COW, block=1, gen=1, seq_id=1, lblock=0, fill=1, aux=1, details=(1, 1, 0, 1))
    trace.event(Kind.FINISH, seq_id=1).release(1, seq_id=1)
    return trace.event(Kind.COPY_DONE, block=1, gen=1, fill=1).unlease(1, 7).free(1)


def written_behind(slots: int) -> HandTrace:
    """Slot 2 is written (event 6) into the block that a copy of so many slots has taken the place of, and then read."""
    trace = one(2).alloc(1, seq_id=1).lease(0, 7, 0, 2)
    trace.event(Kind.COW, block=1, gen=1, seq_id=1, lblock=0, fill=slots, aux=0, details=(0, 1, 0, slots))
    trace.write(0, 2, 3, seq_id=1).release(0, seq_id=1)
    return step(trace, 0, 3, [(1, 1)]).end().event(Kind.COPY_DONE, block=1, gen=1, fill=2).unlease(0, 7).free(0)


def quarantined(*, steps_behind: int, ended: bool) -> HandTrace:
    """Block 0 goes into quarantine while its step is open, or behind it, and so many steps begin after that."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)]))
    if ended:
        trace.end()
    over(trace).quarantine(0)
    for _ in range(steps_behind):
        trace.event(Kind.STEP_BEGIN, aux=0)
    return trace


def writes_given_back(*, kept: int) -> HandTrace:
    """Of two written blocks one is given back before a step takes the writes; as that ends, both are someone else's."""
    trace, gone = HandTrace().event(Kind.ADMIT, seq_id=1), 1 - kept
    for block in (0, 1):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, 4, seq_id=1, lblock=block)
    step(trace.release(gone, seq_id=1, lblock=gone).free(gone), 0, 0)
    trace.release(kept, seq_id=1, lblock=kept).free(kept)
    return trace.alloc(0, seq_id=2).alloc(1, seq_id=2, lblock=1).end()


def all_slid(told: int, reason: int = Reason.WINDOW) -> HandTrace:
    """Sequence 1 has given back both of its blocks; its worker's table has `told` entries (event 13)."""
    return step(slid(reason).release(1, seq_id=1, lblock=1, reason=reason).free(1), 8, 8, [], length=told)


def another_life(kind: Kind, gen: int) -> HandTrace:
    """Block 0 is published, or taken out, in its second life but as another one; and hit (event 13 or 14)."""
    trace = again().write(0, 0, 4, seq_id=1)
    if kind == Kind.PUBLISH:
        return hit(publish(trace, 0, 0, gen=gen), 0, 0, gen=2)
    return hit(publish(trace, 0, 0, gen=2).event(kind, block=0, gen=gen), 0, 0, gen=2)


def counted_on_the_host(which: int) -> HandTrace:
    """One of three witnesses counts a slot of a host tier that there is not."""
    trace = one()
    for i in range(3):
        trace.event(Kind.WITNESS, details=(3, 1, 0, 0, 0, 0, 1, 0, int(i == which)))
    return trace


def two_arriving(landed: int, scheduled: int) -> HandTrace:
    """Blocks 0 and 1 of sequences 1 and 2 are on their way in; one has come when a step ends (event 11)."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).event(Kind.ADMIT, seq_id=2)
    for block, seq_id, lease in ((0, 1, 5), (1, 2, 7)):
        trace.alloc(block, seq_id=seq_id).lease(block, lease, 0, 4)
        trace.event(Kind.SWAP_IN, block=block, gen=1, seq_id=seq_id, lblock=0, fill=4, aux=block, details=(1, lease))
    trace.unlease(landed, 5 + 2 * landed).event(Kind.STEP_BEGIN, aux=1)
    trace.event(Kind.SCHED, seq_id=scheduled, lblock=0, fill=0, aux=pack_range(0, 0))
    return trace.end().unlease(1 - landed, 7 - 2 * landed)


def untold(kind: Kind) -> HandTrace:
    """A host slot is in use; of a witness, or of the next swap, nothing is told."""
    trace = one().lease(0, 7, 0, 4)
    trace.event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, fill=4, aux=5, details=(1, 7)).unlease(0, 7)
    shown = {} if kind == Kind.WITNESS else {"block": 0, "gen": 1, "seq_id": 1, "lblock": 0, "fill": 4, "aux": 6}
    return trace.event(kind, **shown)


def many_slid(blocks: int, told: int) -> HandTrace:
    """Sequence 1 has given back all of its blocks; its worker's table has `told` entries."""
    trace = row_of(blocks)
    for block in range(blocks):
        trace.release(block, seq_id=1, lblock=block, reason=Reason.WINDOW).free(block)
    return step(trace, 4 * blocks, 4 * blocks, [], length=told)


def let_go_as(gen: int) -> HandTrace:
    """Block 0 is let go as this life (event 7), and then as what it is."""
    trace = one().event(Kind.FINISH, seq_id=1)
    trace.event(Kind.RELEASE, block=0, gen=gen, seq_id=1, lblock=0, ref_before=1, ref_after=0)
    return trace.release(0, seq_id=1).free(0)


def shared_as(gen: int) -> HandTrace:
    """Sequence 2 shares block 0 as this life; it is handed out all the same (event 8), and sequence 2 reads it."""
    trace = one().event(Kind.ADMIT, seq_id=2).share(0, seq_id=2, gen=gen).alloc(0, seq_id=3)
    trace.event(Kind.STEP_BEGIN, aux=1)
    return trace.event(Kind.SCHED, seq_id=2, lblock=3, fill=1, aux=pack_range(0, 4))


def filled_anew() -> HandTrace:
    """A life whose write was never committed is over; the next one comes from a host slot, and is hit."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.event(Kind.ABORT, seq_id=1).release(0, seq_id=1).free(0).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
    trace.lease(0, 7, 0, 4)
    trace.event(Kind.SWAP_IN, block=0, gen=2, seq_id=1, lblock=0, fill=4, aux=5, details=(1, 7)).unlease(0, 7)
    return hit(publish(trace, 0, 0, gen=2).event(Kind.ADMIT, seq_id=2), 0, 0, gen=2).commit(0, gen=2)


CASES: list[Case] = [
    ("let go without a life", "life@8", "",
     lambda: row_of(2).release(1, seq_id=1, lblock=1, gen=-1).free(1).witness(3, 1, 0, 0, 0, 0, 1, table=[(0, 1)])),
    ("let go as a life that its table still holds", "count@6, transition@6", "KV014@6 KV004@7",
     lambda: step(one().alloc(0, seq_id=2).release(0, seq_id=1, gen=1), 0, 0, [])),
    ("a first block behind a window", "", "", lambda: step(slid(), 4, 8, [(1, 1)], first=1)),
    ("all blocks behind a window", "", "", lambda: all_slid(2)),
    ("all blocks behind a window, and one more", "table@13", "KV018@13", lambda: all_slid(3)),
    *((f"all blocks given back, {reason.name.lower()}", "still needed@8", "KV018@13",
       lambda reason=reason: all_slid(2, reason)) for reason in (Reason.STOP, Reason.RESIZED)),
    ("slid, over, and back", "", "", lambda: slid_and_back(told=1)),
    ("slid, over, and back as if it had slid", "table@17", "KV018@17", lambda: slid_and_back(told=2)),
    ("behind a window a slot that is not written", "read before written@14", "KV009@14[0:1]",
     lambda: step(slid().release(1, seq_id=1, lblock=1, reason=Reason.WINDOW).free(1)
                  .alloc(2, seq_id=1, lblock=2), 8, 9)),
    ("the write of block 0 is left", "still needed@5", "KV001@2[0:4] KV013@11", lambda: writes_given_back(kept=0)),
    ("the write of block 1 is left", "still needed@5", "KV001@4[0:4] KV013@12", lambda: writes_given_back(kept=1)),
    *((f"published as life {gen} in the second one", "life@12", "KV011@12 KV011@13",
       lambda gen=gen: another_life(Kind.PUBLISH, gen)) for gen in (0, 1)),
    *((f"taken out as life {gen} in the second one", "life@13", "KV016@14",
       lambda gen=gen: another_life(Kind.UNPUBLISH, gen)) for gen in (0, 1)),
    *((f"evicted as life {gen} in the second one", "life@13, transition@13", "KV020@13 KV016@14",
       lambda gen=gen: another_life(Kind.EVICT, gen)) for gen in (0, 1)),
    *((f"hit twice as block {place}, never published", "transition@6", "KV011@6",
       lambda place=place: hit(hit(one(), 0, place), 0, place, seq_id=3)) for place in (0, 1, 2)),
    ("published with nothing written, and hit", "published full@7", "KV016@7",
     lambda: hit(publish(one().alloc(1, seq_id=1, lblock=1), 1, 1), 1, 1)),
    ("hit in a life that has not begun, and the next one behind it", "life@10", "",
     lambda: hit(hit(publish(publish(row_of(2), 0, 0), 1, 1, (9, 6, 7, 4)), 0, 0, gen=2), 1, 1, (9, 6, 7, 4))),
    *((f"a copy out of block {source}, which there is not", "copy source@8", "",
       lambda source=source: decided((source, 1, 0, 3))) for source in (-1, 4, 5)),
    ("a copy that ran after its source was free", "copy source@8", "KV002@12", lambda: ran_late((0, 1, 0, 3))),
    ("a copy out of no life that ran so late", "copy source@8", "KV002@12", lambda: ran_late((0, -1, 0, 3))),
    ("a copy out of no block that ran so late", "copy source@8", "", lambda: ran_late((-1, 1, 0, 3))),
    ("the source of a copy let go", "", "", lambda: copied(anew=False)),
    ("the source of a copy let go in a later life", "copy done@19", "KV002@19", lambda: copied(anew=True)),
    *((f"on its way in while a step of {scheduled} ends", "", "", lambda scheduled=scheduled: arriving(*scheduled))
      for scheduled in ((), (0,), (2,))),
    ("on its way in while its own step ends", "transfers@8", "KV017@8", lambda: arriving(1)),
    ("on its way in while a step of three ends", "transfers@10", "KV017@10", lambda: arriving(0, 1, 2)),
    ("a write behind a lease", "written in order@7", "", lambda: leased(0, 1)),
    *((f"a write in a lease of slots [{lo}:{hi}]", "lease@7, written in order@7", "KV006@7[1:2]",
       lambda lo=lo, hi=hi: leased(lo, hi)) for lo, hi in ((1, 2), (0, 4))),
    *((f"a write in front of a lease of slots [{lo}:{hi}]", "lease@7, written in order@7", "",
       lambda lo=lo, hi=hi: leased(lo, hi)) for lo, hi in ((2, 3), (3, 4))),
    ("a copy into a block that another table holds", "writer@8", "KV009@10[0:3]", lambda: filled_elsewhere(Kind.COW)),
    ("a block that another table holds, filled from a host slot", "writer@5", "KV009@8[0:3]",
     lambda: filled_elsewhere(Kind.SWAP_IN)),
    ("a copy of a block into itself", "copy source@3", "KV009@3[0:1] KV010@3", copied_into_itself),
    ("a write into a block behind its copy", "writer@9", "KV009@12[2:3]", lambda: written_behind(2)),
    *((f"in quarantine, its step open, {steps} begun behind it", "", "",
       lambda steps=steps: quarantined(steps_behind=steps, ended=False)) for steps in (0, 1)),
    ("in quarantine when its step has ended", "quarantine left@9", "",
     lambda: quarantined(steps_behind=0, ended=True)),
    ("in quarantine when its step has ended and another begun", "quarantine left@10", "KV005@8",
     lambda: quarantined(steps_behind=1, ended=True)),
    *((f"a host slot in witness {which}", f"host slots@{6 + which}", f"KV012@{6 + which}",
       lambda which=which: counted_on_the_host(which)) for which in range(3)),
    *((f"block {landed} has come, a step of sequence {seq_id} ends", *(("", "") if landed + 1 == seq_id else
       ("transfers@11", "KV017@11")), lambda landed=landed, seq_id=seq_id: two_arriving(landed, seq_id))
      for landed in (0, 1) for seq_id in (1, 2)),
    *((f"a {kind.name.lower()} of which nothing is told", "", "", lambda kind=kind: untold(kind))
      for kind in (Kind.WITNESS, Kind.SWAP_OUT, Kind.SWAP_IN)),
    *((f"{blocks} blocks behind a window, {blocks + more} told", f"table@{4 * blocks + 5}" * bool(more),
       f"KV018@{4 * blocks + 5}" * (more > 0), lambda blocks=blocks, more=more: many_slid(blocks, blocks + more))
      for blocks in (1, 3, 4) for more in (-1, 0, 1)),
    ("let go as no life, and as this one", "life@7", "KV004@7", lambda: let_go_as(0)),
    ("let go twice", "count@8, holders@8", "KV004@8", lambda: let_go_as(1)),
    ("let go as the next life, and as this one", "life@7", "", lambda: let_go_as(2)),
    *((f"{kind.name.lower()} as life {gen} in the second one, and written", "life@11, transition@11", "KV003@11",
       lambda kind=kind, gen=gen: again().event(kind, block=0, gen=gen).write(0, 0, 1, seq_id=1))
      for kind in (Kind.FREE, Kind.QUARANTINE, Kind.SETTLE) for gen in (0, 1)),
    *((f"{kind.name.lower()} while held, and written", "transition@11", findings,
       lambda kind=kind: again().event(kind, block=0, gen=2).write(0, 0, 1, seq_id=1))
      for kind, findings in ((Kind.FREE, "KV012@11 KV001@12[0:1]"), (Kind.QUARANTINE, "KV012@11"))),
    *((f"read as life {gen} of two", doubts, f"KV014@8 {code}@10[0:4]", lambda gen=gen: shared_as(gen))
      for gen, doubts, code in ((1, "count@8, transition@8", "KV002"), (2, "life@7", "KV009"), (3, "life@7", "KV002"))),
    *((f"hit after it was {kind.name.lower()}, identity {identity}", doubts, findings,
       lambda kind=kind, key=identity: hit(publish(one(), 0, 0).event(kind, block=0, gen=1), 0, 0, (1, 2, 3, key)))
      for kind, doubts, findings in ((Kind.UNPUBLISH, "transition@8", "KV011@8"),
                                     (Kind.EVICT, "transition@7", "KV020@7 KV011@8")) for identity in (4, 9)),
    ("filled from a host slot where a write was never committed", "", "", filled_anew),
]  # fmt: skip


@pytest.mark.parametrize(("doubts", "findings", "history"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_both_draw_the_line(doubts: str, findings: str, history: Callable[[], HandTrace]) -> None:
    assert (doubted(history()), found(history())) == (doubts, findings)
    if compiled.built():
        assert bool(by_rows(frozen(history())).suspects) == bool(doubts)
