"""Rows prepared in advance: for a writer that writes many of one kind again and again and changes little of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.compiled import compile_recorder
from kvscope.traces.row_layout import ORIGIN, ROW_BYTES, ROW_DTYPE, WORD, marks_from
from kvscope.traces.rows import RowWriter

_RAW = np.dtype(f"V{ROW_BYTES}")
_BLANK = np.zeros(1, ROW_DTYPE)
for _name in ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill"):
    _BLANK[_name] = -1


class Sheet:
    """Rows as they will lie in the buffer; a sink copies them whole and adds moment, origin and mark.

    What is stored in a column of `rows` is in the next copy. Values must fit their columns.
    """

    __slots__ = ("raw", "rows")

    def __init__(self, rows: npt.NDArray[np.void]) -> None:
        self.rows = rows
        self.raw: npt.NDArray[np.void] = rows.view(_RAW)

    @classmethod
    def of(cls, kind: int, reason: int, count: int) -> Sheet:
        """`count` rows of this kind, with every other column as in a row to which it does not apply."""
        raw = np.empty(count, _RAW)
        raw[:] = _BLANK.view(_RAW)  # whole rows: column by column takes twenty times as long
        rows = raw.view(ROW_DTYPE)
        rows["kind"], rows["reason"] = kind, reason
        return cls(rows)

    def __len__(self) -> int:
        return len(self.raw)

    def part(self, lo: int, hi: int | None = None) -> Sheet:
        """The rows from `lo` up to `hi`, of the same memory."""
        return Sheet(self.rows[lo:hi])

    def columns(self, *names: str) -> list[npt.NDArray[Any]]:
        """These columns, of the same memory."""
        return [self.rows[name] for name in names]


class SheetWriter(RowWriter):
    """A `RowWriter` of sheets as well."""

    __slots__ = ()

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """Append the rows of a sheet; returns the first seq, or -1 when rows were dropped.

        `details` [rows, values], at most 8 values, are attached to the last rows of the sheet.
        """
        rows = sheet.raw
        count = len(rows)
        origin: int = WORD.unpack(ORIGIN.pack(self.step, self._place))[0]
        seq = self._next  # until it is claimed nothing may call
        slot = seq & self._mask
        after = seq + count
        end = slot + count
        if after > self._limit or end > self._mask + 1:
            return self._emit_pieces(rows, origin, details)
        self._next = after
        raw, times, origins, marks = self._raw, self._times, self._origins, self._mark
        try:
            raw[slot:end] = rows
            times[slot:end] = self._t
            origins[slot:end] = origin
            if details is not None:
                without = count - len(details)
                self._detail_rows(seq + without, slot + without, details)
        finally:
            marks[slot:end] = self._marks_of(seq, count)
        return seq

    def _emit_pieces(self, sheet: npt.NDArray[np.void], origin: int, details: npt.NDArray[np.int64] | None) -> int:
        """Write the rows of a sheet in the pieces that the ring has room for."""
        first, done, count = -1, 0, len(sheet)
        if details is not None and len(details) < count:
            some = count - len(details)
            first = self._emit_pieces(sheet[:some], origin, None)
            return first if self._emit_pieces(sheet[some:], origin, details) >= 0 else -1
        while done < count:
            wanted = count - done
            seq = self._next  # from here to the claim nothing may call
            slot = seq & self._mask
            rows = wanted if wanted < self._limit - seq else self._limit - seq
            rows = rows if rows < self._mask + 1 - slot else self._mask + 1 - slot
            if rows > 0:
                self._next = seq + rows
                raw, times, origins, marks = self._raw, self._times, self._origins, self._mark
            elif self._make_room(wanted):
                continue
            else:
                return -1
            first = seq if done == 0 else first
            part = slice(slot, slot + rows)
            try:
                raw[part] = sheet[done : done + rows]
                times[part], origins[part] = self._t, origin
                if details is not None:
                    self._detail_rows(seq, slot, details[done : done + rows])
            finally:
                marks[part] = marks_from(seq, rows)
            done += rows
        return first


def stores_rows(sink: object) -> bool:
    """Whether rows of this sink and their details may be stored in its ring by whoever claims them: nobody looks at
    each of its calls, and no lock lies around them.
    """
    if not isinstance(sink, SheetWriter) or sink._guarded or sink._records is None:
        return False
    own = vars(sink)
    plain = type(sink).emit_sheet is SheetWriter.emit_sheet and type(sink).emit is SheetWriter.emit
    return plain and not {"emit", "emit_sheet", "detail"} & own.keys()


compile_recorder(SheetWriter)
