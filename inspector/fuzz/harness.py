"""Plays operations on an allocator and checks, after each, everything that it promises.

The harness knows what every sequence should read (its tokens) and derives from `table()` where each position lies; so
it needs nothing of the allocator's insides. An operation that breaks a rule raises `Violation`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.protocol import (
    Copy,
    Factory,
    OutOfBlocks,
    PagedAllocator,
    Violation,
    Write,
    build,
    offers,
    told,
    whole,
)
from kvscope.inspector.fuzz.shadow import Prefix, Shadow

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


class Harness:
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
        self.reserved = frozenset[int](getattr(self.target, "reserved", ()))
        self.lookahead = whole(getattr(self.target, "lookahead", 0), "lookahead")
        self.watermark = whole(getattr(self.target, "watermark", 0), "watermark")
        self.capacity = self.num_free()
        self.live: dict[int, Prefix] = {}
        self.preempted: dict[int, Prefix] = {}
        self._used: set[int] = set()  # ids that are, or were, a sequence's
        self.steps: deque[set[tuple[int, int]]] = deque()  # slots in use by each open step, oldest first
        self.shadow = Shadow(block_size)
        self._before: View = self._view()
        self.shared = self.taken = self.waiting = 0  # most entries saved, blocks not to be had, freed but in use

    # -- operations -------------------------------------------------------------------------------------------------

    def add(self, seq: int, tokens: Sequence[int], identity: tuple[object, ...] = ()) -> bool:
        """Admit a new or preempted sequence; False if it was refused."""
        prefix = Prefix(list(tokens), identity)
        needed = -(-len(tokens) // self.block_size) + self.watermark + self.lookahead
        if identity:
            self._ask("identity", seq, identity)
        before = self._begins("add", seq, list(tokens), *([identity] if identity else []))
        done, cached = self._call(needed, "add", seq, list(tokens))
        if done:
            self.preempted.pop(seq, None)
            self.live[seq] = prefix
            self._used.add(seq)
            self._played(before, seq, self._cached(seq, cached))
        return done

    def append(self, seq: int, token: int) -> bool:
        """One more token; False if it was refused."""
        before = self._begins("append", seq, token)
        done, _ = self._call(1 + self.lookahead, "append", seq, token)
        if done:
            self.live[seq].tokens.append(token)
            self._played(before, seq, len(self.live[seq]) - 1)
        return done

    def fork(self, parent: int, child: int) -> bool:
        """The child continues from what the parent has; False if it was refused."""
        before = self._begins("fork", parent, child)
        done, _ = self._call(len(before[parent]), "fork", parent, child)
        if done:
            prefix = self.live[parent]
            self.live[child] = Prefix(list(prefix.tokens), prefix.identity)
            self._used.add(child)
            before[child] = before[parent]
            self._played(before, child)
        return done

    def truncate(self, seq: int, length: int) -> None:
        """Keep the first `length` tokens."""
        before = self._begins("truncate", seq, length)
        self._call(0, "truncate", seq, length)
        del self.live[seq].tokens[length:]
        self._played(before, seq)

    def preempt(self, seq: int) -> None:
        """The sequence gives its blocks up, to be added again."""
        before = self._begins("preempt", seq)
        self._call(0, "preempt", seq)
        self.preempted[seq] = self.live.pop(seq)
        self._played(before, seq)

    def free(self, seq: int) -> None:
        """The sequence is finished."""
        before = self._begins("free", seq)
        self._call(0, "free", seq)
        del self.live[seq]
        self._played(before, seq)

    def begin_step(self, seqs: Sequence[int]) -> None:
        """A step that reads what these sequences have; their slots may not be written by others until it ends."""
        before = self._begins("begin_step", list(seqs))
        used = {self.shadow.place(before[seq], p) for seq in seqs for p in range(len(self.live[seq]))}
        self._call(0, "begin_step", list(seqs))
        self.steps.append({place for place in used if place[0] not in self.reserved})
        self._played(before)

    def end_step(self) -> None:
        """The oldest open step is done."""
        before = self._begins("end_step")
        self._call(0, "end_step")
        self.steps.popleft()
        self._played(before)

    def can_add(self) -> bool:
        """Whether the allocator has promised that a prompt of one token fits."""
        return self._before[1] >= 1 + self.watermark + self.lookahead

    def finish(self) -> None:
        """End every step and free every sequence: all blocks must be back."""
        while self.steps:
            self.end_step()
        for seq in list(self.live):
            self.free(seq)

    def allows(self, name: str, *args: Any) -> bool:
        """Whether the caller may do this now: a call that is not allowed says nothing of the allocator."""
        if name == "add":
            seq, tokens, identity = args[0], args[1], args[2] if len(args) > 2 else ()
            again = self.preempted.get(seq)
            return seq not in self._used if again is None else again == Prefix(tokens, identity)
        if name == "fork":
            return args[0] in self.live and args[1] not in self._used
        if name == "truncate":
            return args[0] in self.live and args[1] <= len(self.live[args[0]])
        if name == "begin_step":
            return all(seq in self.live for seq in args[0])
        return bool(self.steps) if name == "end_step" else args[0] in self.live

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
        self._check_conservation(len(entries), free)
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

    def _check_conservation(self, held: int, free: int) -> None:
        idle = not self.live and not self.steps
        if held + free > self.capacity or (idle and free != self.capacity):
            raise Violation(
                "KV012", f"{held} blocks are in tables and {free} can be had: the pool began with {self.capacity}"
            )

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
                    f"{words(name, args)} was refused with {free} blocks free; {promised} must do ({refusal})",
                ) from refusal
        after = self._view()
        if after != before:
            raise Violation("KV025", f"{words(name, args)} was refused and changed {_changed(before, after)}")
        return False, None

    def _ask(self, name: str, *args: object) -> Any:
        """What the allocator answers; an exception that is no refusal is a finding, an exit an unusable target."""
        operation: Callable[..., object] = getattr(self.target, name)
        WATCH.call = (name, args)
        try:
            return operation(*args)
        except OutOfBlocks:
            raise
        except SystemExit as error:
            raise UsageError(f"{words(name, args)} calls sys.exit({error.code!r}): an allocator must return") from error
        except Exception as error:
            raise Violation("crash", f"{words(name, args)} raised {told(error)}") from error
        finally:
            WATCH.call, WATCH.answered = None, WATCH.answered + 1

    def _table(self, seq: int) -> list[int]:
        table = self._ask("table", seq)
        try:
            return list(map(index, table))
        except TypeError:
            raise UsageError(f"table({seq}) is {table!r:.60}: must be a sequence of whole numbers") from None

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
        moves: Sequence[Write | Copy] = self._ask("drain") if self.drained else self._derived(before, after)
        if not isinstance(moves, Sequence) or not all(isinstance(move, Write | Copy) for move in moves):
            raise UsageError(f"drain() is {moves!r:.60}: must be a sequence of Write and Copy")
        for move in moves:
            if isinstance(move, Copy):
                if not any(move.dst in table for table in before.values()):
                    self._check_fence(move.dst, range(move.slots), f"copy from b{move.src}")
                self.shadow.copy(move.src, move.dst, move.slots)
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
