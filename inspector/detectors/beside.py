"""What the rows say that are no moves of blocks: PROG (progress), WINDOW, and the checkers beside the tensors."""

from __future__ import annotations

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import Block, Row
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.progress import Waiting, reaches_back, watermark_of, window_of
from kvscope.inspector.source import Names, life
from kvscope.inspector.units import counted
from kvscope.traces.schema import Kind, Reason, unpack_range


class Prog(Detector):
    """Nobody waits for blocks that are there."""

    name, codes = "PROG", ("KV021",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._waiting = Waiting(ledger.block_size, watermark_of(ledger.trace.facts))
        self._said: set[int] = set()

    def on_submit(self, row: Row, block: Block) -> None:
        self._waiting.note(row.kind, row.seq_id, row.aux)

    on_preempt = on_admit = on_resume = on_fork = on_finish = on_abort = on_submit

    def on_refused(self, row: Row, block: Block) -> None:
        if row.seq_id in self._said:
            return
        details = self.ledger.trace.detail(self.ledger.seq)
        why = self._waiting.wrong(row.kind, row.reason, row.seq_id, self.ledger.num_blocks, details)
        if why:
            self._said.add(row.seq_id)
            verb = "waits" if row.kind == Kind.WAIT else "was refused"
            self.ledger.find("KV021", row, f"{self._names(row.seq_id)} {verb} for want of blocks: it {why}")

    on_wait = on_refused


class Window(Detector):
    """A step still holds everything that its window reaches back to."""

    name, codes = "WINDOW", ("KV022",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._window = window_of(ledger.trace.facts)
        self._said: set[int] = set()

    def on_sched(self, row: Row, block: Block) -> None:
        lo, _ = unpack_range(row.aux)
        needed = reaches_back(row.lblock, lo, self._window)
        if needed < 0 or row.seq_id in self._said:
            return
        self._said.add(row.seq_id)
        gone = needed // self.ledger.block_size
        self.ledger.find(
            "KV022", row, f"the step of {self._names(row.seq_id)} writes position {row.lblock} and attends to "
            f"{self._window} positions, from {needed} on; its table begins at {lo}: block {gone} of it was given back "
            "too early",
        )  # fmt: skip


class _Beside(Detector):
    """Mismatches that a checker beside the tensors has written down."""

    reasons: tuple[Reason, ...] = ()

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)

    def on_check(self, row: Row, block: Block) -> None:
        """How much was looked at; a mismatch follows as a row of its own."""

    def on_mismatch(self, row: Row, block: Block) -> None:
        if row.reason not in self.reasons:
            return
        told = self.ledger.trace.detail(self.ledger.seq) or ()
        values = (*told, *(0, 0, -1, -1, -1, -1)[len(told) :])
        found = self.ledger.blocks[row.block] if row.block >= 0 else self.ledger.nobody
        self.mismatch(row, found, values[0], values[1], *values[2:6])

    def mismatch(
        self, row: Row, block: Block, expected: int, found: int, writer: int, step: int, owner: int, tokens: int
    ) -> None:
        """Report it."""
        raise AssertionError


class Shadow(_Beside):
    """Layer 2: every slot that a sequence reads holds the KV of its own prefix."""

    name, codes = "SHADOW", ("KV023",)
    reasons = (Reason.PROVENANCE,)

    def mismatch(
        self, row: Row, block: Block, expected: int, found: int, writer: int, step: int, owner: int, tokens: int
    ) -> None:
        lblock, name = row.aux // self.ledger.block_size, life(row.block, row.gen)
        if not found:
            holds = "nothing was written there"
        else:
            whose = (
                f"the prefix of {counted(tokens, 'token')} of {self._names(owner)}" if owner >= 0 else "another prefix"
            )
            holds = f"it holds {whose}, written by {self._names(writer)} in step {step}"
        self.ledger.find(
            "KV023", row, f"{self._names(row.seq_id)} reads its position {row.aux} at {name}[{row.fill}], its block "
            f"{lblock}, where its own prefix of {counted(row.aux + 1, 'token')} should lie: {holds}"
            f"{self._entry(row, lblock)}{self._copy(block, row, name)}",
            block, slot_lo=row.fill, slot_hi=row.fill + 1, gen=row.gen,
        )  # fmt: skip

    def _entry(self, row: Row, lblock: int) -> str:
        """Where the table that the events make has that logical block, if elsewhere."""
        reader = self.ledger.sequences.get(row.seq_id)
        entry = reader.table.get(lblock) if reader is not None else None
        if entry is None or entry == (row.block, row.gen):
            return ""
        return f". By the events its block {lblock} is {life(*entry)}"

    def _copy(self, block: Block, row: Row, name: str) -> str:
        """The copy that filled this life, if one did."""
        copied = block.story.get("copied")
        if copied is None or block.gen != row.gen:
            return ""
        told = self.ledger.details[Kind.COW].get(copied, ())
        if len(told) < 4:
            return ""
        source, gen, lo, hi = told[:4]
        if lo >= hi:
            return f". A copy from {life(source, gen)} filled {name}, of no slot at all (seq {copied})"
        return f". Slots [{lo}:{hi}] of {name} were to be copied from {life(source, gen)} (seq {copied})"


class Content(_Beside):
    """Layer 3: the bytes of a block are those that were written, and what nobody wrote is not read."""

    name, codes = "CONTENT", ("KV009", "KV024")
    reasons = (Reason.CONTENT, Reason.POISON)

    def mismatch(
        self, row: Row, block: Block, expected: int, found: int, writer: int, step: int, owner: int, tokens: int
    ) -> None:
        name = life(row.block, row.gen)
        if row.reason == Reason.POISON:
            self.ledger.find(
                "KV009", row, f"the step of {self._names(row.seq_id)} computed NaN: it read poison, which lies where "
                "nobody has written since the block was freed", block if row.block >= 0 else None,
            )  # fmt: skip
            return
        last = f"; its last write was {self._names(writer)}'s, step {step}" if writer >= 0 else ""
        self.ledger.find(
            "KV024", row, f"the bytes of {name} are not those that were written: digest {found:#x} instead of "
            f"{expected:#x}{last}. No event speaks of this change", block, gen=row.gen, slot_lo=0, slot_hi=row.fill,
        )  # fmt: skip
