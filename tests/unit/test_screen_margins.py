"""Where each rule of the screen draws its line: the smallest history that breaks it alone, beside one that does not.

One row per line: a name, the suspicions as `rule@event`, and the history; without a suspicion nothing is replayed.
Whatever is suspected or found, all of it must be suspected by the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen import plain
from kvscope.inspector.screen import screen as screens
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest

Case = tuple[str, str, Callable[[], HandTrace]]


def by_operation(kinds: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pieces as small as they can be: of one operation each, the leases and hits that belong to it among its rows."""
    goes_on = np.isin(kinds, (Kind.LEASE, Kind.COW, Kind.UNLEASE, Kind.HIT))
    return pairwise([0, *(np.flatnonzero(~goes_on[1:]) + 1).tolist(), len(kinds)])


def suspected(trace: HandTrace) -> str:
    """What the screen says, alike with and without its short cuts, and in pieces; and no detector says more."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain, "FEW", 0)
        found = screen(frozen(trace))
        patched.undo()
        patched.setattr(screens, "chunks", by_operation)
        pieces = screen(frozen(trace))
    assert pieces.suspects == found.suspects
    assert found.suspects or pieces == found
    replayed = check(trace, replay=True)
    assert found.suspects or not replayed.findings
    assert found.suspects or (found.blocks, found.slots) == (replayed.blocks, replayed.slots)
    return ", ".join(f"{rule}@{seq}" for rule, seq in sorted(found.suspects.items()))


def admitted(size: int = 4, blocks: int = 4) -> HandTrace:
    return HandTrace(num_blocks=blocks, block_size=size).event(Kind.ADMIT, seq_id=1)


def written(slots: int = 4) -> HandTrace:
    """Sequence 1 holds block 0 with so many slots written (events 0 to 2)."""
    return admitted().alloc(0, seq_id=1).write(0, 0, slots, seq_id=1)


def computed(slots: int = 4) -> HandTrace:
    """And a step has computed them (events 0 to 6)."""
    return written(slots).begin((1, 0, slots, [(0, 1)])).end().commit(0)


def ended(trace: HandTrace) -> HandTrace:
    return trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1)


def publish(trace: HandTrace, block: int, lblock: int = 0, words: tuple[int, ...] | None = (1, 2, 3, 4)) -> HandTrace:
    return trace.event(Kind.PUBLISH, block=block, gen=1, seq_id=1, lblock=lblock, details=words)


def hit(trace: HandTrace, block: int, lblock: int = 0, words: tuple[int, ...] | None = (1, 2, 3, 4), *,
        reason: int = Reason.PREFIX_HIT) -> HandTrace:  # fmt: skip
    trace._ref[block] += 1
    return trace.event(Kind.HIT, block=block, gen=1, seq_id=2, lblock=lblock, details=words, reason=reason,
                       ref_before=trace._ref[block] - 1, ref_after=trace._ref[block])  # fmt: skip


def cached(size: int = 4, lblock: int = 0) -> HandTrace:
    """Block 0 is published, let go, and sequence 2 is admitted (events 0 to 10)."""
    trace = admitted(size).alloc(0, seq_id=1).write(0, 0, size, seq_id=1).begin((1, 0, size, [(0, 1)])).end()
    return ended(publish(trace.commit(0), 0, lblock)).event(Kind.ADMIT, seq_id=2)


def two_cached(
    first: tuple[int, ...] | None = (1, 2, 3, 4), second: tuple[int, ...] | None = (3, 6, 7, 4)
) -> HandTrace:
    """Blocks 0 and 1 are published one behind the other, let go, and sequence 2 hits the first (events 0 to 16)."""
    trace = written().alloc(1, seq_id=1, lblock=1).write(1, 0, 4, seq_id=1, lblock=1)
    trace.begin((1, 0, 8, [(0, 1), (1, 1)])).end().commit(0).commit(1)
    publish(publish(trace, 0, 0, first), 1, 1, second).event(Kind.FINISH, seq_id=1)
    trace.release(1, seq_id=1, lblock=1).release(0, seq_id=1).event(Kind.ADMIT, seq_id=2)
    return hit(trace, 0, 0, first)


def forked(slots: int = 3) -> HandTrace:
    """Sequences 1 and 2 share block 0 (events 0 to 4)."""
    return written(slots).event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)


def let_go(trace: HandTrace) -> HandTrace:
    return trace.event(Kind.TRUNCATE, seq_id=2, aux=0).release(0, seq_id=2)


def copied(slots: int = 3, told: tuple[int, ...] | None = None) -> HandTrace:
    """Sequence 2 gets a copy of the shared block in block 1; the COW is event 7, the RELEASE event 8."""
    trace = forked().copy_on_write(0, 1, slots, seq_id=2)
    if told is not None:
        trace._details[7] = told
    return trace


def open_step(seq_id: int = 1) -> HandTrace:
    """A step that reads block 0 is open (events 0 to 4)."""
    return written().begin((seq_id, 0, 4, [(0, 1)]))


def reads(trace: HandTrace, lo: int, hi: int, *, first: int = 0) -> HandTrace:
    """A step of sequence 1; of its table nothing is told."""
    trace.event(Kind.STEP_BEGIN, aux=1)
    return trace.event(Kind.SCHED, seq_id=1, lblock=first, fill=1, aux=pack_range(lo, hi))


def arrived(fill: int) -> HandTrace:
    """So many slots of block 0 come back from the host tier (events 0 to 4)."""
    trace = admitted().alloc(0, seq_id=1).lease(0, 8, 0, 4)
    trace.event(Kind.SWAP_IN, block=0, gen=1, seq_id=1, lblock=0, fill=fill, aux=5, details=(1, 8))
    return trace.unlease(0, 8)


def slid(length: int) -> HandTrace:
    """Sequence 1 has given back the first of two blocks; its worker's table has so many (event 8)."""
    trace = written().alloc(1, seq_id=1, lblock=1).write(1, 0, 4, seq_id=1, lblock=1)
    trace.release(0, seq_id=1, reason=Reason.WINDOW).free(0).event(Kind.STEP_BEGIN, aux=1)
    return trace.event(Kind.SCHED, seq_id=1, lblock=7, fill=1, aux=pack_range(4, 8),
                       details=(table_digest([1], [1], 1), length))  # fmt: skip


