"""References that nobody will give back: their sequence has ended, finished, aborted or preempted, and left them.

Such a reference keeps its block from ever being free, and it is no entry of any table: it neither shares nor saves
anything. It counts as lost from the first step that begins or ends after its sequence has, for what an operation
gives back comes in the rows behind the one that ends the sequence.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import bisect_right
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray
from kvscope.inspector.table_seek import TABLE_KINDS
from kvscope.traces.fold import begun_anew, kind_mask
from kvscope.traces.schema import EventArray, Kind

_TABLE, _STEPS = kind_mask(TABLE_KINDS), kind_mask((Kind.STEP_BEGIN, Kind.STEP_END))
_ENDS = kind_mask((Kind.PREEMPT, Kind.FINISH, Kind.ABORT))
_NAMES = ("seq_id", "lblock", "block", "gen", "kind")
_COMPACT = 1 << 18  # rows that are kept before those of ended sequences are looked for
_NEVER = 1 << 62

Entry = tuple[int, int]  # logical block, block


class Move(NamedTuple):
    """One reference that is lost (`by` is 1), or given back after all (-1), at a row of a part."""

    row: int
    block: int
    gen: int
    by: int


class Lost:
    """Finds lost references as rows come; nearly all sequences give back as many as they took, and cost no more."""

    def __init__(self) -> None:
        self._balance: dict[int, int] = {}  # references taken less given back, by sequence, where not 0
        self._held: dict[int, dict[Entry, int]] = {}  # of sequences that are looked at row by row: what they hold
        self._ended: set[int] = set()  # of those: have ended, and no step has begun or ended since
        self._lost: Counter[tuple[int, int, int, int]] = Counter()  # sequence, logical block, block, life
        self._losers: set[int] = set()
        self._kept: list[IntArray] = []  # [column, row] of the others that may hold something
        self._left = 0  # rows of those after the last time that they were gone through
        self._next: int | None = None  # number of the event that comes next

    def add_events(self, events: EventArray, seqs: Any) -> list[Move]:
        """`add` of rows with their numbers."""
        return self.add({"seq": seqs, **{name: events[name] for name in (*_NAMES, "aux")}})

    def add(self, part: Any) -> list[Move]:
        """The next rows, in order; of their columns `_NAMES` and `seq` are read. Returns what moved, in their order."""
        kind, seqs = np.asarray(part["kind"]), np.asarray(part["seq"])
        if not len(kind):
            return []
        before = int(seqs[0]) if self._next is None else self._next
        unknown = (kind == Kind.GAP) | (np.diff(seqs, prepend=before - 1) != 1)
        self._next = int(seqs[-1]) + 1
        edges = [0, *np.flatnonzero(unknown).tolist(), len(kind)]
        found: list[Move] = []
        for lo, hi in itertools.pairwise(edges):
            if unknown[lo]:  # who gave back what is among the events that are missing
                self._balance, self._held, self._ended, self._kept = {}, {}, set(), []
            if kind[lo] == Kind.GAP and int(part["aux"][lo]) <= 0:  # another writer, and a new pool
                self._lost, self._losers = Counter(), set()
            found += self._run(part, kind, lo, hi)
        return found

    def per_block(self, gen: npt.NDArray[Any], first: int = 0) -> npt.NDArray[np.int32]:
        """How many references are lost of each block from `first` on, whose lives are given."""
        found = np.zeros(len(gen), np.int32)
        for (_, _, block, life), count in self._lost.items():
            if 0 <= block - first < len(gen) and gen[block - first] == life:
                found[block - first] += count
        return found

    def _run(self, part: Any, kind: npt.NDArray[Any], lo: int, hi: int) -> list[Move]:
        """Rows lo .. hi - 1, between which none is missing."""
        if lo == hi:
            return []
        kind, seq_id = kind[lo:hi], np.asarray(part["seq_id"])[lo:hi]
        rows = np.flatnonzero(_TABLE[kind] & (seq_id >= 0))
        ends = np.flatnonzero(_ENDS[kind] & (seq_id >= 0))
        if not len(rows) and not len(ends) and not self._ended:
            return []
        columns = np.stack([np.asarray(part[name])[lo:hi][rows] for name in _NAMES]).astype(np.int64)
        steps, took = np.flatnonzero(_STEPS[kind]), self._weigh(columns, rows)
        suspects = self._ended | self._held.keys() | (self._losers & took.keys())
        for s, end in zip(seq_id[ends].tolist(), ends.tolist(), strict=True):
            take, last = took.get(s, (-1, -1))
            if self._balance.get(s) or take > end or (last > end and _first(steps, end) < last):
                suspects.add(s)
        found: list[Move] = []
        if suspects:
            for s in suspects & (took.keys() | self._ended | set(seq_id[ends].tolist())):
                found += self._look(s, columns, rows, ends[seq_id[ends] == s], steps)
            columns = columns[:, ~np.isin(columns[0], np.fromiter(suspects, np.int64, len(suspects)))]
        self._keep(columns)
        return sorted(Move(lo + move.row, *move[1:]) for move in found)

    def _weigh(self, columns: IntArray, rows: IntArray) -> dict[int, tuple[int, int]]:
        """Note what each sequence takes and gives back; returns the last row at which each takes, and does either."""
        ids, which = np.unique(columns[0], return_inverse=True)
        takes = columns[4] != Kind.RELEASE
        net = np.bincount(which, weights=np.where(takes, 1, -1), minlength=len(ids)).astype(np.int64)
        take, last = np.full((2, len(ids)), -1, np.int64)
        take[which[takes]], last[which] = rows[takes], rows
        for s, by in zip(ids.tolist(), net.tolist(), strict=True):
            if now := self._balance.pop(s, 0) + by:
                self._balance[s] = now
        return dict(zip(ids.tolist(), zip(take.tolist(), last.tolist(), strict=True), strict=True))

    def _look(self, s: int, columns: IntArray, rows: IntArray, ends: IntArray, steps: IntArray) -> list[Move]:
        """One sequence's rows one by one: what it holds when it has ended and a step has begun or ended since."""
        held, own = self._held.pop(s, None), columns[0] == s
        if held is None:
            held = {}
            for kept in self._kept:
                for entry in kept[1:, kept[0] == s].T.tolist():
                    _turn(held, *entry)
        told: list[tuple[int, list[int]]] = [(row, []) for row in ends.tolist()]
        told += zip(rows[own].tolist(), columns[1:, own].T.tolist(), strict=True)
        found: list[Move] = []
        over = -1 if s in self._ended else None  # the row at which it ended
        for row, entry in sorted(told):
            taken_again = bool(entry) and entry[3] != Kind.RELEASE
            if over is not None and ((at := _first(steps, over)) < row or taken_again):
                found += self._lose(s, held, min(at, row))
                over = None
            if not entry:
                over = row
            elif not _turn(held, *entry):
                found += self._return(s, row, entry)
        if over is not None and (at := _first(steps, over)) < _NEVER:
            found += self._lose(s, held, at)
            over = None
        self._note(s, held, ended=over is not None)
        return found

    def _note(self, s: int, held: dict[Entry, int], *, ended: bool) -> None:
        self._ended.discard(s)
        self._balance.pop(s, None)
        self._kept = [kept[:, kept[0] != s] for kept in self._kept]
        if held:
            self._held[s], self._balance[s] = held, len(held)
            if ended:
                self._ended.add(s)

    def _lose(self, s: int, held: dict[Entry, int], row: int) -> list[Move]:
        found = [Move(row, block, gen, 1) for (_, block), gen in held.items()]
        self._lost.update((s, lblock, block, gen) for (lblock, block), gen in held.items())
        self._losers |= {s} if held else set()
        held.clear()
        return found

    def _return(self, s: int, row: int, entry: list[int]) -> list[Move]:
        lblock, block, gen, _ = entry
        if not self._lost[s, lblock, block, gen]:
            return []
        self._lost[s, lblock, block, gen] -= 1
        return [Move(row, block, gen, -1)]

    def _keep(self, columns: IntArray) -> None:
        """Keep these rows; from time to time those of sequences that hold nothing are let go."""
        if columns.shape[1]:
            self._kept.append(columns)
        if sum(kept.shape[1] for kept in self._kept) > max(_COMPACT, 2 * self._left):
            every = np.concatenate(self._kept, axis=1)
            holds = np.isin(every[0], np.fromiter(self._balance, np.int64, len(self._balance)))
            self._kept, self._left = [every[:, holds]], int(np.count_nonzero(holds))


