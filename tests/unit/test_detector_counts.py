"""What a pool counts and what a run leaves behind: the line that is drawn, and how often it is spoken of.

One row per line: a name, the rules broken as `code@event`, and the history; without one, the neighbour is clean;
`?` where the screen alone doubts it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces.schema import Kind, Reason, pack_range, table_digest

Case = tuple[str, str, Callable[[], HandTrace]]
RIGHT = (3, 1, 0, 0, 0, 0, 1, 0)  # of `one`: free, private, shared, cached, quarantined, in transit, entries, digest


def found(trace: HandTrace) -> str:
    out = " ".join(f"{finding.code}@{finding.seq}" for finding in check(trace, replay=True).findings)
    suspected = bool(screen(frozen(trace)).suspects)
    assert suspected or not out
    return out or "?" * suspected


def one() -> HandTrace:
    """Sequence 1 holds block 0, three of its slots are written in a step that has ended (events 0 to 4)."""
    return HandTrace().alloc(0, seq_id=1).write(0, 0, 3, seq_id=1).begin((1, 0, 3, [(0, 1)])).end()


def step(trace: HandTrace) -> HandTrace:
    return trace.event(Kind.STEP_BEGIN, aux=0)


def witnesses(*told: tuple[int, ...], trace: HandTrace | None = None) -> HandTrace:
    """A witness each, of these counts in place of the right ones from the end on."""
    trace = trace or one()
    for values in told:
        trace.event(Kind.WITNESS, details=values)
    return trace


def but(*changes: tuple[int, int], host: int | None = None) -> tuple[int, ...]:
    """The right counts with some of them changed by so much."""
    values = list(RIGHT)
    for place, by in changes:
        values[place] += by
    return (*values, *(() if host is None else (host,)))


def parked() -> HandTrace:
    """Block 0 has gone to slot 5 of the host tier (events 0 to 10), and sequence 2 holds block 1."""
    trace = one().lease(0, 7, 0, 3).event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, aux=5, details=(1, 7))
    trace.event(Kind.PREEMPT, seq_id=1, reason=Reason.SWAPPED).release(0, seq_id=1).unlease(0, 7).free(0)
    return trace.alloc(1, seq_id=2)


def leaving(lease: int) -> HandTrace:
    """Sequence 1 is given up while block 0 moves to slot 5, under this lease; block 0 is held by lease 7."""
    trace = one().lease(0, 7, 0, 3).event(Kind.SWAP_OUT, block=0, gen=1, seq_id=1, lblock=0, aux=5, details=(1, lease))
    return trace.event(Kind.PREEMPT, seq_id=1).release(0, seq_id=1).event(Kind.ABORT, seq_id=1)


def back(*, waits: bool = False) -> HandTrace:
    """And comes back into block 0 (events 12 to 15); its transfer is done unless it `waits`."""
    trace = parked().event(Kind.RESUME, seq_id=1).alloc(0, seq_id=1).lease(0, 8, 0, 3)
    trace.event(Kind.SWAP_IN, block=0, gen=2, seq_id=1, lblock=0, fill=3, aux=5, details=(1, 8))
    return trace if waits else trace.unlease(0, 8)


DIGEST = table_digest([0], [1])
COUNTS: list[Case] = [
    ("right", "", lambda: witnesses(RIGHT, RIGHT)),
    *((f"count {place} is {by} off", "KV012@5", lambda place=place, by=by: witnesses(but((place, by))))
      for place in range(6) for by in ((-1, 1) if RIGHT[place] else (1,))),
    ("one block is counted elsewhere", "KV012@5", lambda: witnesses(but((0, -1), (1, 1)))),
    ("wrong in the same way twice", "KV012@5", lambda: witnesses(but((0, 1)), but((0, 1)))),
    ("wrong in another way", "KV012@5 KV012@6", lambda: witnesses(but((0, 1)), but((0, 2)))),
    ("wrong, right, wrong", "KV012@5 KV012@7", lambda: witnesses(but((0, 1)), RIGHT, but((0, 1)))),
    ("entries off by one", "KV012@5", lambda: witnesses(but((6, 1)))),
    ("entries wrong twice", "KV012@5", lambda: witnesses(but((6, -1)), but((6, -1)))),
    ("entries wrong, right, wrong", "KV012@5 KV012@7", lambda: witnesses(but((6, 1)), RIGHT, but((6, 1)))),
    ("the digest of the table", "", lambda: witnesses(but((7, DIGEST)))),
    ("the digest of another table", "KV012@5", lambda: witnesses(but((7, DIGEST + 1)))),
    ("no slot of a host tier", "", lambda: witnesses(but(host=0))),
    ("a slot of a host tier that there is not", "KV012@5", lambda: witnesses(but(host=1))),
    ("a host tier that nobody counts", "", lambda: witnesses(but(host=-1))),
    ("one slot in use", "", lambda: witnesses(but(host=1), trace=parked())),
    ("no slot in use", "KV012@12", lambda: witnesses(but(host=0), trace=parked())),
    ("two slots in use", "KV012@12", lambda: witnesses(but(host=2), trace=parked())),
    ("two slots in use, again", "KV012@12", lambda: witnesses(but(host=2), but(host=2), trace=parked())),
    ("two slots in use, then three", "KV012@12 KV012@13", lambda: witnesses(but(host=2), but(host=3), trace=parked())),
    ("a slot of a sequence that was given up while its bytes are on their way", "",
     lambda: witnesses(but((1, -1), (5, 1), (6, -1), host=1), trace=leaving(7)).unlease(0, 7).free(0)),
    ("a slot whose bytes never move, of a sequence that was given up", "",
     lambda: witnesses(but((1, -1), (5, 1), (6, -1), host=0), trace=leaving(-1)).unlease(0, 7).free(0)),
    ("a slot whose bytes are on their way back", "", lambda: witnesses(but((0, -1), (1, 1), (6, 1), host=1),
                                                                      trace=back(waits=True)).unlease(0, 8)),
    ("a slot whose bytes are back", "", lambda: witnesses(but((0, -1), (1, 1), (6, 1), host=0), trace=back())),
    ("a slot of a sequence that was given up", "",
     lambda: witnesses(but(host=0), trace=parked().event(Kind.ABORT, seq_id=1))),
]  # fmt: skip


def lease_left(*, before: bool, ends: bool) -> HandTrace:
    """A lease that nobody ends, taken before or after the last step began, which ends or does not."""
    trace = one().lease(0, 1, 0, 3) if before else one()
    step(trace)
    if not before:
        trace.lease(0, 1, 0, 3)
    return trace.end() if ends else trace


def let_go(how: str) -> HandTrace:
    """Block 0 is private, shared, leased, cached, quarantined or free when the pool shrinks to none (event 9)."""
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1)
    trace.begin((1, 0, 4, [(0, 1)]))
    if how == "private":
        trace.event(Kind.NOTE).event(Kind.NOTE).event(Kind.NOTE).event(Kind.NOTE).event(Kind.NOTE)
    elif how == "leased":
        trace.lease(0, 1, 0, 4).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).event(Kind.NOTE).event(Kind.NOTE)
    elif how == "cached":
        trace.publish(0).event(Kind.FINISH, seq_id=1).release(0, seq_id=1).event(Kind.NOTE).event(Kind.NOTE)
    elif how == "quarantined":
        trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).quarantine(0).event(Kind.NOTE).event(Kind.NOTE)
    else:
        trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).quarantine(0).settle(0).end()
    return trace.event(Kind.SHRINK, aux=0, lblock=4)


def waits(needed: int, free: int, evictable: int, *, watermark: float = 0.25, prompt: int = 4) -> HandTrace:
    trace = HandTrace(num_blocks=8)
    trace.facts.append({"type": "scheduler", "watermark": watermark})
    trace.event(Kind.SUBMIT, seq_id=1, aux=prompt)
    return trace.event(Kind.WAIT, seq_id=1, reason=Reason.NO_BLOCKS, details=(needed, free, evictable))


def reads(lo: int, position: int, window: int = 3) -> HandTrace:
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).alloc(1, seq_id=1, lblock=1)
    trace.write(1, 0, 2, seq_id=1, lblock=1).facts.append({"type": "model", "window": window})
    return step(trace).event(Kind.SCHED, seq_id=1, lblock=position, fill=1, aux=pack_range(lo, position + 1))


def worker(*tables: list[tuple[int, int]]) -> HandTrace:
    """A step each in which the worker of sequence 1, which holds blocks 0 and 1, uses this table."""
    trace = HandTrace().alloc(0, seq_id=1).write(0, 0, 4, seq_id=1).alloc(1, seq_id=1, lblock=1)
    trace.write(1, 0, 4, seq_id=1, lblock=1)
    for table in tables:
        trace.begin((1, 7, 8, table)).end()
    return trace


def read_early(*, second: bool) -> HandTrace:
    """Of two steps that are open while block 0 comes back, the first or the second one reads it; the first one ends."""
    trace = back(waits=True)
    for reads_it in (not second, second):
        step(trace)
        if reads_it:
            trace.event(Kind.SCHED, seq_id=1, lblock=2, fill=1, aux=pack_range(0, 3))
    return trace.end().unlease(0, 8).end()


LEFT: list[Case] = [
    ("reads what is on its way back", "KV017@19", lambda: read_early(second=False)),
    ("reads what will be back", "", lambda: read_early(second=True)),
    ("a lease, and no step ever", "KV005@1", lambda: HandTrace().alloc(0, seq_id=1).lease(0, 1, 0, 3)),
    ("a lease of a step that has ended", "KV005@5", lambda: lease_left(before=True, ends=True)),
    ("a lease of a step that is open", "?", lambda: lease_left(before=True, ends=False)),
    ("a lease taken behind the beginning of the step", "?", lambda: lease_left(before=False, ends=True)),
    ("a lease that ends twice", "KV004@7", lambda: one().lease(0, 1, 0, 3).unlease(0, 1).unlease(0, 1)),
    ("a lease that another ends", "KV004@6", lambda: one().lease(0, 1, 0, 3).unlease(0, 2)),
    ("a held block that is given up", "KV012@9", lambda: let_go("private")),
    ("a leased block that is given up", "KV012@9", lambda: let_go("leased")),
    ("a cached block that is given up", "KV012@9", lambda: let_go("cached")),
    ("a block in quarantine that is given up", "KV012@9", lambda: let_go("quarantined")),
    ("a free block that is given up", "", lambda: let_go("free")),
    ("a free block that is freed", "KV003@8",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).free(0)),
    ("waits for one more than there is", "", lambda: waits(3, 4, 0)),
    ("waits for what is there", "KV021@1", lambda: waits(2, 4, 0)),
    ("waits for what could be evicted", "KV021@1", lambda: waits(2, 3, 1)),
    ("waits behind a watermark", "", lambda: waits(2, 3, 0)),
    ("waits without a watermark", "KV021@1", lambda: waits(2, 2, 0, watermark=0.0)),
    ("waits with a prompt of more blocks than it says", "", lambda: waits(2, 4, 0, prompt=9)),
    ("waits for nothing", "", lambda: waits(0, 4, 0, prompt=0)),
    ("reads all that its window needs", "", lambda: reads(2, 4)),
    ("reads one position too few", "KV022@5", lambda: reads(3, 4)),
    ("reads from 0 on within its window", "", lambda: reads(0, 1)),
    ("reads from 1 on within its window", "KV022@5", lambda: reads(1, 1)),
    ("reads without a window", "", lambda: reads(3, 4, window=0)),
    ("the worker's table", "", lambda: worker([(0, 1), (1, 1)])),
    ("a table that is shorter", "?", lambda: worker([(0, 1)])),
    ("a table that is longer", "KV018@5", lambda: worker([(0, 1), (1, 1), (2, 1)])),
    ("a table in another order", "KV018@5", lambda: worker([(1, 1), (0, 1)])),
    ("a table of another life, twice", "KV018@5", lambda: worker([(0, 1), (1, 2)], [(0, 1), (1, 2)])),
    ("a table that is wrong, right and wrong", "KV018@5 KV018@11",
     lambda: worker([(0, 1), (1, 2)], [(0, 1), (1, 1)], [(0, 1), (1, 2)])),
    ("a write whose count changes", "KV007@5", lambda: one().write(0, 3, 4, seq_id=1, ref_after=2)),
    ("a share that counts two", "KV007@5", lambda: one().share(0, seq_id=2, ref_after=3)),
    ("a release as an earlier life", "KV004@8",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).release(0, seq_id=1, gen=0, ref_before=0)),
    ("a share of a free block", "KV010@8",
     lambda: one().event(Kind.FINISH, seq_id=1).release(0, seq_id=1).free(0).share(0, seq_id=2, ref_before=-1)),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "history"), [pytest.param(*case[1:], id=case[0]) for case in (*COUNTS, *LEFT)])
def test_the_line_is_drawn_there(expected: str, history: Callable[[], HandTrace]) -> None:
    assert found(history()) == expected
