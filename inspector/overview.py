"""The measures of a long trace as curves of a few thousand points, in one pass and little memory.

Each point stands for an equal run of rows and holds the least, the greatest and the last value of it, so no peak is
lost however far out one looks. `series` has every event; the definitions are the same, and a test holds them together.
Only the rows that can change a count are looked at: a WRITE or COMMIT confirms the count that its block has already,
so one that contradicts it (a fault that the detectors report) does not show here unless `slots` are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray, TraceLike, frozen
from kvscope.inspector.state import BlockState, classify
from kvscope.inspector.timeline import Carry
from kvscope.traces.fold import BLOCK_KINDS, INDEX_EFFECT, MAX_BLOCKS, PLACE_EFFECT, kind_mask
from kvscope.traces.schema import Kind

STATES = tuple(state.name.lower() for state in BlockState)
COUNTS = (*STATES, "table_entries", "held_blocks", "saved_blocks")
REF_CLASSES = ("0", "1", "2", "3-4", "5-8", "9+")
_REF_CLASS = np.asarray([0, 1, 2, 3, 3, 4, 4, 4, 4, 5], np.uint8)
_SIZE_MASK = kind_mask((Kind.GROW, Kind.SHRINK))
_COUNTING = kind_mask(BLOCK_KINDS - {Kind.WRITE, Kind.COMMIT, Kind.COW, Kind.COPY_DONE})
_EVERY = kind_mask(BLOCK_KINDS)
_RUN = 1 << 18

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Curve:
    """The least, greatest and last value of each run of rows; ratios are NaN where there is nothing to divide by."""

    low: npt.NDArray[Any]
    high: npt.NDArray[Any]
    last: npt.NDArray[Any]


@dataclass(frozen=True)
class Overview:
    """Curves of all measures; arrays have one element per run of rows, and runs are equally long."""

    rows: int
    seq: IntArray  # of the last row of each run
    t_ns: IntArray
    curves: dict[str, Curve]  # COUNTS, `sharing_factor`; with slots also `filled_slots`, `utilization`, `tail_waste`
    refcounts: npt.NDArray[np.int32]  # [class of REF_CLASSES, run]: blocks by number of references, at its end


def overview(trace: TraceLike, width: int = 2000, *, slots: bool = False) -> Overview:
    """The measures over a whole trace.

    Args:
        width: runs of rows, at most.
        slots: also how many slots are filled: looks at every row of every block, which takes some times as long.
    """
    if not hasattr(trace, "columns"):
        trace = frozen(trace)
    rows = trace.rows if hasattr(trace, "rows") else len(trace.events)
    bins = _Bins(rows, max(1, min(width, rows)), slots)
    pool = _Pool(trace.num_blocks, trace.block_size, slots)
    bins.begin(pool.totals())
    names = ("t_ns", "kind", "block", "gen", "ref_after", *(("ref_before", "fill") if slots else ()))
    for lo in range(0, rows, _RUN):
        part = _Part(trace, lo, min(lo + _RUN, rows), names)
        bins.add(lo, part, *pool.follow(part))
    return bins.done()


class _Part(dict[str, npt.NDArray[Any]]):
    """Some columns of a run of rows; others are read when they are asked for, which is seldom."""

    def __init__(self, trace: Any, lo: int, hi: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self._trace, self._lo, self._hi = trace, lo, hi
        if hasattr(trace, "columns"):
            self.update(trace.columns(names, lo, hi))

    def __missing__(self, name: str) -> npt.NDArray[Any]:
        rows = slice(self._lo, self._hi)
        if hasattr(self._trace, "columns"):
            self.update(self._trace.columns((name,), self._lo, self._hi))
        else:
            self[name] = self._trace.seqs[rows] if name == "seq" else self._trace.events[name][rows]
        return self[name]


class _Pool:
    """Every block after the rows so far, and the sums over all of them."""

    def __init__(self, size: int, block_size: int, slots: bool) -> None:
        self.size, self.block_size, self.slots = size, block_size, slots
        self.mask = _EVERY if slots else _COUNTING
        self.gen = np.zeros(size, np.int32)
        self.ref, self.leases, self.entries = (np.zeros(size, np.int32) for _ in range(3))
        self.published, self.quarantined, self.state = (np.zeros(size, np.uint8) for _ in range(3))
        self.fill = np.zeros(size, np.int32)
        self.counts = np.zeros(len(STATES), np.int64)
        self.classes = np.zeros(len(REF_CLASSES), np.int64)
        self.total_entries = self.total_filled = 0

    def totals(self) -> npt.NDArray[np.float64]:
        """The values of all measures now."""
        none = np.zeros(1, np.int64)
        counts = [none + count for count in self.counts]
        return self._measures(counts, none + self.total_entries, none + self.total_filled, none + self.size)[:, 0]

    def follow(self, part: Columns) -> tuple[IntArray, npt.NDArray[Any], npt.NDArray[Any]]:
        """(rows that matter, [measure, row] after each, [class of references, row])"""
        kind = part["kind"]
        where = np.flatnonzero(self.mask[kind] | _SIZE_MASK[kind])
        sizes = np.full(len(where), self.size, np.int64)
        for at in np.flatnonzero(_SIZE_MASK[kind[where]]).tolist():
            self.size = min(max(int(part["aux"][where[at]]), 0), MAX_BLOCKS)
            sizes[at:] = self.size
            self._grow(self.size)
        block = part["block"][where]
        own = np.flatnonzero(self.mask[kind[where]] & (block >= 0) & (block < len(self.gen)))
        now, before = self._blocks(part, where[own], block[own])

        def running(total: int, change: npt.NDArray[Any]) -> IntArray:
            changes = np.zeros(len(where), np.int64)
            changes[own] = change
            return total + np.cumsum(changes)

        counts = [
            running(int(self.counts[s]), (now["state"] == s).astype(np.int8) - (before["state"] == s))
            for s in range(len(STATES))
        ]
        classes = [
            running(int(self.classes[c]), (now["class"] == c).astype(np.int8) - (before["class"] == c))
            for c in range(len(REF_CLASSES))
        ]
        entries = running(self.total_entries, now["entries"] - before["entries"])
        filled = running(self.total_filled, now["filled"] - before["filled"]) if self.slots else entries
        if len(where):
            self.counts = np.asarray([count[-1] for count in counts])
            self.classes = np.asarray([count[-1] for count in classes])
            self.total_entries, self.total_filled = int(entries[-1]), int(filled[-1])
        values = self._measures(counts, entries, filled, sizes)
        classes[0] = sizes - sum(classes[1:])
        return where, values, np.stack(classes)

    def _measures(self, counts: Any, entries: IntArray, filled: IntArray, sizes: IntArray) -> npt.NDArray[np.float64]:
        states = dict(zip(STATES, counts, strict=True))
        states["free"] = sizes - sum(count for name, count in states.items() if name != "free")
        in_tables = states["private"] + states["shared"]
        held = in_tables + states["in_transit"]
        rows = [*states.values(), entries, held, entries - in_tables, _ratio(entries, in_tables)]
        if self.slots:
            capacity = held * self.block_size
            rows += [filled, _ratio(filled, capacity), _ratio(capacity - filled, capacity)]
        return np.stack(rows).astype(np.float64)

    def _blocks(self, part: Columns, rows: IntArray, block: npt.NDArray[Any]) -> tuple[Columns, Columns]:
        """What each row's block is after it and before it, in the order of the rows."""
        touched = np.zeros(len(self.gen), np.bool_)
        touched[block] = True
        known = np.flatnonzero(touched)
        # Each block's condition so far stands as a row of its own before its rows.
        order = _stable_order(np.concatenate([known, block]), len(self.gen))
        start = order < len(known)

        def both(so_far: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([so_far[known], values])[order]

        kind, gen = part["kind"][rows], both(self.gen, part["gen"][rows]).astype(np.int64)
        group = np.cumsum(start) << 32
        newest = np.maximum.accumulate(group + gen + 1) - group - 1 if len(order) else gen
        valid = gen >= newest
        new_life = start.copy()
        new_life[1:] |= newest[1:] != newest[:-1]
        carry = Carry(new_life)
        after = both(self.ref, part["ref_after"][rows])
        ref = carry(np.maximum(after, 0), (after >= 0) & valid)
        raw = self._leases(both, part, rows, kind, valid, new_life)
        leases = np.clip(raw, 0, ref).astype(np.int32)
        in_index, place = both(self.published, INDEX_EFFECT[kind]), both(self.quarantined, PLACE_EFFECT[kind])
        published = carry(in_index, (in_index >= 0) & valid)
        quarantined = carry(place, (place >= 0) & valid)
        found = {"entries": ref - leases, "class": _REF_CLASS[np.minimum(ref, 9)], "ref": ref, "leases": raw,
                 "published": published, "quarantined": quarantined, "gen": newest,
                 "state": classify(ref - leases, leases, published == 1, quarantined == 1)}  # fmt: skip
        if self.slots:
            says = part["fill"][rows]
            fill = both(self.fill, np.where((kind == Kind.ALLOC) | (kind == Kind.COPY_DONE), -1, says))
            found["fill"] = carry(fill, (fill >= 0) & valid)
            found["filled"] = np.where(ref > 0, found["fill"], 0)
        self._keep(known, found, start)
        return _in_row_order(found, order, len(known), ("entries", "class", "state", "filled"))

    def _leases(self, both: Any, part: Columns, rows: IntArray, kind: Any, valid: Any, new_life: Any) -> IntArray:
        if not self.leases.any() and not (kind == Kind.LEASE).any() and not (kind == Kind.UNLEASE).any():
            return np.zeros(len(valid), np.int64)
        moves = both(self.leases, (kind == Kind.LEASE).astype(np.int64) - (kind == Kind.UNLEASE))
        unheld = both(np.ones_like(self.ref), part["ref_before"][rows]) == 0
        return Carry(new_life | (unheld & valid)).running(np.where(valid, moves, 0))

    def _keep(self, known: IntArray, found: Columns, start: npt.NDArray[np.bool_]) -> None:
        ends = np.append(np.flatnonzero(start)[1:], len(start)) - 1 if len(start) else np.empty(0, np.int64)
        for name in ("gen", "ref", "leases", "entries", "published", "quarantined", "state", "fill"):
            if name in found:
                getattr(self, name)[known] = found[name][ends]

    def _grow(self, size: int) -> None:
        more = size - len(self.gen)
        if more > 0:
            for name in ("gen", "ref", "leases", "entries", "published", "quarantined", "state", "fill"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros(more, old.dtype)]))


