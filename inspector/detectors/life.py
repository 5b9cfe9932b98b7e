"""Lives and steps: GEN (dead lives), FENCE (steps), INIT (unwritten slots), SLOT (bounds)."""

from __future__ import annotations

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import FREE, QUARANTINED, Block, Row, Sequence
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.source import Names, life
from kvscope.inspector.units import agrees, counted
from kvscope.traces.schema import Kind, Reason, unpack_range


class Gen(Detector):
    """No write into, read from or copy of a life that is over."""

    name, codes = "GEN", ("KV001", "KV002")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._said: set[tuple[int, int, int]] = set()

    def on_write(self, row: Row, block: Block) -> None:
        if self.ledger.dead(row, block):
            lo, hi = unpack_range(row.aux)
            self.ledger.find("KV001", row, f"the write was issued after {_now(row, block)}", block,
                             slot_lo=lo, slot_hi=hi)  # fmt: skip

    def on_sched(self, row: Row, block: Block) -> None:
        sequence = self.ledger.sequences.get(row.seq_id)
        if sequence is None or not sequence.suspect or not sequence.known:
            return
        _, hi = unpack_range(row.aux)
        for lblock, (b, gen) in sorted(sequence.table.items()):
            found = self.ledger.blocks[b]
            read = lblock * self.ledger.block_size < hi
            if not read or not found.known or (found.gen == gen and found.place != FREE):
                continue
            if (row.seq_id, b, gen) not in self._said:
                self._said.add((row.seq_id, b, gen))
                slots = min(self.ledger.block_size, hi - lblock * self.ledger.block_size)
                self.ledger.find(
                    "KV002", row, f"the step of {self._names(row.seq_id)} reads its block {lblock}, {life(b, gen)}, "
                    f"after {_now(row._replace(gen=gen), found)}", found, gen=gen, slot_lo=0, slot_hi=slots,
                )  # fmt: skip

    def on_cow(self, row: Row, block: Block) -> None:
        source, gen, lo, hi = self.ledger.copies.of(row)
        if 0 <= source < self.ledger.num_blocks:
            found = self.ledger.blocks[source]
            if self.ledger.dead(row._replace(gen=gen), found):
                self._copied(row, found, gen, lo, hi, "was issued")

    def on_copy_done(self, row: Row, block: Block) -> None:
        copy = self.ledger.copies.get((row.block, row.gen))
        if copy is None or copy[0] < 0:
            return
        source, gen = self.ledger.blocks[copy[0]], copy[1]
        if self.ledger.dead(row._replace(gen=gen), source):
            self._copied(row, source, gen, -1, -1, "ran")

    def _copied(self, row: Row, source: Block, gen: int, lo: int, hi: int, verb: str) -> None:
        ended = _now(row._replace(gen=gen), source)
        why = f"the copy into {life(row.block, row.gen)} {verb} after {ended}"
        self.ledger.find("KV002", row, why, source, gen=gen, slot_lo=lo, slot_hi=hi)


def _now(row: Row, block: Block) -> str:
    name = life(block.id, row.gen)
    if 0 <= row.gen < block.gen:
        return f"{name} had ended: it is {life(block.id, block.gen)} by now"
    if block.place in (FREE, QUARANTINED):
        return f"{name} had been released: it is {block.place}"
    return f"the last holder of {name} was gone"


