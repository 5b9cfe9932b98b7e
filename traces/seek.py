"""Going to any place of a trace: the keyframes are made when they are first needed, and kept beside a closed trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.fold import FOLD_COLUMNS, BlockFold
from kvscope.traces.folder import KEYFRAMES
from kvscope.traces.keyframes import Keyframes, batches_key, dump_keyframes, load_keyframes, save_keyframes
from kvscope.traces.place import Place
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.sealed import Columns, SealedRows
from kvscope.traces.segment import MAX_BATCH_ROWS

ReadColumns = Callable[[tuple[str, ...], int, int], Columns]
Chunks = Callable[[tuple[str, ...], int, int, int], Iterator[Columns]]


class Seeker:
    """Folds up to any row.

    Args:
        sealed: the rows that do not change any more; keyframes stand among them.
        place: where the trace lies.
        chunks: brings columns of rows, as `TraceReader.chunks` does.
    """

    def __init__(self, sealed: SealedRows, place: Place, chunks: Chunks) -> None:
        self._sealed, self._place, self._chunks = sealed, place, chunks
        self._keys: Keyframes | None = None
        self._removed = 0

    def fold(self, row_of: Callable[[], int], start: Callable[[], BlockFold], keep: bool) -> BlockFold:
        """What the rows before a row have made of every block.

        Args:
            row_of: that row, as rows are numbered now: another one once a part of the trace has gone.
            start: before the first row.
            keep: the trace is closed and long: its keyframes are read from their file, or written there.
        """
        while True:
            if self._keys is None or self._removed != self._sealed.removed:
                self._keys, self._removed = Keyframes(start()), self._sealed.removed
                base = self._sealed.base
                if base.fold is not None:
                    self._keys.rebase(self._sealed.row_of(base.seq), base.fold)
            self._extend(self._keys, keep)
            row = row_of()
            at, fold = self._keys.before(row)
            self._apply(fold, at, row)
            if self._removed == self._sealed.removed:  # (else rows went meanwhile, and what was read is of others)
                return fold

    def before_all(self) -> BlockFold | None:
        """What rows that were let go before the first one have made of every block; None where none were."""
        base = self._sealed.base
        return None if base.fold is None or self._sealed.row_of(base.seq) else base.fold.copy()

    def _apply(self, fold: BlockFold, lo: int, hi: int) -> None:
        if hi > lo:
            for part in self._chunks(FOLD_COLUMNS, lo, hi, 1 << 18):
                fold.apply(part)

    def _extend(self, keys: Keyframes, keep: bool) -> None:
        rows = self._sealed.rows
        due = list(keys.wanted(rows))
        if not due:
            return
        key = batches_key((b.first_seq, b.rows, b.crc) for b in self._sealed.batches) if keep else 0
        if keep and len(keys.rows) == 1 and self._place.has(KEYFRAMES):
            with contextlib.suppress(OSError):
                if load_keyframes(self._place.read(KEYFRAMES), key, rows, keys):
                    return
        at, fold = keys.before(rows)
        for row in due:
            self._apply(fold, at, row)
            keys.add(row, fold)
            at = row
        if keep and self._place.path.is_dir():
            save_keyframes(self._place.path / KEYFRAMES, dump_keyframes(keys, key))


def rows_where(trace: Any, name: str, value: int, hi: int) -> tuple[npt.NDArray[np.int64], EventArray]:
    """(seqs, rows) with that value in a column, of the first `hi` rows of a reader; see `TraceReader.where`."""
    seqs, rows, base = [np.empty(0, np.int64)], [np.empty(0, EVENT_DTYPE)], 0
    for part in trace.chunks((name,), 0, hi, rows=MAX_BATCH_ROWS):
        found = np.flatnonzero(part[name] == value)
        if len(found):
            lo = base + int(found[0])
            columns = trace.columns(("seq", *(EVENT_DTYPE.names or ())), lo, base + int(found[-1]) + 1)
            picked = np.empty(len(found), EVENT_DTYPE)
            for column in EVENT_DTYPE.names or ():
                picked[column] = columns[column][found - found[0]]
            seqs.append(columns["seq"][found - found[0]])
            rows.append(picked)
        base += len(part[name])
    return np.concatenate(seqs), np.concatenate(rows)


def first_past(columns: ReadColumns, rows: int, name: str, value: int) -> int:
    """The first row whose column is greater than `value`; the column never falls by much."""
    lo, hi = 0, rows
    while hi - lo > 1 << 14:
        middle = (lo + hi) // 2
        if int(columns((name,), middle, middle + 1)[name][0]) > value:
            hi = middle
        else:
            lo = middle
    return lo + int(np.searchsorted(columns((name,), lo, hi)[name], value, side="right"))
