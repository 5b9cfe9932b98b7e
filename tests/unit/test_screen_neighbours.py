"""Rows that stand beside the one that a rule of the screen is about, values far from the usual ones, and cuts.

One row per line: a name, the suspicions as `rule@event`, and the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen import plain
from kvscope.inspector.screen import screen as screens
from kvscope.inspector.screen.details import kept_of
from kvscope.inspector.screen.live import ByColumns
from kvscope.inspector.screen.runs import sorted_rows
from kvscope.inspector.screen.screen import Screen, first_size, ordered, screen, unfit_for
from kvscope.inspector.source import frozen
from kvscope.traces.schema import EVENT_DTYPE, Kind, Reason, pack_range, table_digest

Case = tuple[str, str, Callable[[], HandTrace]]
WORDS = tuple((10 * i, 10 * i + 1, 10 * i + 10, 4) for i in range(5))  # each behind the one before


def cut(operations: int) -> Callable[[np.ndarray], Iterator[tuple[int, int]]]:
    """Pieces of so many operations each, the leases and hits that belong to one among its rows."""

    def pieces(kinds: np.ndarray) -> Iterator[tuple[int, int]]:
        goes_on = np.isin(kinds, (Kind.LEASE, Kind.COW, Kind.UNLEASE, Kind.HIT))
        begins = (np.flatnonzero(~goes_on[1:]) + 1).tolist()
        return pairwise([0, *begins[operations - 1 :: operations], len(kinds)])

    return pieces


def at(*rows: int) -> Callable[[np.ndarray], Iterator[tuple[int, int]]]:
    """Pieces that begin at these rows, wherever that is."""
    return lambda kinds: pairwise([0, *rows, len(kinds)])


def suspected(trace: HandTrace, chunks: Any = None) -> str:
    with pytest.MonkeyPatch.context() as patched:
        if chunks is not None:
            patched.setattr(screens, "chunks", chunks)
        return ", ".join(f"{rule}@{seq}" for rule, seq in sorted(screen(frozen(trace)).suspects.items()))


def alike(trace: HandTrace) -> str:
    """What the screen says, with its short cuts and in pieces of a few operations, too; no detector says more."""
    said = suspected(trace)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain, "FEW", 0)
        assert suspected(trace) == said
        for operations in (1, 2, 3):
            assert suspected(trace, cut(operations)) == said
    assert said or not check(trace, replay=True).findings
    return said


def admitted(size: int = 4, blocks: int = 6) -> HandTrace:
    return HandTrace(num_blocks=blocks, block_size=size).event(Kind.ADMIT, seq_id=1)


def row_of(blocks: int, size: int = 4) -> HandTrace:
    """Sequence 1 has filled so many blocks in a step that has ended (3 + 2 * blocks events)."""
    trace = admitted(size)
    for block in range(blocks):
        trace.alloc(block, seq_id=1, lblock=block).write(block, 0, size, seq_id=1, lblock=block)
    return trace.begin((1, 0, size * blocks, [(block, 1) for block in range(blocks)])).end()


def reads(trace: HandTrace, lo: int, hi: int, told: tuple[int, int] | None = None, seq_id: int = 1) -> HandTrace:
    trace.event(Kind.STEP_BEGIN, aux=1)
    return trace.event(Kind.SCHED, seq_id=seq_id, lblock=max(hi - 1, 0), fill=1, aux=pack_range(lo, hi), details=told)


def let_go(trace: HandTrace, *blocks: int, kind: Kind = Kind.FINISH) -> HandTrace:
    trace.event(kind, seq_id=1)
    for block in reversed(blocks):
        trace.release(block, seq_id=1, lblock=block)
    return trace


def cached(blocks: int, first: int = 0) -> HandTrace:
    """So many blocks, published one behind the other, let go; sequence 2 is admitted."""
    trace = row_of(blocks)
    for block in range(blocks):
        trace.commit(block)
        trace.event(Kind.PUBLISH, block=block, gen=1, seq_id=1, lblock=block + first, details=WORDS[block])
    return let_go(trace, *range(blocks)).event(Kind.ADMIT, seq_id=2)


def hits(trace: HandTrace, *blocks: int, seq_id: int = 2, by: int = 0, **columns: int) -> HandTrace:
    for block in blocks:
        before = trace._ref[block]
        trace._ref[block] += 1
        shown = {"seq_id": seq_id, "lblock": block + by, "ref_before": before, "ref_after": before + 1} | columns
        trace.event(Kind.HIT, block=block, gen=trace._gen[block], details=WORDS[block], **shown)
    return trace


def copied(source: int = 2, told: tuple[int, ...] | None = None) -> HandTrace:
    """Sequence 2 gets a copy of three slots of a block that it shares in block 5; the COW is event 7."""
    trace = admitted().alloc(source, seq_id=1).write(source, 0, 3, seq_id=1).event(Kind.FORK, seq_id=2, aux=1)
    trace.share(source, seq_id=2).copy_on_write(source, 5, 3, seq_id=2)
    if told is not None:
        trace._details[7] = told
    return trace


def ran(trace: HandTrace, fill: int = -1, source: int = 2, behind: Kind = Kind.UNLEASE) -> HandTrace:
    trace.event(Kind.COPY_DONE, block=5, gen=1, aux=source, fill=fill)
    return trace.unlease(source, 1) if behind == Kind.UNLEASE else trace.event(behind, block=source, gen=1)


def decoding(*, open_step: bool) -> HandTrace:
    """Sequence 1 writes a slot in each of three steps, and gives the block back; it is handed out (event 17 or 18)."""
    trace = admitted().alloc(0, seq_id=1)
    for slot in range(4):
        trace.write(0, slot, slot + 1, seq_id=1)
        reads(trace, 0, slot + 1)
        if slot < 3 or not open_step:
            trace.end()
    return let_go(trace, 0).free(0).alloc(0, seq_id=2)


def arrived(lblock: int, slots: int) -> HandTrace:
    """Slots of a block come back from the host tier, behind what sequence 1 has written."""
    trace = row_of(lblock).alloc(5, seq_id=1, lblock=lblock).lease(5, 8, 0, 4)
    trace.event(Kind.SWAP_IN, block=5, gen=1, seq_id=1, lblock=lblock, fill=slots, aux=5, details=(1, 8))
    return trace.unlease(5, 8)


def swapped_without_a_lease(told: int) -> HandTrace:
    """A block comes back from slot 5 under no lease that is told; then a witness counts so many slots in use."""
    trace = row_of(1).lease(0, 7, 0, 4)
    trace.event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, fill=4, aux=5, details=(1, 7)).unlease(0, 7)
    trace.event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1).free(0).event(Kind.RESUME, seq_id=1).alloc(0, seq_id=1)
    trace.lease(0, 8, 0, 4).event(Kind.SWAP_IN, block=0, gen=2, seq_id=1, lblock=0, fill=4, aux=5)
    return trace.unlease(0, 8).event(Kind.WITNESS, details=(5, 1, 0, 0, 0, 0, 1, 0, told))


def forked_behind_a_window(told: int) -> HandTrace:
    """A fork of a sequence that has given back its first block, and its worker's table."""
    trace = row_of(2).release(0, seq_id=1, reason=Reason.WINDOW).free(0)
    trace.event(Kind.FORK, seq_id=2, aux=1).share(1, seq_id=2, lblock=1)
    return reads(trace, 4, 8, (table_digest([1], [1], 1), told), seq_id=2)


