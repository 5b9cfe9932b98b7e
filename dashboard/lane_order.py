"""Which lanes stand beside which, and the copies between them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvscope.dashboard.figures import Arrow
from kvscope.inspector.lanes import Lane
from kvscope.inspector.source import named_detail
from kvscope.traces.schema import Kind

MAX_ARROWS = 200


def families(found: list[Lane]) -> list[Lane]:
    """The lanes with every fork right after the sequence that it was forked from."""
    children: dict[int, list[Lane]] = {}
    known = {lane.seq_id for lane in found}
    for lane in found:
        children.setdefault(lane.parent if lane.parent in known else -1, []).append(lane)
    ordered: list[Lane] = []
    stack = children.pop(-1, [])[::-1]
    while stack:
        lane = stack.pop()
        ordered.append(lane)
        stack += children.pop(lane.seq_id, [])[::-1]
    return ordered


def arrows_of(view: Any, shown: list[Lane]) -> list[Arrow]:
    """A copy-on-write goes from the sequence that wrote the source's life first to the one that got the copy."""
    rows = np.flatnonzero(view.events["kind"] == Kind.COW)[:MAX_ARROWS]
    names = {lane.seq_id: lane for lane in shown}
    arrows = []
    for row in rows.tolist():
        event, seq = view.events[row], int(view.seqs[row])
        lane = names.get(int(event["seq_id"]))
        parent = names.get(lane.parent) if lane is not None else None
        detail = named_detail(view, seq, Kind.COW)
        source = f"b{int(event['aux'])}" + (f"#{detail['source_gen']}" if "source_gen" in detail else "")
        text = f"copy {source} to b{int(event['block'])}#{int(event['gen'])}"
        if lane is not None:
            arrows.append(Arrow(seq, parent.name if parent is not None else lane.name, lane.name, text))
    return arrows
