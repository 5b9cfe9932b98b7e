"""The rules of a sequence: what it reads was written before, its table is the worker's, it ends with nothing left."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvscope.inspector.screen.columns import BEGINS, ENDS, ENTRY_SIGN, NUMBERS, TAKES, Chunk, flags, table
from kvscope.inspector.screen.entries import EntryPass
from kvscope.inspector.screen.plain import beyond_steps
from kvscope.inspector.screen.runs import Runs, sorted_rows
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import Kind, Reason, digest_words

_KINDS = flags((*TAKES, *BEGINS, *ENDS, Kind.RELEASE, Kind.WRITE, Kind.SCHED, Kind.TRUNCATE, Kind.COW, Kind.SWAP_IN))
_BEGINS, _RESETS = flags(BEGINS), flags((*BEGINS, *ENDS, Kind.TRUNCATE, Kind.COW))
_OVER = table(dict.fromkeys(BEGINS, 0) | dict.fromkeys(ENDS, 1), -1)
_ENDS = flags(ENDS)
_WINDOW = np.uint8(Reason.WINDOW)
_MOST = 1 << 40  # positions
MOST_SEQUENCES = 1 << 24


class SequenceStates:
    """What is known of every sequence between two chunks: one element per sequence id."""

    def __init__(self, count: int) -> None:
        self.reach = np.zeros(count, dtype=np.int64)  # positions below are written, as far as the table holds them
        self.entries = np.zeros(count, dtype=np.int64)
        self.digest = np.zeros(count, dtype=np.uint64)
        self.slid = np.zeros(count, dtype=np.int64)  # leading blocks given back behind an attention window
        self.windows = False  # some sequence has given back such blocks
        self.over = np.zeros(count, dtype=np.int8)
        self.sched_seq = np.full(count, -1, dtype=np.int64)
        self.sched_step = np.full(count, -1, dtype=np.int64)

    def reserve(self, count: int) -> None:
        """Room for sequence ids below `count`."""
        have = len(self.reach)
        if count <= have or count > MOST_SEQUENCES:
            return
        more = SequenceStates(max(count, 2 * have) - have)
        for name, fresh in vars(more).items():
            if name != "windows":
                setattr(self, name, np.concatenate([getattr(self, name), fresh]))


class SequencePass:
    """The rows of a chunk sorted by sequence."""

    def __init__(
        self, chunk: Chunk, states: SequenceStates, entries: EntryPass, block_size: int, suspects: dict[str, IntArray]
    ) -> None:
        self.chunk, self.states, self.pass_of_entries, self.block_size = chunk, states, entries, block_size
        self.suspects = suspects
        rows = np.flatnonzero(_KINDS.take(chunk.kind))
        seq_id = chunk.seq_id.take(rows)
        outside = (seq_id < 0) | (seq_id >= len(states.reach))
        if outside.any():
            self._suspect("sequence exists", rows[outside])
            rows, seq_id = rows[~outside], seq_id[~outside]
        keys, sorted_ = sorted_rows(seq_id, rows, len(states.reach))
        self.kept = beyond_steps(chunk, keys, sorted_, block_size)
        self.rows, self.kind = sorted_.take(self.kept.at), self.kept.kind
        self.runs = Runs(keys.take(self.kept.at))
        self.tail_sched = np.where(self.kept.last >= 0, sorted_[self.kept.last], -1)
        self._picked = chunk.picked(self.rows)
        # Per row, for the pool: words that tables gain, entries of sequences that are over.
        self.words = np.zeros(len(self.rows), dtype=np.uint64)
        self.left_over = np.zeros(len(self.rows), dtype=np.int64)
        # Per chunk row, of a RELEASE: 1 + the step that used the entry.
        self.used = np.zeros(chunk.length, dtype=np.int64)
        # Per row: leading logical blocks that its sequence has given back behind its attention window.
        self.slid: IntArray | np.int64 = self._slid() if self._slides() else np.int64(0)

    def is_(self, kind: Kind) -> npt.NDArray[np.bool_]:
        return np.asarray(self.kind == NUMBERS[kind])

    def column(self, name: str) -> IntArray:
        return np.ascontiguousarray(self._picked[name])

    def _suspect(self, rule: str, rows: IntArray) -> None:
        if len(rows):
            self.suspects[rule] = rows

    def must(self, rule: str, kept: npt.NDArray[np.bool_]) -> None:
        """Every row keeps the rule."""
        if not kept.all():
            self._suspect(rule, self.rows[~kept])

    def positions(self, written_of: npt.NDArray[np.int32], over: npt.NDArray[np.bool_]) -> None:
        """Positions are written in order and never claimed twice; a step reads what is written.

        Args:
            written_of: per chunk row the slots written of its block, after the row.
            over: per chunk row, whether it writes slots that are written already.
        """
        runs, states, chunk, size, kind = self.runs, self.states, self.chunk, self.block_size, self.kind
        write, sched, truncate = self.is_(Kind.WRITE), self.is_(Kind.SCHED), self.is_(Kind.TRUNCATE)
        copy, alloc = self.is_(Kind.COW), self.is_(Kind.ALLOC)
        joins = self.is_(Kind.SHARE) | self.is_(Kind.HIT)
        base, aux = self.column("lblock").astype(np.int64) * size, self.column("aux")
        lo, hi = aux & 0xFFFFFFFF, aux >> 32
        joined = base + written_of[self.rows]
        ext = (base + hi) * write
        ext[joins], ext[truncate] = joined[joins], aux[truncate]
        if chunk.present[Kind.COW]:
            ext[copy] = base[copy] + chunk.copies[self.rows[copy]]
        arrives = self.is_(Kind.SWAP_IN)
        if chunk.present[Kind.SWAP_IN]:
            ext[arrives] = (base + written_of[self.rows])[arrives]
        placed = write | copy | arrives | (ENTRY_SIGN.take(kind) != 0)
        self.must("positions", (~placed | (base >= 0)) & (ext >= 0) & (ext < _MOST))
        resets = _RESETS[kind]
        reach = np.maximum(np.minimum(np.maximum(ext, 0), _MOST - 1), self.kept.reach)
        reach = runs.greatest(reach, resets, states.reach)
        before = runs.before(reach, states.reach)
        runs.keep(reach, states.reach)

        in_order = np.where(over[self.rows], base + lo == before, base + lo <= before)
        self.must("written in order", ~write | in_order)
        fresh = np.zeros(len(kind), dtype=np.bool_)  # the row follows the one that began its sequence
        fresh[1:] = _BEGINS[kind[:-1]] & ~runs.first[1:]
        full = joined == base + size
        begins = np.where(fresh, base == self.slid * size, before >= base)
        self.must("joined in order", ~joins | (begins & (full | (before <= joined))))
        self.must("truncate", ~truncate | ((aux >= 0) & (aux <= before)))
        self.must("read before written", ~sched | ((lo >= 0) & (lo <= hi) & (hi <= before)))
        self.must("new block", ~alloc | chunk.starts_copy[self.rows] | (base >= before))
        self.must("copied in order", ~(copy | arrives) | (before >= base))
        gone = self.is_(Kind.RELEASE) & self.pass_of_entries.current[self.rows]
        self.must("still needed", ~gone | (before <= base) | (self.column("reason") == _WINDOW))

    def tables(self) -> None:
        """The worker's table is the one that the events make; a sequence begins with an empty one."""
        runs, states, kind = self.runs, self.states, self.kind
        sign = ENTRY_SIGN.take(kind).astype(np.int64)
        touching = np.flatnonzero(sign)
        words = np.zeros(len(kind), dtype=np.uint64)
        entry = (self._picked[name][touching].astype(np.int64).view(np.uint64) for name in ("block", "gen", "lblock"))
        found = digest_words(*entry)
        words[touching] = found * sign[touching].astype(np.uint64)  # a minus is 2**64 - 1, and the product wraps
        self.words = words
        entries = runs.running(sign, states.entries)
        digest = runs.running(words, states.digest)
        self.must("begins empty", ~_BEGINS[kind] | (entries == 0))
        at = np.flatnonzero(self.is_(Kind.SCHED))
        where = self.chunk.detail_at(Kind.SCHED, self.rows[at])
        at, where = at[where >= 0], where[where >= 0]
        told = self.chunk.detail(Kind.SCHED)[1].values[where]
        lengths = entries + self.slid
        self._suspect("table", self.rows[at[(digest[at].view(np.int64) != told[:, 0]) | (lengths[at] != told[:, 1])]])
        runs.keep(digest, states.digest)
        self._ends(sign, entries)
        runs.keep(entries, states.entries)

    def _slides(self) -> bool:
        """Whether any sequence has given back blocks behind its attention window."""
        given = np.flatnonzero(self.is_(Kind.RELEASE))
        window = self._picked["reason"][given] == _WINDOW
        self._behind = given[window & self.pass_of_entries.current[self.rows[given]]]
        self.states.windows |= bool(len(self._behind))
        return self.states.windows

    def _slid(self) -> IntArray:
        """Leading logical blocks that each row's sequence has given back behind its attention window."""
        runs, states, chunk = self.runs, self.states, self.chunk
        behind = np.zeros(chunk.length, dtype=np.bool_)
        behind[self.rows[self._behind]] = True
        slid = dict(enumerate(states.slid.tolist()))
        said = np.full(chunk.length, -1, dtype=np.int64)
        rows = np.flatnonzero(behind | _BEGINS[chunk.kind])
        columns = (rows, chunk.kind[rows], chunk.seq_id[rows], chunk.lblock[rows], chunk.aux[rows])
        for row, kind, seq_id, lblock, parent in zip(*(c.tolist() for c in columns), strict=True):
            if kind == Kind.RELEASE:
                slid[seq_id] = max(slid.get(seq_id, 0), lblock + 1)
            else:
                slid[seq_id] = slid.get(parent, 0) if kind == Kind.FORK else 0
            said[row] = slid[seq_id]
        out = runs.filled(said[self.rows], said[self.rows] >= 0, states.slid)
        runs.keep(out, states.slid)
        return np.asarray(out, dtype=np.int64)

    def _ends(self, sign: IntArray, entries: IntArray) -> None:
        """How many entries sequences that are over still hold."""
        runs, states, kind = self.runs, self.states, self.kind
        said = _OVER.take(kind)
        over = runs.filled(said, said >= 0, states.over)
        before = runs.before(over, states.over)
        self.left_over = (sign * (before == 1) + entries * (before != 1)) * (over == 1)
        runs.keep(over, states.over)

    def steps(self, begun: IntArray) -> None:
        """Which step used what a sequence gives back.

        Args:
            begun: per chunk row, steps so far.
        """
        runs, states, chunk = self.runs, self.states, self.chunk
        sched = self.is_(Kind.SCHED)
        tail = self.tail_sched >= 0
        at = np.where(tail, self.tail_sched, self.rows)
        sched |= tail
        seq = runs.filled(at + chunk.first, sched, states.sched_seq)
        step = runs.filled(begun[at] - 1, sched, states.sched_step)
        release = self.is_(Kind.RELEASE)
        rows = self.rows[release]
        since = self.pass_of_entries.since[rows]
        self.used[rows] = np.where((since >= 0) & (since < seq[release]), step[release] + 1, 0)
        runs.keep(seq, states.sched_seq)
        runs.keep(step, states.sched_step)
