"""The way in for rows: one at a time (`row_ring`), and here in bulk, which is cheaper from about seven rows on.

A bulk call claims the numbers of all its rows at once, as `row_ring` says, and writes their marks last.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.traces.row_layout import ROW, empty_row, marks_from
from kvscope.traces.row_ring import BULK, MARKS_AHEAD, RowRing
from kvscope.traces.sink import Ints

_I16 = 2**15 - 1
_INT16 = np.dtype(np.int16)
_SATURATING = (4, 5)  # ref_before, ref_after
_pack, _pack_row = ROW.pack_into, ROW.pack


class RowWriter(RowRing):
    """Packs rows, single or many, into the buffer of a `RowRing`."""

    __slots__ = ()

    def emit_many(
        self,
        kind: int,
        reason: int = 0,
        *,
        block: Ints = -1,
        gen: Ints = -1,
        ref_before: Ints = -1,
        ref_after: Ints = -1,
        fill: Ints = -1,
        seq_id: Ints = -1,
        lblock: Ints = -1,
        aux: Ints = 0,
        details: npt.NDArray[np.int64] | None = None,
    ) -> int:
        """Append one row per array element, scalars repeated; returns the first seq, or -1 when rows were dropped.

        `details` [rows, values], at most 8 values, are attached as by `detail`.

        With nothing to write (empty arrays) the next seq is returned. References saturate as in `emit`; the values of
        the other arrays must fit their columns.

        Raises:
            UsageError: the arrays differ in length or are not one-dimensional; nothing was written.
        """
        count = -1
        arrays: list[tuple[int, npt.NDArray[Any]]] = []
        scalars: list[Any] = [block, gen, seq_id, lblock, ref_before, ref_after, fill, aux]
        for i, value in enumerate(scalars):
            if value.__class__ is int:
                continue
            array = value if value.__class__ is np.ndarray else np.asarray(value)
            if array.ndim != 1:
                if array.ndim == 0:
                    scalars[i] = int(array)
                    continue
                raise UsageError(f"emit_many: {BULK[i]} has {array.ndim} dimensions, expected one")
            if count != len(array):
                if arrays:
                    other = BULK[arrays[0][0]]
                    raise UsageError(f"emit_many: {BULK[i]} has {len(array)} values where {other} has {count}")
                count = len(array)
            if i in _SATURATING and array.dtype != _INT16:
                array = np.minimum(array, _I16)
            scalars[i] = -1 if i < 7 else 0
            arrays.append((i, array))
        b, g, s, lb, before, after, f, a = scalars
        if not arrays:
            return self.emit(kind, reason, b, g, before, after, f, s, lb, a)
        if count == 0:
            return self._next
        before, after = before if before < _I16 else _I16, after if after < _I16 else _I16
        template = _pack_row(self._t, self.step, self._place, a, b, g, s, lb, before, after, f, kind, reason, 0)
        if details is not None and details.shape[0] != count:
            raise UsageError(f"emit_many: details of {details.shape[0]} rows for {count} rows")
        return self._emit_rows(template, arrays, count, details)

    def emit_lives(
        self, kind: int, reason: int, lives: npt.NDArray[np.int64], ref_before: Ints, ref_after: Ints, fill: Ints,
        seq_id: Ints = -1, lblock: Ints = -1,
    ) -> int:  # fmt: skip
        """`emit_many` with block and life of each row in one number: `block | gen << 32`."""
        count = len(lives)
        scalars: list[Any] = [seq_id, lblock, ref_before, ref_after, fill]
        columns: list[tuple[int, npt.NDArray[Any]]] = []
        for i, value in enumerate(scalars, 2):
            if value.__class__ is not int:
                if i in _SATURATING and value.dtype != _INT16:
                    value = np.minimum(value, _I16)
                scalars[i - 2] = -1
                columns.append((i, value))
        spare = self._spare
        row, one = spare.pop() if spare else empty_row()
        s, lb, before, after, f = scalars
        try:
            _pack(row, 0, self._t, self.step, self._place, 0, -1, -1, s, lb, before, after, f, kind, reason, 0)
        except struct.error:
            before, after = (ref if ref < _I16 else _I16 for ref in (before, after))
            _pack(row, 0, self._t, self.step, self._place, 0, -1, -1, s, lb, before, after, f, kind, reason, 0)
        seq = self._next  # until it is claimed nothing may call
        slot = seq & self._mask
        last = seq + count
        end = slot + count
        if last <= self._limit and end <= self._mask + 1:
            self._next = last
            raw, numbers, bulk, marks = self._raw, self._lives, self._bulk, self._mark
            part = slice(slot, end)
            try:
                raw[part] = one
                numbers[part] = lives
                for i, column in columns:
                    bulk[i][part] = column
            finally:
                marks[part] = self._marks_of(seq, count)
            spare.append((row, one))
            return seq
        halves = lives.view("<i4")
        return self._emit_rows(bytes(row), [(0, halves[0::2]), (1, halves[1::2]), *columns], count)

    def _marks_of(self, seq: int, rows: int) -> npt.NDArray[np.int64]:
        """`marks_from`; as a rule a part of what was made before."""
        first, made = self._made
        at = seq - first
        if at < 0 or at + rows > MARKS_AHEAD:
            if rows > MARKS_AHEAD // 4:
                return marks_from(seq, rows)
            at, made = 0, marks_from(seq, MARKS_AHEAD)
            self._made = seq, made
        return made[at : at + rows]

    def _emit_rows(
        self, template: bytes, arrays: list[tuple[int, npt.NDArray[Any]]], count: int,
        details: npt.NDArray[np.int64] | None = None,
    ) -> int:  # fmt: skip
        """Write `count` rows in the pieces that the ring has room for."""
        first = -1
        done = 0
        while done < count:
            wanted = count - done
            seq = self._next  # from here to the claim nothing may call (that is why there is no min())
            slot = seq & self._mask
            rows = wanted if wanted < self._limit - seq else self._limit - seq
            rows = rows if rows < self._mask + 1 - slot else self._mask + 1 - slot
            if rows > 0:
                self._next = seq + rows
                raw, columns, marks = self._raw, self._bulk, self._mark
            elif self._make_room(wanted):
                continue
            else:
                return -1
            first = seq if done == 0 else first
            part = slice(slot, slot + rows)
            try:
                raw[part] = template
                for i, array in arrays:
                    columns[i][part] = array if rows == count else array[done : done + rows]
                if details is not None:
                    self._detail_rows(seq, slot, details[done : done + rows])
            finally:
                # Even when interrupted: a claimed row without its mark would hold up everything behind it.
                marks[part] = self._marks_of(seq, rows)
            done += rows
        return first

    @abstractmethod
    def _detail_rows(self, seq: int, slot: int, values: npt.NDArray[np.int64]) -> None:
        """Attach details to the rows from `seq` on, which lie side by side from `slot` on and have no mark yet."""
