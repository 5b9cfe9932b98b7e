"""Counts and block times of a growing trace: each row is looked at once, however often somebody asks.

Times are exact, over every block, where vLLM samples one block in a hundred; they mean what they mean in a summary
(spans.block_times).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvscope.traces.fold import MAX_BLOCKS
from kvscope.traces.schema import EventArray, Kind, Reason

BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_NEVER = -1
_ARRIVALS = np.zeros(256, np.bool_)
_ARRIVALS[[Kind.SUBMIT, Kind.FORK, Kind.ADMIT, Kind.ABORT, Kind.FINISH]] = True


@dataclass(slots=True)
class Histogram:
    """Durations in seconds, in fixed buckets."""

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BUCKETS) + 1, np.int64))
    total_s: float = 0.0

    def add(self, durations_ns: npt.NDArray[np.int64]) -> None:
        """Count some durations."""
        seconds = durations_ns * 1e-9
        places = np.searchsorted(BUCKETS, seconds, side="left")
        self.counts += np.bincount(places, minlength=len(self.counts))
        self.total_s += float(seconds.sum())

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, durations up to it), as Prometheus writes them."""
        bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
        return list(zip(bounds, np.cumsum(self.counts).tolist(), strict=True))


class Counted:
    """Folds events in order; of each block that they name, the times that are still open are kept.

    Args:
        most: block numbers from here on have no times.
    """

    def __init__(self, most: int = MAX_BLOCKS) -> None:
        self._most = most
        self.events = 0
        self.kinds = np.zeros(256, np.int64)
        self.reasons = np.zeros((256, 256), np.int64)  # by kind, then reason
        self.copied_slots = 0
        self.computed_tokens = 0  # positions, prompts' as well, of all steps
        self.hit_tokens = 0
        self.query_tokens = 0
        self.lengths: Counter[int] = Counter()  # sequences that ended, by their length in tokens
        self.finished: Counter[int] = Counter()  # by reason
        self._waiting: dict[int, int] = {}  # when what is not admitted yet was submitted
        self._prompts: dict[int, int] = {}  # prompt tokens of what has not ended
        self.lifetime, self.idle_before_evict, self.reuse_gap = Histogram(), Histogram(), Histogram()
        self.queued = Histogram()
        self._born, self._taken = np.empty(0, np.int64), np.empty(0, np.int64)
        self._touched = np.empty(0, np.int64)  # within the present life

    def add(self, events: EventArray) -> None:
        """Take in the next rows."""
        if not len(events):
            return
        kinds = events["kind"]
        self.events += len(events)
        self.kinds += np.bincount(kinds, minlength=256)
        np.add.at(self.reasons, (kinds, events["reason"]), 1)
        self.copied_slots += int(events["fill"][kinds == Kind.COW].astype(np.int64).clip(min=0).sum())
        self.computed_tokens += int(events["aux"][kinds == Kind.STEP_END].sum())
        self._prefixes(events[_ARRIVALS[kinds]])
        self._times(events[(events["block"] >= 0) & (events["block"] < self._most)])

    @property
    def cow_copies(self) -> int:
        """Copies on write; blocks that a resize moved are none."""
        return int(self.kinds[Kind.COW] - self.reasons[Kind.COW, Reason.RESIZED])

    @property
    def oom_events(self) -> int:
        """Operations refused because there were no blocks."""
        return int(self.reasons[Kind.REFUSED, Reason.NO_BLOCKS])

    @property
    def median_length(self) -> float | None:
        """P50 of the lengths of all sequences that have ended, exact; None where none has."""
        count, seen = self.lengths.total(), 0
        middle: list[int] = []
        for length in sorted(self.lengths):
            seen += self.lengths[length]
            middle += [length for at in ((count - 1) // 2, count // 2) if seen - self.lengths[length] <= at < seen]
        return sum(middle) / 2 if middle else None

    def _prefixes(self, events: EventArray) -> None:
        waited = []
        for event in events:
            kind, seq_id, aux = int(event["kind"]), int(event["seq_id"]), int(event["aux"])
            if kind == Kind.SUBMIT:
                self._prompts[seq_id], self._waiting[seq_id] = aux, int(event["t_ns"])
            elif kind == Kind.FORK:
                self._prompts[seq_id] = self._prompts.get(aux, 0)
            elif kind == Kind.ADMIT:
                prompt, since = self._prompts.get(seq_id), self._waiting.pop(seq_id, None)
                if prompt is not None and since is not None:
                    self.hit_tokens += aux
                    self.query_tokens += prompt
                    waited.append(int(event["t_ns"]) - since)
            else:
                self._waiting.pop(seq_id, None)
                prompt = self._prompts.pop(seq_id, None)
                if prompt is not None:
                    self.lengths[prompt + aux] += 1
                    self.finished[int(event["reason"])] += 1
        self.queued.add(np.asarray(waited, np.int64))

    def _times(self, events: EventArray) -> None:
        if not len(events):
            return
        self._grow(int(events["block"].max()) + 1)
        order = np.argsort(events["block"], kind="stable")
        rows = events[order]
        block, kind, when = rows["block"], rows["kind"], rows["t_ns"].astype(np.int64)
        alloc, touch = kind == Kind.ALLOC, (kind == Kind.SHARE) | (kind == Kind.HIT)
        ends = (kind == Kind.FREE) | (kind == Kind.SETTLE)
        self.lifetime.add(_since(self._born, block, when, alloc, ends))
        self.idle_before_evict.add(_since(self._taken, block, when, alloc | touch, kind == Kind.EVICT))
        born_anew = np.where(alloc, _NEVER, when)
        self.reuse_gap.add(_since(self._touched, block, when, alloc | touch, touch, born_anew))

    def _grow(self, blocks: int) -> None:
        known = len(self._born)
        if blocks > known:
            more = np.full(min(max(blocks, 2 * known), self._most) - known, _NEVER, np.int64)
            self._born, self._taken, self._touched = (
                np.concatenate([times, more]) for times in (self._born, self._taken, self._touched)
            )


def _since(known: npt.NDArray[np.int64], block: npt.NDArray[np.int32], when: npt.NDArray[np.int64],
           starts: npt.NDArray[np.bool_], ends: npt.NDArray[np.bool_],
           values: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.int64]:  # fmt: skip
    """Time from the latest start before each end, per block; `known` has those of earlier rows and is updated.

    Rows are sorted by block, then time. A block without a start yields nothing. values: the time each start stands
    for where that is not its own; -1 undoes what was before.
    """
    values = when if values is None else values
    first = np.empty(len(block), bool)
    first[0], first[1:] = True, block[1:] != block[:-1]
    place = np.arange(len(block))
    latest = np.maximum.accumulate(np.where(starts, place, _NEVER))
    opened = np.maximum.accumulate(np.where(first, place, _NEVER))
    before = np.concatenate(([_NEVER], latest[:-1]))
    since = np.where(before >= opened, values[np.maximum(before, 0)], known[block])
    durations: npt.NDArray[np.int64] = (when - since)[ends & (since != _NEVER)]
    mine = np.append(first[1:], True) & (latest >= opened)
    known[block[mine]] = values[latest[mine]]
    return durations


def totals(counted: Counted, dropped: int) -> dict[str, int]:
    """What has happened since the trace began, by the names of the measures."""
    kinds = counted.kinds
    return {
        "events": counted.events, "dropped_events": dropped, "cow_copies": counted.cow_copies,
        "cow_slots": counted.copied_slots, "preemptions": int(kinds[Kind.PREEMPT]),
        "refusals": int(kinds[Kind.REFUSED]), "oom_events": counted.oom_events, "evictions": int(kinds[Kind.EVICT]),
        "prefix_hit_blocks": int(kinds[Kind.HIT]), "prefix_hit_tokens": counted.hit_tokens,
        "prefix_query_tokens": counted.query_tokens, "finished": int(kinds[Kind.FINISH]),
        "aborted": int(kinds[Kind.ABORT]), "computed_tokens": counted.computed_tokens,
    }  # fmt: skip