def behind_a_window(slots: int) -> HandTrace:
    """Sequence 2 gives back its first block behind a window, and takes block 0 with so many slots in its place."""
    trace = written(slots).event(Kind.ADMIT, seq_id=2).alloc(1, seq_id=2).write(1, 0, 4, seq_id=2)
    return trace.release(1, seq_id=2, reason=Reason.WINDOW).free(1).share(0, seq_id=2)


def windowed(lo: int) -> HandTrace:
    """The model sees three positions; its step writes position 4 and reads from `lo` on."""
    trace = written().alloc(1, seq_id=1, lblock=1).write(1, 0, 1, seq_id=1, lblock=1)
    trace.facts.append({"type": "model", "window": 3})
    return reads(trace, lo, 5, first=4)


def retaken(*, before: bool) -> HandTrace:
    """Block 1 is taken before or after the open step was planned, given back, and handed out while it is open."""
    trace = written()
    if before:
        trace.alloc(1, seq_id=1, lblock=1)
    reads(trace, 0, 4)
    if not before:
        trace.alloc(1, seq_id=1, lblock=1)
    return trace.release(1, seq_id=1, lblock=1).free(1).alloc(1, seq_id=2)


POSITIONS: list[Case] = [
    ("written from 0 on", "", lambda: written(1)),
    ("written from 1 on", "slots@2, written in order@2",
     lambda: admitted().alloc(0, seq_id=1).write(0, 1, 2, seq_id=1)),
    ("written again", "written in order@3", lambda: written(3).write(0, 2, 4, seq_id=1)),
    ("the next block written too early", "written in order@4",
     lambda: written(3).alloc(1, seq_id=1, lblock=1).write(1, 0, 1, seq_id=1, lblock=1)),
    ("the next block written in time", "",
     lambda: written().alloc(1, seq_id=1, lblock=1).write(1, 0, 1, seq_id=1, lblock=1)),
    ("reads what is written", "", lambda: reads(written(3), 0, 3)),
    ("reads one more", "read before written@4", lambda: reads(written(3), 0, 4)),
    ("reads nothing", "", lambda: reads(written(3), 3, 3)),
    ("reads backwards", "read before written@4", lambda: reads(written(3), 3, 2)),
    ("cut to what it has", "", lambda: written(3).event(Kind.TRUNCATE, seq_id=1, aux=3)),
    ("cut to one more", "truncate@3", lambda: written(3).event(Kind.TRUNCATE, seq_id=1, aux=4)),
    ("cut to nothing", "", lambda: written(3).event(Kind.TRUNCATE, seq_id=1, aux=0)),
    ("cut to less than nothing", "positions@3, truncate@3", lambda: written(3).event(Kind.TRUNCATE, seq_id=1, aux=-1)),
    ("reads what was cut off", "read before written@5",
     lambda: reads(written(3).event(Kind.TRUNCATE, seq_id=1, aux=2), 0, 3)),
    ("a block where one was written", "entry@3, new block@3", lambda: written(1).alloc(1, seq_id=1)),
    ("a block where the last one ends", "", lambda: written(4).alloc(1, seq_id=1, lblock=1)),
    ("a block as far as can be told", "joined in order@11", lambda: hit(cached(512, 2**31 - 2), 0, 2**31 - 2)),
    ("and a write behind it", "joined in order@11",
     lambda: hit(cached(512, 2**31 - 2), 0, 2**31 - 2).alloc(1, seq_id=2, lblock=2**31 - 1)
     .write(1, 0, 1, seq_id=2, lblock=2**31 - 1)),
    ("reads with and without a word of its table", "", lambda: reads(computed(3), 0, 3)),
    ("reads what came back", "", lambda: reads(arrived(4), 0, 4)),
    ("reads one more than came back", "read before written@6", lambda: reads(arrived(3), 0, 4)),
    *((f"reads what came back in {fill} slots", "read before written@6", lambda fill=fill: reads(arrived(fill), 0, 1))
      for fill in (-1, 0, 5)),
    *((f"a table of {length} behind a window", "" if length == 2 else "table@8", lambda length=length: slid(length))
      for length in (1, 2, 3)),
    ("a block farther than that", "joined in order@11, positions@11",
     lambda: hit(cached(512, 2**31 - 1), 0, 2**31 - 1)),
    ("a block in front of all", "new block@1, positions@1", lambda: admitted().alloc(0, seq_id=1, lblock=-1)),
    ("gives back what is not written", "",
     lambda: written().alloc(1, seq_id=1, lblock=1).release(1, seq_id=1, lblock=1).free(1)),
    ("gives back what it still needs", "still needed@3", lambda: written().release(0, seq_id=1)),
    ("gives back for the wrong reason", "still needed@3",
     lambda: written().release(0, seq_id=1, reason=Reason.CAPACITY).free(0)),
    ("gives back behind its window", "", lambda: written().release(0, seq_id=1, reason=Reason.WINDOW).free(0)),
    ("a window just reached", "", lambda: windowed(2)),
    ("a window cut by one", "window@6", lambda: windowed(3)),
    ("a sequence with a number like a million others", "", lambda: HandTrace().event(Kind.ADMIT, seq_id=2**20)),
    ("a sequence with a number beyond all", "sequence exists@0",
     lambda: HandTrace().event(Kind.ADMIT, seq_id=2**24 + 5)),
    ("a sequence without a number", "sequence exists@0", lambda: HandTrace().event(Kind.ADMIT, seq_id=-1)),
]  # fmt: skip

