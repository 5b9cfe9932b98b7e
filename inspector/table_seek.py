"""Block tables at any event of a long trace: kept every so many rows, and folded on from there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.fold import kind_mask
from kvscope.traces.schema import Kind

TABLE_KINDS = (Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.RELEASE)
Tables = dict[int, list[tuple[int, int]]]

_MASK = kind_mask(TABLE_KINDS)
_NAMES = ("seq_id", "lblock", "block", "gen")
_EVERY = 1 << 16
_MOST_BYTES = 64 << 20  # of what is kept; then it is kept half as often


class TableSeeker:
    """Tables of one trace, for questions in any order.

    Args:
        trace: a reader, or what has its `rows`, `row_of` and `columns`.
        every: rows between two states that are kept.
    """

    def __init__(self, trace: Any, every: int = _EVERY) -> None:
        self._trace, self._every = trace, every
        self._kept: dict[int, npt.NDArray[np.int32]] = {0: np.empty((len(_NAMES), 0), np.int32)}

    def at(self, seq: int) -> Tables:
        """The block table of every sequence that holds blocks just after event `seq`: (block, gen) in logical order."""
        row = self._trace.row_of(seq)
        base = max(kept for kept in self._kept if kept <= row)
        held = self._kept[base]
        while base + self._every <= row:
            held, base = self._fold(held, base, base + self._every), base + self._every
            self._kept[base] = held
            self._thin()
        return _tables(self._fold(held, base, row))

    def _fold(self, held: npt.NDArray[np.int32], lo: int, hi: int) -> npt.NDArray[np.int32]:
        """What is held after the rows lo .. hi - 1, in the order in which it was taken: [column, entry]"""
        for part in self._trace.chunks(("kind", *_NAMES), lo, hi, rows=self._every) if hi > lo else ():
            rows = np.flatnonzero(_MASK[part["kind"]] & (part["seq_id"] >= 0))
            entries = np.concatenate([held, np.stack([part[name][rows] for name in _NAMES]).astype(np.int32)], axis=1)
            takes = np.append(np.ones(held.shape[1], np.bool_), part["kind"][rows] != Kind.RELEASE)
            order = np.lexsort((entries[2], entries[1], entries[0]))  # stable: the last one of an entry counts
            keys = entries[:3, order]
            last = np.append((keys[:, 1:] != keys[:, :-1]).any(axis=0), True) if len(order) else np.empty(0, np.bool_)
            newest = np.sort(order[last])
            held = entries[:, newest[takes[newest]]]
        return held

    def _thin(self) -> None:
        if sum(held.nbytes for held in self._kept.values()) > _MOST_BYTES:
            self._every *= 2
            self._kept = {row: held for row, held in self._kept.items() if row % self._every == 0}


def _tables(held: npt.NDArray[np.int32]) -> Tables:
    """Of each entry of each sequence the one that was taken last."""
    order = np.lexsort((held[1], held[0]))  # stable: the last of equal ones was taken last
    sequence, place, block, gen = held[:, order]
    last = np.append((sequence[1:] != sequence[:-1]) | (place[1:] != place[:-1]), True)[: len(order)]
    sequence = sequence[last]
    pairs = list(zip(block[last].tolist(), gen[last].tolist(), strict=True))
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    edges = [*starts.tolist(), len(pairs)]
    return {seq_id: pairs[lo:hi] for seq_id, lo, hi in zip(sequence[starts].tolist(), edges, edges[1:], strict=False)}
