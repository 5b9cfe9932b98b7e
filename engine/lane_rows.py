"""The rows of the trace that each step of a lane writes again: only what has changed is stored in them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.engine.free_list import IntArray
from kvscope.traces.row_layout import ROW_DTYPE
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sheet import Sheet
from kvscope.traces.sink import EventSink

_DECODE = int(Reason.DECODE)
_ALLOC, _WRITE, _COMMIT, _PUBLISH = int(Kind.ALLOC), int(Kind.WRITE), int(Kind.COMMIT), int(Kind.PUBLISH)
_STEP_BEGIN, _SCHED = int(Kind.STEP_BEGIN), int(Kind.SCHED)
_LIFE, _LIFE_AT = np.dtype("V16"), 24  # block, gen, seq_id, lblock: 4 bytes each, in this order
_ONE = np.array(1)  # numpy is faster with it than with a number
_AUX_END = 20  # the upper half of `aux`
assert ROW_DTYPE.fields is not None
assert [ROW_DTYPE.fields[name][1] for name in ("aux", "block", "gen", "seq_id", "lblock")] == [16, 24, 28, 32, 36]


class LaneRows:
    """Three sheets, one for each operation of a step; where some rows of the batch change blocks, they are `turned`.

        append       [ ALLOC of the turned, at the end of `most` rows ][ WRITE of each ]
        begin_step   [ STEP_BEGIN ][ SCHED of each ]
        end_step     [ COMMIT of each ][ PUBLISH of the turned ]

    Args:
        seq_ids: [n]. front: [n] positions behind windows.
        most: rows that can be turned in one step.
    """

    def __init__(self, sink: EventSink, seq_ids: IntArray, front: IntArray, most: int, block_size: int) -> None:
        count = len(seq_ids)
        self._sink, self._most, self._count = sink, most, count
        self._pairs: dict[int, _Pairs] = {}  # by length, to be written anew each time
        self._turned: dict[int, Sheet] = {}  # parts of the sheets below, by where they begin or how many are turned
        self._full: dict[int, Sheet] = {}
        self._appends = appends = Sheet.of(_WRITE, _DECODE, most + count)
        taken, written = appends.part(0, most), appends.part(most)
        taken.rows["kind"], taken.rows["fill"] = _ALLOC, 0
        taken.rows["ref_before"], taken.rows["ref_after"] = 0, 1
        self._ends = ends = Sheet.of(_COMMIT, 0, count + most)
        landed, entered = ends.part(0, count), ends.part(count)
        self._landed = landed
        entered.rows["kind"], entered.rows["fill"] = _PUBLISH, block_size
        for sheet in (written, landed, entered):
            sheet.rows["ref_before"] = sheet.rows["ref_after"] = 1
        self._of_taken, self._of_written, self._of_landed, self._of_entered = (
            sheet.rows.getfield(_LIFE, _LIFE_AT) for sheet in (taken, written, landed, entered)
        )
        self._written_fill, self._ranges = written.columns("fill", "aux")
        (self._landed_fill,) = landed.columns("fill")
        self._begins = begins = Sheet.of(_SCHED, 0, 1 + count)
        begins.raw[:1] = Sheet.of(_STEP_BEGIN, 0, 1).raw
        (self._members,) = begins.columns("aux")
        scheds = begins.part(1)
        scheds.rows["seq_id"], scheds.rows["fill"] = seq_ids, 1
        scheds.rows["aux"] = front
        (self._positions,) = scheds.columns("lblock")
        self._read_to = scheds.rows.getfield("<i4", _AUX_END)  # the end of the range that a row reads
        self._from = most  # where the next sheet of appends begins

    def refresh(self, lives: IntArray, who: IntArray) -> None:
        """Each row's block and life, and its sequence and logical block, are these now."""
        self._of_written[:] = self._of_landed[:] = self._both(lives, who)

    def _both(self, lives: IntArray, who: IntArray) -> npt.NDArray[np.void]:
        count = len(lives)
        pairs = self._pairs.get(count) or self._pairs.setdefault(count, _pairs(count))
        pairs.life[:], pairs.who[:] = lives, who
        return pairs.both

    def turn(self, full: IntArray, lives: IntArray, who: IntArray) -> None:
        """These rows go on in fresh blocks, which are recorded with the next appends."""
        self._from = self._most - len(full)
        both = self._both(lives, who)
        self._of_taken[self._from :] = both
        self._of_written[full] = both
        self._of_landed[full] = both

    def append(self, fills: npt.NDArray[np.int16], ranges: IntArray) -> None:
        """Record the fresh blocks, then the write of one slot each."""
        self._ranges[:] = ranges
        self._written_fill[:] = fills
        lo, self._from = self._from, self._most
        sheet = self._turned.get(lo)
        if sheet is None:
            sheet = self._turned[lo] = self._appends.part(lo)
        self._sink.emit_sheet(sheet)

    def schedule(self, ends: IntArray, tables: IntArray, members: int) -> None:
        """Record that a step of `members` sequences begins; of these, with digest and length of the table that each
        reads through, up to `ends`.
        """
        self._members[0] = members
        self._positions[:] = ends - _ONE
        self._read_to[:] = ends
        self._sink.emit_sheet(self._begins, tables)

    def commit(self, fills: npt.NDArray[np.int16]) -> None:
        """Record that the bytes of these slots exist."""
        self._landed_fill[:] = fills
        self._sink.emit_sheet(self._landed)

    def publish(self, full: IntArray, details: IntArray, fills: npt.NDArray[np.int16] | None) -> None:
        """Record that the blocks of these rows are in the prefix index; with `fills`, first what `commit` records."""
        count = len(full)
        self._of_entered[:count] = self._of_landed[full]
        if fills is None:
            self._sink.emit_sheet(self._ends.part(self._count, self._count + count), details)
            return
        self._landed_fill[:] = fills
        sheet = self._full.get(count)
        if sheet is None:
            sheet = self._full[count] = self._ends.part(0, self._count + count)
        self._sink.emit_sheet(sheet, details)


class _Pairs(NamedTuple):
    """Block and life, sequence and logical block, as they lie side by side in a row."""

    life: IntArray
    who: IntArray
    both: npt.NDArray[np.void]


def _pairs(count: int) -> _Pairs:
    pairs = np.empty((count, 2), dtype=np.int64)
    return _Pairs(pairs[:, 0], pairs[:, 1], pairs.reshape(-1).view(_LIFE))
