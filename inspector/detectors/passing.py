"""The details that a replay looks at: all at once, or of a long trace a piece at a time as the replay passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvscope.inspector.source import TraceLike, details_map, frozen
from kvscope.traces.schema import Kind

REPLAYED = (
    Kind.SCHED, Kind.COW, Kind.LEASE, Kind.WITNESS, Kind.PUBLISH, Kind.HIT, Kind.SWAP_OUT, Kind.SWAP_IN,
)  # fmt: skip
_PIECE = 1 << 16

Values = tuple[int, ...]


class PassingDetails:
    """The details of events near the one asked for last; for questions in rising order of events."""

    def __init__(self, trace: Any) -> None:
        self._trace = trace
        self._lo = self._hi = 0
        self._known: dict[int, Values] = {}

    def get(self, seq: int, default: Values | None = None) -> Values | None:
        """The details of event `seq`, or `default`."""
        if not self._lo <= seq < self._hi:
            self._lo, self._hi = seq, seq + _PIECE
            seqs, offsets, values = self._trace.details_between(self._lo, self._hi)
            ends, flat = offsets.tolist(), values.tolist()
            self._known = {s: tuple(flat[ends[i] : ends[i + 1]]) for i, s in enumerate(seqs.tolist())}
        return self._known.get(seq, default)


def details_by_kind(trace: TraceLike) -> Mapping[Kind, Any]:
    """What has `get(seq)` for each kind that is replayed; a witness is asked for again at the end."""
    if not getattr(trace, "on_demand", False):
        return {kind: details_map(trace, kind) for kind in REPLAYED}
    passing = PassingDetails(trace)
    return dict.fromkeys(REPLAYED, passing) | {Kind.WITNESS: details_map(trace, Kind.WITNESS)}


def has_steps(trace: TraceLike) -> bool:
    """Whether its events say which writes a step takes."""
    return bool(frozen(trace).present[[Kind.COMMIT, Kind.SCHED]].any())