def _in_row_order(found: Columns, order: IntArray, known: int, names: tuple[str, ...]) -> tuple[Columns, Columns]:
    real = np.flatnonzero(order >= known)
    at = order[real] - known
    now, before = {}, {}
    for name in names:
        if name in found:
            values = found[name]
            now[name], before[name] = np.empty(len(real), values.dtype), np.empty(len(real), values.dtype)
            now[name][at], before[name][at] = values[real], values[real - 1]
    return now, before


def _stable_order(block: npt.NDArray[Any], blocks: int) -> IntArray:
    """Rows by block, in row order within it; numpy sorts 16-bit keys by radix, five times as fast as wider ones."""
    order = np.argsort(block.astype(np.uint16), kind="stable")
    if blocks > 1 << 16:
        order = order[np.argsort((block >> 16).astype(np.uint16)[order], kind="stable")]
    return order


def _ratio(part: npt.NDArray[Any], whole: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    out = np.full(len(whole), np.nan)
    np.divide(part, whole, out=out, where=whole != 0)
    return out


class _Bins:
    """Least, greatest and last value of every measure in equal runs of rows."""

    def __init__(self, rows: int, width: int, slots: bool) -> None:
        self.rows, self.width = rows, width
        self.names = [*COUNTS, "sharing_factor", *(("filled_slots", "utilization", "tail_waste") if slots else ())]
        self.edges = -(-np.arange(width + 1) * rows // width)  # run i is edges[i] .. edges[i + 1] - 1
        self.low, self.high, self.last = (np.full((len(self.names), width), np.nan) for _ in range(3))
        self.touched = np.zeros(width, np.bool_)
        self.refcounts = np.zeros((len(REF_CLASSES), width), np.int32)
        self.marks = {name: np.zeros(width, np.int64) for name in ("seq", "t_ns")}

    def begin(self, totals: npt.NDArray[np.float64]) -> None:
        """The values before the first row."""
        self.first = self.now = totals
        self.first_classes = np.zeros(len(REF_CLASSES))
        self.first_classes[0] = totals[0]

    def add(self, base: int, part: Columns, where: IntArray, values: Any, classes: Any) -> None:
        """Enter the rows `where` of a part that begins at row `base`."""
        ends = self.edges[1:] - 1
        inside = np.flatnonzero((ends >= base) & (ends < base + len(part["kind"])))
        for name, marks in self.marks.items():
            if len(inside):
                marks[inside] = part[name][ends[inside] - base]
        if not len(where):
            return
        rows = where + base
        bins = np.searchsorted(self.edges, rows, side="right") - 1
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        runs, stops = bins[starts], np.append(starts[1:], len(bins)) - 1
        before = np.concatenate([self.now[:, None], values[:, starts[1:] - 1]], axis=1)
        before[:, rows[starts] == self.edges[runs]] = np.nan  # nothing of the run before is in this one
        for kept, best in ((self.low, np.fmin), (self.high, np.fmax)):
            kept[:, runs] = best(kept[:, runs], best(best.reduceat(values, starts, axis=1), before))
        self.last[:, runs] = values[:, stops]
        self.refcounts[:, runs] = classes[:, stops]
        self.touched[runs] = True
        self.now = values[:, -1]

    def done(self) -> Overview:
        """All curves: a run without a row that matters has the value of the one before."""
        source = np.maximum.accumulate(np.where(self.touched, np.arange(self.width), -1))
        last = np.where(source >= 0, self.last[:, source], self.first[:, None])
        refcounts = np.where(source >= 0, self.refcounts[:, source], self.first_classes[:, None]).astype(np.int32)
        low, high = (np.where(self.touched, kept, last) for kept in (self.low, self.high))
        curves = {}
        for i, name in enumerate(self.names):
            three = (low[i], high[i], last[i])
            whole = name in COUNTS or name == "filled_slots"
            curves[name] = Curve(*(values.astype(np.int64) for values in three)) if whole else Curve(*three)
        if not self.rows:
            curves = {name: Curve(*(values[:0] for values in (c.low, c.high, c.last))) for name, c in curves.items()}
            none = np.empty(0, np.int64)
            return Overview(0, none, none, curves, refcounts[:, :0])
        return Overview(self.rows, self.marks["seq"], self.marks["t_ns"], curves, refcounts)
