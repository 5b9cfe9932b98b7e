"""A summary of a run as one JSON-ready dict, from the measures of all its events, however they came to be known."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvscope.inspector.holes import IN_ONE_PIECE, allocator_of, holes
from kvscope.inspector.runs import facts_of
from kvscope.inspector.spans import benefit_ratio, block_times, model_facts, sequence_lengths, spread
from kvscope.traces.fold import begun_anew
from kvscope.traces.losses import Losses
from kvscope.traces.schema import Kind, Reason

COUNT_NAMES = ("private", "shared", "in_transit", "lost", "cached", "quarantined", "free")
RATIO_NAMES = ("tail_waste", "sharing_factor", "utilization", "pool_utilization")

Spread = dict[str, float | int | None]


def told(
    trace: Any, singled: Any, events: int, seconds: float, spreads: dict[str, Spread], totals: dict[str, int], lost: int
) -> dict[str, Any]:
    """The summary.

    Args:
        trace: whose geometry, facts and health are told.
        singled: a trace that holds at least the rows about sequences and the lives of blocks.
        events: how many there are.
        spreads: measure -> peak, mean over time, last.
        totals: what has been counted to the end.
        lost: events that are known to be missing.
    """
    rows = singled.events
    ratios = {name: spreads[name] for name in RATIO_NAMES}
    allocator, reserved = allocator_of(singled.facts), None
    pieces = holes(singled, trace).told() if allocator in IN_ONE_PIECE else None
    if allocator == "reserved":  # what is empty was reserved: a matter of policy, not of the block size
        reserved, ratios["tail_waste"] = ratios["tail_waste"]["mean"], dict.fromkeys(ratios["tail_waste"])
    asked = totals["prefix_query_tokens"]
    return {
        "schema": "kvscope-summary/1",
        "events": events,
        "duration_s": seconds,
        "mean_weighting": "time",
        "geometry": _geometry(singled),
        "requests": _requests(singled),
        "blocks": {name: spreads[name] for name in COUNT_NAMES},
        "held_blocks": spreads["held_blocks"],
        "table_entries": spreads["table_entries"],
        "saved_blocks": spreads["saved_blocks"],
        "saved_bytes": _in_bytes(spreads["saved_blocks"], trace.block_bytes),
        "lost_blocks": spreads["lost_blocks"],
        **ratios,
        "reservation_waste": reserved,
        # Any free block serves any request in a paged pool, any reservation where all are alike.
        "external_fragmentation": pieces["mean"] if pieces else 0.0 if allocator in ("paged", "reserved") else None,
        "holes": pieces,
        "cow_copies": totals["cow_copies"],
        "cow_bytes": totals["cow_copies"] * trace.block_bytes,
        "preemptions": totals["preemptions"],
        "refusals": totals["refusals"],
        "oom_events": int(np.count_nonzero((rows["kind"] == Kind.REFUSED) & (rows["reason"] == Reason.NO_BLOCKS))),
        "evictions": totals["evictions"],
        "swapped_out_blocks": int(np.count_nonzero(rows["kind"] == Kind.SWAP_OUT)),
        "swapped_in_blocks": int(np.count_nonzero(rows["kind"] == Kind.SWAP_IN)),
        "prefix_hit_tokens": totals["prefix_hit_tokens"],
        "prefix_query_tokens": asked,
        "prefix_hit_rate": totals["prefix_hit_tokens"] / asked if asked else None,
        **{f"{name}_s": spread(values, 1e-9) for name, values in block_times(singled).items()},
        "benefit_ratio": benefit_ratio(singled),
        "health": {
            "clean_close": bool(trace.clean),
            "dropped_events": int(trace.dropped),
            "lost_events": max(lost, _missing(trace)),
            "let_go_events": _let_go(trace),  # of those, by its own limits
            "damaged_records": [str(line) for line in _damaged(trace)],
            "lost_records": Losses.of(trace)._asdict(),
            "warnings": [str(w) for w in trace.warnings],
        },
    }


def _let_go(trace: Any) -> int:
    """Events that are missing because the recorder keeps the newest only."""
    source = getattr(trace, "source", trace)
    gaps = getattr(source, "gaps", ())
    return min(int(source.let_go), gaps[0][1]) if gaps and gaps[0][0] == 0 else 0


def _damaged(trace: Any) -> list[str]:
    """What a reader knows to be wrong with the files beside the events."""
    return list(getattr(getattr(trace, "source", trace), "damaged_records", ()))


def _missing(trace: Any) -> int:
    """Events that a reader knows to be missing: also those behind the last one that is there."""
    source = getattr(trace, "source", trace)
    return sum(hi - lo for lo, hi in getattr(source, "gaps", ()))


def _in_bytes(blocks: Spread, block_bytes: int) -> Spread:
    return {name: None if value is None else value * block_bytes for name, value in blocks.items()}


def _geometry(trace: Any) -> dict[str, Any]:
    model = model_facts(trace)
    per_token = model.get("bytes_per_token")
    if per_token is None and trace.block_bytes:
        per_token = trace.block_bytes // trace.block_size
    return {
        "num_blocks": trace.num_blocks,
        "block_size": trace.block_size,
        "block_bytes": trace.block_bytes,
        "pool_bytes": trace.num_blocks * trace.block_bytes,
        "bytes_per_token": per_token,
        "model": model.get("name"),
        "max_model_len": model.get("max_model_len"),
    }


def _writers(trace: Any) -> list[Any]:
    """Events and facts of each of the trace's writers: what one calls sequence 7 is not the next one's."""
    events = trace.events
    anew = begun_anew(events["kind"], events["aux"]).tolist()
    parts = []
    for lo, hi in pairwise([0, *anew, len(events)]):
        facts = facts_of(trace.facts, int(trace.seqs[lo]) + (lo in anew)) if anew else trace.facts
        parts.append(SimpleNamespace(events=events[lo:hi], facts=facts))
    return parts


def _requests(trace: Any) -> dict[str, Any]:
    writers = _writers(trace)

    def distinct(*wanted: Kind) -> int:
        rows = (part.events[np.isin(part.events["kind"], [int(k) for k in wanted])] for part in writers)
        return sum(len(np.unique(found["seq_id"][found["seq_id"] >= 0])) for found in rows)

    facts = sum(1 for f in trace.facts if f.get("type") == "request")
    lengths = np.asarray([n for part in writers for n in sequence_lengths(part).values()], dtype=np.int64)
    return {
        "requests": facts or distinct(Kind.SUBMIT),
        "sequences": distinct(Kind.SUBMIT, Kind.ADMIT, Kind.FORK, Kind.ALLOC),
        "finished": distinct(Kind.FINISH),
        "aborted": distinct(Kind.ABORT),
        "forked": distinct(Kind.FORK),
        "length_tokens": spread(lengths, 1.0),
    }
