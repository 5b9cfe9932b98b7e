"""The way in for rows: one at a time (`row_ring`), and here in bulk, which is cheaper from about seven rows on.

A bulk call claims the numbers of all its rows at once, as `row_ring` says, and writes their marks last.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.traces.row_layout import ROW, empty_row, marks_from
from kvscope.traces.row_ring import BULK, MARKS_AHEAD, RowRing
from kvscope.traces.schema import Kind
from kvscope.traces.sink import Ints

_I16 = 2**15 - 1
_RELEASE, _FREE = int(Kind.RELEASE), int(Kind.FREE)
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
        columns: list[tuple[int, Any]] = []
        template = self._template(kind, reason, ref_before, ref_after, fill, seq_id, lblock, columns)
        seq = self._next  # until it is claimed nothing may call
        slot = seq & self._mask
        last = seq + count
        end = slot + count
        if last > self._limit or end > self._mask + 1:
            halves = lives.view("<i4")
            columns += [(0, halves[0::2]), (1, halves[1::2])]
            return self._emit_rows(bytes(template[0]), columns, count)
        self._next = last
        raw, numbers, bulk, marks = self._raw, self._lives, self._bulk, self._mark
        part = slice(slot, end)
        try:
            raw[part] = template[1]
            numbers[part] = lives
            for i, column in columns:
                bulk[i][part] = column
        finally:
            marks[part] = self._marks_of(seq, count)
        self._spare.append(template)
        return seq

    def emit_ends(
        self, reason: int, lives: npt.NDArray[np.int64], fill: Ints, seq_id: Ints = -1, lblock: Ints = -1
    ) -> int:
        """`emit_lives` of the RELEASE rows of the blocks' last holders, and then of their FREE rows."""
        count = len(lives)
        columns: list[tuple[int, Any]] = []
        released = self._template(_RELEASE, reason, 1, 0, fill, seq_id, lblock, columns)
        freed = self._template(_FREE, reason, 0, 0, 0, -1, -1, columns)
        seq = self._next  # until it is claimed nothing may call
        slot = seq & self._mask
        last = seq + 2 * count
        end = slot + 2 * count
        if last > self._limit or end > self._mask + 1:
            seq = self.emit_lives(_RELEASE, reason, lives, 1, 0, fill, seq_id, lblock)
            self.emit_lives(_FREE, reason, lives, 0, 0, 0)
            return seq
        self._next = last
        raw, numbers, bulk, marks = self._raw, self._lives, self._bulk, self._mark
        part, rest = slice(slot, slot + count), slice(slot + count, end)
        try:
            raw[part], raw[rest] = released[1], freed[1]
            numbers[part] = numbers[rest] = lives
            for i, column in columns:
                bulk[i][part] = column
        finally:
            marks[slot:end] = self._marks_of(seq, 2 * count)
        self._spare += (released, freed)
        return seq

    def _template(
        self, kind: int, reason: int, before: Any, after: Any, fill: Any, seq_id: Any, lblock: Any,
        columns: list[tuple[int, Any]],
    ) -> tuple[memoryview, npt.NDArray[np.void]]:  # fmt: skip
        """A row, as bytes and as an array; what is an array goes to `columns`, by its place in `BULK`."""
        if seq_id.__class__ is not int:
            columns.append((2, seq_id))
            seq_id = -1
        if lblock.__class__ is not int:
            columns.append((3, lblock))
            lblock = -1
        if before.__class__ is not int:
            columns.append((4, before if before.dtype == _INT16 else np.minimum(before, _I16)))
            before = -1
        if after.__class__ is not int:
            columns.append((5, after if after.dtype == _INT16 else np.minimum(after, _I16)))
            after = -1
        if fill.__class__ is not int:
            columns.append((6, fill))
            fill = -1
        if after > _I16 or before > _I16:
            before, after = min(before, _I16), min(after, _I16)
        spare = self._spare
        made = spare.pop() if spare else empty_row()
        _pack(
            made[0], 0, self._t, self.step, self._place, 0, -1, -1, seq_id, lblock, before, after, fill, kind, reason, 0
        )
        return made

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
