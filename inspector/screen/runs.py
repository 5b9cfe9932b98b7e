"""Rows sorted into runs of equal keys (one block, one sequence), and values carried along each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray

Bools = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]

ROW_BITS = 20  # a chunk has less than 2**20 rows


def sorted_rows(keys: IntArray, rows: IntArray, most: int) -> tuple[IntArray, IntArray]:
    """(keys, rows) sorted by key, then by row; one vectorised sort of packed words, of half the width where they fit.

    Args:
        keys: below `most`, that is below 2**43. rows: rising, below 2**ROW_BITS.
    """
    bits = int(rows[-1]).bit_length() if len(rows) else 1
    narrow = bits + most.bit_length() < 32
    packed: npt.NDArray[Any] = keys.astype(np.int32 if narrow else np.int64)
    packed <<= bits
    packed |= rows.astype(packed.dtype)
    packed.sort()
    return packed >> bits, (packed & ((1 << bits) - 1)).astype(np.int64)


class Runs:
    """Runs of equal keys in a sorted array. `before` of a run's first row is what is known from earlier chunks."""

    def __init__(self, keys: IntArray) -> None:
        self.keys = keys
        self.index = np.arange(len(keys), dtype=np.int64)
        self.first: Bools = np.ones(len(keys), dtype=np.bool_)
        self.first[1:] = keys[1:] != keys[:-1]
        self.starts = np.flatnonzero(self.first)
        self.ends = np.empty_like(self.starts)  # the last row of each run
        self.ends[:-1] = self.starts[1:] - 1
        self.ends[-1:] = len(keys) - 1
        self.ids = keys[self.starts]  # the key of each run
        self._start: IntArray | None = None

    @property
    def start(self) -> IntArray:
        """Index of the first row of each row's run."""
        if self._start is None:
            self._start = np.maximum.accumulate(self.index * self.first) if len(self.keys) else self.index
        return self._start

    def before(self, after: Values, carried: Values) -> Values:
        """The value just before each row: that after the row before it, or what its run began with."""
        out = np.empty_like(after)
        out[1:] = after[:-1]
        out[self.starts] = carried[self.ids]
        return out

    def last(self, kept: Bools) -> IntArray:
        """Index of the last kept row of the run up to each row, itself included; -1 where there is none."""
        if not len(kept):
            return self.index
        found = np.maximum.accumulate((self.index + 1) * kept) - 1
        found[found < self.start] = -1
        return found

    def filled(self, values: Values, kept: Bools, carried: Values) -> Values:
        """The last kept value up to each row, or what the run began with."""
        if not len(values):
            return values
        open_ = self.starts[~kept[self.starts]]
        values, kept = values.astype(carried.dtype), kept.copy()
        values[open_], kept[open_] = carried[self.keys[open_]], True
        return np.asarray(values[np.maximum.accumulate(self.index * kept)])

    def running(self, moves: Values, carried: Values) -> Values:
        """Sum of `moves` up to each row, on top of what the run began with (unsigned sums wrap)."""
        if not len(moves):
            return moves
        begins = carried[self.ids].astype(moves.dtype)
        ends = np.add.reduceat(moves, self.starts) + begins
        moves = moves.copy()
        begins[1:] -= ends[:-1]
        moves[self.starts] += begins
        return np.cumsum(moves, dtype=moves.dtype)

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
