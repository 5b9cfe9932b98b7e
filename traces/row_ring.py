"""Single rows on their way in: packed into a buffer, each sealed by a commit mark.

Rows lie as `row_layout` says; row `seq` in slot `seq % capacity`. A row exists once its mark, its last field, is there:
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

from kvscope.traces.origins import Level, Origins
from kvscope.traces.row_layout import (
    ALLOC_ROW,
    END_ROWS,
    FREED,
    PARTS,
    RELEASED,
    ROW,
    ROW_BYTES,
    ROW_DTYPE,
    TO_NONE,
    TO_ONE,
    WHOLE,
    marks_from,
)
from kvscope.traces.schema import Kind

MARKS_AHEAD = 1 << 12  # marks made at once, for the rows to come
BULK = ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "aux")
_CLIPPED = ("aux", "block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "kind", "reason")
_ALLOC, _RELEASE, _FREE = int(Kind.ALLOC), int(Kind.RELEASE), int(Kind.FREE)
_pack, _pack_alloc, _pack_end = ROW.pack_into, ALLOC_ROW.pack_into, END_ROWS.pack_into
_F = TypeVar("_F", bound=Callable[..., Any])


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


class RowRing(Origins):
    """Packs single rows into a buffer of `capacity` slots; a subclass gives the buffer and makes room when it is full.

    `clipped` counts single rows with a value that its column could not hold.
    """

    __slots__ = (
        "_buffer", "_bulk", "_guarded", "_limit", "_lives", "_made", "_mark", "_mask", "_next", "_origins", "_raw",
        "_records", "_rows", "_sealing", "_spare", "_times", "clipped",
    )  # fmt: skip

    def __init__(self, record: Level = "trace", clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(record, clock)
        self.clipped = 0  # rows with a value that its column could not hold
        self._next = 0  # the next row's seq
        self._sealing = 0  # rows below are in segments, or on their way: too late for details, and marks may go
        self._limit = 0  # rows from here on need `_make_room` first
        self._mask = 0  # capacity - 1; a power of two
        self._buffer: Any = None
        self._rows: npt.NDArray[np.void] = np.empty(0, ROW_DTYPE)
        self._raw: npt.NDArray[np.void] = np.empty(0, WHOLE)
        self._bulk: list[npt.NDArray[Any]] = []
        self._mark: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._times: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._origins: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._lives: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._records: Any = None  # where details lie beside the rows, slot by slot (`hot`), if they do
        self._made = 0, marks_from(0, MARKS_AHEAD)  # marks of the rows from a seq on
        self._spare: list[tuple[memoryview, npt.NDArray[np.void]]] = []  # rows that nobody is filling: bytes, array
        self._guarded = not gil_enabled()
        if self._guarded:
            self.skip_frames([guard.__code__.co_filename])
            guard(
                self,
                threading.RLock(),
                (
                    "begin", "begin_at", "emit", "emit_many", "emit_alloc", "emit_end", "emit_lives", "emit_ends",
                    "emit_sheet", "detail", "fact", "close",
                ),
            )  # fmt: skip

    @property
    def next_seq(self) -> int:
        """The number that the next row gets."""
        return self._next

    @property
    def recent_rows(self) -> int:
        """How many of the last rows `recent` has in any case."""
        return self._mask + 1

    def recent(self, first: int) -> npt.NDArray[np.void] | None:
        """The rows from `first` on that are complete, ROW_DTYPE, a copy; None where they are no longer all in memory.

        Rows that another thread is writing just now, and those behind them, are left out.
        """
        parts = self.recent_parts(first)
        return None if parts is None else self.complete(np.concatenate(parts).view(ROW_DTYPE), first)

    def recent_parts(self, first: int) -> list[npt.NDArray[np.void]] | None:
        """The rows from `first` on where they lie, as bytes, the incomplete ones too; None as in `recent`.

        They are what they are until the ring has gone round: for who looks at them before it lets a writer in.
        """
        count = self._next - first
        if count > self._mask + 1:
            return None
        lo = first & self._mask
        part = self._raw[lo : lo + count]
        have = len(part)
        return [part] if have == count else [part, self._raw[: count - have]]

    def complete(self, rows: npt.NDArray[np.void], first: int) -> npt.NDArray[np.void]:
        """Those of these rows before the first that lacks its mark; whose mark was taken away were complete before."""
        missing = rows["mark"] != marks_from(first, len(rows))
        missing[: max(0, self._sealing - first)] = False
        return rows[: int(np.argmax(missing))] if missing.any() else rows

    def _attach(self, buffer: Any, offset: int, capacity: int) -> None:
        """Use `capacity` slots of `buffer`, from byte `offset` on, as the ring."""
        self._buffer = memoryview(buffer)[offset : offset + capacity * ROW_BYTES]
        self._rows = np.frombuffer(self._buffer, ROW_DTYPE)
        self._bulk = [self._rows[name] for name in BULK]
        self._mark = self._rows["mark"]
        parts = self._rows.view(PARTS)
        self._times, self._origins, self._lives = self._rows["t_ns"], parts["origin"], parts["life"]
        self._raw = np.frombuffer(self._buffer, WHOLE)
        self._mask = capacity - 1

    def emit(
        self, kind: int, reason: int = 0, block: int = -1, gen: int = -1, ref_before: int = -1, ref_after: int = -1,
        fill: int = -1, seq_id: int = -1, lblock: int = -1, aux: int = 0,
    ) -> int:  # fmt: skip
        """Append one row; returns its seq, or -1 when it had to be dropped (and was counted)."""
        seq = self._next
        if seq < self._limit:
            after = seq + 1
            self._next = after
            try:
                _pack(
                    self._buffer, (seq & self._mask) * ROW_BYTES, self._t, self.step, self._place, aux, block, gen,
                    seq_id, lblock, ref_before, ref_after, fill, kind, reason, after,
                )  # fmt: skip
            except (struct.error, TypeError):
                self._pack_clipped(seq, aux, block, gen, seq_id, lblock, ref_before, ref_after, fill, kind, reason)
            return seq
        if not self._make_room(1):
            return -1
        return self.emit(kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)

    def emit_alloc(self, reason: int, block: int, gen: int, seq_id: int, lblock: int) -> int:
        """`emit` of the ALLOC row of an empty block with its first holder."""
        seq = self._next
        if seq < self._limit:
            after = seq + 1
            self._next = after
            try:
                _pack_alloc(
                    self._buffer, (seq & self._mask) * ROW_BYTES, self._t, self.step, self._place, block, gen, seq_id,
                    lblock, TO_ONE, reason, after,
                )  # fmt: skip
            except (struct.error, TypeError):
                self._pack_clipped(seq, 0, block, gen, seq_id, lblock, 0, 1, 0, _ALLOC, reason)
            return seq
        return self.emit(_ALLOC, reason, block, gen, 0, 1, 0, seq_id, lblock)

    def emit_end(self, reason: int, block: int, gen: int, fill: int, seq_id: int, lblock: int) -> int:
        """`emit` of the RELEASE row of a block's last holder and of the FREE row behind it; returns the first seq."""
        seq = self._next
        slot = seq & self._mask
        after = seq + 2
        if after <= self._limit and slot < self._mask:
            self._next = after
            t, step, place = self._t, self.step, self._place
            try:
                _pack_end(
                    self._buffer, slot * ROW_BYTES, t, step, place, block, gen, seq_id, lblock, TO_NONE, fill,
                    RELEASED, reason, seq + 1, t, step, place, block, gen, FREED, reason, after,
                )  # fmt: skip
            except (struct.error, TypeError):
                self._pack_clipped(seq, 0, block, gen, seq_id, lblock, 1, 0, fill, _RELEASE, reason)
                self._pack_clipped(seq + 1, 0, block, gen, -1, -1, 0, 0, 0, _FREE, reason)
            return seq
        seq = self.emit(_RELEASE, reason, block, gen, 1, 0, fill, seq_id, lblock)
        self.emit(_FREE, reason, block, gen, 0, 0, 0)
        return seq

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
        at = (seq & self._mask) * ROW_BYTES
        step = min(max(self.step, -(2**31)), 2**31 - 1)
        _pack(self._buffer, at, self._t, step, self._place, *clipped, seq + 1)

    def _reserve(self, rows: int) -> bool:
        """Raise the limit so that these rows can be claimed at once; False, and nothing done, where `_make_room` is to
        be asked for them bit by bit.
        """
        return False

    @abstractmethod
    def _make_room(self, rows: int) -> bool:
        """Called when `_next` has reached `_limit`: raise the limit, or count `rows` as dropped and return False."""
