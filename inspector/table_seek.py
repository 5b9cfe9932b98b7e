"""Block tables at any event of a long trace: kept every so many rows, and folded on from there."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.fold import begun_anew, kind_mask
from kvscope.traces.schema import Kind

TABLE_KINDS = (Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.RELEASE)
Tables = dict[int, list[tuple[int, int]]]

_MASK = kind_mask(TABLE_KINDS)
_NAMES = ("seq_id", "lblock", "block", "gen")
_OVER = len(_NAMES)  # the row of what is held that says whether its sequence has ended
NO_TABLES = np.empty((_OVER + 1, 0), np.int32)
_STEPS, _ENDS = kind_mask((Kind.STEP_BEGIN, Kind.STEP_END)), kind_mask((Kind.PREEMPT, Kind.FINISH, Kind.ABORT))
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
        self._kept: dict[int, npt.NDArray[np.int32]] = {0: NO_TABLES}

    def at(self, seq: int) -> Tables:
        """The block table of every sequence that holds blocks just after event `seq`: (block, gen) in logical order."""
        row = self._trace.row_of(seq)
        base = max(kept for kept in self._kept if kept <= row)
        held = self._kept[base]
        while base + self._every <= row:
            held, base = self._fold(held, base, base + self._every), base + self._every
            self._kept[base] = held
            self._thin()
        return tables_of(self._fold(held, base, row))

    def _fold(self, held: npt.NDArray[np.int32], lo: int, hi: int) -> npt.NDArray[np.int32]:
        """What is held after the rows lo .. hi - 1."""
        for part in self._trace.chunks(("kind", "aux", *_NAMES), lo, hi, rows=self._every) if hi > lo else ():
            held = fold_tables(held, part)
        return held

    def _thin(self) -> None:
        if sum(held.nbytes for held in self._kept.values()) > _MOST_BYTES:
            self._every *= 2
            self._kept = {row: held for row, held in self._kept.items() if row % self._every == 0}


def fold_tables(held: npt.NDArray[np.int32], part: Any) -> npt.NDArray[np.int32]:
    """The entries of all tables after some more rows, in the order in which they were taken: [column, entry]

    An entry that a sequence leaves when it ends is lost (see `inspector/lost.py`): it is no entry of its table from
    the next step on.
    """
    kind = part["kind"]
    anew = begun_anew(kind, part["aux"])
    if len(anew):
        held, begun = NO_TABLES, int(anew[-1])
        part = {name: part[name][begun:] for name in ("kind", *_NAMES)}
        kind = part["kind"]
    rows = np.flatnonzero(_MASK[kind] & (part["seq_id"] >= 0))
    new = np.stack([part[name][rows] for name in _NAMES] + [np.zeros(len(rows))]).astype(np.int32)
    entries, at = np.concatenate([held, new], axis=1), np.append(np.full(held.shape[1], -1), rows)
    takes = np.append(np.ones(held.shape[1], np.bool_), kind[rows] != Kind.RELEASE)
    order = np.lexsort((entries[2], entries[1], entries[0]))  # stable: the last one of an entry counts
    keys = entries[:3, order]
    last = np.append((keys[:, 1:] != keys[:, :-1]).any(axis=0), True) if len(order) else np.empty(0, np.bool_)
    newest = np.sort(order[last])
    kept = newest[takes[newest]]
    return _without_lost(entries[:, kept], at[kept], part, rows[takes[held.shape[1] :]])


def _without_lost(
    held: npt.NDArray[np.int32], at: npt.NDArray[Any], part: Any, takes: npt.NDArray[Any]
) -> npt.NDArray[np.int32]:
    """Without what was taken (at row `at`) before its sequence ended, where a step, or another take, followed that."""
    kind, seq_id = part["kind"], part["seq_id"]
    ends = np.flatnonzero(_ENDS[kind] & (seq_id >= 0))
    if not held.shape[1] or not (len(ends) or held[_OVER].any()):
        return held
    steps = np.flatnonzero(_STEPS[kind])
    final, taken = int(steps[-1]) if len(steps) else -1, dict(zip(seq_id[takes].tolist(), takes.tolist(), strict=True))
    ended = {s: [-1] for s in held[0, held[_OVER] == 1].tolist()}
    for s, row in zip(seq_id[ends].tolist(), ends.tolist(), strict=True):
        ended.setdefault(s, []).append(row)
    gone, over = np.zeros(held.shape[1], np.bool_), held[_OVER].astype(np.bool_)
    for s in set(held[0].tolist()) & ended.keys():
        own, last = held[0] == s, ended[s][-1]
        lost = max([row for row in ended[s] if row < max(final, taken.get(s, -1))], default=None)
        if lost is not None:
            gone |= own & (over if lost < 0 else at < lost)
        over |= own & (at < last)
    held = held.copy()
    held[_OVER] = over
    return held[:, ~gone]


def tables_of(held: npt.NDArray[np.int32]) -> Tables:
    """Of each entry of each sequence the one that was taken last."""
    order = np.lexsort((held[1], held[0]))  # stable: the last of equal ones was taken last
    sequence, place, block, gen = held[: len(_NAMES), order]
    last = np.append((sequence[1:] != sequence[:-1]) | (place[1:] != place[:-1]), True)[: len(order)]
    sequence = sequence[last]
    pairs = list(zip(block[last].tolist(), gen[last].tolist(), strict=True))
    starts = np.flatnonzero(np.diff(sequence, prepend=-1))
    edges = [*starts.tolist(), len(pairs)]
    return {seq_id: pairs[lo:hi] for seq_id, lo, hi in zip(sequence[starts].tolist(), edges, edges[1:], strict=False)}