def lost_moves(trace: Any) -> list[Move]:
    """All of a trace; a row is one of its rows."""
    return Lost().add_events(trace.events, trace.seqs)


def lost_at(trace: Any, seq: int, gen: npt.NDArray[Any], first: int = 0) -> npt.NDArray[np.int32]:
    """How many references are lost just after event `seq`, of each block from `first` on, whose lives are given.

    A long trace is gone through once for it, and then only what is new.
    """
    if getattr(trace, "folded", False):
        reader = getattr(trace, "reader", trace)
        with _ONE_AT_A_TIME:
            return _KNOWN.setdefault(reader, _Known()).at(reader, seq, gen, first)
    lost, rows = Lost(), int(np.searchsorted(trace.seqs, seq, side="right"))
    lost.add_events(trace.events[:rows], trace.seqs[:rows])
    return lost.per_block(gen, first)


class _Known:
    """The moves of a reader's trace, as far as it has been looked at."""

    def __init__(self) -> None:
        self._lost, self._next = Lost(), -1
        self._seqs: list[int] = []  # of the moves
        self._moves: list[tuple[int, int, int]] = []  # block, life, change
        self._anew: list[int] = []  # events from which on another writer's pool is told of

    def at(self, reader: Any, seq: int, gen: npt.NDArray[Any], first: int) -> npt.NDArray[np.int32]:
        for part in reader.chunks((*_NAMES, "seq", "aux"), reader.row_of(self._next) if self._next >= 0 else 0):
            if not len(part["kind"]):
                continue
            moves = self._lost.add(part)
            self._seqs += part["seq"][[move.row for move in moves]].tolist() if moves else []
            self._moves += [(move.block, move.gen, move.by) for move in moves]
            self._anew += part["seq"][begun_anew(part["kind"], part["aux"])].tolist()
            self._next = int(part["seq"][-1])
        begun = bisect_right(self._anew, seq)
        lo = bisect_right(self._seqs, self._anew[begun - 1]) if begun else 0
        known = np.asarray(self._moves[lo : bisect_right(self._seqs, seq)], np.int64).reshape(-1, 3)
        block = known[:, 0] - first
        mine = (block >= 0) & (block < len(gen))
        block, life, by = block[mine], known[mine, 1], known[mine, 2]
        now = gen[block] == life
        return np.bincount(block[now], weights=by[now], minlength=len(gen)).astype(np.int32)


_KNOWN: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()
_ONE_AT_A_TIME = threading.Lock()


def _turn(held: dict[Entry, int], lblock: int, block: int, gen: int, kind: int) -> bool:
    """Take or give back an entry; False for one given back that is not held."""
    if kind == Kind.RELEASE:
        return held.pop((lblock, block), None) is not None
    held[lblock, block] = gen
    return True


def _first(steps: IntArray, after: int) -> int:
    at = int(np.searchsorted(steps, after, side="right"))
    return int(steps[at]) if at < len(steps) else _NEVER