class Fence(Detector):
    """What a step uses is not handed out before the step has completed."""

    name, codes = "FENCE", ("KV001", "KV013")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._moves: set[tuple[int, int]] = set()  # lives that moved, or went, too early
        self._taken: set[tuple[int, int]] = set()  # lives that ended by a second hand-out: nobody freed them

    def on_alloc(self, row: Row, block: Block) -> None:
        if block.known and block.held and block.place not in (FREE, QUARANTINED):
            self._taken.add((block.id, block.gen))
        if not block.known or block.held or block.published:
            return
        if block.place == QUARANTINED:
            self._early(row, block, "it is still in quarantine")
        elif self.ledger.steps_known and block.last_use > self.ledger.completed:
            self._early(row, block, "the last step that used it has not completed")

    def on_release(self, row: Row, block: Block) -> None:
        """A block does not move while a step that has begun uses it."""
        if row.reason != Reason.RESIZED or not block.known or not self.ledger.steps_known:
            return
        since, sequence = block.entries.get((row.seq_id, row.lblock)), self.ledger.sequence(row.seq_id)
        if since is not None and since < sequence.sched_seq and sequence.sched_step > self.ledger.completed:
            self._moved(row, block, sequence.sched_step, "is moved")

    def on_shrink(self, row: Row, block: Block) -> None:
        """Nor does it go."""
        for number, gone in sorted(self.ledger.blocks.items()) if self.ledger.steps_known else ():
            used = gone.known and gone.last_use > self.ledger.completed and (number, gone.gen) not in self._moves
            free = gone.place == FREE and not gone.held and not gone.published  # else CONS says more
            if used and free and row.aux <= number < self.ledger.num_blocks:
                self._moved(row, gone, gone.last_use, "goes with the end of the pool")

    def _moved(self, row: Row, block: Block, step: int, verb: str) -> None:
        self._moves.add((block.id, block.gen))
        begun = [s.begin_seq for s in self.ledger.open_steps if s.ordinal == step]
        why = f"{life(block.id, block.gen)} {verb} while a step that uses it is open"
        self.ledger.find("KV013", row, why, block, gen=block.gen, step_begin=begun[0] if begun else -1)

    def on_settle(self, row: Row, block: Block) -> None:
        # The fence of the oldest open step passes just before its STEP_END is written.
        late = self.ledger.steps_known and block.last_use > self.ledger.completed + 1
        if late and block.known and block.place == QUARANTINED:
            self._early(row, block, "it leaves quarantine while a later step still uses it")

    def on_step_end(self, row: Row, block: Block) -> None:
        if not self.ledger.open_steps or not self.ledger.steps_known:
            return
        for write in self.ledger.open_steps[0].writes:
            target = self.ledger.blocks[write.block]
            over = target.known and 0 <= write.gen < target.gen
            if over and (write.block, write.gen) not in self._taken:
                why = (
                    f"the write was issued before {life(write.block, write.gen)} was freed, but landed (seq "
                    f"{self.ledger.seq}) after the block was handed out again as {life(target.id, target.gen)}"
                )
                self.ledger.find(
                    "KV001", self.ledger.row_at(write.seq), why, target, seq=write.seq, gen=write.gen,
                    slot_lo=write.lo, slot_hi=write.hi, landed=self.ledger.seq,
                )  # fmt: skip

    def _early(self, row: Row, block: Block, why: str) -> None:
        steps = [s.begin_seq for s in self.ledger.open_steps if s.ordinal == block.last_use]
        self.ledger.find("KV013", row, f"{life(block.id, block.gen)} is reused too early: {why}", block, gen=block.gen,
                         step_begin=steps[0] if steps else -1)  # fmt: skip


