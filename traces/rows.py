"""The way in: rows packed into a buffer, one at a time or in bulk, each sealed by a commit mark.

A row in the buffer is 56 bytes, native alignment, little endian: the columns of EVENT_DTYPE in an order that packs
fast, and last its mark, `seq + 1`; row `seq` lies in slot `seq % capacity`. A row exists once its mark is there:
fields are stored in order, so a writer killed anywhere leaves whole rows only.

Why no lock. A lock costs more than the row (240-440 ns against 400). Instead a row number is *claimed*:
`seq = self._next; ...; self._next = after`, with no call in between. CPython switches threads (and delivers signals)
only at calls and backward jumps, so on a build with a GIL nothing can come between; on a free-threaded build the
recorders wrap these methods in a real lock (`guard`). Order between threads is the caller's lock's business.
"""

from __future__ import annotations

import functools
import struct
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.traces.origins import Level, Origins
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.sink import Ints

# t_ns, (step site actor tier), aux, block gen seq_id lblock, ref_before ref_after fill, kind reason, mark
ROW = struct.Struct("<q8sqiiiihhhBBq")
ROW_DTYPE = np.dtype(
    [
        ("t_ns", "<i8"),
        ("step", "<i4"),
        ("site", "<u2"),
        ("actor", "u1"),
        ("tier", "u1"),
        ("aux", "<i8"),
        ("block", "<i4"),
        ("gen", "<i4"),
        ("seq_id", "<i4"),
        ("lblock", "<i4"),
        ("ref_before", "<i2"),
        ("ref_after", "<i2"),
        ("fill", "<i2"),
        ("kind", "u1"),
        ("reason", "u1"),
        ("mark", "<i8"),
    ]
)
ROW_BYTES = ROW.size
assert ROW_BYTES == ROW_DTYPE.itemsize == 56

