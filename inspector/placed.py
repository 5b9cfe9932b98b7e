"""Which writes went to another slot than that of the position which their step computed. From the trace alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray, TraceLike
from kvscope.traces.schema import Kind, unpack_range


def misplaced(trace: TraceLike, rows: IntArray) -> npt.NDArray[np.bool_]:
    """Of some rows, the WRITEs into a slot that the next step of their sequence does not compute, or that is none."""
    events, size = trace.events, trace.block_size
    out = np.zeros(len(rows), dtype=np.bool_)
    about = np.flatnonzero(np.isin(events["kind"], (Kind.SCHED, Kind.TRUNCATE)))
    for at, row in enumerate(rows.tolist()):
        event = events[row]
        if event["kind"] != Kind.WRITE:
            continue
        lo, hi = unpack_range(int(event["aux"]))
        behind = about[about.searchsorted(row) :]
        mine = behind[events["seq_id"][behind] == event["seq_id"]][:1]
        out[at] = hi > size
        if len(mine) and events["kind"][mine[0]] == Kind.SCHED and events["fill"][mine[0]] > 0:
            first, computed = int(events["lblock"][mine[0]]), int(events["fill"][mine[0]])
            place = int(event["lblock"]) * size
            out[at] |= place + lo < first or place + hi > first + computed
    return out
