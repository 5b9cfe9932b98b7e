"""Who runs and who waits, by the events of a trace; counts of kinds cannot tell, for an abort ends either of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvscope.traces.schema import Kind

_WAITS, _RUNS, _ENDS = 1, 2, 3
_TO = np.zeros(256, np.uint8)  # where an event brings its sequence; 0: it stays where it is
_TO[[Kind.SUBMIT, Kind.PREEMPT]] = _WAITS
_TO[[Kind.ADMIT, Kind.RESUME, Kind.FORK]] = _RUNS
_TO[[Kind.FINISH, Kind.ABORT]] = _ENDS


class Lineup:
    """The sequences that run, and those that were submitted or preempted and are not admitted; `add` folds rows in.

    Args:
        known: it is given every row. Else there are at least those that it has: others may have come before.
    """

    def __init__(self, *, known: bool = True) -> None:
        self.known = known
        self.running: set[int] = set()
        self.waiting: set[int] = set()

    def add(self, part: Mapping[str, Any] | Any) -> None:
        """The next rows, in order; of their columns `kind`, `seq_id` and `aux` are read."""
        kind = np.asarray(part["kind"])
        again = np.flatnonzero(kind == Kind.GAP)
        if len(again) and len(again := again[np.asarray(part["aux"])[again] <= 0]):
            self.running.clear()  # another writer goes on from here: whom the one before had is gone
            self.waiting.clear()
            self.known = True
        at = int(again[-1]) + 1 if len(again) else 0
        moves = at + np.flatnonzero(_TO[kind[at:]])
        if not len(moves):
            return
        # Where several rows move a sequence, the last one says where it is.
        seq_ids, last = np.unique(np.asarray(part["seq_id"])[moves][::-1], return_index=True)
        to = _TO[kind[moves[::-1][last]]]
        moved = set(seq_ids.tolist())
        self.running -= moved
        self.waiting -= moved
        self.running.update(seq_ids[to == _RUNS].tolist())
        self.waiting.update(seq_ids[to == _WAITS].tolist())
