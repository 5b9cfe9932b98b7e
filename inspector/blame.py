"""Which finding made a read wrong: the nearest to it first, then back to the earliest that should have been another.

A count that is lost frees a block early, so it is evicted while it is held, handed out twice and read after its end:
five findings, one mistake. The mistake is the first of them on the lives of the block that the reader relied on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kvscope.inspector.findings import CheckResult, Finding
from kvscope.inspector.read_records import Foreign
from kvscope.inspector.source import Frozen
from kvscope.traces.schema import Kind, unpack_range

# What takes a block's right content away by itself, so that what is found later on the same block may follow from it:
# counts, frees, hand-outs, evictions, publications. A write or a read that goes wrong is where it shows.
_ROOTS = frozenset({"KV003", "KV004", "KV007", "KV011", "KV012", "KV013", "KV014", "KV016", "KV017", "KV020"})

# What puts a block on the free list that should not be there, so that it is handed out while it is held.
_FREES = frozenset({"KV003", "KV004", "KV012", "KV017", "KV020"})


class Cause(NamedTuple):
    """The event that should have been another, and the first finding of each kind that followed from it."""

    finding: Finding
    followed: tuple[Finding, ...]


def cause_of(trace: Frozen, result: CheckResult, foreign: Foreign) -> Cause | None:
    """The finding behind a foreign read; None where no finding has to do with it."""
    near = _nearest(trace, result, foreign)
    if near is None:
        return None
    if foreign.found >= 0 and near.gen != trace.events["gen"][foreign.found]:
        # It happened, perhaps again and again, before the block was handed out anew: what counts is the first time.
        same = (near.code, near.block, near.gen, near.seq_id)
        near = next(f for f in result.findings if (f.code, f.block, f.gen, f.seq_id) == same)
    block = foreign.slot // trace.block_size
    if near.block != block or block < 0:
        return Cause(near, ())
    reader, first = int(trace.events["seq_id"][foreign.row]), _seq(trace, foreign.expected)
    (held, entered), until = _life_held(trace, foreign, reader), _step_over(trace, foreign.row)
    here = [
        f for f in result.findings
        if f.block == block and (f.gen >= held or f.seq >= entered) and f.seq <= until and f.code != "KV023"
    ]  # fmt: skip
    roots = _ROOTS | {"KV019"} if near.code == "KV009" else _ROOTS  # what was written elsewhere was not written here
    root = next((f for f in here if f.code in roots and f.seq < near.seq and f.seq != first), near)
    root = _freed_before(result, root)
    followed: dict[str, Finding] = {}
    for finding in here:
        if finding.seq > root.seq and finding.code != root.code:
            followed.setdefault(finding.code, finding)
    return Cause(root, tuple(followed.values()))


def _freed_before(result: CheckResult, root: Finding) -> Finding:
    """What is handed out twice was freed twice, or too early: in the life that was still held, or in the one before."""
    if root.code != "KV014":
        return root
    freed = [
        f for f in result.findings
        if f.block == root.block and root.gen - 1 <= f.gen <= root.gen and f.seq < root.seq and f.code in _FREES
    ]  # fmt: skip
    return freed[0] if freed else root


def _nearest(trace: Frozen, result: CheckResult, foreign: Foreign) -> Finding | None:
    """The finding at the write that is there, else the last one on that block before the read."""
    events, block, read = trace.events, foreign.slot // trace.block_size, _seq(trace, foreign.row)
    reader = int(events["seq_id"][foreign.row])
    # What a checker saw of another reader is no cause of this read.
    here = [
        f for f in result.findings
        if f.block == block >= 0 and f.seq <= read and (f.code != "KV023" or f.seq_id == reader)
    ]  # fmt: skip
    right = _seq(trace, foreign.expected)  # the write that should be there
    over = _step_over(trace, foreign.row)
    there = [f for f in result.findings if f.seq <= over and f.code != "KV023"]
    known = foreign.found >= 0
    beyond = known and unpack_range(int(events["aux"][foreign.found]))[1] > trace.block_size  # the block that it names
    writer = (int(events["seq_id"][foreign.found]), int(events["step"][foreign.found])) if known else None
    for chosen in (
        [f for f in result.findings if f.seq == read and f.code == "KV022"] if block < 0 else [],
        [f for f in here if known and f.seq == _seq(trace, foreign.found)],
        [f for f in there if beyond and f.seq == _seq(trace, foreign.found)],
        [f for f in here if f.seq < read and f.seq != right][-1:],
        [f for f in here if f.seq != right][-1:],
        [f for f in there if (f.seq_id, f.step) == writer],  # it wrote elsewhere than its table says
        [f for f in there if f.seq_id == reader],
        here[-1:],
        there[:1],
        [f for f in result.findings if f.block == block >= 0 and f.seq <= over],
    ):
        if chosen:
            return chosen[0]
    return None


def _life_held(trace: Frozen, foreign: Foreign, reader: int) -> tuple[int, int]:
    """The life of the block that the reader read through, and the event that gave it; earlier ones do not matter.

    It may hold the block a second time, at another place of its table. Where it held that before, it was handed its own
    block again, and what did that lies in the life that it held first.
    """
    before, block = trace.events[: foreign.row], foreign.slot // trace.block_size
    mine = (before["block"] == block) & (before["seq_id"] == reader)
    rows = np.flatnonzero(mine & np.isin(before["kind"], (Kind.ALLOC, Kind.SHARE, Kind.HIT)))
    there = rows[before["lblock"][rows] == foreign.position // trace.block_size]
    chosen = there if len(there) else rows
    if not len(chosen):
        return -1, int(trace.seqs[foreign.row])
    at = int(chosen[-1])
    released = np.flatnonzero(mine & (before["kind"] == Kind.RELEASE))
    for row in rows[rows < at].tolist():
        ends = released[(released > row) & (before["lblock"][released] == before["lblock"][row])]
        if not len(ends) or ends[0] > at:
            at = row
            break
    return int(before["gen"][at]), int(trace.seqs[at])


def _step_over(trace: Frozen, row: int) -> int:
    """The event that ends the step of a SCHED row; itself where the trace ends before.

    Steps end in the order in which they begin, and a SCHED row is of the one that began last.
    """
    kinds = trace.events["kind"]
    before = kinds[:row]
    still = int(np.count_nonzero(before == Kind.STEP_BEGIN)) - int(np.count_nonzero(before == Kind.STEP_END))
    ends = np.flatnonzero(kinds[row:] == Kind.STEP_END)
    return _seq(trace, row + int(ends[min(max(still, 1), len(ends)) - 1])) if len(ends) else _seq(trace, row)


def _seq(trace: Frozen, row: int) -> int:
    """The number of a row, -1 for none."""
    return int(trace.seqs[row]) if row >= 0 else -1
