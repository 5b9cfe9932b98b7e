"""What the threads of a program share: the allocator under test, and the shadow by which it is judged from outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

from kvscope.errors import OutOfBlocks
from kvscope.inspector.fuzz.answers import taken
from kvscope.inspector.fuzz.harness import WATCH
from kvscope.inspector.fuzz.protocol import Copy, Factory, PagedAllocator, Violation, build, offers
from kvscope.inspector.fuzz.shadow import Prefix, Shadow
from kvscope.inspector.races.control import current
from kvscope.inspector.races.flights import Flight, Flights
from kvscope.inspector.races.program import ThreadProgram, first_of, owner_of

Contents = dict[int, dict[int, Any]]  # of blocks: what their slots held


class Shared:
    """What the threads of a program have in common: the allocator, its shadow, and whose the sequences are."""

    def __init__(self, factory: Factory, program: ThreadProgram) -> None:
        with _watched("factory", program.num_blocks, program.block_size):
            self._make(factory, program)

    def _make(self, factory: Factory, program: ThreadProgram) -> None:
        self.target: PagedAllocator = build(factory, program.num_blocks, program.block_size)
        self.reserved = frozenset[int](taken(getattr(self.target, "reserved", ()), "reserved"))
        self.capacity = self.target.num_free()
        self.block_size = program.block_size
        self.shadow = Shadow(program.block_size)
        self.flights = Flights(self.shadow)
        self.live: dict[int, Prefix] = {}
        self.tables: dict[int, list[int]] = {}  # as they were when the last call on each sequence returned
        self.busy: set[int] = set()  # sequences with a call that has not returned: nothing is known of their tables
        self.mine: list[list[int]] = [[] for _ in program.threads]
        self._new = [count(first_of(t)) for t in range(len(program.threads))]
        self._program = program
        self._begin(program)

    def _begin(self, program: ThreadProgram) -> None:
        """The prompt, and a fork of it for every thread."""
        prompt = [t % 2 for t in range(program.prompt)]
        try:
            self.add(0, prompt)
            for thread in range(1, len(program.threads)):
                if offers(self.target, "fork"):
                    self.fork(0, thread)
                else:
                    self.add(thread, prompt)
        except OutOfBlocks:
            return

    # -- operations of the threads: each is one call of the allocator, and the data that follows from it -------------

    def add(self, seq: int, tokens: list[int]) -> None:
        """Admit a new sequence."""
        self._call(seq, lambda: self.target.add(seq, tokens), lo=0, tokens=tokens)
        self.mine[owner_of(seq)].append(seq)

    def append(self, seq: int, token: int) -> None:
        """One more token."""
        length = len(self.live[seq])
        tokens = [*self.live[seq].tokens, token]
        self._call(seq, lambda: self.target.append(seq, token), lo=length, tokens=tokens)

    def fork(self, parent: int, child: int) -> None:
        """A child of a sequence of this thread, or of the prompt before the threads begin."""
        self.busy.add(parent)
        try:
            tokens = list(self.live[parent].tokens)
            before = self.tables[parent]
            self._call(child, lambda: self.target.fork(parent, child), tokens=tokens, before=before)
        finally:
            self.busy.discard(parent)
        self.mine[owner_of(child)].append(child)

    def truncate(self, seq: int, length: int) -> None:
        """Roll back."""
        self._call(seq, lambda: self.target.truncate(seq, length), tokens=self.live[seq].tokens[:length])

    def free(self, seq: int) -> None:
        """The sequence is finished."""
        self.mine[owner_of(seq)].remove(seq)
        self.busy.add(seq)
        self.target.free(seq)
        self.busy.discard(seq)
        del self.live[seq], self.tables[seq]

    def step(self, thread: int, name: str, pick: int, amount: int, shared: Any) -> None:
        """Carry out one operation of a program: through `shared`, which notes it down."""
        own = self.mine[thread]
        if name == "add" or not own:
            shared.add(next(self._new[thread]), self._program.prompt_of(amount))
            return
        seq = own[pick % len(own)]
        if name == "append":
            shared.append(seq, 2 + thread)
        elif name == "fork" and offers(self.target, "fork"):
            shared.fork(seq, next(self._new[thread]))
        elif name == "truncate" and offers(self.target, "truncate"):
            shared.truncate(seq, max(1, len(self.live[seq]) - amount))
        elif name == "free":
            shared.free(seq)

    def _call(
        self, seq: int, call: Callable[[], Any], *, tokens: list[int], lo: int | None = None,
        before: list[int] | None = None,
    ) -> Any:  # fmt: skip
        before = self.tables.get(seq, []) if before is None else before
        kept = {block: self._content(block) for block in before}
        self.busy.add(seq)
        flight = self.flights.begin(Prefix(list(tokens)), lo)
        try:
            result = call()
        except OutOfBlocks:  # nothing has changed
            self.busy.discard(seq)
            self.flights.end(flight)
            raise
        control = current()
        with control.quiet() if control is not None else nullcontext():
            self._returned(seq, flight, before, kept, result)
        return result

    def _table(self, seq: int) -> list[int]:
        return taken(self.target.table(seq), f"table({seq})")

    def _content(self, block: int) -> dict[int, Any]:
        return {slot: self.shadow.slots.get((block, slot)) for slot in range(self.block_size)}

    def _returned(self, seq: int, flight: Flight, before: list[int], kept: Contents, result: Any) -> None:
        table, prefix, lo = self._table(seq), flight.prefix, flight.lo
        if len(table) * self.block_size < len(prefix):
            raise Violation("KV018", f"sequence {seq} has {len(prefix)} tokens and the table {table}")
        came_from = self._copied(table, prefix, before, kept)
        self.live[seq], self.tables[seq] = prefix, table
        self.busy.discard(seq)
        if lo is not None:
            first = int(result or 0) if lo == 0 else lo
            self.flights.hit(seq, table, prefix, range(first if lo == 0 else 0), came_from)
            for position in range(first, len(prefix)):
                self._write(seq, flight, position, new=table[position // self.block_size] not in before)
        self.flights.end(flight)
        self.shadow.check(seq, table, prefix)

    def _copied(self, table: list[int], prefix: Prefix, before: list[int], kept: Contents) -> dict[int, int]:
        """Play the copies up to now: those reported, or those that a changed table means. Returns target -> source."""
        if offers(self.target, "drain"):
            copies = [move for move in taken(self.target.drain(), "drain()") if isinstance(move, Copy)]
            for move in copies:
                self.shadow.copy(move.src, move.dst, move.slots)
            return {move.dst: move.src for move in copies}
        for i, (old, new) in enumerate(zip(before, table, strict=False)):
            if old != new and not self.shadow.holds(new, i, prefix):
                for slot, content in kept.get(old, {}).items():
                    if content is not None:
                        self.shadow.slots[new, slot] = content
        return {}

    def _write(self, seq: int, flight: Flight, position: int, *, new: bool) -> None:
        prefix, table = flight.prefix, self.tables[seq]
        block, slot = self.shadow.place(table, position)
        others = [o for o, held in self.tables.items() if o != seq and o not in self.busy and block in held]
        if self.flights.owes(flight, (block, slot)):  # who reads the same there was given it meanwhile, as cached
            content = prefix.content(position)
            others = [o for o in others if position >= len(self.live[o]) or self.live[o].content(position) != content]
        if others and block not in self.reserved:
            code, how = ("KV014", "was handed") if new else ("KV006", "writes into")
            raise Violation(code, f"sequence {seq} {how} b{block}[{slot}], which is held by {others}")
        self.shadow.write(table, prefix, position)

    # -- when all threads have ended --------------------------------------------------------------------------------

    def check(self) -> None:
        """Tables, counts and conservation; then everything is freed and must be back.

        Raises:
            Violation: a rule is broken.
        """
        with _watched("check"):
            self._check()

    def _check(self) -> None:
        entries = Counter(b for seq in self.live for b in self._table(seq) if b not in self.reserved)
        for seq, prefix in self.live.items():
            self.shadow.check(seq, self._table(seq), prefix)
        if offers(self.target, "refcount"):
            for block in entries:
                if (count := self.target.refcount(block)) != entries[block]:
                    code = "KV005" if count > entries[block] else "KV004"
                    raise Violation(code, f"b{block} is counted {count} times, {entries[block]} table entries hold it")
        if len(entries) + self.target.num_free() > self.capacity:
            free = self.target.num_free()
            raise Violation("KV012", f"{len(entries)} blocks are held and {free} free: there were {self.capacity}")
        for seq in list(self.live):
            self.target.free(seq)
        if (free := self.target.num_free()) != self.capacity:
            raise Violation("KV005", f"{free} blocks are free when nothing lives: there were {self.capacity}")


@contextmanager
def _watched(name: str, *args: int) -> Iterator[None]:
    """A watchdog sees that the target is asked; in the threads of a schedule, `Control` looks itself."""
    WATCH.call = name, args
    try:
        yield
    finally:
        WATCH.call, WATCH.answered = None, WATCH.answered + 1