ENTRIES: list[Case] = [
    ("shared, let go, shared, let go", "", lambda: let_go(let_go(forked()).share(0, seq_id=2))),
    ("let go once more than shared", "entry@10",
     lambda: let_go(let_go(forked()).share(0, seq_id=2)).release(0, seq_id=2)),
    ("shared into a place that is taken", "entry@5", lambda: forked(4).share(0, seq_id=2)),
    ("moved into a place that is taken", "",
     lambda: forked().alloc(1, seq_id=3).write(1, 0, 3, seq_id=3).share(1, seq_id=2, reason=Reason.RESIZED)
     .release(0, seq_id=2, reason=Reason.RESIZED)),
    ("hit into a place that is taken", "entry@12", lambda: hit(hit(cached(), 0), 0)),
    ("hit into a place that is taken, as a move is", "entry@13",
     lambda: hit(hit(cached(), 0).share(0, seq_id=3), 0, reason=Reason.RESIZED)),
    ("handed out into a place that is taken, as a move is", "entry@4, new block@4",
     lambda: written().share(0, seq_id=3).alloc(1, seq_id=1, reason=Reason.RESIZED)),
    ("takes a full block in place of one it gave back", "", lambda: behind_a_window(4)),
    ("takes a block that holds less", "joined in order@8", lambda: behind_a_window(3)),
    ("let go as another life", "life@11",
     lambda: ended(computed()).free(0).alloc(0, seq_id=2).release(0, seq_id=2, gen=1)),
    ("begins with what it had", "begins empty@3", lambda: written().event(Kind.ADMIT, seq_id=1)),
    ("a table of one block", "", lambda: written().begin((1, 0, 4, [(0, 1)]))),
    ("a table of another block", "table@4", lambda: written().begin((1, 0, 4, [(1, 1)]))),
    ("a table of another life", "table@4", lambda: written().begin((1, 0, 4, [(0, 2)]))),
    ("a table of one block more", "table@4", lambda: written().begin((1, 0, 4, [(0, 1), (1, 1)]))),
    ("a table of no block", "table@4", lambda: written().begin((1, 0, 4, []))),
    ("over with what it had", "entry left@4", lambda: written().event(Kind.FINISH, seq_id=1)),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "history"), [pytest.param(*case[1:], id=case[0]) for case in POSITIONS + ENTRIES])
