"""Free memory in pieces: where an allocator of regions has its holes, and which refusals they caused.

A paged pool has no holes: any free block serves any request. An allocator that gives each sequence one piece has, and
what it can give at once is its largest run of free blocks, not the sum of what is free. A sequence that grows and has
no room behind it needs a piece for all of its blocks; in a paged pool it would need those alone that it does not hold.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvscope.inspector.longrun import SINGLED
from kvscope.inspector.source import IntArray, named_detail
from kvscope.inspector.spans import FloatArray, mean_over_time
from kvscope.traces.schema import Kind, Reason

IN_ONE_PIECE = frozenset({"contiguous", "buddy"})  # allocators whose free memory can be of no use in pieces
_ALLOC, _FREE, _NO_BLOCKS = int(Kind.ALLOC), int(Kind.FREE), int(Reason.NO_BLOCKS)
_REFUSED, _WAIT = int(Kind.REFUSED), int(Kind.WAIT)


@dataclass(frozen=True)
class Refusal:
    """A refusal, or a wait, for want of blocks, and what was free."""

    seq: int
    needed: int  # blocks, side by side
    free: int
    largest: int  # run of free blocks
    missing: int  # blocks, of those needed, that the sequence did not hold yet
    waits: bool = False  # in the queue, instead of being refused

    @property
    def by_holes(self) -> bool:
        """Whether a paged pool would have served it."""
        return self.missing <= self.free


@dataclass(frozen=True)
class Holes:
    """The free blocks and their largest run over a run, an element for each time an operation changed them."""

    seq: IntArray
    t_ns: IntArray
    free: IntArray
    largest: IntArray
    refusals: tuple[Refusal, ...]
    waits: tuple[Refusal, ...]

    @property
    def fragmentation(self) -> FloatArray:
        """1 - largest free run / total free; NaN where nothing is free."""
        out = np.full(len(self.free), np.nan)
        np.divide(self.largest, self.free, out=out, where=self.free > 0)
        return 1 - out

    def told(self) -> dict[str, Any]:
        """For a summary: how fragmented (1 is most), and the refusals that holes caused."""
        found, caused = self.fragmentation, [refusal for refusal in self.refusals if refusal.by_holes]
        known = found[~np.isnan(found)]
        first = caused[0] if caused else None
        return {
            "peak": float(known.max()) if len(known) else None,
            "mean": mean_over_time(found, self.t_ns),
            "refusals": len(caused),
            "of_refusals": len(self.refusals),
            "first": first and {"seq": first.seq, "needed": first.needed, "free": first.free, "largest": first.largest},
        }


def allocator_of(facts: Any) -> str:
    """Who gave the memory out: `paged`, unless the run says that it was simulated with another allocator."""
    return next((str(f["allocator"]) for f in facts if f.get("type") == "run" and f.get("allocator")), "paged")


def holes(trace: Any, details: Any = None) -> Holes:
    """Follow the free blocks of a trace of an allocator of regions.

    Args:
        trace: with at least its rows about the lives of blocks (`singled_trace` will do).
        details: the trace that holds the details of refusals, where it is another.
    """
    events, source = trace.events, trace if details is None else details
    rows = np.flatnonzero(SINGLED[events["kind"]])
    kinds = events["kind"][rows]
    runs, held, owner = _Runs(trace.num_blocks), dict[int, int](), dict[int, int]()
    found, refusals = [(int(trace.seqs[0]), int(events["t_ns"][0]), runs.free, runs.largest())] if len(rows) else [], []
    turns = np.isin(kinds, (_ALLOC, _FREE))
    ends = turns & ~np.append(turns[1:], False)  # in between an operation is not done: it moves or frees one by one
    refused = np.isin(kinds, (_REFUSED, _WAIT)) & (events["reason"][rows] == _NO_BLOCKS)
    for at in np.flatnonzero(turns | refused).tolist():
        row = int(rows[at])
        kind, block, seq_id = (int(events[name][row]) for name in ("kind", "block", "seq_id"))
        if kind in (_REFUSED, _WAIT):
            detail = named_detail(source, int(trace.seqs[row]), Kind(kind))
            if "free" in detail:
                need, missing = detail["needed"], detail["needed"] - held.get(seq_id, 0)
                seq = int(trace.seqs[row])
                refusals.append(Refusal(seq, need, detail["free"], runs.largest(), missing, kind == _WAIT))
            continue
        if kind == _ALLOC and runs.take(block):
            owner[block] = seq_id
            held[seq_id] = held.get(seq_id, 0) + 1
        elif kind == _FREE and runs.give(block):
            held[owner.get(block, -1)] = held.get(owner.pop(block, -1), 0) - 1
        if ends[at]:
            found.append((int(trace.seqs[row]), int(events["t_ns"][row]), runs.free, runs.largest()))
    if found:
        found.append((int(trace.seqs[-1]), int(events["t_ns"][-1]), *found[-1][2:]))
    columns = np.asarray(found, np.int64).reshape(-1, 4).T
    seqs, t_ns, free, largest = columns
    refused_at, waits = (tuple(r for r in refusals if r.waits == which) for which in (False, True))
    return Holes(seqs, t_ns, free, largest, refused_at, waits)


class _Runs:
    """The runs of free blocks of a pool: taking or giving back a block costs no pass over it."""

    def __init__(self, blocks: int) -> None:
        self.free = self._blocks = blocks
        self._end = {0: blocks} if blocks else {}  # first block of a run -> the block behind it
        self._start = {blocks: 0} if blocks else {}
        self._heap = [(-blocks, 0)] if blocks else []  # also runs that are no more
        self._taken: set[int] = set()

    def take(self, block: int) -> bool:
        """A free block goes; False for one that is none."""
        if not 0 <= block < self._blocks or block in self._taken:
            return False
        self._taken.add(block)
        self.free -= 1
        start = block if block in self._end else self._run_around(block)
        end = self._end.pop(start)
        del self._start[end]
        self._add(start, block)
        self._add(block + 1, end)
        return True

    def give(self, block: int) -> bool:
        """A block is free again; False for one that is free."""
        if block not in self._taken:
            return False
        self._taken.remove(block)
        self.free += 1
        start = self._start.pop(block, block)
        end = self._end.pop(block + 1, block + 1)
        self._end.pop(start, None)
        self._start.pop(end, None)
        self._add(start, end)
        return True

    def largest(self) -> int:
        """Blocks of the longest run."""
        while self._heap and self._end.get(self._heap[0][1], -1) - self._heap[0][1] != -self._heap[0][0]:
            heapq.heappop(self._heap)
        return -self._heap[0][0] if self._heap else 0

    def _run_around(self, block: int) -> int:
        return next(start for start, end in self._end.items() if start < block < end)

    def _add(self, start: int, end: int) -> None:
        if start < end:
            self._end[start], self._start[end] = end, start
            heapq.heappush(self._heap, (start - end, start))
