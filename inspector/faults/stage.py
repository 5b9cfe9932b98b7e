"""A stage for planted faults: the block manager as an engine drives it, with shadow words where the KV would be.

Operations are those of an engine; writes and copies land when their step ends, through the tables as they were when it
began, and every step checks that its sequences read their own prefixes (`inspector.shadow_words`). What that finds is
in the trace, as the engine's own checker would have written it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.host_tier import Swap
from kvscope.engine.prefix import Extras
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.engine.windows import first_needed
from kvscope.errors import OutOfBlocks
from kvscope.inspector.faults.device import OtherDevice
from kvscope.inspector.faults.truth import DeviceTruth, Prefix, Row
from kvscope.inspector.provenance_rows import tell_checked
from kvscope.inspector.shadow_words import UNWRITTEN, Expected, IntArray, Reading, SlotWords
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason

NO_WORD = -1  # no prefix has it
ManagerFactory = Callable[..., BlockManager]


@dataclass(slots=True)
class _Open:
    """What the device was given for a step: rows, tables, words, and the copies before them."""

    number: int
    rows: list[Row]
    tables: list[IntArray]
    words: list[IntArray]
    copies: list[Copy]


class Stage:
    """One manager, its device, and the sequences that a play puts on.

    Args:
        manager: builds the block manager, or a broken one.
        num_blocks, block_size, host_blocks: geometry.
        window: positions that attention sees; 0 = all.
        max_blocks: that there is memory for; 0 = nobody says.

    Attributes:
        truth: what the device did, as it was ordered to.
        tells: whether what the shadow words show is written into the trace; else that has the ledger alone.
    """

    def __init__(
        self, manager: ManagerFactory, num_blocks: int = 16, block_size: int = 4, host_blocks: int = 0, window: int = 0,
        max_blocks: int = 0,
    ) -> None:  # fmt: skip
        self.sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
        self.manager = manager(
            num_blocks,
            block_size,
            sink=self.sink,
            hash_key=b"stage",
            **({"host_blocks": host_blocks} if host_blocks else {}),
        )
        self.window, self.swaps, self.tells = window, host_blocks, True
        self.words, self.expected = SlotWords(num_blocks, block_size), Expected()
        self.truth = DeviceTruth(block_size)
        self.tokens: dict[int, list[int]] = {}
        self.extras: dict[int, Extras] = {}
        self.prompts: dict[int, int] = {}  # tokens
        self.refused = self.wrong = 0
        self.waiting: dict[int, int] = {}  # first position that no step has taken yet
        self.parked: dict[int, int] = {}
        self.ended: dict[int, list[int]] = {}
        self.open: deque[_Open] = deque()
        self._decided: list[Swap] = []
        self._requests = 0
        if window:
            self.sink.fact({"type": "model", "name": "stage", "window": window})
        if max_blocks:
            self.sink.fact({"type": "pool", "max_blocks": max_blocks})

    # -- what an engine does --------------------------------------------------------------------------------------

    def prompt(self, seq_id: int, tokens: Sequence[int], extras: Extras = ()) -> bool:
        """A request arrives; it is admitted and its prompt issued, or refused."""
        again = seq_id in self.ended
        tokens = self.ended.pop(seq_id) if again else list(tokens)
        if not again:
            self.manager.record(Kind.SUBMIT, Reason.NONE, seq_id, len(tokens), details=(self._requests, 64, 1))
            self.sink.fact({"type": "request", "request": self._requests, "name": f"r{seq_id}", "seq_ids": [seq_id],
                            "prompt_tokens": len(tokens), "max_tokens": 64, "samples": 1})  # fmt: skip
            self._requests += 1
            self.prompts[seq_id] = len(tokens)
        try:
            cached = self.manager.admit(seq_id, tokens, extras or self.extras.get(seq_id, ()), resumed=again)
        except OutOfBlocks:
            self.refused += 1
            self.ended[seq_id] = list(tokens)
            return False
        self.tokens[seq_id], self.extras[seq_id] = list(tokens), extras or self.extras.get(seq_id, ())
        self.waiting[seq_id] = cached
        self.manager.write(seq_id, cached, len(tokens))
        return True

    def decode(self, seq_id: int, token: int) -> bool:
        """One more token for a sequence, in the next step; nothing where it was refused admission."""
        if seq_id not in self.tokens:
            return False
        try:
            self.manager.append(seq_id, token)
        except OutOfBlocks:
            self.refused += 1
            return False
        self.waiting.setdefault(seq_id, len(self.tokens[seq_id]))
        self.tokens[seq_id].append(token)
        return True

    def fork(self, parent: int, child: int) -> None:
        """A second sample of the same prompt."""
        self.manager.fork(parent, child)
        self.tokens[child], self.extras[child] = list(self.tokens[parent]), self.extras[parent]
        self.prompts[child] = self.prompts[parent]
        self.truth.fork(parent, child)

    def cut(self, seq_id: int, length: int) -> None:
        """A rollback to the first `length` tokens."""
        self.truth.cut(seq_id, length)
        self.manager.truncate(seq_id, length)
        del self.tokens[seq_id][length:]
        self.expected.cut(seq_id, length)
        if self.waiting.get(seq_id, 0) >= length:
            self.waiting.pop(seq_id, None)

    def end(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP) -> None:
        """The sequence finishes, is aborted, or gives way (`Kind.PREEMPT`) and may be prompted again."""
        if seq_id not in self.tokens:
            return
        tokens = self.tokens.pop(seq_id)
        self.waiting.pop(seq_id, None)
        self.manager.free(seq_id, kind, reason, aux=len(tokens))
        if kind == Kind.PREEMPT:
            self.ended[seq_id] = tokens

    def preempt(self, seq_id: int) -> None:
        """The sequence gives way; its next `prompt` computes it again."""
        self.end(seq_id, Kind.PREEMPT, Reason.CAPACITY)

    def slide(self, seq_id: int) -> None:
        """The blocks that no later position attends to are given back."""
        computed = self.waiting.get(seq_id, len(self.tokens[seq_id]))
        self.manager.slide(seq_id, first_needed(computed, self.window or None))

    def swap_out(self, seq_id: int) -> None:
        """The sequence waits in host memory; the transfer is run with the next step."""
        self.manager.swap_out(seq_id, aux=len(self.tokens[seq_id]))
        self.parked[seq_id] = len(self.tokens[seq_id])

    def swap_in(self, seq_id: int) -> None:
        """And it comes back."""
        self.manager.swap_in(seq_id)
        del self.parked[seq_id]

    def grow(self, blocks: int) -> None:
        """More blocks."""
        self.words.resize(self.manager.num_blocks + blocks)
        self.manager.grow(blocks)

    def shrink(self, blocks: int) -> None:
        """Fewer blocks; what is held in the last ones moves in front."""

        def move(copies: Sequence[Copy]) -> None:
            for copy in copies:
                self.words.copy(copy.source, copy.target, copy.slots)
                self.truth.copy(copy.source, copy.target, copy.slots)

        left = self.manager.shrink(blocks, move=move)
        self.words.resize(left)
        self.truth.resize(left)

    # -- steps ----------------------------------------------------------------------------------------------------

    def begin(self, *only: int) -> None:
        """A step over what is issued, of these sequences or of all.

        Transfers to the host run beside the step; one that comes back must be there before it.
        """
        self._decided += self.manager.drain_swaps()
        if any(not swap.out for swap in self._decided):
            self.run_swaps()
        rows = [
            Scheduled(seq_id, lo, len(self.tokens[seq_id]))
            for seq_id, lo in self.waiting.items()
            if seq_id in self.tokens and (not only or seq_id in only)
        ]
        number = self.manager.begin_step(rows)
        tables = [np.asarray(self.manager.table(row.seq_id), np.int64) for row in rows]
        words = [self.expected.of(r.seq_id, self.tokens[r.seq_id], r.hi, self.extras[r.seq_id]).copy() for r in rows]
        given = [self._row(row, table) for row, table in zip(rows, tables, strict=True)]
        self.open.append(_Open(number, given, tables, words, self.manager.drain_copies()))
        for row in rows:
            del self.waiting[row.seq_id]

    def finish(self) -> None:
        """The oldest open step completes on the device."""
        step = self.open.popleft()
        for copy in step.copies:
            self.words.copy(copy.source, copy.target, copy.slots)
            self.truth.copy(copy.source, copy.target, copy.slots)
        self.manager.copies_done(step.copies)
        for row, words in zip(step.rows, step.words, strict=True):
            positions, slots = np.asarray(row.writes, np.int64).reshape(-1, 2).T
            self.words.write(slots, words[positions], np.full(len(slots), row.seq_id), step.number)
        self.truth.step(step.number, step.rows)
        readings = [Reading(row.seq_id, table, row.first, row.first + len(row.reads))
                    for row, table in zip(step.rows, step.tables, strict=True)]  # fmt: skip
        expected = [self._wanted(row, words) for row, words in zip(step.rows, step.words, strict=True)]
        slots_checked, found = self.words.check(readings, expected)
        wrong = [one if one.slot >= 0 else one._replace(found=UNWRITTEN, writer=-1, step=-1) for one in found]
        self.wrong += len(wrong)
        if self.tells:
            tell_checked(self.manager, slots_checked, len(readings), wrong, self.expected, step=step.number)
        self.manager.end_step()
        self.run_swaps()

    @staticmethod
    def _wanted(row: Row, words: IntArray) -> IntArray:
        """The words that a row should find; none can be right where there is no token, or no block."""
        wanted = np.append(words, np.full(max(0, row.first + len(row.reads) - len(words)), NO_WORD))
        wanted[row.first :][np.asarray(row.reads) < 0] = NO_WORD
        return wanted

    def _row(self, row: Scheduled, table: IntArray) -> Row:
        """What the device does for a row: as its table says, or as a broken manager has it."""
        size, own = self.manager.block_size, self.manager
        first = first_needed(row.lo, self.window or None)
        prefixes: list[Prefix] = [(self.extras[row.seq_id], *self.tokens[row.seq_id][: p + 1]) for p in range(row.hi)]
        end = own.device_end(row.seq_id, row.hi) if isinstance(own, OtherDevice) else row.hi
        places = np.arange(end)
        slots = (table[places // size] * size + places % size).tolist()
        writes = [(p, slots[p]) for p in range(row.lo, row.hi)]
        if isinstance(own, OtherDevice):
            writes = own.device_writes(row.seq_id, writes)
        writes = [(p, slot) for p, slot in writes if 0 <= slot < own.num_blocks * size]  # the rest is not the pool's
        return Row(row.seq_id, row.lo, row.hi, first, writes, slots[first:], prefixes, self.prompts[row.seq_id])

    def step(self, *only: int) -> None:
        """A whole step."""
        self.begin(*only)
        self.finish()

    def run_swaps(self) -> None:
        """The device runs the transfers that are decided."""
        swaps, self._decided = [*self._decided, *self.manager.drain_swaps()], []
        for swap in swaps:
            self.words.swap(swap.blocks, swap.slots, out=swap.out)
            self.truth.swap(swap.blocks, swap.slots, out=swap.out)
        self.manager.swaps_done(swaps)

    def close(self) -> None:
        """Everything ends, and the trace is whole."""
        while self.open:
            self.finish()
        for seq_id in list(self.tokens):
            if seq_id in self.parked:
                self.manager.forget_swapped(seq_id, Kind.ABORT, Reason.DRAINED)
                del self.tokens[seq_id]
            else:
                self.end(seq_id, Kind.ABORT, Reason.DRAINED)
        self.run_swaps()
        self.sink.close()


def perform(play: Callable[[Stage], None], stage: Stage) -> MemoryRecorder:
    """Run a play; a broken manager may trip over its own state, and what it had recorded by then counts."""
    with suppress(Exception):
        play(stage)
    with suppress(Exception):
        stage.close()
    return stage.sink
