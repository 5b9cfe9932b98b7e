"""The replay core: what a pool must look like after each event, kept per block, per sequence and per step.

Detectors look at an event *before* it is applied here. The ledger itself judges nothing: it follows the events as
far as they make sense, so that one fault is not found again in everything that comes after it.

    Block      entries: who holds it in which table; leases; the slots written in this life; place when unheld
    Sequence   its table, whether it ended, up to where its reads are known to be written
    Step       steps end in the order they began; the writes that each will land

After lost events nothing is known: `known` is False until an event re-establishes the block or the sequence, and
what is not known is not judged.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from kvscope.inspector.detectors.moves import Copies, HostSlots
from kvscope.inspector.detectors.passing import details_by_kind
from kvscope.inspector.detectors.placing import Placing, has_steps
from kvscope.inspector.detectors.records import (
    FREE,
    QUARANTINED,
    UNPLACED,
    Block,
    Blocks,
    OpenStep,
    PendingWrite,
    Row,
    Sequence,
)  # fmt: skip
from kvscope.inspector.detectors.tables import Tables
from kvscope.inspector.findings import Finding
from kvscope.inspector.source import Frozen, TraceLike, rows_until, size_after
from kvscope.traces.schema import Kind, Reason, unpack_range

MAX_FINDINGS = 10_000  # a trace that is all faults would fill the memory; the others are counted

Handler = Callable[[Row, Block], None]


class Ledger(Tables):
    """Pool, tables and steps as the events so far make them."""

    def __init__(self, trace: TraceLike) -> None:
        super().__init__()
        self.trace = trace
        self.block_size = trace.block_size
        self.num_blocks = size_after(trace, 0)  # now; GROW and SHRINK change it
        self.id_end = self.num_blocks  # block ids are below; after lost events, of which one may be a GROW, any may be
        self.full = (1 << trace.block_size) - 1
        self.ordered = has_steps(trace)
        self.blocks = Blocks()
        self.details = details_by_kind(trace)
        self.seq = -1  # number of the event at hand
        self.findings: list[Finding] = []
        self.not_kept = 0
        self.open_steps: deque[OpenStep] = deque()
        self.begun = self.completed = -1  # ordinals of the last step that began, that ended
        self.steps_known = True  # False after lost events: which steps are open cannot be told any more
        self.last_begin_seq = self.last_step_seq = -1  # the last STEP_BEGIN; the last STEP_BEGIN or STEP_END
        self.issued: dict[int, list[PendingWrite]] = {}  # per sequence, not yet taken by a step
        self.copies = Copies(self)
        self.host = HostSlots(self)
        self.placing = Placing(self)
        self.unknown_blocks = 0
        self.unknown_tables = False
        self.lost = False  # whether events are missing
        self.unjudged = 0
        self.touched: set[int] = set()
        self.ever_written: defaultdict[int, int] = defaultdict(int)  # block -> bit per slot
        self.nobody = Block(-1, known=False)

    def continue_with(self, trace: Frozen) -> None:
        """The trace has grown: `trace` holds all that was seen, and more."""
        self.trace, self.ordered = trace, self.ordered or has_steps(trace)
        for kind, known in self.details.items():
            seqs, offsets, values = trace.detail_arrays(int(kind))
            for i in range(int(np.searchsorted(seqs, self.seq, side="right")), len(seqs)):
                known[int(seqs[i])] = tuple(values[offsets[i] : offsets[i + 1]].tolist())

    # -- what detectors ask and say ---------------------------------------------------------------------------------

    def find(self, code: str, row: Row, why: str, block: Block | None = None, **more: int) -> None:
        """Report a broken rule at the event at hand; `more` names related events, or slot_lo/slot_hi/seq/gen."""
        seq = more.pop("seq", self.seq)
        slots = {name: more.pop(name) for name in ("slot_lo", "slot_hi", "gen") if name in more}
        seq_id = more.pop("seq_id", row.seq_id)
        story = (block.story if block is not None else {}) | more
        others = tuple(s for s in block.holders if s != seq_id) if block is not None else ()
        if block is not None:
            slots.setdefault("gen", row.gen if row.gen >= 0 else block.gen)
        if len(self.findings) >= MAX_FINDINGS:
            self.not_kept += 1
            return
        related = tuple((role, event) for role, event in story.items() if event >= 0)
        where = block.id if block is not None else -1
        self.findings.append(
            Finding(code, seq, row.step, why, block=where, seq_id=seq_id, others=others, related=related, **slots)
        )

    def dead(self, row: Row, block: Block) -> bool:
        """Whether the life that the event speaks of is over: another one began, or the block is nobody's."""
        if not block.known:
            return False
        if row.gen >= 0 and row.gen < block.gen:
            return True
        return (not block.held and not block.published) or block.place == FREE

    def row_at(self, seq: int) -> Row:
        """An earlier event."""
        return Row._make(self.trace.events[rows_until(self.trace, seq) - 1].tolist())

    def sequence(self, seq_id: int) -> Sequence:
        """The record of a sequence; one that appears after lost events without an admission is not known."""
        found = self.sequences.get(seq_id)
        if found is None:
            found = self.sequences[seq_id] = Sequence(seq_id, known=not self.unknown_tables)
        return found

    # -- the table of handlers ----------------------------------------------------------------------------------------

    def handlers(self) -> dict[int, Handler]:
        """What applying an event of each kind means."""
        return {
            Kind.ALLOC: self._alloc, Kind.SHARE: self._retain, Kind.HIT: self._retain, Kind.RELEASE: self._release,
            Kind.FREE: self._free, Kind.SETTLE: self._free, Kind.QUARANTINE: self._quarantine,
            Kind.WRITE: self._write, Kind.COMMIT: self._commit, Kind.PUBLISH: self._publish,
            Kind.UNPUBLISH: self._unpublish, Kind.EVICT: self._unpublish, Kind.COW: self.copies.decided,
            Kind.COPY_DONE: self.copies.done, Kind.LEASE: self._lease, Kind.UNLEASE: self._unlease,
            Kind.TRUNCATE: self._truncate, Kind.ADMIT: self._admit, Kind.RESUME: self._admit, Kind.FORK: self._admit,
            Kind.FINISH: self._ended, Kind.ABORT: self._ended, Kind.PREEMPT: self._ended,
            Kind.STEP_BEGIN: self._step_begin, Kind.SCHED: self._sched, Kind.STEP_END: self._step_end,
            Kind.GROW: self._resized, Kind.SHRINK: self._resized, Kind.SWAP_OUT: self.host.swap_out,
            Kind.SWAP_IN: self.host.swap_in,
        }  # fmt: skip

    def lose(self) -> None:
        """Events were lost here: forget what can no longer be relied on."""
        self.blocks.lose()
        self.id_end, self.lost = 2**31, True
        self.host.lose()
        self.unknown_blocks = self.num_blocks
        for sequence in self.sequences.values():
            sequence.known = False
            sequence.began = sequence.ended = sequence.sched_seq = sequence.sched_step = -1
        self.unknown_tables = True
        self.steps_known = False
        self.issued.clear()
        self.open_steps.clear()
        self.completed = self.begun
        self.copies.clear()

    # -- applying ------------------------------------------------------------------------------------------------------

    def _known(self, block: Block) -> None:
        if not block.known:
            block.known = True
            self.unknown_blocks -= 0 <= block.id < self.num_blocks

    def _alloc(self, row: Row, block: Block) -> None:
        self._known(block)
        for seq_id, _ in block.entries:  # a faulty hand-out: these tables now lead into another life
            self.sequence(seq_id).suspect = True
        block.gen = max(row.gen, block.gen) if row.gen >= 0 else block.gen + 1
        block.ref, block.ref_other = row.ref_after, -1
        block.entries, block.leases, block.released, block.extra = {}, {}, {}, {}
        block.place, block.published, block.published_as, block.published_at = UNPLACED, False, None, -1
        block.written, block.last_use, block.unbound_write = 0, -1, -1
        block.story = {"allocated": self.seq}
        self._enter(row, block)

    def _retain(self, row: Row, block: Block) -> None:
        if row.kind == Kind.HIT:
            if not block.known and row.ref_before == 0:  # found in the index and held by nobody: all is known of it
                block.forget(row.gen)
                block.written = self.full
                self._known(block)
            block.published = True
        block.take_again((row.seq_id, row.lblock), row, self.seq)
        block.ref, block.ref_other = row.ref_after, -1
        block.story["shared" if row.kind == Kind.SHARE else "hit"] = self.seq
        if row.kind == Kind.SHARE and row.reason != Reason.RESIZED:
            sequence = self.sequence(row.seq_id)
            parent = self.sequences.get(sequence.parent)
            given = min(parent.issued_to, (row.lblock + 1) * self.block_size) if parent is not None else 0
            sequence.issued_to = max(sequence.issued_to, given)
        if block.place == QUARANTINED:
            block.place = UNPLACED
        self._enter(row, block)

    def _enter(self, row: Row, block: Block) -> None:
        """A table entry is there."""
        key = (row.seq_id, row.lblock)
        if key not in block.entries:
            block.entries[key] = self.seq
        block.released.pop(key, None)
        sequence = self.sequence(row.seq_id)
        if sequence.slid < 0:
            sequence.slid = row.lblock
        sequence.replaced = (*sequence.table.get(row.lblock, (-1, -1)), row.lblock)
        self._drop(sequence, row.lblock)
        life = (block.id, row.gen if row.gen >= 0 else block.gen)
        sequence.table[row.lblock] = life
        self.entries += 1
        self._digest(sequence, row.lblock, life, 1)
        sequence.checked_to = min(sequence.checked_to, row.lblock * self.block_size)

    def _release(self, row: Row, block: Block) -> None:
        key = (row.seq_id, row.lblock)
        sequence = self.sequence(row.seq_id)
        stands = sequence.table.get(row.lblock) == (block.id, row.gen if row.gen >= 0 else block.gen)
        if block.gives_extra(row, self.seq, stands=stands):
            if row.ref_after == 0:
                self._unheld(block)
            return
        since = block.entries.pop(key, None) if row.gen < 0 or row.gen == block.gen else None
        if stands:
            self._drop(sequence, row.lblock)
            if row.reason == Reason.WINDOW:
                sequence.slid = max(sequence.slid, row.lblock + 1)
            else:
                sequence.issued_to = min(sequence.issued_to, row.lblock * self.block_size)
        if since is None and block.known:
            block.ref_other = row.ref_after  # refused by a sound pool, carried out by a faulty one
            return
        if row.seq_id in self.issued:  # what it gives back, no step of it will write
            self.issued[row.seq_id] = [w for w in self.issued[row.seq_id] if w.block != block.id]
        block.ref, block.ref_other = row.ref_after, -1
        block.released[key] = self.seq
        block.story["released"] = self.seq
        if since is not None and since < sequence.sched_seq:
            block.last_use = max(block.last_use, sequence.sched_step)
        if row.ref_after == 0:
            self._unheld(block)

    def _unheld(self, block: Block) -> None:
        """Nobody holds it: where it goes, the next event of the operation says (none: it stays cached)."""
        if block.known:
            block.place = UNPLACED

    def _free(self, row: Row, block: Block) -> None:
        for seq_id, _ in block.entries:
            self.sequence(seq_id).suspect = True
        if not block.known:
            block.forget(row.gen)
            self._known(block)
        if row.gen >= 0 and row.gen < block.gen:
            return
        block.place, block.published = FREE, False
        block.story["freed"] = self.seq

    def _quarantine(self, row: Row, block: Block) -> None:
        self._free(row, block)
        if row.gen < 0 or row.gen >= block.gen:
            block.place = QUARANTINED
            block.story["quarantined"] = block.story.pop("freed")

    def _write(self, row: Row, block: Block) -> None:
        lo, hi = unpack_range(row.aux)
        if not 0 <= lo < hi <= self.block_size:
            return
        bits = (1 << hi) - (1 << lo)
        self.ever_written[block.id] |= bits
        if row.seq_id >= 0:
            sequence, first = self.sequence(row.seq_id), row.lblock * self.block_size + lo
            sequence.issued_to = max(sequence.issued_to, first + hi - lo)
            write = PendingWrite(block.id, row.gen, lo, hi, self.seq, row.seq_id, first, bits & ~block.written)
            self.issued.setdefault(row.seq_id, []).append(write)
        if row.gen >= 0 and row.gen < block.gen:
            return
        block.written |= bits
        block.unbound_write = self.seq
        block.story["last_write"] = self.seq

    def _truncate(self, row: Row, block: Block) -> None:
        sequence = self.sequence(row.seq_id)
        sequence.issued_to = min(sequence.issued_to, max(row.aux, 0))
        self.placing.cut(row)

    def _commit(self, row: Row, block: Block) -> None:
        block.unbound_write = -1

    def _publish(self, row: Row, block: Block) -> None:
        if row.gen < 0 or row.gen >= block.gen:
            block.published = True
            block.story["published"] = self.seq
            block.published_as = self.details[Kind.PUBLISH].get(self.seq)
            block.published_at = row.lblock

    def _unpublish(self, row: Row, block: Block) -> None:
        if row.gen < 0 or row.gen >= block.gen:
            block.published = False
            block.story["evicted" if row.kind == Kind.EVICT else "unpublished"] = self.seq

    def _lease(self, row: Row, block: Block) -> None:
        block.take_again((-1, row.aux), row, self.seq)
        lo, hi = (self.details[Kind.LEASE].get(self.seq) or (0, self.block_size))[:2]
        block.leases[row.aux] = (lo, hi, self.seq)
        block.ref, block.ref_other = row.ref_after, -1

    def _unlease(self, row: Row, block: Block) -> None:
        self.host.unleased(row.aux)
        if block.give_back_extra((-1, row.aux)):
            block.ref, block.ref_other = row.ref_after, -1
            return
        if block.leases.pop(row.aux, None) is None and block.known:
            block.ref_other = row.ref_after
            return
        block.ref, block.ref_other = row.ref_after, -1
        if row.ref_after == 0:
            self._unheld(block)

    def _admit(self, row: Row, block: Block) -> None:
        sequence = self.sequence(row.seq_id)
        self._clear(sequence)
        self.host.left(row.seq_id)
        sequence.known = True
        sequence.began = self.seq
        sequence.checked_to = 0
        sequence.parent, sequence.issued_to = row.aux if row.kind == Kind.FORK else -1, 0
        sequence.slid = -1 if row.kind == Kind.FORK else 0  # the first entry that a fork is given says

    def _ended(self, row: Row, block: Block) -> None:
        sequence = self.sequence(row.seq_id)
        sequence.ended, sequence.ended_kind = self.seq, row.kind
        sequence.issued_to = 0
        if row.kind != Kind.PREEMPT:
            self.host.left(row.seq_id)
        self.ending.add(row.seq_id)
        self.placing.dropped(self.issued.pop(row.seq_id, []))

    def _resized(self, row: Row, block: Block) -> None:
        self.num_blocks = self.id_end = row.aux
        if self.lost:
            known = sum(found.known for found in self.blocks.values() if 0 <= found.id < self.num_blocks)
            self.unknown_blocks = max(self.num_blocks - known, 0)

    def _step_begin(self, row: Row, block: Block) -> None:
        self.begun += 1
        self.open_steps.append(OpenStep(self.begun, self.seq))
        self.last_begin_seq = self.last_step_seq = self.seq

    def _sched(self, row: Row, block: Block) -> None:
        sequence = self.sequence(row.seq_id)
        sequence.sched_seq, sequence.sched_step = self.seq, self.begun
        writes = self.issued.pop(row.seq_id, [])
        if self.open_steps:
            self.open_steps[-1].writes.extend(writes)
        for write in writes:
            self.blocks[write.block].unbound_write = -1

    def _step_end(self, row: Row, block: Block) -> None:
        if self.open_steps:
            self.completed = self.open_steps.popleft().ordinal
        self.last_step_seq = self.seq
