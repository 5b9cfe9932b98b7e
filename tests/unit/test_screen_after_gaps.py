"""Small histories with a place where events are missing: what the screen in C doubts, what the replay finds, what both
say of how much could be judged.

One row per line: a name, the suspicion as `rule@event`, the findings as `code@event`, (events that could not be judged,
blocks that are unknown at the end), and the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen.live import ByRows
from kvscope.inspector.screen.whole import by_rows
from kvscope.inspector.source import frozen
from kvscope.inspector.units import counted
from kvscope.traces import compiled
from kvscope.traces.fold import BlockFold, events_columns
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest

Case = tuple[str, str, str, tuple[int, int], Callable[[], HandTrace]]
WORDS = (1, 2, 3, 4)


@pytest.fixture(autouse=True)
def _in_c() -> Iterator[None]:
    if not compiled.built():
        pytest.skip("the parts in C were not built; where there is a compiler, test_compiled.py fails for it")
    with compiled.using(True):
        yield


def two(blocks: int = 4, *, slots: int = 4) -> HandTrace:
    """Sequence 1 holds block 0, written, and sequence 2 block 1 (events 0 to 4); then one event is lost."""
    trace = HandTrace(num_blocks=blocks).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, slots, seq_id=1)
    return trace.event(Kind.ADMIT, seq_id=2).alloc(1, seq_id=2).lose(1)


def met() -> HandTrace:
    """Sequence 3 is admitted behind the gap (event 6)."""
    return two().event(Kind.ADMIT, seq_id=3)


def over(trace: HandTrace, seq_id: int, block: int) -> HandTrace:
    """A sequence ends and lets a block go (two events)."""
    return trace.event(Kind.FINISH, seq_id=seq_id).release(block, seq_id=seq_id)


def hit(trace: HandTrace, block: int, before: int, *, gen: int = 1, lblock: int = 0, seq_id: int = 3,
        words: tuple[int, ...] | None = WORDS) -> HandTrace:  # fmt: skip
    trace._ref[block] = before + 1
    return trace.event(Kind.HIT, block=block, gen=gen, seq_id=seq_id, lblock=lblock, ref_before=before,
                       ref_after=before + 1, details=words)  # fmt: skip


def step(trace: HandTrace, seq_id: int, lo: int, hi: int, table: list[tuple[int, int]] | None = None, *, first: int = 0,
         length: int = -1) -> HandTrace:  # fmt: skip
    told = None
    if table is not None:
        digest = table_digest([b for b, _ in table], [g for _, g in table], first)
        told = (digest, first + len(table) if length < 0 else length)
    return trace.event(Kind.SCHED, seq_id=seq_id, lblock=hi - 1, fill=1, aux=pack_range(lo, hi), details=told)


def freed() -> HandTrace:
    """Block 0 is freed, and so known again (event 8)."""
    return over(two(), 1, 0).free(0)


def again() -> HandTrace:
    """Block 0 is handed out once more, to sequence 3 (events 9 and 10)."""
    return freed().event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3)


def found(before: int) -> HandTrace:
    """Sequence 3 hits block 0, which so many hold (event 7)."""
    return hit(met(), 0, before)


def unleased(trace: HandTrace, gen: int) -> HandTrace:
    """A lease of block 0 ends that nobody has seen."""
    return trace.event(Kind.UNLEASE, block=0, gen=gen, aux=7, ref_before=2, ref_after=1)


def copied(lost: int) -> HandTrace:
    """Sequence 2, a fork of 1, takes a copy of block 0; one event of it all is lost."""
    rows = HandTrace().event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 3, seq_id=1)
    rows.event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2).alloc(1, seq_id=2).lease(0, 7, 0, 3)
    rows.event(Kind.COW, block=1, gen=1, seq_id=2, lblock=0, fill=3, aux=0, details=(0, 1, 0, 3)).release(0, seq_id=2)
    rows.write(1, 3, 4, seq_id=2).event(Kind.COPY_DONE, block=1, gen=1, fill=3).unlease(0, 7)
    return without(over(over(rows, 2, 1).free(1), 1, 0).free(0), lost)


def without(trace: HandTrace, row: int) -> HandTrace:
    """The same with one event lost."""
    del trace._rows[row], trace._seqs[row]
    return trace


def without_first(trace: HandTrace, rows: int) -> HandTrace:
    """The same without its first events."""
    del trace._rows[:rows], trace._seqs[:rows]
    return trace


def second(lost: int) -> HandTrace:
    """Block 0 is handed out in its first life, where another writer goes on (none is lost), or behind a lost event."""
    trace = again().event(Kind.GAP, aux=lost).event(Kind.NOTE).event(Kind.ADMIT, seq_id=1)
    trace._gen[0] = trace._ref[0] = 0
    return trace.alloc(0, seq_id=1)


def waits(lost: int) -> HandTrace:
    """Sequence 1, which was submitted in front of a gap, is refused behind it, though all blocks are free."""
    trace = HandTrace().event(Kind.SUBMIT, seq_id=1, aux=4).event(Kind.GAP, aux=lost)
    return trace.event(Kind.REFUSED, seq_id=1, reason=Reason.NO_BLOCKS, details=(1, 4, 0))


def forked(told: int) -> HandTrace:
    """A fork of sequence 1, whose first blocks have slid away; its worker's table has `told` entries (event 9)."""
    trace = two().event(Kind.FORK, seq_id=3, aux=1).share(0, seq_id=3, lblock=2)
    return step(trace.event(Kind.STEP_BEGIN, aux=1), 3, 8, 12, [(0, 1)], first=2, length=told)


