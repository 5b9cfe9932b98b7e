"""A trace written by hand, event by event: for tests of detectors and for small worked examples.

    trace = HandTrace(num_blocks=4, block_size=4)
    trace.alloc(0, seq_id=1)             # hands block 0 to sequence 1
    trace.write(0, 0, 3, seq_id=1)       # slots [0, 3)
    trace.release(0, seq_id=1).free(0)

It keeps just enough of a pool (life, count, fill) to fill in the columns that follow from the call; every column
can be given instead, which is how a faulty event is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvscope.inspector.source import IntArray
from kvscope.traces.schema import EVENT_DTYPE, EventArray, Kind, Reason, pack_range, table_digest
from kvscope.traces.sink import UNKNOWN_SITE, Details, Site

_FIELDS = EVENT_DTYPE.names or ()
_ABSENT = {"block": -1, "gen": -1, "seq_id": -1, "lblock": -1, "ref_before": -1, "ref_after": -1, "fill": -1}


@dataclass
class HandTrace:
    """A growing in-memory trace; every verb appends one event and returns the trace itself."""

    num_blocks: int = 4
    block_size: int = 4
    block_bytes: int = 64
    clean: bool = True
    dropped: int = 0
    tick_ns: int = 1000
    facts: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    actors: list[str] = field(default_factory=lambda: ["scheduler"])
    sites: list[Site] = field(default_factory=lambda: [UNKNOWN_SITE])

    def __post_init__(self) -> None:
        self._rows: list[dict[str, int]] = []
        self._seqs: list[int] = []
        self._details: dict[int, tuple[int, ...]] = {}
        self._gen, self._ref, self._fill = ([0] * self.num_blocks for _ in range(3))
        self._next_seq = 0
        self._site = 0
        self._step = 0

    # -- what the inspector reads -------------------------------------------------------------------------------

    @property
    def events(self) -> EventArray:
        """The rows so far."""
        out = np.zeros(len(self._rows), dtype=EVENT_DTYPE)
        for i, row in enumerate(self._rows):
            out[i] = tuple(row[name] for name in _FIELDS)
        return out

    @property
    def seqs(self) -> IntArray:
        """The number of each row."""
        return np.asarray(self._seqs, dtype=np.int64)

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of one event."""
        return self._details.get(seq)

    def details_of(self, kind: int) -> Details:
        """(seqs, values) of the events of a kind that have details."""
        rows = [s for s, row in zip(self._seqs, self._rows, strict=True) if row["kind"] == kind and s in self._details]
        return np.asarray(rows, dtype=np.int64), [self._details[s] for s in rows]

    # -- any event ----------------------------------------------------------------------------------------------

    def event(self, kind: Kind, *, details: tuple[int, ...] | None = None, **columns: int) -> HandTrace:
        """Append a row; columns that are not named do not apply."""
        return self._append(kind, columns, details)

    def _append(self, kind: Kind, columns: dict[str, int], details: tuple[int, ...] | None = None) -> HandTrace:
        row = dict.fromkeys(_FIELDS, 0) | _ABSENT
        row |= {"t_ns": self._next_seq * self.tick_ns, "kind": int(kind), "site": self._site, "step": self._step}
        row |= {name: int(value) for name, value in columns.items()}
        if details is not None:
            self._details[self._next_seq] = details
        self._rows.append(row)
        self._seqs.append(self._next_seq)
        self._next_seq += 1
        return self

    def lose(self, count: int) -> HandTrace:
        """The next `count` events happened, but were not kept."""
        self._next_seq += count
        return self

    def at(self, file: str, line: int, function: str) -> HandTrace:
        """The call site of the events that follow."""
        site = Site(file, line, function)
        if site not in self.sites:
            self.sites.append(site)
        self._site = self.sites.index(site)
        return self

    # -- verbs ----------------------------------------------------------------------------------------------------

    def alloc(self, block: int, *, seq_id: int, lblock: int = 0, **columns: int) -> HandTrace:
        """Hand a block to a sequence: a new life."""
        self._gen[block] += 1
        self._ref[block], self._fill[block] = 0, 0
        return self._move(Kind.ALLOC, block, 1, seq_id, lblock, {"reason": Reason.PREFILL} | columns)

    def share(self, block: int, *, seq_id: int, lblock: int = 0, **columns: int) -> HandTrace:
        """One more table entry, by a fork."""
        return self._move(Kind.SHARE, block, 1, seq_id, lblock, {"reason": Reason.FORK} | columns)

    def hit(self, block: int, *, seq_id: int, lblock: int = 0, **columns: int) -> HandTrace:
        """One more table entry, by the prefix cache."""
        return self._move(Kind.HIT, block, 1, seq_id, lblock, {"reason": Reason.PREFIX_HIT} | columns)

    def release(self, block: int, *, seq_id: int, lblock: int = 0, **columns: int) -> HandTrace:
        """One table entry gone."""
        return self._move(Kind.RELEASE, block, -1, seq_id, lblock, columns)

    def write(self, block: int, lo: int, hi: int, *, seq_id: int, lblock: int = 0, **columns: int) -> HandTrace:
        """Slots [lo, hi) are about to be written."""
        self._fill[block] = max(self._fill[block], hi)
        return self._move(Kind.WRITE, block, 0, seq_id, lblock, {"aux": pack_range(lo, hi)} | columns)

    def commit(self, block: int, **columns: int) -> HandTrace:
        """The step that wrote the block has completed."""
        return self._plain(Kind.COMMIT, block, columns)

    def publish(self, block: int, **columns: int) -> HandTrace:
        """The block is in the prefix index."""
        return self._plain(Kind.PUBLISH, block, columns)

    def free(self, block: int, **columns: int) -> HandTrace:
        """The block is on the free list."""
        return self._plain(Kind.FREE, block, columns)

    def quarantine(self, block: int, **columns: int) -> HandTrace:
        """Unheld, but an open step uses it."""
        return self._plain(Kind.QUARANTINE, block, columns)

    def settle(self, block: int, **columns: int) -> HandTrace:
        """That step is done."""
        return self._plain(Kind.SETTLE, block, columns)

    def evict(self, block: int, **columns: int) -> HandTrace:
        """A cached block is given up, and free."""
        return self._plain(Kind.EVICT, block, {"reason": Reason.CAPACITY} | columns).free(block)

    def lease(self, block: int, lease_id: int, lo: int, hi: int) -> HandTrace:
        """A named temporary holder of slots [lo, hi)."""
        return self._move(Kind.LEASE, block, 1, -1, -1, {"aux": lease_id}, (lo, hi))

    def unlease(self, block: int, lease_id: int) -> HandTrace:
        """That holder is gone."""
        return self._move(Kind.UNLEASE, block, -1, -1, -1, {"aux": lease_id})

    def copy_on_write(
        self, source: int, target: int, slots: int, *, seq_id: int, lblock: int = 0, lease_id: int = 1
    ) -> HandTrace:
        """The whole group: a private copy of `slots` leading slots takes the source's place in the table."""
        self.alloc(target, seq_id=seq_id, lblock=lblock, reason=Reason.COPY_ON_WRITE)
        self.lease(source, lease_id, 0, slots)
        self._fill[target] = slots
        self.event(Kind.COW, block=target, gen=self._gen[target], fill=slots, seq_id=seq_id, lblock=lblock,
                   aux=source, reason=Reason.COPY_ON_WRITE, details=(source, self._gen[source], 0, slots))  # fmt: skip
        return self.release(source, seq_id=seq_id, lblock=lblock, reason=Reason.COPY_ON_WRITE)

    def copy_done(self, source: int, target: int, lease_id: int = 1) -> HandTrace:
        """The copy has run on the device."""
        self.event(Kind.COPY_DONE, block=target, gen=self._gen[target], aux=source)
        return self.unlease(source, lease_id)

    def begin(self, *scheduled: tuple[int, int, int, list[tuple[int, int]]]) -> HandTrace:
        """A step opens over (seq_id, first position written, end position, the worker's table) of each sequence."""
        self._step += 1
        self.event(Kind.STEP_BEGIN, aux=len(scheduled))
        for seq_id, lo, hi, table in scheduled:
            digest = table_digest([b for b, _ in table], [g for _, g in table])
            self.event(Kind.SCHED, seq_id=seq_id, lblock=lo, fill=hi - lo, aux=pack_range(0, hi),
                       details=(digest, len(table)))  # fmt: skip
        return self

    def end(self) -> HandTrace:
        """The oldest open step has completed."""
        return self.event(Kind.STEP_END)

    def witness(self, *counts: int, table: list[tuple[int, int]] | None = None) -> HandTrace:
        """The pool's own counters, in the order of DETAIL_FIELDS; the digest is that of one table, or 0."""
        digest = table_digest([b for b, _ in table], [g for _, g in table]) if table else 0
        return self.event(Kind.WITNESS, details=(*counts, digest))

    def resize(self, before: int, num_blocks: int) -> HandTrace:
        """The pool grows, or shrinks, to `num_blocks` blocks; make the trace with the most it will have."""
        return self.event(Kind.GROW if num_blocks > before else Kind.SHRINK, aux=num_blocks, lblock=before)

    def request(self, request: int, name: str, seq_ids: list[int], prompt_tokens: int = 0) -> HandTrace:
        """A fact: which sequences a request has."""
        self.facts.append({"type": "request", "request": request, "name": name, "seq_ids": seq_ids,
                           "prompt_tokens": prompt_tokens})  # fmt: skip
        return self

    def _move(
        self,
        kind: Kind,
        block: int,
        delta: int,
        seq_id: int,
        lblock: int,
        columns: dict[str, int],
        details: tuple[int, ...] | None = None,
    ) -> HandTrace:
        before = self._ref[block]
        self._ref[block] += delta
        shown = {"block": block, "gen": self._gen[block], "ref_before": before, "ref_after": self._ref[block]}
        shown |= {"seq_id": seq_id, "lblock": lblock, "fill": self._fill[block]}
        return self._append(kind, shown | columns, details)

    def _plain(self, kind: Kind, block: int, columns: dict[str, int]) -> HandTrace:
        shown = {"block": block, "gen": self._gen[block], "ref_before": self._ref[block]}
        shown |= {"ref_after": self._ref[block], "fill": self._fill[block]}
        return self._append(kind, shown | columns)
