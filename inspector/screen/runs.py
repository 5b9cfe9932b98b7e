"""Rows sorted into runs of equal keys (one block, one sequence), and values carried along each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray

Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]

ROW_BITS = 20  # a chunk has less than 2**20 rows


def sorted_rows(keys: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """(keys, rows) sorted by key, then by row; one vectorised sort of packed words.

    Args:
        keys: below 2**43. rows: below 2**ROW_BITS.
    """
    packed = np.sort(keys.astype(np.int64) << ROW_BITS | rows)
    return packed >> ROW_BITS, packed & ((1 << ROW_BITS) - 1)


class Runs:
    """Runs of equal keys in a sorted array. `before` of a run's first row is what is known from earlier chunks."""

    def __init__(self, keys: IntArray) -> None:
        self.keys = keys
        self.index = np.arange(len(keys), dtype=np.int64)
        self.first: Bools = np.ones(len(keys), dtype=np.bool_)
        self.first[1:] = keys[1:] != keys[:-1]
        self.starts = np.flatnonzero(self.first)
        self.ends = np.append(self.starts[1:], len(keys))[: len(self.starts)] - 1
        self.ids = keys[self.starts]  # the key of each run
        self._start = np.maximum.accumulate(np.where(self.first, self.index, 0)) if len(keys) else self.index

    def before(self, after: Values, carried: Values) -> Values:
        """The value just before each row: that after the row before it, or what its run began with."""
        out = np.empty_like(after)
        out[1:] = after[:-1]
        out[self.starts] = carried[self.ids]
        return out

    def last(self, kept: Bools) -> IntArray:
        """Index of the last kept row of the run up to each row, itself included; -1 where there is none."""
        found = np.maximum.accumulate(np.where(kept, self.index, -1)) if len(kept) else self.index
        return np.where(found >= self._start, found, -1)

    def filled(self, values: Values, kept: Bools, carried: Values) -> Values:
        """The last kept value up to each row, or what the run began with."""
        at = self.last(kept)
        return np.asarray(np.where(at >= 0, values[at], carried[self.keys])) if len(values) else values

    def running(self, moves: Values, carried: Values) -> Values:
        """Sum of `moves` up to each row, on top of what the run began with (unsigned sums wrap)."""
        total = np.cumsum(moves, dtype=moves.dtype)
        base = (total - moves)[self._start] if len(moves) else total
        return np.asarray(total - base + carried[self.keys])

    def greatest(self, values: Values, resets: Bools, carried: Values) -> IntArray:
        """The greatest of `values` since the last reset (itself included), or since what the run began with.

        Args:
            values: 0 .. 2**40 - 1.
        """
        open_ = self.starts[~resets[self.starts]]
        values = values.astype(np.int64)
        values[open_] = np.maximum(values[open_], carried[self.keys[open_]])
        segment = np.cumsum(self.first | resets) << 40
        return (np.maximum.accumulate(segment | values) if len(values) else values) & ((1 << 40) - 1)

    def keep(self, after: Values, carried: Values) -> None:
        """Remember what each run ended with."""
        carried[self.ids] = after[self.ends]