def all_known(entries: int, *, free: int = 3) -> HandTrace:
    """Of a trace without its beginning all four blocks become known, and a WITNESS counts them (event 15)."""
    trace = HandTrace().lose(3).event(Kind.ADMIT, seq_id=1)
    for block in range(4):
        trace.alloc(block, seq_id=1, lblock=block)
    trace.event(Kind.TRUNCATE, seq_id=1, aux=0)
    for block in (3, 2, 1):
        trace.release(block, seq_id=1, lblock=block).free(block)
    return trace.witness(free, 1, 0, 0, 0, 0, entries, table=[(0, 1)])


def odd() -> HandTrace:
    """A row that tells no count frees block 0, whose release is lost; a WITNESS finds all blocks known (event 8)."""
    trace = HandTrace(num_blocks=2).event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.event(Kind.FINISH, seq_id=1).lose(1).free(0, ref_before=-1, ref_after=-1)
    trace.event(Kind.ADMIT, seq_id=2).alloc(1, seq_id=2)
    return trace.witness(1, 1, 0, 0, 0, 0, 1)


def let_go(trace: HandTrace, rows: int) -> HandTrace:
    """A recorder with a limit has let the first rows go, and has kept what they made of every block."""
    fold = BlockFold(trace.num_blocks)
    fold.apply(events_columns(trace.events[:rows], trace.seqs[:rows]))
    trace.fold_before = lambda: fold  # type: ignore[attr-defined]
    return without_first(trace, rows)


def resized(size: int, *, then: int = -1) -> HandTrace:
    """The pool changes its size behind the gap."""
    trace = freed().resize(4, size)
    return trace if then < 0 else trace.resize(size, then)


def moved(lease: int, *, known: bool) -> HandTrace:
    """A block goes to the host tier, under the lease that it has (7), or another one."""
    trace = two()
    block = 2 if known else 0
    if known:
        trace.event(Kind.ADMIT, seq_id=3).alloc(2, seq_id=3).write(2, 0, 4, seq_id=3)
    trace.lease(block, 7, 0, 4)
    trace.event(Kind.SWAP_OUT, block=block, gen=1, seq_id=3 if known else 1, lblock=0, aux=5, details=(1, lease))
    return trace.unlease(block, 7)


