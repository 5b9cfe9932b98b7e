"""A whole trace through the screen, by the way that costs least here: row by row in C, or by passes over columns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from kvscope.inspector.screen.details import DETAILED, Kept, kept_between, kept_of
from kvscope.inspector.screen.live import ByRows, in_c
from kvscope.inspector.screen.screen import Screened, chunks, first_size, ordered, screen, unfit_for
from kvscope.inspector.source import Frozen, IntArray, gap_rows
from kvscope.traces.schema import Kind

_TOLD = (*DETAILED, Kind.REFUSED, Kind.WAIT)  # whose details are looked at


def screened(trace: Frozen) -> Screened:
    """Look at a whole trace, in memory that does not grow with its length; stops soon after the first suspect."""
    return by_rows(trace) if in_c(trace.num_blocks) and not unfit_for(trace, gaps=True) else screen(trace)


def by_rows(trace: Frozen) -> Screened:
    """The rules row by row. The trace is one that they know (`unfit_for`), on a machine `in_c`."""
    live = ByRows(first_size(trace), trace.block_size, ordered=ordered(trace))
    live.learn(trace.facts, trace.block_bytes)
    if trace.before is not None:
        live.begin(trace.before)
    gaps = np.asarray([row for row, _ in gap_rows(trace)], dtype=np.int64)
    if _looked_at(trace, live, gaps):
        live.finish(int(trace.seqs[-1]) + 1 if len(trace.seqs) else 0)
    known = live.known()
    # A GROW or SHRINK may be lost: witnesses are compared with nothing unless all count the same pool.
    counted = {known.least_told, known.most_told} <= {0, trace.num_blocks}
    unjudged = known.unjudged + known.compared * (len(gaps) > 0 and not counted)
    return Screened(dict(live.suspects), *live.seen(), unjudged, known.unknown)


def _looked_at(trace: Frozen, live: ByRows, gaps: IntArray) -> bool:
    """Look at the rows up to the first suspect; returns whether there is none."""
    whole, kinds = None if trace.on_demand else kept_of(trace, _TOLD), trace.kinds
    for first, end in chunks(kinds):
        rows, seqs = np.ascontiguousarray(trace.events[first:end]), trace.seqs[first:end]
        kept = whole or kept_between(trace, int(seqs[0]), int(seqs[-1]) + 1)
        for lo, hi, resumes, breaks_off in _stretches(gaps, first, end):
            if resumes:
                live.lose()
            # A GAP row stands at one side of the place where events are missing.
            lo += lo < hi and kinds[lo] == Kind.GAP
            hi -= lo < hi and kinds[hi - 1] == Kind.GAP
            its = slice(lo - first, hi - first)
            at = int(seqs[its][0]) if lo < hi else 0
            if live.look_back(rows[its], at, _between(kept, at, at + hi - lo), breaks_off=breaks_off):
                return False
    return True


def _stretches(gaps: IntArray, first: int, end: int) -> Iterator[tuple[int, int, bool, bool]]:
    """(first row, end, whether events are missing in front of it, and behind it), for rows from `first` to `end`.

    Args:
        gaps: rows in front of which events are missing.
    """
    inside = gaps[slice(*np.searchsorted(gaps, (first, end + 1)).tolist())].tolist()
    missing = set(inside)
    cuts = sorted({first, end, *inside})
    for lo, hi in pairwise(cuts):
        yield lo, hi, lo in missing, hi in missing


def _between(kept: Kept, lo: int, hi: int) -> Kept:
    """The details of the events from `lo` to below `hi` of these."""
    seqs, starts, lengths, values = kept
    its = slice(*np.searchsorted(seqs, (lo, hi)).tolist())
    return seqs[its], starts[its], lengths[its], values


__all__ = ["by_rows", "screened"]