def test_tables_and_positions(expected: str, history: Callable[[], HandTrace]) -> None:
    assert suspected(history()) == expected


BLOCKS: list[Case] = [
    ("the last block", "", lambda: admitted().alloc(3, seq_id=1)),
    ("a block that there is not", "block exists@1", lambda: admitted().event(Kind.FREE, block=4, gen=1)),
    ("no block", "block exists@1", lambda: admitted().event(Kind.FREE, block=-1, gen=1)),
    ("a life that began before", "life@1", lambda: admitted().alloc(0, seq_id=1, gen=0)),
    ("a later life", "", lambda: admitted().alloc(0, seq_id=1, gen=2)),
    ("a write in a later life", "life@3", lambda: written(1).write(0, 1, 2, seq_id=1, gen=2)),
    ("counts from one", "count@1", lambda: admitted().alloc(0, seq_id=1, ref_before=1)),
    ("counts to two", "count@1", lambda: admitted().alloc(0, seq_id=1, ref_after=2)),
    ("counts nothing", "count@1", lambda: admitted().alloc(0, seq_id=1, ref_before=-1, ref_after=-1)),
    ("committed without a count", "", lambda: written().commit(0, ref_before=-1, ref_after=-1)),
    ("committed with half a count", "count@3", lambda: written().commit(0, ref_before=-1)),
    ("a write of all slots", "", lambda: written(4)),
    ("a write of one slot more", "slots@2", lambda: written(5)),
    ("a write of no slot", "slots@3", lambda: written(2).write(0, 2, 2, seq_id=1)),
    ("a write that leaves a slot out", "slots@3, written in order@3", lambda: written(1).write(0, 2, 3, seq_id=1)),
    ("a write by one of two", "writer@5", lambda: forked().write(0, 3, 4, seq_id=1)),
    ("a write by a stranger", "writer@3, written in order@3", lambda: written(3).write(0, 3, 4, seq_id=2, lblock=0)),
    ("a write elsewhere", "writer@3, written in order@3", lambda: written(3).write(0, 3, 4, seq_id=1, lblock=1)),
    ("a write of what is published", "writer@8, written in order@8",
     lambda: publish(computed(), 0).write(0, 3, 4, seq_id=1)),
    ("published when full", "", lambda: publish(computed(), 0)),
    ("published with one slot missing", "published full@7", lambda: publish(computed(3), 0)),
    ("shared by the holder of nothing", "transition@1", lambda: admitted().share(0, seq_id=1)),
    ("handed out while held", "count@3, transition@3", lambda: written(1).alloc(0, seq_id=1, ref_before=1)),
    ("handed out from the cache", "transition@11", lambda: cached().alloc(0, seq_id=2)),
    ("freed while held", "transition@3", lambda: written().free(0)),
    ("freed twice", "transition@10", lambda: ended(computed()).free(0).free(0)),
    ("settled from nowhere", "transition@9", lambda: ended(computed()).settle(0)),
    ("evicted while held", "transition@8", lambda: publish(computed(), 0).event(Kind.EVICT, block=0, gen=1)),
    ("hit though not published", "transition@8", lambda: hit(computed().event(Kind.ADMIT, seq_id=2), 0)),
    ("leased by nobody's leave", "transition@0", lambda: HandTrace().lease(0, 1, 0, 4)),
    ("leased from the cache", "", lambda: cached().lease(0, 1, 0, 4).unlease(0, 1)),
    ("written behind what is leased", "", lambda: written(2).lease(0, 1, 0, 2).write(0, 2, 3, seq_id=1).unlease(0, 1)),
    ("written into what is leased", "lease@4, written in order@4",
     lambda: written(3).lease(0, 1, 0, 3).write(0, 2, 3, seq_id=1).unlease(0, 1)),
    ("written where a lease has ended", "",
     lambda: written(2).lease(0, 1, 0, 3).unlease(0, 1).write(0, 2, 3, seq_id=1)),
]  # fmt: skip

