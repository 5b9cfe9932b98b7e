"""A long trace, made fast: decoding of many sequences, some of them forks that share their prompt's blocks.

The same arguments give the same trace. The events obey the ledger's rules, so a check of it is clean.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces import EventSink, Kind, PoolFacts, Reason, Recorder

BLOCK_SIZE = 16
PROMPT_BLOCKS = 8


class Load:
    """`rows` sequences at a time on a pool of `num_blocks`; even rows have a prompt of their own, odd ones fork it."""

    def __init__(self, sink: EventSink, num_blocks: int, rows: int) -> None:
        self.sink = sink
        self.rng = np.random.default_rng(0)
        self.free = deque(self.rng.permutation(num_blocks).tolist())
        self.gens = np.zeros(num_blocks, np.int32)
        self.refs = np.zeros(num_blocks, np.int16)
        self.tables: list[list[int]] = [[] for _ in range(rows)]
        self.seq_ids = np.zeros(rows, np.int32)
        self.lengths = np.zeros(rows, np.int64)
        self.limits = np.zeros(rows, np.int64)
        self.last = np.zeros(rows, np.int32)
        self.width = np.zeros(rows, np.int32)
        self.step = self.events = self.next_id = 0

    def one(self, kind: int, reason: int = 0, **columns: int) -> int:
        """One row."""
        self.events += 1
        return self.sink.emit(kind, reason, **columns)

    def many(self, kind: int, reason: int = 0, **columns: Any) -> None:
        """Rows, as many as the arrays are long."""
        self.events += max(len(value) for value in columns.values() if isinstance(value, np.ndarray))
        self.sink.emit_many(kind, reason, **columns)

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """Blocks off the free list, each in a new life."""
        blocks = np.asarray([self.free.popleft() for _ in range(count)], np.int32)
        self.gens[blocks] += 1
        self.refs[blocks] = 1
        return blocks

    def admit(self, row: int) -> None:
        """A new sequence in a row: with a prompt, or as a fork of its neighbour."""
        sink, seq_id = self.sink, self.next_id
        self.next_id += 1
        sink.begin()
        parent = self.tables[row - 1][:PROMPT_BLOCKS] if row % 2 else []
        lblocks = np.arange(PROMPT_BLOCKS, dtype=np.int32)
        whole = np.full(PROMPT_BLOCKS, BLOCK_SIZE << 32)  # the slots [0, BLOCK_SIZE) of each
        tokens = PROMPT_BLOCKS * BLOCK_SIZE
        if len(parent) == PROMPT_BLOCKS:
            self.one(Kind.FORK, seq_id=seq_id, aux=int(self.seq_ids[row - 1]))
            blocks = np.asarray(parent, np.int32)
            before = self.refs[blocks].copy()
            self.refs[blocks] += 1
            self.many(Kind.SHARE, Reason.FORK, block=blocks, gen=self.gens[blocks], ref_before=before,
                      ref_after=before + 1, fill=BLOCK_SIZE, seq_id=seq_id, lblock=lblocks)  # fmt: skip
        else:
            self.one(Kind.SUBMIT, seq_id=seq_id, aux=tokens)
            self.one(Kind.ADMIT, seq_id=seq_id)
            blocks = self.take(PROMPT_BLOCKS)
            self.many(Kind.ALLOC, Reason.PREFILL, block=blocks, gen=self.gens[blocks], ref_before=0, ref_after=1,
                      seq_id=seq_id, lblock=lblocks)  # fmt: skip
            self.many(Kind.WRITE, Reason.PREFILL, block=blocks, gen=self.gens[blocks], ref_before=1, ref_after=1,
                      fill=BLOCK_SIZE, seq_id=seq_id, lblock=lblocks, aux=whole)  # fmt: skip
        self.tables[row] = blocks.tolist()
        self.seq_ids[row], self.lengths[row] = seq_id, tokens
        self.limits[row] = tokens + int(self.rng.integers(50, 900))
        self.last[row], self.width[row] = self.tables[row][-1], PROMPT_BLOCKS

    def finish(self, row: int) -> None:
        """A sequence ends: its blocks go back, last one first."""
        sink, seq_id, table = self.sink, int(self.seq_ids[row]), self.tables[row]
        sink.begin()
        self.one(Kind.FINISH, Reason.LENGTH, seq_id=seq_id, aux=int(self.lengths[row]) - PROMPT_BLOCKS * BLOCK_SIZE)
        used = int(self.lengths[row]) - BLOCK_SIZE * (len(table) - 1)
        for lblock in range(len(table) - 1, -1, -1):
            block = table[lblock]
            ref, gen = int(self.refs[block]), int(self.gens[block])
            self.one(Kind.RELEASE, Reason.LENGTH, block=block, gen=gen, ref_before=ref, ref_after=ref - 1,
                     fill=used if lblock == len(table) - 1 else BLOCK_SIZE, seq_id=seq_id, lblock=lblock)  # fmt: skip
            self.refs[block] = ref - 1
            if ref == 1:
                self.one(Kind.FREE, Reason.LENGTH, block=block, gen=gen)
                self.free.append(block)
        self.tables[row] = []

    def run_step(self) -> None:
        """Every row decodes one token."""
        sink = self.sink
        sink.step = self.step
        self.step += 1
        for row in np.flatnonzero(self.lengths >= self.limits).tolist():
            if self.tables[row]:
                self.finish(row)
            self.admit(row)
        sink.begin()
        slots = self.lengths % BLOCK_SIZE
        fresh = np.flatnonzero(slots == 0)
        if len(fresh):
            blocks = self.take(len(fresh))
            self.last[fresh] = blocks
            for row, block in zip(fresh.tolist(), blocks.tolist(), strict=True):
                self.tables[row].append(block)
            self.many(Kind.ALLOC, Reason.DECODE, block=blocks, gen=self.gens[blocks], ref_before=0, ref_after=1,
                      seq_id=self.seq_ids[fresh], lblock=self.width[fresh])  # fmt: skip
            self.width[fresh] += 1
        fill = (slots + 1).astype(np.int16)
        gens = self.gens[self.last]
        self.many(Kind.WRITE, Reason.DECODE, block=self.last, gen=gens, ref_before=1, ref_after=1, fill=fill,
                  seq_id=self.seq_ids, lblock=self.width - 1, aux=slots | (slots + 1) << 32)  # fmt: skip
        sink.begin()
        self.one(Kind.STEP_BEGIN, aux=len(slots))
        self.many(Kind.SCHED, seq_id=self.seq_ids, lblock=self.lengths.astype(np.int32), fill=1,
                  aux=self.lengths + 1 << 32)  # fmt: skip
        sink.begin()
        self.many(Kind.COMMIT, block=self.last, gen=gens, fill=fill)
        self.one(Kind.STEP_END, aux=len(slots))
        self.lengths += 1


def make(path: Path, events: int, *, num_blocks: int = 65_536, rows: int = 512, **options: Any) -> int:
    """Record a trace of at least `events` events; returns how many it has."""
    pool = PoolFacts(num_blocks, BLOCK_SIZE, 1 << 20)
    clock = _Clock()
    with Recorder(path, pool=pool, sealing="inline", clock=clock, wall_clock=clock, **options) as sink:
        load = Load(sink, num_blocks, rows)
        while load.events < events:
            load.run_step()
    return load.events


class _Clock:
    """A millisecond for each reading."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now
