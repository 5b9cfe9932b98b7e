"""Our block manager as an engine drives it, in front of a device that runs its steps late.

Writes are issued, a step is begun over them, and only when it ends have its copies and writes happened: in order, and
through the tables as they were when it began. Meanwhile sequences are freed, forked, rolled back and preempted, and
the next step may be open already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.errors import OutOfBlocks
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.shadow import Prefix, Shadow
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

OPERATIONS = (
    *("admit",) * 2, *("append",) * 3, *("fork",) * 2, "truncate", "free", "preempt", *("begin",) * 3, *("end",) * 3,
)  # fmt: skip
MAX_OPEN = 2
Operation = tuple[str, int, int]  # name, which sequence, how much


@dataclass(frozen=True, slots=True)
class _Step:
    """What the device was given: rows, and tables, lives and tokens as they were."""

    rows: list[Scheduled]
    tables: dict[int, list[int]]
    lives: dict[int, int]
    prefixes: dict[int, Prefix]
    copies: list[Copy]


class DeviceRun:
    """One run of random operations; sequences are picked modulo what is there, so every list of operations is legal.

    Args:
        num_blocks, block_size: pool geometry, in blocks and slots.
        manager: builds the block manager; a planted fault is a subclass given here.
        sink: where events go.
        checked: raise `Violation` when a rule breaks; else go on, for the trace's sake.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        manager: Callable[..., BlockManager] = BlockManager,
        sink: EventSink | None = None,
        checked: bool = True,
    ) -> None:
        self.manager = manager(num_blocks, block_size, sink=sink, hash_key=b"kvscope.fuzz")
        self.shadow = Shadow(block_size)
        self.live: dict[int, Prefix] = {}
        self.issued: dict[int, int] = {}  # sequences with writes in no step yet -> the first such position
        self.preempted: deque[tuple[int, Prefix]] = deque()
        self.open: deque[_Step] = deque()
        self.checked = checked
        self.refusals = 0
        self._next = 0

    def play(self, operations: Iterable[Operation]) -> None:
        """Run them all, then free what lives and end what is open.

        Raises:
            Violation: a rule broke, and the run is checked.
        """
        for name, pick, amount in operations:
            try:
                getattr(self, f"_{name}")(pick, amount)
            except OutOfBlocks:
                self.refusals += 1
            self._check()
        while self.live:
            self._free(0, 0)
        while self.open:
            self._end(0, 0)
        self._check()
        if self.checked and self.manager.num_free() != self.manager.num_blocks:
            raise Violation("KV012", f"{self.manager.num_free()} blocks can be had when nothing lives")

    def _admit(self, pick: int, amount: int) -> None:
        if self.preempted and pick % 2:
            seq, prefix = self.preempted[0]
        else:
            seq, prefix = self._next, Prefix([amount >> i & 1 for i in range(1 + amount % 6)], ("salt",) * (pick // 5))
        again = bool(self.preempted) and seq == self.preempted[0][0]
        cached = self.manager.admit(seq, prefix.tokens, prefix.identity, resumed=again)
        if again:
            self.preempted.popleft()
        else:
            self._next += 1
        self.live[seq], self.issued[seq] = prefix, cached
        self.manager.write(seq, cached, len(prefix))

    def _append(self, pick: int, amount: int) -> None:
        if self.live:
            seq = self._choose(pick)
            self.manager.append(seq, amount & 1)
            self.issued.setdefault(seq, len(self.live[seq]))
            self.live[seq].tokens.append(amount & 1)

    def _fork(self, pick: int, _amount: int) -> None:
        ready = [seq for seq in self.live if seq not in self.issued]  # what is forked has been computed, or will be
        if ready:
            parent, child = ready[pick % len(ready)], self._next
            self._next += 1
            self.manager.fork(parent, child)
            self.live[child] = Prefix(list(self.live[parent].tokens), self.live[parent].identity)

    def _truncate(self, pick: int, amount: int) -> None:
        if self.live:
            seq = self._choose(pick)
            length = max(1, len(self.live[seq]) - amount // 2)
            self.manager.truncate(seq, length)
            del self.live[seq].tokens[length:]
            if self.issued.get(seq, 0) >= length:
                del self.issued[seq]

    def _free(self, pick: int, _amount: int) -> None:
        if self.live:
            seq = self._choose(pick)
            self.manager.free(seq)
            del self.live[seq]
            self.issued.pop(seq, None)

    def _preempt(self, pick: int, _amount: int) -> None:
        if self.live:
            seq = self._choose(pick)
            self.manager.free(seq, Kind.PREEMPT, Reason.CAPACITY)
            self.preempted.append((seq, self.live.pop(seq)))
            self.issued.pop(seq, None)

    def _begin(self, _pick: int, _amount: int) -> None:
        if self.issued and len(self.open) < MAX_OPEN:
            rows = [Scheduled(seq, lo, len(self.live[seq])) for seq, lo in self.issued.items()]
            self.manager.begin_step(rows)
            tables = {row.seq_id: self.manager.table(row.seq_id) for row in rows}
            lives = {block: int(self.manager.pool.gen[block]) for table in tables.values() for block in table}
            prefixes = {s: Prefix(list(self.live[s].tokens), self.live[s].identity) for s in tables}
            self.open.append(_Step(rows, tables, lives, prefixes, self.manager.drain_copies()))
            self.issued.clear()

    def _end(self, _pick: int, _amount: int) -> None:
        if not self.open:
            return
        step = self.open.popleft()
        for copy in step.copies:
            self.shadow.copy(copy.source, copy.target, copy.slots)
        for row in step.rows:
            for position in range(row.lo, row.hi):
                self.shadow.write(step.tables[row.seq_id], step.prefixes[row.seq_id], position)
        if self.checked:
            for row in step.rows:
                self.shadow.check(row.seq_id, step.tables[row.seq_id], step.prefixes[row.seq_id])
        self.manager.copies_done(step.copies)
        self.manager.end_step()

    def _check(self) -> None:
        if not self.checked:
            return
        self.manager.check_integrity()
        pool = self.manager.pool
        for step in self.open:
            for block, gen in step.lives.items():
                if pool.gen[block] != gen:
                    raise Violation("KV013", f"b{block}#{gen} was handed out again while an open step uses it")
        for block, entry in pool.index.items():
            found = self.shadow.slots.get((block, pool.block_size - 1))
            if found is None or pool.index.chain(found[1], found[0])[-1:] != [entry.digest]:
                raise Violation("KV016", f"{pool.name(block)} is published as {entry.tokens}; it holds {found}")

    def _choose(self, pick: int) -> int:
        return list(self.live)[pick % len(self.live)]
