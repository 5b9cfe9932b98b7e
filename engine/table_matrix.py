"""The block tables of the sequences of a lane as one array, as the device wants them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvscope.engine.free_list import IntArray


class TableMatrix:
    """[sequences, blocks] int32; entries behind the end of a table, and those that a window has passed, are 0."""

    def __init__(self) -> None:
        self._entries = np.zeros((0, 0), dtype=np.int32)

    def have(self, joining: Sequence[list[int]], order: IntArray | None) -> None:
        """Add sequences with these tables; then have those of `order`, in that order."""
        before, width = self._entries.shape
        longest = max(map(len, joining), default=0)
        entries = np.zeros((before + len(joining), _roomy(longest) if longest > width else width), dtype=np.int32)
        entries[:before, :width] = self._entries
        for row, blocks in zip(entries[before:], joining, strict=True):
            row[: len(blocks)] = blocks
        np.maximum(entries, 0, out=entries)
        self._entries = entries if order is None else entries[order]

    def turn(self, at: IntArray, lblocks: IntArray, blocks: IntArray) -> None:
        """These sequences have taken a block each, at the end of their tables."""
        longest, width = int(lblocks.max()) + 1, self._entries.shape[1]
        if longest > width:
            self._entries = np.pad(self._entries, ((0, 0), (0, _roomy(longest) - width)))
        self._entries[at, lblocks] = blocks

    def copy(self, width: int) -> npt.NDArray[np.int32]:
        """The tables as they are now, the longest of which has `width` blocks."""
        return self._entries[:, :width].copy()


def _roomy(width: int) -> int:
    return width + width // 4 + 8
