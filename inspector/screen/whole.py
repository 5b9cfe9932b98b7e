"""A whole trace through the screen, by the way that costs least here: row by row in C, or by passes over columns."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.screen.details import DETAILED, Kept, kept_between, kept_of
from kvscope.inspector.screen.live import ByRows, in_c
from kvscope.inspector.screen.screen import Screened, chunks, first_size, ordered, screen, unfit_for
from kvscope.inspector.source import Frozen
from kvscope.traces.schema import Kind

_TOLD = (*DETAILED, Kind.REFUSED, Kind.WAIT)  # whose details are looked at


def screened(trace: Frozen) -> Screened:
    """Look at a whole trace, in memory that does not grow with its length; stops soon after the first suspect."""
    return by_rows(trace) if in_c(trace.num_blocks) and not unfit_for(trace) else screen(trace)


def by_rows(trace: Frozen) -> Screened:
    """The rules row by row. The trace is one that the screen may look at (`unfit_for`), on a machine `in_c`."""
    live = ByRows(first_size(trace), trace.block_size, ordered=ordered(trace))
    live.learn(trace.facts, trace.block_bytes)
    whole = None if trace.on_demand else kept_of(trace, _TOLD)
    for first, end in chunks(trace.kinds):
        kept = kept_between(trace, first, end) if whole is None else _between(whole, first, end)
        if live.look_back(np.ascontiguousarray(trace.events[first:end]), first, kept):
            break
    else:
        live.finish(len(trace.events))
    return Screened(dict(live.suspects), *live.seen())


def _between(kept: Kept, lo: int, hi: int) -> Kept:
    """The details of the events from `lo` to below `hi` of these."""
    seqs, starts, lengths, values = kept
    its = slice(*np.searchsorted(seqs, (lo, hi)).tolist())
    return seqs[its], starts[its], lengths[its], values


__all__ = ["by_rows", "screened"]
