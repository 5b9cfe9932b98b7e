"""The queue in the order of a policy: adding, taking out anywhere and walking from the head are cheap at any length."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from kvscope.engine import policy
from kvscope.engine.policy import Key, Policy
from kvscope.engine.sequence import Sequence


class WaitingQueue(Protocol):
    """Sequences that wait for admission."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Sequence]: ...
    def push(self, sequence: Sequence) -> None:
        """Queue a new one."""
        ...

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted one."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands."""
        ...

    def walk(self) -> Iterator[Sequence]:
        """From the head on; the one just yielded may be removed meanwhile, nothing else may change."""
        ...

    def charge(self, sequence: Sequence, *, prompt: int = 0, output: int = 0) -> None:
        """The sequence's user was served these tokens."""
        ...


def make_queue(kind: Policy, patience: int) -> WaitingQueue:
    """The queue of a policy."""
    return FairQueue() if kind is Policy.FAIR else Line(kind, patience)


class Ordered:
    """Sequences by key. A list and bisection: moving 100,000 pointers along takes tens of microseconds."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def __getitem__(self, index: int) -> Sequence:
        return self._items[index]

    def add(self, sequence: Sequence, key: Key) -> None:
        """Put a sequence at its place; keys are distinct."""
        sequence.place = key
        at = bisect_left(self._keys, key) if self._keys and key < self._keys[-1] else len(self._keys)
        self._keys.insert(at, key)
        self._items.insert(at, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out."""
        at = bisect_left(self._keys, sequence.place)
        del self._keys[at], self._items[at]

    def walk(self) -> Iterator[Sequence]:
        """From the head on; the one just yielded may be removed meanwhile."""
        at = 0
        while at < len(self._items):
            sequence = self._items[at]
            yield sequence
            if at < len(self._items) and self._items[at] is sequence:
                at += 1


class Line(Ordered):
    """One line for all: first come, first served, or by priority.

    In the order of arrival a preempted sequence goes to the head; by priority it has its old place again.
    """

    def __init__(self, kind: Policy, patience: int) -> None:
        super().__init__()
        self._kind = kind
        self._patience = patience
        self._front = 0

    def push(self, sequence: Sequence) -> None:
        """Queue a new one."""
        self.add(sequence, self.key(sequence))

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted one."""
        if self._kind is Policy.PRIORITY:
            self.push(sequence)
        else:
            self._front -= 1
            self.add(sequence, (self._front, 0, 0))

    def key(self, sequence: Sequence) -> Key:
        """Where the sequence stands by arrival and priority."""
        return policy.queue_key(
            self._kind, priority=sequence.request.priority, number=sequence.number, seq_id=sequence.seq_id,
            patience=self._patience,
        )  # fmt: skip

    def charge(self, sequence: Sequence, *, prompt: int = 0, output: int = 0) -> None:
        """Nothing to do: who was served how much does not matter here."""


class FairQueue:
    """A line per user, and the user who was served least so far is next; preempted sequences come before all others.

    Counters only grow. So an entry of the heap is at most too low: it is corrected when it comes up.
    """

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self._lines: dict[str, Ordered] = {}  # users with something queued
        self._preempted = Ordered()
        self._heap: list[tuple[int, int, str]] = []  # counter, number of the user's head, user
        self._front = 0
        self._length = 0
        self._last_left = 0  # counter of the user who left the queue last

    def __len__(self) -> int:
        return self._length + len(self._preempted)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._preempted
        for line in self._lines.values():
            yield from line

    def push(self, sequence: Sequence) -> None:
        """Queue a new one; a user who had nothing queued starts no better than the others stand."""
        user = sequence.request.user
        line = self._lines.get(user)
        if line is None:
            least = [self.counters[self._least()]] if self._lines else []
            self.counters[user] = policy.lift(self.counters.get(user, 0), least, self._last_left)
            line = self._lines[user] = Ordered()
            heappush(self._heap, (self.counters[user], sequence.number, user))
        line.add(sequence, (sequence.number, 0, sequence.seq_id))
        self._length += 1

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted one: it was served already, and holds nothing while others wait."""
        self._front -= 1
        self._preempted.add(sequence, (self._front, 0, 0))

    def remove(self, sequence: Sequence) -> None:
        """Take one out, wherever it stands."""
        if sequence.place[0] < 0:
            self._preempted.remove(sequence)
            return
        user = sequence.request.user
        line = self._lines[user]
        head = line[0]
        line.remove(sequence)
        self._length -= 1
        if not line:
            del self._lines[user]
            self._last_left = self.counters[user]
        elif head is sequence:
            heappush(self._heap, (self.counters[user], line[0].number, user))

    def walk(self) -> Iterator[Sequence]:
        """The preempted ones, then the head of the least served user; who is passed over is not looked at twice."""
        yield from self._preempted.walk()
        passed: dict[str, int] = {}  # how many of a user's line
        done: list[tuple[int, int, str]] = []
        try:
            while len(done) < len(self._lines):
                user = self._least()
                line, at = self._lines[user], passed.get(user, 0)
                if at >= len(line):
                    done.append(heappop(self._heap))
                    continue
                sequence = line[at]
                yield sequence
                if self._lines.get(user) is line and at < len(line) and line[at] is sequence:
                    passed[user] = at + 1
        finally:
            for entry in done:
                heappush(self._heap, entry)

    def charge(self, sequence: Sequence, *, prompt: int = 0, output: int = 0) -> None:
        """The sequence's user was served these tokens."""
        user = sequence.request.user
        self.counters[user] = policy.charge(self.counters.get(user, 0), prompt=prompt, output=output)

    def _least(self) -> str:
        """The user at the top of the heap, once the top is true."""
        while True:
            counter, head, user = self._heap[0]
            line = self._lines.get(user)
            if line is None or line[0].number != head:
                heappop(self._heap)  # gone, or another entry says where the user stands
            elif self.counters[user] != counter:
                heapreplace(self._heap, (self.counters[user], head, user))
            else:
                return user
