"""The sums over all blocks of a pool, followed through a trace part by part, in memory that does not grow with it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.lost import Lost
from kvscope.inspector.source import IntArray, fold_before, size_after
from kvscope.inspector.state import BlockState, classify
from kvscope.inspector.timeline import Carry
from kvscope.traces.fold import (
    BLOCK_KINDS,
    INDEX_EFFECT,
    MAX_BLOCKS,
    PLACE_EFFECT,
    RESIZING,
    begun_anew,
    kind_mask,
    resized,
)
from kvscope.traces.schema import Kind

STATES = tuple(state.name.lower() for state in BlockState)
COUNTS = (*STATES, "table_entries", "held_blocks", "saved_blocks", "lost_blocks")
REF_CLASSES = ("0", "1", "2", "3-4", "5-8", "9+")
_REF_CLASS = np.asarray([0, 1, 2, 3, 3, 4, 4, 4, 4, 5], np.uint8)
_SIZE_MASK, _RESIZING = kind_mask((Kind.GROW, Kind.SHRINK)), kind_mask(RESIZING)
_COUNTING = kind_mask(BLOCK_KINDS - {Kind.WRITE, Kind.COMMIT, Kind.COW, Kind.COPY_DONE})
_RUN = 1 << 18
_EVERY = kind_mask(BLOCK_KINDS)

_KEPT = ("gen", "ref", "leases", "entries", "gone", "published", "quarantined", "state", "fill")

Columns = dict[str, npt.NDArray[Any]]


class Part(dict[str, npt.NDArray[Any]]):
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

    def between(self, lo: int, hi: int) -> Part:
        """Rows lo .. hi - 1 of these."""
        part = Part(self._trace, self._lo + lo, self._lo + hi, ())
        part.update({name: values[lo:hi] for name, values in self.items()})
        return part


class PoolSums:
    """Every block after the rows so far, and the sums over all of them.

    Args:
        slots: follow how many slots are filled. as_counted: references are what the pool counts, none is lost.
    """

    def __init__(self, size: int, block_size: int, slots: bool, as_counted: bool = False) -> None:
        self.block_size, self.slots, self.as_counted = block_size, slots, as_counted
        self.mask = _EVERY if slots else _COUNTING
        self.sizes = np.empty(0, np.int64)  # of the pool, at the rows of the last part
        self._clear(size)

    def _clear(self, size: int) -> None:
        """A pool of which nothing has been handed out."""
        self.size, known = size, min(size, MAX_BLOCKS)
        self.gen = np.zeros(known, np.int32)
        self.ref, self.leases, self.entries, self.gone = (np.zeros(known, np.int32) for _ in range(4))
        self.published, self.quarantined, self.state = (np.zeros(known, np.uint8) for _ in range(3))
        self.fill = np.zeros(known, np.int32)
        self.counts = np.zeros(len(STATES), np.int64)
        self.classes = np.zeros(len(REF_CLASSES), np.int64)
        self.total_entries = self.total_filled = 0
        self._losses = Lost()

    @classmethod
    def before(cls, trace: Any, slots: bool, as_counted: bool = False) -> PoolSums:
        """The pool before the first event of a trace."""
        fold = fold_before(trace)
        if fold is None:
            return cls(_size_before(trace), trace.block_size, slots, as_counted)
        pool = cls(fold.size, trace.block_size, slots, as_counted)
        pool._grow(len(fold))
        for name in ("gen", "ref", "leases", "published", "quarantined", "fill"):
            getattr(pool, name)[: len(fold)] = getattr(fold, name)
        leases = np.clip(pool.leases, 0, pool.ref)
        pool.entries = pool.ref - leases
        pool.state = classify(pool.entries, leases, pool.published == 1, pool.quarantined == 1)
        pool.counts = np.bincount(pool.state, minlength=len(STATES))
        pool.classes = np.bincount(_REF_CLASS[np.minimum(pool.ref, 9)], minlength=len(REF_CLASSES))
        pool.total_entries, pool.total_filled = int(pool.entries.sum()), int(pool.fill[pool.ref > 0].sum())
        return pool

    def lost_references(self, gen: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """How many references are lost of each block, whose lives are given."""
        return self._losses.per_block(gen)

    def totals(self) -> npt.NDArray[np.float64]:
        """The values of all measures now."""
        none = np.zeros(1, np.int64)
        counts = [none + count for count in self.counts]
        totals = (none + total for total in (self.total_entries, self.total_filled, self.size))
        return self._measures(counts, *totals)[:, 0]

    def follow(self, part: Part) -> tuple[IntArray, npt.NDArray[Any], npt.NDArray[Any]]:
        """(rows that matter, [measure, row] after each, [class of references, row])"""
        kind = part["kind"]
        anew = begun_anew(kind, part["aux"]).tolist() if (kind == Kind.GAP).any() else []
        if not anew:
            return self._follow(part)
        found, sizes = [], []
        for lo, hi in itertools.pairwise([0, *anew, len(kind)]):
            if lo in anew:
                self._begin_anew(int(resized(kind[lo : lo + 1], part["aux"][lo : lo + 1])[0]))
                found.append((np.array([lo]), self.totals()[:, None], self.by_references()[:, None]))
                sizes.append(np.array([self.size]))
            where, values, classes = self._follow(part.between(lo, hi))
            found.append((where + lo, values, classes))
            sizes.append(self.sizes)
        self.sizes = np.concatenate(sizes)
        wheres, every, classed = zip(*found, strict=True)
        return np.concatenate(wheres), np.concatenate(every, axis=1), np.concatenate(classed, axis=1)

    def _begin_anew(self, size: int) -> None:
        """Another writer goes on, with a new pool; of the same size if it does not say (-1)."""
        self._clear(self.size if size < 0 else size)

    def by_references(self) -> IntArray:
        """Blocks by their number of references: REF_CLASSES."""
        classes = self.classes.copy()
        classes[0] = self.size - int(self.classes[1:].sum())
        return classes

    def _follow(self, part: Part) -> tuple[IntArray, npt.NDArray[Any], npt.NDArray[Any]]:
        kind = part["kind"]
        where, block, life, loss = self._rows(part, np.flatnonzero(self.mask[kind] | _SIZE_MASK[kind]))
        sizes = np.full(len(where), self.size, np.int64)
        for at in np.flatnonzero(_SIZE_MASK[kind[where]]).tolist():
            size = int(resized(kind[where[at : at + 1]], part["aux"][where[at : at + 1]])[0])
            if size >= 0:
                self.size = size
                sizes[at:] = size
                self._grow(size)
        mine = self.mask[kind[where]] | (loss != 0)
        own = np.flatnonzero(mine & (block >= 0) & (block < len(self.gen)))
        now, before = self._blocks(part, where[own], block[own], life[own], loss[own])
        where, sizes, own, now, before = self._moving(kind, where, sizes, own, now, before)

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
        self.sizes = sizes
        if len(where):
            self.counts = np.asarray([count[-1] for count in counts])
            self.classes = np.asarray([count[-1] for count in classes])
            self.total_entries, self.total_filled = int(entries[-1]), int(filled[-1])
        values = self._measures(counts, entries, filled, sizes)
        classes[0] = sizes - sum(classes[1:])
        return where, values, np.stack(classes)

    def _rows(self, part: Columns, where: IntArray) -> tuple[IntArray, npt.NDArray[Any], IntArray, IntArray]:
        """(rows, block of each, life and change of its lost references); a loss is a row of its own, and says no more.

        It stands behind the row at which the reference is lost.
        """
        block, none = part["block"][where], np.zeros(len(where), np.int64)
        lost = [] if self.as_counted else self._losses.add(part)
        moves = np.asarray(lost, np.int64).reshape(-1, 4)
        if not len(moves):
            return where, block, none, none
        rows = np.append(where, moves[:, 0])
        order = np.argsort(rows, kind="stable")
        return (rows[order], np.append(block, moves[:, 1])[order], np.append(none, moves[:, 2])[order],
                np.append(none, moves[:, 3])[order])  # fmt: skip

    def _moving(
        self, kind: npt.NDArray[Any], where: IntArray, sizes: IntArray, own: IntArray, now: Columns, before: Columns
    ) -> tuple[IntArray, IntArray, IntArray, Columns, Columns]:
        """Only the rows that change a sum, or the pool's size."""
        moves = (now["state"] != before["state"]) | (now["entries"] != before["entries"])
        moves |= now["class"] != before["class"]
        if self.slots:
            moves |= now["filled"] != before["filled"]
        kept = _SIZE_MASK[kind[where]]
        kept[own[moves]] = True
        place = np.cumsum(kept) - 1
        now, before = ({name: values[moves] for name, values in side.items()} for side in (now, before))
        return where[kept], sizes[kept], place[own[moves]], now, before

    def _measures(self, counts: Any, entries: IntArray, filled: IntArray, sizes: IntArray) -> npt.NDArray[np.float64]:
        states = dict(zip(STATES, counts, strict=True))
        states["free"] = sizes - sum(count for name, count in states.items() if name != "free")
        in_tables, lost = states["private"] + states["shared"], states["lost"]
        held = in_tables + states["in_transit"] + lost
        rows = [*states.values(), entries, held, entries - in_tables, lost, _ratio(entries, in_tables)]
        if self.slots:
            reached = (held - lost) * self.block_size
            rows += [filled, _ratio(filled, held * self.block_size), _ratio(reached - filled, reached)]
        return np.stack(rows).astype(np.float64)

    def _blocks(
        self, part: Columns, rows: IntArray, block: npt.NDArray[Any], life: IntArray, loss: IntArray
    ) -> tuple[Columns, Columns]:
        """What each row's block is after it and before it, in the order of the rows."""
        touched = np.zeros(len(self.gen), np.bool_)
        touched[block] = True
        known = np.flatnonzero(touched)
        # Each block's condition so far stands as a row of its own before its rows.
        order = _stable_order(np.concatenate([known, block]), len(self.gen))
        start = order < len(known)

        def both(so_far: npt.NDArray[Any], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.concatenate([so_far[known], values])[order]

        kind, gens = part["kind"][rows], np.where(loss != 0, -1, part["gen"][rows])
        gen = both(self.gen, gens).astype(np.int64)
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
        gone = self._gone(both, life, loss, newest, new_life)
        lost = np.minimum(gone, ref - leases)
        found = {"entries": ref - leases - lost, "gone": gone,
                 "class": _REF_CLASS[np.minimum(ref, 9)], "ref": ref, "leases": raw,
                 "published": published, "quarantined": quarantined, "gen": newest,
                 "state": classify(ref - leases - lost, leases, published == 1, quarantined == 1, lost)}  # fmt: skip
        if self.slots:
            says = part["fill"][rows]
            fill = both(self.fill, np.where((kind == Kind.ALLOC) | (kind == Kind.COPY_DONE), -1, says))
            found["fill"] = carry(fill, (fill >= 0) & valid)
            found["filled"] = np.where(ref > lost, found["fill"], 0)
        self._keep(known, found, start)
        return _in_row_order(found, order, len(known), ("entries", "class", "state", "filled"))

    def _gone(self, both: Any, life: IntArray, loss: IntArray, newest: IntArray, new_life: Any) -> IntArray:
        """References lost in this life."""
        if not self.gone.any() and not loss.any():
            return np.zeros(len(newest), np.int64)
        of_now = both(self.gen, life) == newest
        return np.maximum(Carry(new_life).running(np.where(of_now, both(self.gone, loss), 0)), 0)

    def _leases(self, both: Any, part: Columns, rows: IntArray, kind: Any, valid: Any, new_life: Any) -> IntArray:
        if not self.leases.any() and not (kind == Kind.LEASE).any() and not (kind == Kind.UNLEASE).any():
            return np.zeros(len(valid), np.int64)
        moves = both(self.leases, (kind == Kind.LEASE).astype(np.int64) - (kind == Kind.UNLEASE))
        unheld = both(np.ones_like(self.ref), part["ref_before"][rows]) == 0
        return Carry(new_life | (unheld & valid)).running(np.where(valid, moves, 0))

    def _keep(self, known: IntArray, found: Columns, start: npt.NDArray[np.bool_]) -> None:
        ends = np.append(np.flatnonzero(start)[1:], len(start)) - 1 if len(start) else np.empty(0, np.int64)
        for name in _KEPT:
            if name in found:
                getattr(self, name)[known] = found[name][ends]

    def _grow(self, size: int) -> None:
        more = min(size, MAX_BLOCKS) - len(self.gen)
        if more > 0:
            for name in _KEPT:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros(more, old.dtype)]))


def _size_before(trace: Any) -> int:
    """Blocks of the pool before the first event."""
    if not hasattr(trace, "chunks") or getattr(trace, "on_demand", False):  # (a view has looked at the column already)
        return size_after(trace, 0)
    if trace.rows and not trace.warnings and int(trace.columns(("seq",), 0, 1)["seq"][0]) == 0:
        return int(trace.num_blocks)  # it is whole: the pool began as its manifest says
    base = 0
    for part in trace.chunks(("kind",), rows=_RUN):
        for at in np.flatnonzero(_RESIZING[part["kind"]]).tolist():
            row = trace.columns(("kind", "lblock", "aux"), base + at, base + at + 1)
            size = int(resized(row["kind"], row["aux"])[0])
            if row["kind"][0] != Kind.GAP:
                size = max(int(row["lblock"][0]), 0)
            if size >= 0:
                return size
        base += len(part["kind"])
    return int(trace.num_blocks)


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