HITS: list[Case] = [
    ("a hit", "", lambda: hit(cached(), 0)),
    ("a hit of which nothing is told", "hit content@11", lambda: hit(cached(), 0, words=None)),
    *((f"a hit that differs in word {i}", "hit content@11",
       lambda i=i: hit(cached(), 0, words=tuple(9 if j == i else j + 1 for j in range(4)))) for i in range(4)),
    ("a hit at another place", "hit content@11", lambda: hit(cached(lblock=1), 0, 0)),
    ("a hit at no place", "", lambda: hit(cached(lblock=-1), 0, 0)),
    ("a hit before its writes", "hit before its writes@5",
     lambda: hit(publish(written(), 0).event(Kind.ADMIT, seq_id=2), 0).begin((2, 0, 4, [(0, 1)]))),
    ("a hit behind the one it was published behind", "", lambda: hit(two_cached(), 1, 1, (3, 6, 7, 4))),
    ("a hit behind a hash that is less", "hit prefix@17",
     lambda: hit(two_cached(second=(4, 6, 7, 4)), 1, 1, (4, 6, 7, 4))),
    ("a hit behind a hash that is more", "hit prefix@17",
     lambda: hit(two_cached(second=(2, 6, 7, 4)), 1, 1, (2, 6, 7, 4))),
    ("a hit that leaves a place out", "hit content@17, hit prefix@17, joined in order@17",
     lambda: hit(two_cached(), 1, 2, (3, 6, 7, 4))),
    ("a hit behind one, and neither tells anything", "", lambda: hit(two_cached(None, None), 1, 1, None)),
    ("a hit behind something else", "hit prefix@18", lambda: hit(two_cached().event(Kind.NOTE), 1, 1, (3, 6, 7, 4))),
]  # fmt: skip