CASES: list[Case] = [
    ("let go and freed", "", "", (2, 3), freed),
    ("and handed out, and read", "", "", (2, 3), lambda: step(again().write(0, 0, 4, seq_id=3), 3, 0, 4, [(0, 2)])),
    ("and read, though not written", "read before written@12", "KV009@12", (2, 3),
     lambda: step(again().write(0, 0, 3, seq_id=3), 3, 0, 4)),
    ("and the worker has another table", "table@12", "KV018@12", (2, 3),
     lambda: step(again().write(0, 0, 4, seq_id=3), 3, 0, 4, [(2, 1)])),
    ("freed twice", "transition@9", "KV003@9", (2, 3), lambda: freed().free(0)),
    ("freed while a table holds it", "count@8", "", (2, 3), lambda: met().share(0, seq_id=3).free(0)),
    ("freed in a life that is over", "life@6", "", (1, 3), lambda: two().free(0, gen=0)),
    ("quarantined, settled, handed out", "", "", (2, 3),
     lambda: over(two(), 1, 0).quarantine(0).settle(0).event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3)),
    ("quarantined, and handed out at once", "transition@10", "KV013@10", (2, 3),
     lambda: over(two(), 1, 0).quarantine(0).event(Kind.ADMIT, seq_id=3).alloc(0, seq_id=3)),
    ("quarantined to the end", "", "", (2, 3), lambda: over(two(), 1, 0).quarantine(0)),
    ("let go to the end", "", "", (1, 4), lambda: over(two(), 1, 0)),
    ("known, and let go to the end", "block left@13", "KV005@12", (2, 3), lambda: over(again(), 3, 0)),
    ("known, and its sequence over", "entry left@12", "KV005@11", (2, 3), lambda: again().event(Kind.FINISH, seq_id=3)),
    ("taken before it was admitted", "begins empty@7", "KV005@6", (1, 3),
     lambda: two().alloc(2, seq_id=3).event(Kind.ADMIT, seq_id=3)),
    ("handed out while held, for all we know", "", "", (1, 3), lambda: met().alloc(0, seq_id=3)),
    ("handed out while held", "life@8", "", (2, 3), lambda: met().share(0, seq_id=3).alloc(0, seq_id=3)),
    ("handed out in a life that was", "life@7", "", (1, 3),
     lambda: met().alloc(0, seq_id=3, gen=1)),
    ("handed out as held", "count@7", "KV007@7", (1, 3),
     lambda: met().alloc(0, seq_id=3, ref_before=1, ref_after=2)),
    ("a count that jumps", "count@6", "KV007@6", (1, 4), lambda: two().write(0, 0, 1, seq_id=1, ref_after=2)),
    ("a count of an unknown block", "", "", (1, 4), lambda: two().write(0, 0, 1, seq_id=1, ref_before=5, ref_after=5)),
    ("slots that there are not", "slots@6", "KV019@6", (1, 4), lambda: two().write(0, 3, 5, seq_id=1)),
    ("slots that the lost events may have written", "", "", (1, 4), lambda: two(slots=1).write(0, 3, 4, seq_id=1)),
    ("found, held by others", "", "", (1, 4), lambda: step(found(1), 3, 0, 4, [(0, 1)])),
    ("found, held by nobody", "", "", (1, 3), lambda: step(found(0), 3, 0, 4, [(0, 1)])),
    ("found, and another table", "table@8", "KV018@8", (1, 4), lambda: step(found(1), 3, 0, 4, [(1, 1)])),
    ("found twice, with other words", "", "", (1, 3),
     lambda: hit(found(0).event(Kind.ADMIT, seq_id=4), 0, 1, seq_id=4, words=(9, 9, 9, 9))),
    ("found alone, written", "writer@8", "KV015@8", (1, 3), lambda: found(0).write(0, 0, 1, seq_id=3)),
    ("found while others hold it, written", "", "", (2, 4), lambda: found(1).write(0, 0, 1, seq_id=3)),
    ("written for a place where it is not", "writer@8", "", (2, 4),
     lambda: found(1).write(0, 0, 4, seq_id=3, lblock=1)),
    ("found alone, and a table that holds it", "holders@9", "", (2, 3),
     lambda: hit(found(1).event(Kind.ADMIT, seq_id=4), 0, 0, seq_id=4)),
    ("a hit in the middle of others", "", "", (1, 4), lambda: hit(two(), 0, 1, lblock=1, seq_id=2)),
    ("a hit behind none", "hit prefix@7", "", (1, 4), lambda: hit(two().event(Kind.NOTE), 0, 1, lblock=1, seq_id=2)),
    ("released by who took it before", "", "", (1, 4), lambda: two().release(0, seq_id=1)),
    ("released by a stranger, unknown", "", "", (1, 4), lambda: two().release(0, seq_id=5)),
    ("released by a stranger", "joined in order@11", "KV010@12", (2, 3),
     lambda: again().share(0, seq_id=3, lblock=1).release(0, seq_id=5)),
    ("released by who was just admitted", "entry@7", "", (1, 4), lambda: met().release(0, seq_id=3)),
    ("the end of a lease that was taken before", "", "", (1, 4), lambda: unleased(two(), 1)),
    ("the end of a lease that was not", "count@11", "KV004@11", (2, 3), lambda: unleased(again(), 2)),
    ("freed under a lease", "count@7", "", (2, 3), lambda: two().lease(0, 7, 0, 4).free(0)),
    ("leased to the end", "", "", (2, 3), lambda: again().write(0, 0, 4, seq_id=3).lease(0, 7, 0, 4)),
    ("a step that ended before it began", "", "", (0, 4), lambda: two().end().event(Kind.STEP_BEGIN, aux=3).end()),
    ("fewer steps than before", "steps@2", "KV012@2", (0, 4),
     lambda: HandTrace().event(Kind.STEP_BEGIN, step=5).lose(1).event(Kind.STEP_BEGIN, step=4)),
    ("a life that was, behind lost events", "life@14", "", (3, 3), lambda: second(1)),
    ("who waits, submitted before events were lost", "needless wait@2", "KV021@2", (0, 4), lambda: waits(1)),
    ("tokens of hits that are lost", "", "", (0, 4),
     lambda: HandTrace().event(Kind.ADMIT, seq_id=1, aux=4).lose(1).event(Kind.NOTE)),
    ("tokens of hits that are not", "admitted@0", "KV012@0", (0, 4),
     lambda: HandTrace().event(Kind.ADMIT, seq_id=1, aux=4).event(Kind.STEP_BEGIN).lose(1).event(Kind.NOTE)),
    ("a fork of what had slid", "", "", (1, 4), lambda: forked(3)),
    ("a fork of what had slid, and more", "table@9", "KV018@9", (1, 4), lambda: forked(4)),
    ("all blocks known", "", "", (4, 0), lambda: all_known(1)),
    ("all blocks known, other entries", "witness@15", "KV012@15", (4, 0), lambda: all_known(2)),
    ("all blocks known, one more free", "witness@15", "", (5, 0), lambda: all_known(1, free=4)),
    ("a count below nothing", "witness@6", "KV012@6", (1, 4), lambda: two().witness(-1, 2, 0, 0, 0, 0, 2)),
    ("free, and held by what was told", "witness@8", "KV012@8", (2, 0), odd),
    ("free, and held when the events before were let go", "witness@8", "KV012@8", (2, 0), lambda: let_go(odd(), 4)),
    ("free, and held when no event told of it", "", "", (2, 0), lambda: without_first(odd(), 4)),
    ("a larger pool", "", "", (2, 5), lambda: resized(6)),
    ("a smaller pool", "", "", (2, 1), lambda: resized(2)),
    ("a smaller pool, and its block is held", "resize@11", "KV012@11", (2, 0), lambda: again().resize(4, 0)),
    ("smaller, and larger again", "", "", (2, 3), lambda: resized(2, then=4)),
    ("moved under its lease", "", "", (1, 3), lambda: moved(7, known=True)),
    ("moved under another lease", "transfers@10", "KV017@10", (1, 3), lambda: moved(8, known=True)),
    ("moved under a lease of an unknown block", "", "", (3, 4), lambda: moved(8, known=False)),
    *((f"a copy without event {4 + i}", "", "", (unjudged, 2), lambda i=i: copied(4 + i))
      for i, unjudged in enumerate((6, 10, 9, 8, 7, 6, 5, 4, 4))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("doubt", "findings", "judged", "history"), [pytest.param(*case[1:], id=case[0]) for case in CASES]
)
def test_both_draw_the_line(
    doubt: str, findings: str, judged: tuple[int, int], history: Callable[[], HandTrace]
) -> None:
    looked, full = by_rows(frozen(history())), check(history(), replay=True)
    assert ", ".join(f"{rule}@{seq}" for rule, seq in looked.suspects.items()) == doubt
    assert " ".join(f"{finding.code}@{finding.seq}" for finding in full.findings) == findings
    if not doubt:
        assert (looked.unjudged, looked.unknown) == judged
        assert (looked.blocks, looked.slots) == (full.blocks, full.slots)
    assert f": {counted(judged[0], 'event')} could not be judged, {judged[1]} of " in full.notes[0]
    assert check(history()).notes == full.notes


@pytest.mark.parametrize(
    "history",
    [
        lambda: HandTrace().event(Kind.STEP_BEGIN, step=5).event(Kind.GAP, aux=0).event(Kind.STEP_BEGIN, step=4),
        lambda: second(0),
        lambda: waits(0),
    ],
    ids=["fewer steps", "a life of before", "who waits was submitted before"],
)
def test_what_another_writer_did_before_is_held_against_nobody(history: Callable[[], HandTrace]) -> None:
    full = check(history(), replay=True)
    assert full.findings == ()
    assert check(history()).notes == full.notes


def test_what_lost_events_left_is_a_number_of_each_kind_for_a_block() -> None:
    live, column = ByRows(4, 4)._live, np.ones(4, dtype=np.int32)
    live.begin(column, column, np.zeros(4, dtype=np.int32))
    for columns in ((column, column, column[:3]), (column, column.astype(np.int64), column), (column, column, [1] * 4)):
        with pytest.raises(TypeError):
            live.begin(*columns)