def reserved(before: int, after: int, free: int) -> HandTrace:
    """Blocks 0 and 4 are never handed out; the pool changes its size, and a witness counts so many free ones."""
    trace = HandTrace(num_blocks=max(before, after)).resize(before, after)
    trace.facts.append({"type": "pool", "reserved": [0, 4]})
    return trace.event(Kind.WITNESS, details=(free, 0, 0, 0, 0, 0, 0, 0))


def windowed(window: int, lo: int) -> HandTrace:
    """The model sees so many positions; its step writes position 7, and its table begins at `lo`."""
    trace = row_of(1).alloc(1, seq_id=1, lblock=1).write(1, 0, 4, seq_id=1, lblock=1).event(Kind.STEP_BEGIN, aux=1)
    trace.facts.append({"type": "model", "window": window})
    return trace.event(Kind.SCHED, seq_id=1, lblock=7, fill=1, aux=pack_range(lo, 8))


def two(lblock: int) -> HandTrace:
    return admitted().alloc(0, seq_id=1, lblock=lblock).event(Kind.ADMIT, seq_id=2).alloc(1, seq_id=2, lblock=lblock)


CASES: list[Case] = [
    *((f"committed with the counts {before}, {after}", "" if (before, after) in ((1, 1), (-1, -1), (-3, -2)) else
       "count@6", lambda b=before, a=after: row_of(1).commit(0, ref_before=b, ref_after=a))
      for before in (-1, 0, 1, 2) for after in (-1, 0, 1, 2)),
    ("committed with no counts", "", lambda: row_of(1).commit(0, ref_before=-3, ref_after=-2)),
    ("freed from the cache, and written", "transition@11",
     lambda: cached(1).free(0).alloc(0, seq_id=2).write(0, 0, 1, seq_id=2)),
    ("evicted, freed, written", "", lambda: cached(1).evict(0).alloc(0, seq_id=2).write(0, 0, 1, seq_id=2)),
    ("taken out of the index, written", "written in order@9",
     lambda: row_of(1).commit(0).publish(0).event(Kind.UNPUBLISH, block=0, gen=1).write(0, 3, 4, seq_id=1)),
    ("a copy of less than nothing", "copy details@7, positions@7", lambda: ran(copied(2, (2, 1, 0, -1)))),
    ("hit as block -2, published as block -1", "joined in order@11, positions@11",
     lambda: hits(cached(1, -1), 0, by=-2)),
    ("the first of all hits, as a second block", "joined in order@16", lambda: hits(cached(2), 1)),
    ("a hit behind a commit of its place", "hit prefix@18",
     lambda: hits(hits(cached(2), 0).commit(0, seq_id=2, lblock=0, ref_before=-1, ref_after=-1), 1)),
    ("five hits", "", lambda: hits(cached(5), 0, 1, 2, 3, 4)),
    ("three hits, and the fifth block", "hit prefix@34, joined in order@34",
     lambda: hits(hits(cached(5), 0, 1, 2), 4)),
    *((f"a copy that has moved {fill}", "" if fill in (-1, 3, 4) else "copy done@9",
       lambda fill=fill: ran(copied(), fill)) for fill in (-1, 0, 1, 2, 3, 4)),
    *((f"a copy whose source is behind it in a {kind.name.lower()}", "copy done@9", lambda kind=kind: ran(
        copied(), behind=kind)) for kind in (Kind.NOTE, Kind.COMMIT)),
    ("decoding until a step that has ended", "", lambda: decoding(open_step=False)),
    ("decoding until a step that is open", "fence@20", lambda: decoding(open_step=True)),
    *((f"reads {hi} of {4 + slots} that came back", "" if hi <= 4 + slots else "read before written@11",
       lambda slots=slots, hi=hi: reads(arrived(1, slots), 0, hi)) for slots in (3, 4) for hi in (6, 7, 8)),
    *((f"a swap under no lease, {told} slots told", "" if told == 1 else "transfers@17",
       lambda told=told: swapped_without_a_lease(told)) for told in (0, 1, 2)),
    ("a full block in place of the first of two", "",
     lambda: row_of(2).release(0, seq_id=1, reason=Reason.WINDOW).free(0).alloc(3, seq_id=4).write(3, 0, 4, seq_id=4)
     .share(3, seq_id=1)),
    ("half a block in place of the first of two", "joined in order@12",
     lambda: row_of(2).release(0, seq_id=1, reason=Reason.WINDOW).free(0).alloc(3, seq_id=4).write(3, 0, 2, seq_id=4)
     .share(3, seq_id=1)),
    ("an empty block given back behind a window", "",
     lambda: row_of(1).alloc(1, seq_id=1, lblock=1).release(1, seq_id=1, lblock=1, reason=Reason.WINDOW).free(1)),
    ("joined by who was not admitted, another was", "joined in order@3",
     lambda: HandTrace().alloc(0, seq_id=3).write(0, 0, 4, seq_id=3).event(Kind.ADMIT, seq_id=1)
     .share(0, seq_id=2, lblock=1)),
    ("gives back another place than it holds, in a step", "entry@8",
     lambda: reads(row_of(1), 0, 4).release(0, seq_id=1, lblock=1).free(0).alloc(0, seq_id=2)),
    ("over with what it has, as a witness counts", "witness@7",
     lambda: row_of(1).event(Kind.FINISH, seq_id=1).witness(5, 1, 0, 0, 0, 0, 1).release(0, seq_id=1).free(0)),
    ("in quarantine two steps too long", "quarantine left@14",
     lambda: let_go(reads(row_of(1), 0, 4), 0).quarantine(0).end().event(Kind.STEP_BEGIN).end()),
    ("counts less than nothing when it refuses", "counters@6",
     lambda: row_of(1).event(Kind.REFUSED, seq_id=9, reason=Reason.NO_BLOCKS, details=(1, -1, 0))),
    *((f"was {kind.name.lower()} for want of blocks, and is refused", "needless wait@8" * needless,
       lambda kind=kind: row_of(1).event(Kind.SUBMIT, seq_id=9, aux=4).event(kind, seq_id=9, reason=Reason.NO_BLOCKS,
                                                                             aux=90)
       .event(Kind.REFUSED, seq_id=9, reason=Reason.NO_BLOCKS, details=(1, 5, 0)))
      for kind, needless in ((Kind.PREEMPT, 0), (Kind.NOTE, 1))),
    *((f"reserved blocks, {before} become {after}, {free} free", "" if free == expected else "witness@1",
       lambda b=before, a=after, f=free: reserved(b, a, f))
      for before, after, expected in ((4, 6, 4), (6, 4, 3), (6, 1, 0), (2, 7, 5)) for free in range(3, 6)
      if expected in range(2, 6) or free == 3),
    ("shrinks to less than nothing", "resize@0", lambda: HandTrace().resize(4, -1)),
    ("let go though nobody held it", "count@8, holders@8",
     lambda: let_go(row_of(1), 0).event(Kind.RELEASE, block=0, gen=1, seq_id=1, lblock=0, ref_before=0, ref_after=-1)),
    *((f"a lease of [0:{hi}], and a write behind it", "" if hi <= 2 else "lease@4",
       lambda hi=hi: admitted().alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).lease(0, 7, 0, hi)
       .write(0, 2, 3, seq_id=1).unlease(0, 7)) for hi in (-9, -1, 0, 2, 3, 4, 9)),
    ("moved into a place that is taken, for a reason beside that", "entry@7, inherits@7",
     lambda: admitted().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).event(Kind.FORK, seq_id=2, aux=1)
     .share(0, seq_id=2).alloc(1, seq_id=3).write(1, 0, 3, seq_id=3).share(1, seq_id=2, reason=Reason.RESIZED + 1)),
    ("moved into a place that is taken, for another reason beside that", "entry@7, inherits@7",
     lambda: admitted().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).event(Kind.FORK, seq_id=2, aux=1)
     .share(0, seq_id=2).alloc(1, seq_id=3).write(1, 0, 3, seq_id=3).share(1, seq_id=2, reason=Reason.RESIZED - 1)),
    ("written behind a copy while it stands there", "writer@9",
     lambda: HandTrace().event(Kind.ADMIT, seq_id=2).alloc(3, seq_id=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1)
     .write(0, 0, 2, seq_id=1).alloc(1, seq_id=1, reason=Reason.COPY_ON_WRITE).lease(0, 7, 0, 2).event(
         Kind.COW, block=1, gen=1, seq_id=1, lblock=0, fill=2, aux=0, details=(0, 1, 0, 2)).event(Kind.NOTE)
     .write(0, 2, 3, seq_id=1)),
    *((f"a {kind.name.lower()} of a full block into place -1", "positions@4, writer@4",
       lambda kind=kind: admitted().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).lease(0, 7, 0, 4).event(
           kind, block=0, gen=1, seq_id=1, lblock=-1, fill=4, aux=5,
           details=(0, 1, 0, 4) if kind == Kind.COW else (1, 7))) for kind in (Kind.COW, Kind.SWAP_IN)),
    ("a block of one slot in front of all", "new block@1, positions@1",
     lambda: admitted(1).alloc(0, seq_id=1, lblock=-1)),
    *((f"slot {lo} of the second block of three slots is written first", "slots@7, written in order@7" if lo else "",
       lambda lo=lo: row_of(1, 3).alloc(1, seq_id=1, lblock=1).write(1, lo, lo + 1, seq_id=1, lblock=1))
      for lo in (0, 1, 2)),
    ("a full block in place of the second of three", "",
     lambda: row_of(3).release(0, seq_id=1, reason=Reason.WINDOW).free(0)
     .release(1, seq_id=1, lblock=1, reason=Reason.WINDOW).free(1).alloc(3, seq_id=4).write(3, 0, 4, seq_id=4)
     .share(3, seq_id=1, lblock=1)),
    ("the first hit as a place far off, the second in its place", "hit content@17, hit prefix@17, joined in order@16",
     lambda: hits(hits(cached(2, -1), 0, by=3), 1, lblock=1)),
    ("committed with a range", "", lambda: row_of(1).commit(0, aux=pack_range(0, 2))),
    ("written while sequence 0 holds it in its first place", "writer@6",
     lambda: admitted().alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).event(Kind.FORK, seq_id=0, aux=1)
     .share(0, seq_id=0).event(Kind.NOTE).write(0, 2, 3, seq_id=1)),
    ("a hit behind a note of its place", "hit prefix@18",
     lambda: hits(hits(cached(2), 0).event(Kind.NOTE, seq_id=2, lblock=0, block=0, gen=1), 1)),
    ("copied twice into one place before the first is let go", "entry@8",
     lambda: admitted().alloc(0, seq_id=1).write(0, 0, 2, seq_id=1)
     .alloc(1, seq_id=1).lease(0, 7, 0, 2).event(Kind.COW, block=1, gen=1, seq_id=1, lblock=0, fill=2, aux=0,
                                                details=(0, 1, 0, 2)).event(Kind.NOTE).event(Kind.NOTE)
     .alloc(2, seq_id=1).lease(0, 8, 0, 2).event(Kind.COW, block=2, gen=1, seq_id=1, lblock=0, fill=2, aux=0,
                                                details=(0, 1, 0, 2))),
    *((f"a window of {window} that begins at {lo}", "window@9" if lo > 8 - window else "",
       lambda window=window, lo=lo: windowed(window, lo)) for window in (1, 3, 6) for lo in range(4, 8)
      if lo <= 8 - window + 1),
    ("a copy whose source was let go in front of it", "copy source@6",
     lambda: admitted().alloc(2, seq_id=1).write(2, 0, 3, seq_id=1).alloc(5, seq_id=2).lease(2, 1, 0, 3).unlease(2, 1)
     .event(Kind.COW, block=5, gen=1, seq_id=2, lblock=0, fill=3, aux=2, details=(2, 1, 0, 3))),
    ("hit as block -1, published as the first", "joined in order@11, positions@11", lambda: hits(cached(1), 0, by=-1)),
    ("a witness of which nothing is told, and one that counts a host slot", "host slots@7",
     lambda: row_of(1).event(Kind.WITNESS).event(Kind.WITNESS, details=(5, 1, 0, 0, 0, 0, 1, 0, 1))),
    ("two blocks to the host tier, and of the first no lease is told", "",
     lambda: row_of(2).lease(0, 7, 0, 4).event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, fill=4, aux=5)
     .lease(1, 8, 0, 4).event(Kind.SWAP_OUT, block=1, gen=1, seq_id=1, lblock=1, fill=4, aux=6, details=(1, 8))
     .unlease(0, 7).unlease(1, 8)),
    ("two far behind", "", lambda: two(2**31 - 1)),
]  # fmt: skip