_I16 = 2**15 - 1
_BULK = ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "aux")
_CLIPPED = ("aux", "block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "kind", "reason")
_TEMPLATE = ROW.pack
_SATURATING = (4, 5)  # ref_before, ref_after
_INT16 = np.dtype(np.int16)
_F = TypeVar("_F", bound=Callable[..., Any])


FEW_MARKS = 1 << 12
FIRST_MARKS = np.arange(1, FEW_MARKS + 1, dtype=np.int64)


def marks_from(seq: int, rows: int) -> npt.NDArray[np.int64]:
    """The marks of `rows` rows from `seq` on."""
    few = rows <= FEW_MARKS
    return FIRST_MARKS[:rows] + seq if few else np.arange(seq + 1, seq + 1 + rows, dtype=np.int64)


def events_of(rows: npt.NDArray[np.void]) -> EventArray:
    """Buffer rows as EVENT_DTYPE rows (a copy)."""
    events = np.empty(len(rows), EVENT_DTYPE)
    for name in EVENT_DTYPE.names or ():
        events[name] = rows[name]
    return events


def gil_enabled() -> bool:
    """Whether threads of this interpreter run Python code one at a time."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def guard(sink: Any, lock: Any, names: tuple[str, ...]) -> None:
    """Put a lock around methods of one object (for interpreters without a GIL)."""

    def locked(method: _F) -> _F:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return method(*args, **kwargs)

        return call  # type: ignore[return-value]

    for name in names:
        setattr(sink, name, locked(getattr(sink, name)))


class RowWriter(Origins):
    """Packs rows into a buffer of `capacity` slots; a subclass gives the buffer and makes room when it is full.

    `clipped` counts single rows with a value that its column could not hold.
    """

    __slots__ = ("_buffer", "_bulk", "_limit", "_mark", "_mask", "_next", "_origins", "_pack", "_raw", "_times")

    def __init__(self, record: Level = "trace", clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(record, clock)
        self.clipped = 0  # rows with a value that its column could not hold
        self._next = 0  # the next row's seq
        self._limit = 0  # rows from here on need `_make_room` first
        self._mask = 0  # capacity - 1; a power of two
        self._buffer: Any = None
        self._rows: npt.NDArray[np.void] = np.empty(0, ROW_DTYPE)
        self._raw: npt.NDArray[np.void] = np.empty(0, f"V{ROW_BYTES}")
        self._bulk: list[npt.NDArray[Any]] = []
        self._mark: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._times: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._origins: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._pack = ROW.pack_into
        self._guarded = not gil_enabled()
        if self._guarded:
            self.skip_frames([guard.__code__.co_filename])
            guard(
                self,
                threading.RLock(),
                ("begin", "begin_at", "emit", "emit_many", "emit_sheet", "detail", "fact", "close"),
            )

    @property
    def next_seq(self) -> int:
        """The number that the next row gets."""
        return self._next

    def _attach(self, buffer: Any, offset: int, capacity: int) -> None:
        """Use `capacity` slots of `buffer`, from byte `offset` on, as the ring."""
        self._buffer = memoryview(buffer)[offset : offset + capacity * ROW_BYTES]
        self._rows = np.frombuffer(self._buffer, ROW_DTYPE)
        self._bulk = [self._rows[name] for name in _BULK]
        self._mark = self._rows["mark"]
        self._times, self._origins = self._rows["t_ns"], self._rows.getfield("<i8", 8)
        self._raw = np.frombuffer(self._buffer, f"V{ROW_BYTES}")
        self._mask = capacity - 1

    def emit(
        self,
        kind: int,
        reason: int = 0,
        block: int = -1,
        gen: int = -1,
        ref_before: int = -1,
        ref_after: int = -1,
        fill: int = -1,
        seq_id: int = -1,
        lblock: int = -1,
        aux: int = 0,
    ) -> int:
        """Append one row; returns its seq, or -1 when it had to be dropped (and was counted)."""
        seq = self._next
        if seq < self._limit:
            after = seq + 1
            self._next = after
            try:
                self._pack(
                    self._buffer,
                    (seq & self._mask) * ROW_BYTES,
                    self._t,
                    self._origin,
                    aux,
                    block,
                    gen,
                    seq_id,
                    lblock,
                    ref_before,
                    ref_after,
                    fill,
                    kind,
                    reason,
                    after,
                )
            except (struct.error, TypeError):
                self._pack_clipped(seq, aux, block, gen, seq_id, lblock, ref_before, ref_after, fill, kind, reason)
            return seq
        if not self._make_room(1):
            return -1
        return self.emit(kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)

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
                raise UsageError(f"emit_many: {_BULK[i]} has {array.ndim} dimensions, expected one")
            if count != len(array):
                if arrays:
                    other = _BULK[arrays[0][0]]
                    raise UsageError(f"emit_many: {_BULK[i]} has {len(array)} values where {other} has {count}")
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
        template = _TEMPLATE(self._t, self._origin, a, b, g, s, lb, before, after, f, kind, reason, 0)
        if details is not None and details.shape[0] != count:
            raise UsageError(f"emit_many: details of {details.shape[0]} rows for {count} rows")
        return self._emit_rows(template, arrays, count, details)

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
                marks[part] = marks_from(seq, rows)
            done += rows
        return first

    def _pack_clipped(self, seq: int, *values: Any) -> None:
        """Write the claimed row although a value does not fit: each is put at the end of its column's range."""
        clipped = []
        for name, value in zip(_CLIPPED, values, strict=True):
            info = np.iinfo(ROW_DTYPE[name])
            try:
                clipped.append(min(max(int(value), int(info.min)), int(info.max)))
            except (TypeError, ValueError):
                clipped.append(-1 if info.min < 0 else 0)
        self.clipped += 1
        self._pack(self._buffer, (seq & self._mask) * ROW_BYTES, self._t, self._origin, *clipped, seq + 1)

    @abstractmethod
    def _detail_rows(self, seq: int, slot: int, values: npt.NDArray[np.int64]) -> None:
        """Attach details to the rows from `seq` on, which lie side by side from `slot` on and have no mark yet."""

    @abstractmethod
    def _make_room(self, rows: int) -> bool:
        """Called when `_next` has reached `_limit`: raise the limit, or count `rows` as dropped and return False."""
