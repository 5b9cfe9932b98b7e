"""The block tables of the sequences of a lane as one array, as the device wants them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvscope.engine.free_list import IntArray
from kvscope.engine.lane_move import Move


class TableMatrix:
    """[sequences, blocks] int32; entries behind the end of a table, and those that a window has passed, are 0."""

    __slots__ = ("_entries",)  # lanes.c reads it

    def __init__(self) -> None:
        self._entries = np.zeros((0, 0), dtype=np.int32)

    def have(self, joining: Sequence[list[int]], move: Move) -> None:
        """Move the rows, and put in those of sequences that join, which have these tables."""
        self._widen(max(map(len, joining), default=0))
        fresh = np.zeros((len(joining), self._entries.shape[1]), dtype=np.int32)
        for row, blocks in zip(fresh, joining, strict=True):
            row[: len(blocks)] = blocks
        np.maximum(fresh, 0, out=fresh)
        self._entries = move.columns(self._entries, fresh, axis=0)

    def _widen(self, longest: int) -> None:
        """Have room for tables of so many blocks."""
        width = self._entries.shape[1]
        if longest > width:
            self._entries = np.pad(self._entries, ((0, 0), (0, longest + longest // 4 + 8 - width)))

    def turn(self, at: IntArray, lblocks: IntArray, blocks: IntArray) -> None:
        """These sequences have taken a block each, at the end of their tables."""
        self._widen(int(lblocks.max()) + 1)
        self._entries[at, lblocks] = blocks

    def copy(self, width: int) -> npt.NDArray[np.int32]:
        """The tables as they are now, the longest of which has `width` blocks."""
        return self._entries[:, :width].copy()