# In pieces less is seen of these: a rule that is broken ends the look, or what is allowed stands in another piece.
WHOLE: list[Case] = [
    ("written by sequence 0 after it let go", "still needed@2, writer@3",
     lambda: HandTrace().alloc(0, seq_id=0).write(0, 0, 1, seq_id=0).release(0, seq_id=0).write(0, 1, 2, seq_id=0)),
    ("admitted after it let go of what it did not hold", "begins empty@7, entry@6",
     lambda: row_of(1).release(0, seq_id=2).event(Kind.ADMIT, seq_id=2)),
    *((f"a write of [0:{hi}] in a block of one slot, published", "positions@2, published full@3, slots@2"
       if hi < 0 else "published full@3, slots@2",
       lambda hi=hi: admitted(1).alloc(0, seq_id=1).write(0, 0, 1, seq_id=1, aux=hi << 32).publish(0))
      for hi in (-1, 0)),
    ("the first of all hits, as a second block, behind nothing", "hit prefix@17, joined in order@17",
     lambda: hits(cached(2).event(Kind.NOTE), 1)),
    ("a hit behind another's admission", "hit prefix@18, joined in order@18",
     lambda: hits(cached(2).event(Kind.SUBMIT, seq_id=7).event(Kind.ADMIT, seq_id=1), 1)),
    ("a copy of a lower block than is leased", "copy done@9, copy source@7", lambda: ran(copied(2, (1, 1, 0, 3)))),
    ("a copy of a higher block than is leased", "copy done@9, copy source@7", lambda: ran(copied(2, (3, 1, 0, 3)))),
    *((f"a fork behind a window, {told} entries told", "" if told == 2 else "table@13",
       lambda told=told: forked_behind_a_window(told)) for told in (1, 2, 3)),
    ("joined by who was admitted, at its second place", "joined in order@3",
     lambda: HandTrace().alloc(0, seq_id=3).write(0, 0, 4, seq_id=3).event(Kind.ADMIT, seq_id=2)
     .share(0, seq_id=2, lblock=1)),
    ("two in front of all", "entry@3, new block@1, positions@1", lambda: two(-1)),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "history"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_the_line_is_drawn_there(expected: str, history: Callable[[], HandTrace]) -> None:
    assert alike(history()) == expected


@pytest.mark.parametrize(("expected", "history"), [pytest.param(*case[1:], id=case[0]) for case in WHOLE])
def test_the_line_is_drawn_there_in_one_piece(expected: str, history: Callable[[], HandTrace]) -> None:
    assert suspected(history()) == expected


# -- cuts, and what a chunk is told of the ones before it ------------------------------------------------------------


def ran_in_another_life(target: int = 0) -> HandTrace:
    """A block was filled by a copy, and is handed out again; a copy into it is said to have run (event 15)."""
    trace = admitted().alloc(2, seq_id=1).write(2, 0, 3, seq_id=1).event(Kind.FORK, seq_id=2, aux=1)
    trace.share(2, seq_id=2).copy_on_write(2, target, 3, seq_id=2).copy_done(2, target).event(Kind.ABORT, seq_id=2)
    trace.release(target, seq_id=2).free(target).alloc(target, seq_id=7).lease(2, 1, 0, 3)
    return trace.copy_done(2, target)


@pytest.mark.parametrize(("history", "rows", "expected"), [
    (lambda: hits(cached(2), 0, 1), (16,), ""), (lambda: hits(cached(2), 0, 1), (17,), "hit prefix@17"),
    (lambda: hits(cached(2).event(Kind.NOTE), 0, 1), (17, 18), "hit prefix@18"),
    (lambda: ran(copied()), (5,), ""), (lambda: ran(copied()), (6,), "entry@5, new block@5"),
    (lambda: ran(copied()), (7,), "entry@5, new block@5"), (lambda: ran(copied()), (5, 9), ""),
    (lambda: ran(copied()), (10,), "copy done@9"),
    (lambda: ran(copied().event(Kind.NOTE)), (5, 9, 10), ""),
    *((lambda target=target: ran_in_another_life(target), rows, "copy done@16") for target in (0, 5)
      for rows in ((12,), (13,), (14,), (15,), (14, 16), (15, 16))),
    *((lambda: hits(row_of(1).commit(0).event(
        Kind.PUBLISH, block=0, gen=1, seq_id=1, lblock=0, details=WORDS[0]).event(Kind.ADMIT, seq_id=2), 0), (row,), "")
      for row in (6, 7, 8)),
    (lambda: row_of(1).alloc(1, seq_id=1, lblock=1).lease(0, 7, 0, 4).event(
        Kind.COW, block=1, gen=1, seq_id=1, lblock=1, fill=4, details=(0, 1, 0, 4)).lease(0, 9, 0, 4), (8,),
     "copy source@8"),
    (lambda: hits(cached(2), 0, 1).event(Kind.RESUME, seq_id=2), (17,), "begins empty@18, hit prefix@17"),
    *((lambda: row_of(1).alloc(1, seq_id=1, lblock=1).lease(0, 7, 0, 4).event(
        Kind.COW, block=1, gen=1, seq_id=1, lblock=1, fill=4, details=(0, 1, 0, 4)), (rows,), expected)
      for rows, expected in ((6, "lease left@9"), (7, "lease left@9"), (8, "copy source@8"))),
])  # fmt: skip
def test_a_cut_within_an_operation_hides_what_stands_in_front(
    history: Callable[[], HandTrace], rows: tuple[int, ...], expected: str
) -> None:
    assert suspected(history(), at(*rows)) == expected


@pytest.mark.parametrize("after", range(1, 12))
def test_what_is_known_of_a_sequence_is_known_behind_every_cut(after: int) -> None:
    """An entry is taken, a step reads it, and it is let go and handed out while that step is open."""
    trace = let_go(reads(row_of(1), 0, 4), 0).free(0).alloc(0, seq_id=2)
    assert suspected(trace, at(after)) == "fence@11"
    assert suspected(let_go(reads(row_of(1), 0, 4).end(), 0).free(0).alloc(0, seq_id=2), at(after)) == ""


@pytest.mark.parametrize("front", range(6))
@pytest.mark.parametrize("after", range(1, 12, 2))
def test_an_entry_taken_just_before_a_step_is_used_by_it(front: int, after: int) -> None:
    trace = HandTrace()
    for _ in range(front):
        trace.event(Kind.NOTE)
    trace.event(Kind.ADMIT, seq_id=1).event(Kind.STEP_BEGIN).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.event(Kind.SCHED, seq_id=1, lblock=3, fill=1, aux=pack_range(0, 4)).event(Kind.ABORT, seq_id=1)
    trace.release(0, seq_id=1).free(0).alloc(0, seq_id=2)
    assert suspected(trace, at(min(after, front + 8))) == f"fence@{front + 8}"


def beside_an_engine(trace: HandTrace, blocks: int, *, facts: Any = ()) -> dict[str, int]:
    """What is suspected while it runs, of a pool that begins with so many blocks."""
    live, frozen_ = ByColumns(blocks, trace.block_size), frozen(trace)
    live.learn(facts, trace.block_bytes)
    details = {seq: told for seq in range(len(trace.events)) if (told := trace.detail(seq)) is not None}
    assert live.look([frozen_.events], 0, details, []) == len(trace.events)
    return live.suspects


@pytest.mark.parametrize(("size", "suspects"), [
    (-2, {"resize": 0}), (-1, {"resize": 0}), (0, {}), (1, {}), ((1 << 21) - 1, {}), (1 << 21, {"resize": 0}),
    ((1 << 21) + 1, {"resize": 0}),
])  # fmt: skip
def test_sizes_that_a_pool_may_take_while_it_runs(size: int, suspects: dict[str, int]) -> None:
    assert beside_an_engine(HandTrace().resize(4, size), 4) == suspects


@pytest.mark.parametrize("computed", [False, True])
def test_beside_an_engine_a_hit_comes_after_its_writes(computed: bool) -> None:
    trace = admitted().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.commit(0) if computed else trace.event(Kind.NOTE)
    trace.event(Kind.PUBLISH, block=0, gen=1, seq_id=1, lblock=0, details=WORDS[0]).event(Kind.ADMIT, seq_id=2)
    assert beside_an_engine(hits(trace, 0), 6) == ({} if computed else {"hit before its writes": 6})


@pytest.mark.parametrize(("block_bytes", "suspects"), [(0, {}), (1, {"capacity": 0}), (63, {"capacity": 0}), (64, {})])
def test_blocks_that_are_too_small_are_doubted_from_the_start(block_bytes: int, suspects: dict[str, int]) -> None:
    facts = [{"type": "model", "bytes_per_token": 16}]
    trace = HandTrace(block_bytes=block_bytes).event(Kind.NOTE).event(Kind.NOTE)
    assert beside_an_engine(trace, 4, facts=facts) == suspects
    trace.facts += facts
    assert screen(frozen(trace)).suspects == suspects


@pytest.mark.parametrize("commits", range(3))
@pytest.mark.parametrize("steps", range(3))
def test_a_trace_with_either_says_what_was_computed_before(commits: int, steps: int) -> None:
    trace = row_of(0)
    for _ in range(commits):
        trace.commit(0)
    for _ in range(steps):
        reads(trace, 0, 0)
    assert ordered(frozen(trace))
    assert ordered(frozen(HandTrace().commit(0))) is True
    assert ordered(frozen(HandTrace().event(Kind.NOTE))) is False


def test_a_trace_that_cannot_be_judged_by_rules_says_why() -> None:
    assert unfit_for(frozen(row_of(1))) == ""
    lost = row_of(1).lose(3).event(Kind.NOTE)
    assert (unfit_for(frozen(lost)), unfit_for(frozen(lost), gaps=True)) == ("lost events", "")
    gap = row_of(1).event(Kind.GAP, aux=0)
    assert (unfit_for(frozen(gap)) != "", unfit_for(frozen(gap), gaps=True)) == (True, "")
    odd = row_of(1)
    odd._rows[0]["kind"] = 77
    assert unfit_for(frozen(odd)) == unfit_for(frozen(odd), gaps=True) == "unknown kind"
    seen = screen(frozen(row_of(1)))
    assert (seen.blocks, seen.slots, seen.unjudged, seen.unknown, seen.clean) == (1, 4, 0, 0, True)


@pytest.mark.parametrize("sizes", [[], [4], [4, 6], [6, 4, 5]])
@pytest.mark.parametrize("front", [0, 1])
def test_the_size_before_the_first_event(sizes: list[int], front: int) -> None:
    trace, now = HandTrace(num_blocks=7), 7
    for _ in range(front):
        trace.event(Kind.NOTE)
    for size in sizes:
        trace.resize(now, size)
        now = size
    assert first_size(frozen(trace)) == 7


@pytest.mark.parametrize(("keys", "rows", "most"), [
    ([3, 1, 3, 0], [0, 1, 2, 3], 4), ([], [], 5), ([0], [7], 1), ([5, 5, 0], [2, 9, 40], 6),
    *(([key, 0, key, 1], [row - 2, row - 1, row, row + 1], key + 1)
      for key in (2**10 - 1, 2**11 - 1, 2**12 - 2, 2**20 - 1, 2**30 - 1, 2**31 - 2, 2**42)
      for row in (2, 2**10 - 2, 2**20 - 2)),
])  # fmt: skip
def test_rows_are_sorted_by_key_and_then_by_row(keys: list[int], rows: list[int], most: int) -> None:
    found = sorted_rows(np.array(keys, np.int64), np.array(rows, np.int64), most)
    assert list(zip(*(part.tolist() for part in found), strict=True)) == sorted(zip(keys, rows, strict=True))


def test_details_of_some_kinds_are_kept_in_the_order_of_their_events() -> None:
    trace = hits(cached(3), 0, 1, 2).lease(0, 3, 0, 4).unlease(0, 3)
    trace.event(Kind.WITNESS, details=tuple(range(9))).lease(1, 4, 1, 3)
    kinds = (Kind.HIT, Kind.PUBLISH, Kind.LEASE, Kind.SCHED, Kind.WITNESS, Kind.COW)
    seqs, starts, lengths, values = kept_of(frozen(trace), kinds)
    told = [(seq, trace.detail(seq)) for seq in range(len(trace.events))]
    assert [(seq, tuple(values[start : start + length].tolist()))
            for seq, start, length in zip(seqs.tolist(), starts.tolist(), lengths.tolist(), strict=True)] == [
        (seq, detail) for seq, detail in told if detail is not None
    ]  # fmt: skip


def test_rows_are_counted_on_top_of_those_before() -> None:
    rows = np.zeros(5, EVENT_DTYPE)
    chunk = type("Rows", (), {"length": len(rows)})
    assert screens.counted(chunk, np.array([1, 2, 4]), 7).tolist() == [7, 8, 9, 9, 10]  # type: ignore[arg-type]
    assert screens.counted(chunk, np.array([0]), 0).tolist() == [1] * 5  # type: ignore[arg-type]
    assert Screen(3, 2).result() == screens.Screened({}, 0, 0)
