"""Which steps read slots of a block that hold another write than the reader counts on."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.source import TraceLike, named_detail
from kvscope.traces.schema import Kind, unpack_range

_ENTERS = (Kind.ALLOC, Kind.SHARE, Kind.HIT)


def foreign_reads(trace: TraceLike, block: int, slot_lo: int, slot_hi: int) -> dict[int, tuple[int, int]]:
    """SCHED row -> [lo, hi) of the slots whose last landed write is not the one that the reading sequence counts on.

    A sequence counts on its own last write of a slot; for slots that it got by a fork, on the one its parent counted
    on then, and for slots of a prefix hit on what was published. Writes of a step land in event order, before the
    reads of that step.

    Args:
        slot_lo, slot_hi: the slots to look at.
    """
    events = trace.events
    here = events["block"] == block
    seq_ids = np.unique(events["seq_id"][here & np.isin(events["kind"], _ENTERS)])
    about = np.isin(events["kind"], (Kind.FORK, Kind.SCHED)) & np.isin(events["seq_id"], seq_ids)
    landed: dict[int, int] = {}  # slot -> row of its last write
    published: dict[int, int] | None = None
    counts_on: dict[int, dict[int, int]] = {}  # sequence -> slot -> row of a write
    place: dict[int, int] = {}  # sequence -> logical block that it has the block at
    parent: dict[int, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero(here | about).tolist():
        event = events[row]
        kind, seq_id = int(event["kind"]), int(event["seq_id"])
        if kind == Kind.FORK:
            parent[seq_id] = int(event["aux"])
        elif kind in _ENTERS:
            place[seq_id] = int(event["lblock"])
            if kind == Kind.ALLOC:
                counts_on[seq_id], published = {}, None
            elif kind == Kind.SHARE:
                counts_on[seq_id] = dict(counts_on.get(parent.get(seq_id, -1), landed))
            else:
                counts_on[seq_id] = dict(landed if published is None else published)
        elif kind == Kind.PUBLISH:
            published = dict(landed)
        elif kind in (Kind.WRITE, Kind.COW, Kind.SWAP_IN):
            written = {slot: row for slot in range(*_slots(trace, row)) if slot_lo <= slot < slot_hi}
            landed |= written
            counts_on.setdefault(seq_id, {}).update(written)
        elif kind == Kind.SCHED and seq_id in place:
            lo, hi = (at - place[seq_id] * trace.block_size for at in unpack_range(int(event["aux"])))
            own = counts_on[seq_id]
            wrong = [s for s in range(max(lo, slot_lo), min(hi, slot_hi)) if landed.get(s) != own.get(s)]
            if wrong:
                found[row] = (wrong[0], wrong[-1] + 1)
    return found


def _slots(trace: TraceLike, row: int) -> tuple[int, int]:
    """[lo, hi) that a WRITE, COW or SWAP_IN row fills."""
    event = trace.events[row]
    if event["kind"] == Kind.SWAP_IN:
        return 0, int(event["fill"])
    if event["kind"] == Kind.WRITE:
        return unpack_range(int(event["aux"]))
    detail = named_detail(trace, int(trace.seqs[row]), Kind.COW)
    return detail.get("slot_lo", 0), detail.get("slot_hi", int(event["fill"]))