class Init(Detector):
    """No slot is read that was not written in its block's current life."""

    name, codes = "INIT", ("KV009",)

    def on_sched(self, row: Row, block: Block) -> None:
        sequence = self.ledger.sequences.get(row.seq_id)
        lo, hi = unpack_range(row.aux)
        if sequence is None or not sequence.known:
            return
        size, full = self.ledger.block_size, True
        self.ledger.placing.misplaced(row)  # before what is read counts as written
        start = max(lo, sequence.checked_to)
        for lblock in range(start // size, (hi + size - 1) // size):
            full = self._written(row, sequence, lblock, max(start - lblock * size, 0), min(hi - lblock * size, size))
            if not full:
                break
        if full and lo <= sequence.checked_to:
            sequence.checked_to = max(sequence.checked_to, hi)

    def on_cow(self, row: Row, block: Block) -> None:
        source, gen, lo, hi = self.ledger.copies.of(row)
        if not 0 <= source < self.ledger.num_blocks or not 0 <= lo < hi <= self.ledger.block_size:
            return
        found = self.ledger.blocks[source]
        missing = ((1 << hi) - (1 << lo)) & ~found.written
        if missing and found.known and found.gen == gen:
            self._unwritten(row, found, missing, f"the copy into {life(row.block, row.gen)}")

    def on_copy_done(self, row: Row, block: Block) -> None:
        copy = self.ledger.copies.get((row.block, row.gen))
        if copy is None:
            return
        source, gen, _, hi = copy
        if 0 <= row.fill < hi:  # `fill` of a COPY_DONE: the slots that were really copied
            what = f"the copy of {life(source, gen)} into {life(row.block, row.gen)}"
            self.ledger.find(
                "KV009", row, f"{what} moved {counted(row.fill, 'slot')} of {hi}: slots [{row.fill}:{hi}] are read, "
                "but hold nothing", block, slot_lo=row.fill, slot_hi=hi,
            )  # fmt: skip

    def _written(self, row: Row, sequence: Sequence, lblock: int, lo: int, hi: int) -> bool:
        entry = sequence.table.get(lblock)
        if entry is None or lo >= hi:
            return entry is not None
        found = self.ledger.blocks[entry[0]]
        if not found.known or found.gen != entry[1]:
            return False  # unknown, or a dead life: GEN's
        missing = ((1 << hi) - (1 << lo)) & ~found.written
        if missing:
            misplaced = self.ledger.placing.misplaced(row)
            self._unwritten(row, found, missing, "the step", misplaced.write.seq if misplaced is not None else -1)
            found.written |= missing  # said once
        return not missing

    def _unwritten(self, row: Row, block: Block, missing: int, reader: str, misplaced: int = -1) -> None:
        lo = (missing & -missing).bit_length() - 1
        hi, count = missing.bit_length(), missing.bit_count()
        self.ledger.find(
            "KV009", row, f"{reader} reads slots [{lo}:{hi}] of {life(block.id, block.gen)}, of which {count} "
            f"{agrees(count, 'was', 'were')} never written in this life", block, slot_lo=lo, slot_hi=hi, gen=block.gen,
            misplaced=misplaced,
        )  # fmt: skip


class Slot(Detector):
    """Blocks and slots exist, each position is written where it lies, and once: a sequence goes on where it is."""

    name, codes = "SLOT", ("KV019",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._said: set[int] = set()  # writes

    def on_write(self, row: Row, block: Block) -> None:
        lo, hi = unpack_range(row.aux)
        if not 0 <= lo < hi <= self.ledger.block_size:
            self.ledger.find("KV019", row, f"a write of slots [{lo}:{hi}] of {life(block.id, row.gen)}: a block has "
                             f"slots 0..{self.ledger.block_size - 1}", block, slot_lo=lo, slot_hi=hi)  # fmt: skip
            return
        sequence, first = self.ledger.sequences.get(row.seq_id), row.lblock * self.ledger.block_size + lo
        if sequence is None or not sequence.known or first >= sequence.issued_to or self.ledger.dead(row, block):
            return
        alone = not block.published and not block.leases and block.entries.keys() == {(row.seq_id, row.lblock)}
        if block.known and alone and ((1 << hi) - (1 << lo)) & block.written:
            self._said.add(self.ledger.seq)
            self.ledger.find(
                "KV019", row, f"{self._names(row.seq_id)} writes slots [{lo}:{hi}] of {life(block.id, row.gen)}, its "
                f"position {first}, over what it has there: it goes on at {sequence.issued_to}",
                block, slot_lo=lo, slot_hi=hi,
            )  # fmt: skip

    def on_sched(self, row: Row, block: Block) -> None:
        """What the step computes is written where it lies."""
        found = self.ledger.placing.misplaced(row)
        if found is None or found.write.seq in self._said:
            return
        write, size = found.write, self.ledger.block_size
        self._said.add(write.seq)
        lblock, slot = divmod(found.due, size)
        entry = self.ledger.sequences[row.seq_id].table.get(lblock)
        where = f"slot {slot} ({found.due} % {size}) of its block {lblock}"
        where += f", {life(*entry)}" if entry is not None else ", which its table does not have"
        self.ledger.find(
            "KV019", self.ledger.row_at(write.seq), f"{self._names(row.seq_id)} writes its position {found.due} into "
            f"slot {found.went % size} of {life(write.block, write.gen)}, where position {found.went} belongs: "
            f"position {found.due} lies in {where}", self.ledger.blocks[write.block], seq=write.seq, gen=write.gen,
            slot_lo=write.lo, slot_hi=write.hi,
        )  # fmt: skip

    def outside(self, row: Row) -> None:
        """An event of a block that the pool does not have."""
        self.ledger.find("KV019", row, f"{Kind(row.kind).name.lower()} of block {row.block}: the pool has blocks "
                         f"0..{self.ledger.num_blocks - 1}")  # fmt: skip
