"""Rows that only go on with what the row before them began: most of a trace, and proven by comparing neighbours.

A decode step writes the next slot of the block that the step before wrote in, reads one position more and commits.
Sorted by block, such a WRITE stands behind a COMMIT and a WRITE of the same life by the same holder; sorted by
sequence, it stands behind the step that read the position before. Between the two nothing has happened to the block or
the table, so what held for the earlier row holds for this one. All other rows are judged by the rules in full; what
the plain ones between two of them add up to is their *tail*.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.inspector.screen.columns import NUMBERS, Chunk
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import Kind

_WRITE, _COMMIT, _SCHED = (NUMBERS[kind] for kind in (Kind.WRITE, Kind.COMMIT, Kind.SCHED))
Bools = npt.NDArray[np.bool_]
FEW = 512  # rows, often of a single step, among which to look for plain ones costs more than to judge all


class Kept(NamedTuple):
    """The rows that are not plain, by their index in the sorted ones, and the plain ones between each and the next."""

    at: IntArray
    kind: npt.NDArray[np.uint8]  # of these rows
    reach: IntArray  # end of what the last WRITE in the tail wrote (slots, or positions); 0 where there is none
    last: IntArray  # index in the sorted rows of the last COMMIT or WRITE, of the last SCHED in the tail; -1 for none
    bound: npt.NDArray[np.int8]  # 1: the last row of the tail is a WRITE; 0: another; -1: there is no tail


def _all(kind: npt.NDArray[np.uint8]) -> Kept:
    """All rows, none of them plain."""
    zeros = np.zeros(len(kind), dtype=np.int64)
    none = zeros - 1
    return Kept(np.arange(len(kind)), kind, zeros, none, none.astype(np.int8))


def _kept(kind: npt.NDArray[np.uint8], plain: Bools, write: Bools, reach: npt.NDArray[Any], other: np.uint8) -> Kept:
    """What is left. A tail ends with a WRITE, or with a row of kind `other` behind one."""
    index = np.flatnonzero(~plain)
    end = np.empty_like(index)
    end[:-1], end[-1] = index[1:] - 1, len(kind) - 1
    has = end > index
    wrote = write[end]
    at = end - ~wrote  # the last WRITE, unless the tail is one other row behind the kept one
    found = has & (at > index)
    last = np.where(wrote, end - 1, end) if other == _SCHED else end
    return Kept(
        index, kind[index], np.where(found, reach[at], 0), np.where(has & (last > index), last, -1),
        np.where(has, wrote, -1).astype(np.int8),
    )  # fmt: skip


def beyond_writes(chunk: Chunk, blocks: IntArray, rows: IntArray, block_size: int) -> Kept:
    """The rows that do more than fill a block further.

    Args:
        blocks, rows: sorted by block; rows are local to the chunk.
    """
    kind = chunk.kind.take(rows)
    if len(rows) <= FEW:
        return _all(kind)
    plain = np.zeros(len(rows), dtype=np.bool_)
    write, commit = kind == _WRITE, kind == _COMMIT
    lo, hi = chunk.ranges(rows)
    holder, place = chunk.holder.take(rows), chunk.place.take(rows)
    committed = commit[1:] & write[:-1]
    for column in (blocks, holder, place):  # life, sequence, logical block, counts: all as in the row before
        committed &= column[1:] == column[:-1]
    plain[1:] = committed
    further = write[2:] & committed[:-1]
    for column in (blocks, holder, place):
        further &= column[2:] == column[:-2]
    further &= (lo[2:] == hi[:-2]) & (hi[2:] > lo[2:]) & (hi[2:] <= block_size)
    plain[2:] |= further
    return _kept(kind, plain, write, hi, _COMMIT)


def beyond_steps(chunk: Chunk, sequences: IntArray, rows: IntArray, block_size: int) -> Kept:
    """The rows that do more than write the next position and read up to it through the same table.

    Args:
        sequences, rows: sorted by sequence; rows are local to the chunk.
    """
    kind = chunk.kind.take(rows)
    if len(rows) <= FEW:
        return _all(kind)
    plain = np.zeros(len(rows), dtype=np.bool_)
    write, sched = kind == _WRITE, kind == _SCHED
    lo, hi = chunk.ranges(rows)
    lblock = chunk.lblock.take(rows)
    base = lblock * np.int64(block_size)
    reach = base + hi
    same = sequences[2:] == sequences[:-2]
    further = write[2:] & sched[1:-1] & write[:-2] & same
    further &= (base[2:] + lo[2:] == reach[:-2]) & (lblock[2:] >= 0)
    further &= (lo[2:] >= 0) & (hi[2:] > lo[2:])
    read = sched[2:] & write[1:-1] & sched[:-2] & same
    read &= (lo[2:] >= 0) & (hi[2:] >= lo[2:]) & (hi[2:] <= reach[1:-1])
    tables = chunk.tables.take(rows)
    read &= tables[2:] == tables[:-2]
    plain[2:] = further | read
    return _kept(kind, plain, write, reach, _SCHED)


__all__ = ["Kept", "beyond_steps", "beyond_writes"]
