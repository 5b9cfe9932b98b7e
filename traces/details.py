"""Details found by a reader, held as arrays: sealed ones by batch, those of the hot tail and late ones beside them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvscope.traces.codec import NO_DETAILS, DetailColumn


class DetailStore:
    """Values by seq; late ones win over sealed ones, sealed ones over those of the hot tail."""

    def __init__(self) -> None:
        self._parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        self._extra: dict[int, tuple[int, ...]] = {}
        self._late: dict[int, tuple[int, ...]] = {}
        self._all: DetailColumn | None = None  # `arrays` as they are until more is added

    def add(self, first_seq: int, column: DetailColumn) -> None:
        """The details of a sealed batch; batches come in seq order."""
        positions, offsets, values = column
        if len(positions):
            self._parts.append((positions + first_seq, offsets, values))
            self._all = None

    def forget_sealed(self) -> None:
        """Drop what batches brought: they are read again."""
        self._parts = []

    def set_hot(self, details: dict[int, tuple[int, ...]], sealed_end: int) -> None:
        """The details in the hot tail now, of rows from `sealed_end` on, in place of earlier ones."""
        self._all = None
        self._extra = {seq: values for seq, values in details.items() if seq >= sealed_end}

    def add_late(self, details: dict[int, tuple[int, ...]]) -> None:
        """More details from the late stream."""
        self._late.update(details)
        self._all = None

    def between(self, lo: int, hi: int) -> DetailColumn:
        """(seqs, offsets, values) of everything that seqs from `lo` to below `hi` have; values lie flat, seq by seq."""
        self._merge()
        seqs, offsets, values = self._parts[0] if self._parts else NO_DETAILS
        a, b = np.searchsorted(seqs, (lo, hi)).tolist()
        seqs, values, offsets = seqs[a:b], values[offsets[a] : offsets[b]], offsets[a : b + 1] - offsets[a]
        beside = self.beside(lo, hi)
        if not beside:
            return seqs, offsets, values
        found = {seq: values[offsets[i] : offsets[i + 1]].tolist() for i, seq in enumerate(seqs.tolist())}
        found |= {seq: list(self.get(seq) or ()) for seq in beside}
        order = sorted(found)
        lengths = [len(found[seq]) for seq in order]
        flat = [value for seq in order for value in found[seq]]
        return np.asarray(order, np.int64), np.cumsum([0, *lengths], dtype=np.int64), np.asarray(flat, np.int64)

    def beside(self, lo: int, hi: int) -> dict[int, tuple[int, ...]]:
        """Details of seqs from `lo` to below `hi` that did not come with a batch, and win over what did."""
        found = {seq: values for seq, values in self._extra.items() if lo <= seq < hi}
        return found | {seq: values for seq, values in self._late.items() if lo <= seq < hi}

    def get(self, seq: int) -> tuple[int, ...] | None:
        """The values of a seq, None where it has none."""
        for found in (self._late, self._extra):
            if seq in found:
                return found[seq]
        self._merge()
        if not self._parts:
            return None
        seqs, offsets, values = self._parts[0]
        at = int(np.searchsorted(seqs, seq))
        if at == len(seqs) or seqs[at] != seq:
            return None
        return tuple(values[offsets[at] : offsets[at + 1]].tolist())

    def arrays(self) -> DetailColumn:
        """(seqs rising, offsets, values) of all details; those of `seqs[i]` are `values[offsets[i]:offsets[i + 1]]`."""
        if self._all is None:
            self._merge()
            empty = np.empty(0, np.int64)
            sealed = self._parts[0] if self._parts else (empty, np.zeros(1, np.int64), empty)
            beside = self._extra | self._late
            self._all = overlaid(*sealed, beside) if beside else sealed
        return self._all

    def of_kind(self, kind: int, seqs: npt.NDArray[np.int64], kinds: npt.NDArray[np.uint8]) -> DetailColumn:
        """`arrays` of the events of one kind; `seqs` and `kinds` are those of all events."""
        known = self.arrays()[0]
        none_missing = len(known) and len(seqs) and len(seqs) == int(seqs[-1]) + 1 and int(known[-1]) < len(seqs)
        if none_missing:  # seqs are rows
            return picked(*self.arrays(), np.flatnonzero(kinds[known] == kind))
        return self.of(seqs[kinds == kind])

    def of(self, wanted: npt.NDArray[np.int64]) -> DetailColumn:
        """`arrays` of the events `wanted` (rising) that have details."""
        seqs, offsets, values = self.arrays()
        if not len(seqs) or not len(wanted):
            return np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(seqs, wanted), len(seqs) - 1)
        return picked(seqs, offsets, values, at[seqs[at] == wanted])

    def _merge(self) -> None:
        if len(self._parts) < 2:
            return
        starts = np.cumsum([0] + [len(part[2]) for part in self._parts])
        offsets = [part[1][:-1] + start for part, start in zip(self._parts, starts[:-1], strict=True)]
        self._parts = [
            (
                np.concatenate([part[0] for part in self._parts]),
                np.concatenate([*offsets, starts[-1:]]),
                np.concatenate([part[2] for part in self._parts]),
            )
        ]


def overlaid(
    seqs: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], values: npt.NDArray[np.int64],
    beside: dict[int, tuple[int, ...]],
) -> DetailColumn:  # fmt: skip
    """These details with those in `beside` added, or in their place."""
    keys = np.sort(np.fromiter(beside, np.int64))
    rows = [np.asarray(beside[seq], np.int64) for seq in keys.tolist()]
    kept = ~np.isin(seqs, keys)
    lengths = np.concatenate([np.diff(offsets)[kept], np.asarray([len(row) for row in rows], np.int64)])
    values = np.concatenate([values[np.repeat(kept, np.diff(offsets))], *rows])
    seqs = np.concatenate([seqs[kept], keys])
    return picked(seqs, np.append(0, np.cumsum(lengths)), values, np.argsort(seqs, kind="stable"))


def picked(
    seqs: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], values: npt.NDArray[np.int64],
    rows: npt.NDArray[np.int64],
) -> DetailColumn:  # fmt: skip
    """The details of these rows, in this order."""
    starts = offsets[rows]
    return seqs[rows], *gathered(starts, offsets[rows + 1] - starts, values)


def gathered(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], values: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(offsets, values) of pieces of `values`, one behind the other."""
    ends = np.cumsum(lengths)
    offsets = np.append(0, ends)
    if len(lengths) and lengths[0] == lengths[-1] and (lengths == lengths[0]).all():
        return offsets, values[(starts[:, None] + np.arange(lengths[0])).ravel()]
    inside = np.arange(int(offsets[-1])) - np.repeat(ends - lengths, lengths)
    return offsets, values[np.repeat(starts, lengths) + inside]
