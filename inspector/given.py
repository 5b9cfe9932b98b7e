"""What a sink has been given lately: the way in which the sanitizer beside an engine sees events without copying each.

A recorder of ours has its last rows in memory: they are read back when they are looked at, and cost nothing before.
For any other sink they are kept as they pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.row_layout import ROW_DTYPE
from kvscope.traces.sheet import Sheet
from kvscope.traces.sink import EventSink, Ints, SpelledOut

_COLUMNS = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")


class Keeping(SpelledOut):
    """An `EventSink` in front of one that cannot be asked for its last rows: it keeps them until they are taken."""

    recent_rows = 2**62

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self.begin, self.skip_frames = sink.begin, sink.skip_frames
        self.dropped = 0
        self._rows: list[tuple[int, ...]] = []
        self._pieces: list[npt.NDArray[np.void]] = []
        self._first = -1

    @property
    def step(self) -> int:
        """The step that the next rows belong to."""
        return self._sink.step

    @step.setter
    def step(self, value: int) -> None:
        self._sink.step = value

    @property
    def next_seq(self) -> int:
        """The number that the next row gets."""
        return self._sink.next_seq

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def emit(
        self, kind: int, reason: int = 0, block: int = -1, gen: int = -1, ref_before: int = -1, ref_after: int = -1,
        fill: int = -1, seq_id: int = -1, lblock: int = -1, aux: int = 0,
    ) -> int:  # fmt: skip
        """Pass one row on."""
        seq = self._sink.emit(kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)
        self._rows.append((kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux))
        return self._noted(seq)

    def emit_many(
        self, kind: int, reason: int = 0, *, block: Ints = -1, gen: Ints = -1, ref_before: Ints = -1,
        ref_after: Ints = -1, fill: Ints = -1, seq_id: Ints = -1, lblock: Ints = -1, aux: Ints = 0,
        details: npt.NDArray[np.int64] | None = None,
    ) -> int:  # fmt: skip
        """Pass many rows on."""
        seq = self._sink.emit_many(
            kind, reason, block=block, gen=gen, ref_before=ref_before, ref_after=ref_after, fill=fill, seq_id=seq_id,
            lblock=lblock, aux=aux, details=details,
        )  # fmt: skip
        values = (kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)
        count = max(np.size(value) if np.ndim(value) else -1 for value in values)
        rows = np.zeros(1 if count < 0 else count, dtype=ROW_DTYPE)
        for name, value in zip(_COLUMNS, values, strict=True):
            rows[name] = np.minimum(value, 2**15 - 1) if name.startswith("ref") else value
        return self._piece(seq, rows)

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """Pass the rows of a sheet on."""
        return self._piece(self._sink.emit_sheet(sheet, details), sheet.rows.copy())

    def recent(self, first: int) -> npt.NDArray[np.void] | None:
        """The rows from `first` on, ROW_DTYPE; those before are forgotten. None where `first` has been forgotten."""
        self._flush()
        rows = np.concatenate(self._pieces) if self._pieces else np.empty(0, ROW_DTYPE)
        if self._first > first:
            return None
        rows = rows[first - self._first :] if len(rows) else rows
        self._pieces, self._first = [rows] if len(rows) else [], first if len(rows) else -1
        return rows

    def recent_parts(self, first: int) -> list[npt.NDArray[np.void]] | None:
        """`recent`, as the recorders tell it."""
        rows = self.recent(first)
        return None if rows is None else [rows]

    def _noted(self, seq: int) -> int:
        if self._first < 0:
            self._first = seq
        if seq < 0:
            self.dropped += 1
        return seq

    def _piece(self, seq: int, rows: npt.NDArray[np.void]) -> int:
        self._flush()
        if len(rows):
            self._pieces.append(rows)
            self._noted(seq)
        return seq

    def _flush(self) -> None:
        if self._rows:
            whole = np.array(self._rows, dtype=np.int64)
            rows = np.zeros(len(whole), dtype=ROW_DTYPE)
            for i, name in enumerate(_COLUMNS):
                values = whole[:, i]
                rows[name] = np.minimum(values, 2**15 - 1) if name.startswith("ref") else values
            self._pieces.append(rows)
            self._rows = []


def remembered(sink: EventSink) -> Any:
    """`sink` itself if it can be asked for its last rows, else in front of it what keeps them."""
    return sink if hasattr(sink, "recent_parts") else Keeping(sink)


__all__ = ["Keeping", "remembered"]
