"""The writers of a trace: what each one wrote is a trace of its own, with its own pool, lives, names and sequences.

A recorder that goes on with a trace (`Recorder(resume=True)`) leaves a GAP row and a fact, and everything behind them
is new: its request 7 is not the request 7 of the writer before. Whoever follows a sequence, a life or a name asks here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from kvscope.inspector.source import Frozen, IntArray, most_blocks, rows_with, size_after
from kvscope.traces.fold import begun_anew, resized
from kvscope.traces.schema import Kind


class Run(Frozen):
    """One writer's part of a trace.

    Args:
        whole: the trace.
        lo, hi: its rows, without the GAP row that begins it.
        size: blocks of its pool at first.
        last: whether no other writer goes on behind it.
    """

    def __init__(self, whole: Frozen, lo: int, hi: int, size: int, *, last: bool) -> None:
        self.events, self.seqs = whole.events[lo:hi], whole.seqs[lo:hi]
        self.on_demand = not isinstance(self.events, np.ndarray)
        self._kinds = None
        self.before = whole.before if lo == 0 else None
        self.begins = int(whole.seqs[lo - 1]) + 1 if lo else 0
        self.num_blocks = most_blocks(size, self.events)
        self.block_size, self.block_bytes = whole.block_size, whole.block_bytes
        self.sites, self.actors = whole.sites, whole.actors
        # (the GAP row of a first part may have been let go: its first event tells whose it is)
        self.facts = tuple(facts_of(whole.facts, int(self.seqs[0]) if len(self.seqs) else self.begins))
        self.clean, self.followed, self.torn = whole.clean and last, not last, whole.torn * last
        self.warnings, self.dropped, self.missing = whole.warnings, whole.dropped, whole.missing
        self.detail, self.source, self._whole = whole.detail, whole.source, whole
        self._end = int(whole.seqs[hi]) if hi < len(whole.seqs) else 1 << 62

    def details_of(self, kind: int) -> tuple[IntArray, list[tuple[int, ...]]]:
        """As of a trace, of its own rows."""
        seqs, rows = self._whole.details_of(kind)
        lo, hi = self._span(np.asarray(seqs))
        return np.asarray(seqs, np.int64)[lo:hi], list(rows[lo:hi])

    def detail_arrays(self, kind: int) -> tuple[IntArray, IntArray, IntArray]:
        """As of a trace, of its own rows."""
        seqs, offsets, values = self._whole.detail_arrays(kind)
        lo, hi = self._span(seqs)
        return seqs[lo:hi], offsets[lo : hi + 1] - offsets[lo], values[offsets[lo] : offsets[hi]]

    def _span(self, seqs: IntArray) -> tuple[int, int]:
        lo, hi = np.searchsorted(seqs, (self.begins, self._end)).tolist()
        return lo, hi


def runs_of(trace: Frozen) -> tuple[Frozen, ...]:
    """The parts of a trace by its writers, in order; of one writer, the trace itself."""
    if trace.runs is None:
        trace.runs = _split(trace) if trace.present[Kind.GAP] else (trace,)
    return trace.runs


def run_of(trace: Frozen, seq: int) -> Frozen:
    """The part in which event `seq` lies."""
    runs = runs_of(trace)
    return next((run for run in reversed(runs) if run.begins <= seq), runs[0])


def _split(trace: Frozen) -> tuple[Frozen, ...]:
    marks = rows_with(trace.events, "kind", Kind.GAP)
    gaps = trace.events[marks]
    anew = begun_anew(gaps["kind"], gaps["aux"])
    if not len(anew):
        return (trace,)
    size, found = size_after(trace, 0), []
    told = [-1, *resized(gaps["kind"], gaps["aux"])[anew].tolist()]
    edges = [-1, *marks[anew].tolist(), len(trace.events)]
    for number, (before, hi) in enumerate(pairwise(edges)):
        size = told[number] if told[number] >= 0 else size
        if number or hi:
            found.append(Run(trace, before + 1, hi, size, last=number == len(anew)))
    return tuple(found)


def facts_of(facts: Iterable[dict[str, Any]], begins: int) -> list[dict[str, Any]]:
    """What the writer told whose events are from number `begins` on; all facts, where writers left no mark."""
    found: list[dict[str, Any]] = []
    for fact in facts:
        if fact.get("type") == "writer" and isinstance(at := fact.get("seq"), int) and at < begins:
            found = []
        elif fact.get("type") == "writer":
            break
        else:
            found.append(fact)
    return found


__all__ = ["Run", "facts_of", "run_of", "runs_of"]