COPIES: list[Case] = [
    ("a copy", "", lambda: copied().copy_done(0, 1)),
    ("a copy of no slot", "", lambda: copied(0).copy_done(0, 1)),
    ("a copy of a slot that is not written", "copy source@7", lambda: copied(4).copy_done(0, 1)),
    ("a copy that tells no source", "copy source@7", lambda: copied(3, (2, 1, 0, 3))),
    ("a copy of another life", "copy source@7", lambda: copied(3, (0, 2, 0, 3))),
    ("a copy that does not begin in front", "copy details@7, positions@7",
     lambda: copied(3, (0, 1, 1, 3)).copy_done(0, 1)),
    ("a copy that has moved all", "", lambda: copied().event(Kind.COPY_DONE, block=1, gen=1, fill=3).unlease(0, 1)),
    ("a copy that has moved one less", "copy done@9",
     lambda: copied().event(Kind.COPY_DONE, block=1, gen=1, fill=2).unlease(0, 1)),
    ("a copy that nobody lets go", "copy done@9",
     lambda: copied().event(Kind.COPY_DONE, block=1, gen=1, fill=3)),
    ("a copy that another lets go", "copy done@10, transfers@11",
     lambda: copied().lease(1, 2, 0, 0).event(Kind.COPY_DONE, block=1, gen=1, fill=3).unlease(1, 1).unlease(0, 1)),
    ("a copy that a lower block lets go", "copy done@10",
     lambda: HandTrace().alloc(0, seq_id=3).alloc(1, seq_id=1).write(1, 0, 3, seq_id=1)
     .event(Kind.FORK, seq_id=2, aux=1).share(1, seq_id=2).copy_on_write(1, 2, 3, seq_id=2).lease(0, 9, 0, 0)
     .event(Kind.COPY_DONE, block=2, gen=1).unlease(0, 9).unlease(1, 1)),
    ("a copy into an earlier life", "copy done@16",
     lambda: copied().copy_done(0, 1).event(Kind.ABORT, seq_id=2).release(1, seq_id=2).free(1).alloc(1, seq_id=3)
     .lease(0, 1, 0, 3).copy_done(0, 1)),
]  # fmt: skip

FENCES: list[Case] = [
    ("taken after the step was planned", "", lambda: retaken(before=False)),
    ("taken before the step was planned", "fence@8", lambda: retaken(before=True)),
    ("left in quarantine while its step is open", "", lambda: ended(open_step()).quarantine(0)),
    ("left in quarantine", "quarantine left@9", lambda: ended(open_step()).quarantine(0).end()),
    ("settled as its step ends", "", lambda: ended(open_step()).quarantine(0).settle(0).end()),
    ("settled one step early", "fence@12",
     lambda: reads(reads(written(), 0, 4), 0, 4).event(Kind.ABORT, seq_id=1).release(0, seq_id=1).quarantine(0)
     .event(Kind.NOTE).event(Kind.NOTE).settle(0)),
    ("left nowhere", "block left@9", lambda: ended(computed())),
    ("a step that ends before it begins", "step end@0", lambda: HandTrace().end()),
    ("a witness of a block in quarantine", "", lambda: ended(open_step()).quarantine(0).witness(3, 0, 0, 0, 1, 0, 0)),
    ("a witness of a leased block", "", lambda: ended(publish(computed(), 0)).lease(0, 1, 0, 4)
     .witness(3, 0, 0, 0, 0, 1, 0).unlease(0, 1)),
    ("a witness of a cached block", "", lambda: ended(publish(computed(), 0)).witness(3, 0, 0, 1, 0, 0, 0)),
    ("a witness of shared blocks", "", lambda: forked().witness(3, 0, 1, 0, 0, 0, 2)),
    *((f"a witness that counts {name} wrongly", "witness@3",
       lambda i=i: written().witness(*(value + (i == j) for j, value in enumerate((3, 1, 0, 0, 0, 0, 1)))))
      for i, name in enumerate(("free", "private", "shared", "cached", "quarantined", "in transit", "entries"))),
    ("a witness of another table", "witness@3", lambda: written().witness(3, 1, 0, 0, 0, 0, 1, table=[(1, 1)])),
    ("a witness of this table", "", lambda: written().witness(3, 1, 0, 0, 0, 0, 1, table=[(0, 1)])),
    ("a host slot that was never filled", "host slots@3",
     lambda: written().event(Kind.WITNESS, details=(3, 1, 0, 0, 0, 0, 1, 0, 1))),
    ("shrinks to nothing", "", lambda: HandTrace().resize(4, 0)),
    ("shrinks from another size", "resize@2", lambda: HandTrace().event(Kind.NOTE).resize(3, 4).resize(3, 4)),
    ("gives up a block in use", "resize@3", lambda: written().resize(4, 0)),
    ("keeps the blocks in use", "", lambda: written().resize(4, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "history"), [pytest.param(*case[1:], id=case[0]) for case in BLOCKS + HITS + COPIES + FENCES]
)
def test_blocks(expected: str, history: Callable[[], HandTrace]) -> None:
    assert suspected(history()) == expected
