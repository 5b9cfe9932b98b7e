"""Everything that must hold between two operations on an allocator, and how the data of each operation is carried.

The judge knows what every sequence should read (its tokens) and derives from `table()` where each position lies; so it
needs nothing of the allocator's insides.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.answers import message_of, shown, taken, told, whole
from kvscope.inspector.fuzz.protocol import (
    Copy,
    Factory,
    OutOfBlocks,
    PagedAllocator,
    Swap,
    Violation,
    Write,
    build,
    offers,
)
from kvscope.inspector.fuzz.shadow import Content, Prefix, Shadow

Tables = dict[int, list[int]]
View = tuple[Tables, int, list[int]]  # tables, blocks that can be had, counts of all blocks
Call = tuple[str, tuple[Any, ...]]


@dataclass(slots=True)
class Watch:
    """What a watchdog in another thread looks at: the call that has not returned yet, and how many have."""

    call: Call | None = None
    answered: int = 0
    calls: Sequence[Call] = ()  # operations of the program under way


WATCH = Watch()


class Judge:
    """One allocator under test, the sequences it should hold, and the shadow of its memory.

    Args:
        factory: makes the allocator, given blocks and slots per block.
        num_blocks, block_size: its size.
    """

    def __init__(self, factory: Factory, num_blocks: int, block_size: int) -> None:
        self.calls: list[Call] = []  # operations so far
        WATCH.calls, WATCH.call = self.calls, ("factory", (num_blocks, block_size))
        self.target: PagedAllocator = build(factory, num_blocks, block_size)
        self.num_blocks, self.block_size = num_blocks, block_size
        self.counted = offers(self.target, "refcount")
        self.drained = offers(self.target, "drain")
        self.reserved = frozenset[int](taken(getattr(self.target, "reserved", ()), "reserved"))
        self.lookahead = whole(getattr(self.target, "lookahead", 0), "lookahead")
        self.watermark = whole(getattr(self.target, "watermark", 0), "watermark")
        self.capacity = self.num_free()
        self.live: dict[int, Prefix] = {}
        self.preempted: dict[int, Prefix] = {}
        self.swapped: dict[int, tuple[Prefix, int]] = {}  # sequences in host memory, and how many entries they had
        self.looked: dict[int, Prefix] = {}  # prompts looked up, whose sequences are not admitted yet
        self.leases: dict[int, dict[tuple[int, int], Content]] = {}  # what each transfer reads
        self._used: set[int] = set()  # ids that are, or were, a sequence's
        self._leased: set[int] = set()  # ids that are, or were, a lease's
        self.steps: deque[set[tuple[int, int]]] = deque()  # slots in use by each open step, oldest first
        self.shadow = Shadow(block_size)
        self._before: View = self._view()
        self.shared = self.taken = self.waiting = 0  # most entries saved, blocks not to be had, freed but in use

    # -- rules ------------------------------------------------------------------------------------------------------

    def tables(self) -> Tables:
        """The table of every live sequence."""
        return {seq: self._table(seq) for seq in self.live}

    def num_free(self) -> int:
        """Blocks that the allocator says can be had."""
        return whole(self._ask("num_free"), "num_free()")

    def check(self) -> None:
        """Everything that must hold between operations.

        Raises:
            Violation: the first rule that does not.
        """
        self._before = tables, free, counts = self._view()
        for seq, table in tables.items():
            if len(table) * self.block_size < len(self.live[seq]):
                raise Violation("KV018", f"sequence {seq} has {len(self.live[seq])} tokens and the table {table}")
        entries = Counter(b for table in tables.values() for b in table if b not in self.reserved)
        self._check_counts(entries, counts)
        self._check_conservation(set(entries), free)
        self._check_leases()
        for seq, prefix in self.live.items():
            self.shadow.check(seq, tables[seq], prefix)
        self.shared = max(self.shared, entries.total() - len(entries))
        self.taken = max(self.taken, self.capacity - free)
        self.waiting = max(self.waiting, self.capacity - free - len(entries))

    def _check_counts(self, entries: Counter[int], counts: list[int]) -> None:
        if not self.counted:
            return
        for block in {*entries, *range(len(counts))} - self.reserved:
            count = counts[block] if 0 <= block < len(counts) else self._refcount(block)
            if count != entries[block]:
                code = "KV005" if count > entries[block] else "KV004"
                raise Violation(code, f"b{block} is counted {count} times and held by {entries[block]} table entries")

    def _check_conservation(self, held: set[int], free: int) -> None:
        idle = not (self.live or self.steps or self.leases or self.looked)
        if len(held) + free > self.capacity or (idle and free != self.capacity):
            raise Violation(
                "KV012", f"{len(held)} blocks are in tables and {free} can be had: the pool began with {self.capacity}"
            )
        read = {block for places in self.leases.values() for block, _ in places}
        if len(held | read) + free > self.capacity:
            raise Violation(
                "KV017",
                f"{free} blocks can be had, {len(held)} are in tables and {len(read - held)} others are read by "
                f"transfers: the pool began with {self.capacity}",
            )

    def _check_leases(self) -> None:
        for lease, places in self.leases.items():
            for (block, slot), content in places.items():
                if self.shadow.slots.get((block, slot)) != content:
                    raise Violation("KV017", f"b{block}[{slot}] was overwritten while transfer {lease} reads it")

    # -- inside -----------------------------------------------------------------------------------------------------

    def _begins(self, name: str, *args: object) -> Tables:
        """Note down an operation; returns a copy of the tables in front of it."""
        self.calls.append((name, args))
        return dict(self._before[0])

    def _call(self, promised: int, name: str, *args: object) -> tuple[bool, object]:
        """Run an operation: (True, its result), or (False, None) if it was rightly refused and changed nothing.

        `promised` is the number of free blocks from which on it must succeed; 0: always.
        """
        before, free = self._before, self._before[1]
        try:
            return True, self._ask(name, *args)
        except OutOfBlocks as refusal:
            if free >= promised:
                raise Violation(
                    "KV026",
                    f"{words(name, args)} was refused with {free} blocks free; {promised} must do "
                    f"({message_of(refusal)})",
                ) from refusal
        after = self._view()
        if after != before:
            raise Violation("KV025", f"{words(name, args)} was refused and changed {_changed(before, after)}")
        return False, None

    def _ask(self, name: str, *args: object, then: Callable[[Any], object] = lambda answer: answer) -> Any:
        """What the allocator answers; an exception that is no refusal is a finding, an exit an unusable target."""
        operation: Callable[..., object] = getattr(self.target, name)
        WATCH.call = (name, args)
        try:
            return then(operation(*args))
        except (OutOfBlocks, UsageError):
            raise
        except SystemExit as error:
            raise UsageError(f"{words(name, args)} calls sys.exit({error.code!r}): an allocator must return") from error
        except Exception as error:
            raise Violation("crash", f"{words(name, args)} raised {told(error)}") from error
        finally:
            WATCH.call, WATCH.answered = None, WATCH.answered + 1

    def _asked(self, name: str, *args: object) -> list[Any]:
        """What the allocator answers with a sequence, gone through: that is part of the call, if it is a generator."""
        return list(self._ask(name, *args, then=lambda values: taken(values, words(name, args))))

    def _table(self, seq: int) -> list[int]:
        table = self._asked("table", seq)
        try:
            return list(map(index, table))
        except TypeError:
            raise UsageError(f"table({seq}) is {shown(table)}: must be a sequence of whole numbers") from None

    def _refcount(self, block: int) -> int:
        return whole(self._ask("refcount", block), f"refcount({block})")

    def _view(self) -> View:
        counted = range(self.target.num_blocks) if self.counted else ()
        return self.tables(), self.num_free(), [self._refcount(block) for block in counted]

    def _cached(self, seq: int, cached: object) -> int:
        length = len(self.live[seq])
        if cached is None:
            return 0
        cached = whole(cached, f"the result of add({seq}, ...)")
        if not 0 <= cached <= length:
            raise Violation("KV018", f"add of sequence {seq} with {length} tokens says that {cached} are cached")
        return cached

    def _played(self, before: Tables, seq: int = -1, lo: int | None = None) -> None:
        """Carry the data of the operation just done: its copies, then the writes of `seq` from position `lo` on."""
        after = self.tables()
        moves: Sequence[Write | Copy | Swap] = self._asked("drain") if self.drained else self._derived(before, after)
        if not all(isinstance(move, Write | Copy | Swap) for move in moves):
            raise UsageError(f"drain() is {shown(moves)}: must be a sequence of Write, Copy and Swap")
        for move in moves:
            if isinstance(move, Copy):
                if not any(move.dst in table for table in before.values()):
                    self._check_fence(move.dst, range(move.slots), f"copy from b{move.src}")
                self.shadow.copy(move.src, move.dst, move.slots)
            elif isinstance(move, Swap):
                self._swap(move)
            else:
                self._check_reported(move, after)
        for position in range(lo, len(self.live[seq])) if lo is not None else ():
            if position // self.block_size < len(after[seq]):
                self._check_write(seq, position, lo or 0, before, after)
                self.shadow.write(after[seq], self.live[seq], position)
        self.check()

    def _derived(self, before: Tables, after: Tables) -> list[Copy]:
        """Copies of an allocator that reports none: a changed entry was copied, unless the content is there already."""
        return [
            Copy(old, new, self.block_size)
            for seq, table in after.items()
            for i, (old, new) in enumerate(zip(before.get(seq, ()), table, strict=False))
            if old != new and not self.shadow.holds(new, i, self.live[seq])
        ]

    def _swap(self, move: Swap) -> None:
        if not move.out:
            self._check_fence(move.block, range(self.block_size), f"from slot {move.host} of the host")
        ways = (move.block, ~move.host) if move.out else (~move.host, move.block)  # the host's slots are below zero
        self.shadow.copy(*ways, self.block_size)

    def _check_reported(self, write: Write, after: Tables) -> None:
        table = after.get(write.seq)
        if table is not None and self.shadow.place(table, write.position) != (write.block, write.slot):
            raise Violation("KV019", f"{write} was reported; the table of the sequence is {table}")

    def _check_write(self, seq: int, position: int, lo: int, before: Tables, after: Tables) -> None:
        block, slot = self.shadow.place(after[seq], position)
        if block in self.reserved:
            raise Violation("KV019", f"sequence {seq} writes position {position} into the reserved b{block}")
        new = block not in before.get(seq, ())
        others = [other for other, table in after.items() if other != seq and block in table]
        if others:
            # A block whose leading slots were handed over as cached was shared on purpose: what is missing is the copy.
            handed_out = new and position - slot >= lo
            code, how = ("KV014", "was handed") if handed_out else ("KV006", "writes into")
            raise Violation(code, f"sequence {seq} {how} b{block}[{slot}], which is held by {others}")
        if new:
            self._check_fence(block, range(slot, slot + 1), f"sequence {seq}")

    def _check_fence(self, block: int, slots: Sequence[int], who: str) -> None:
        for slot in slots:
            if any((block, slot) in used for used in self.steps):
                raise Violation(
                    "KV013", f"b{block} was handed out again ({who}) while an open step reads b{block}[{slot}]"
                )


def words(name: str, args: Sequence[object]) -> str:
    """A call as Python."""
    return f"{name}({', '.join(map(repr, args))})"


def _changed(before: View, after: View) -> str:
    """What differs between two views, each part by its name."""
    names = ("the tables", "num_free", "the counts")
    pairs = zip(names, before, after, strict=True)
    return "; ".join(f"{name} from {old} to {new}" for name, old, new in pairs if old != new)
