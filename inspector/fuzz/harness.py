"""Plays operations on an allocator and checks, after each, everything that it promises.

An operation that breaks a rule raises `Violation`; what the rules are says `judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvscope.inspector.fuzz.judge import WATCH, Call, Judge, Tables, words
from kvscope.inspector.fuzz.shadow import Prefix

__all__ = ["WATCH", "Call", "Harness", "words"]

NEVER = 1 << 62  # free blocks at which an operation may not be refused: it always may


class Harness(Judge):
    """One allocator under test, and the operations that a caller may make."""

    # -- operations -------------------------------------------------------------------------------------------------

    def add(self, seq: int, tokens: Sequence[int], identity: tuple[object, ...] = ()) -> bool:
        """Admit a new or preempted sequence; False if it was refused."""
        prefix = Prefix(list(tokens), identity)
        before = self._asks("add", seq, prefix)
        done, cached = self._call(self._needs(prefix), "add", seq, list(tokens))
        if done:
            self.preempted.pop(seq, None)
            self.looked.pop(seq, None)
            self.live[seq] = prefix
            self._used.add(seq)
            self._played(before, seq, self._cached(seq, cached))
        return done

    def abandon(self, seq: int, tokens: Sequence[int], identity: tuple[object, ...] = ()) -> bool:
        """Admit a new sequence and abort it before any of it was computed; False if it was refused."""
        prefix = Prefix(list(tokens), identity)
        before = self._asks("abandon", seq, prefix)
        done, _ = self._call(self._needs(prefix), "abandon", seq, list(tokens))
        if done:
            self.looked.pop(seq, None)
            self._used.add(seq)
            self._played(before)
        return done

    def lookup(self, seq: int, tokens: Sequence[int], identity: tuple[object, ...] = ()) -> None:
        """Hold what the prefix cache has of a prompt until it is admitted, or forgotten."""
        prefix = Prefix(list(tokens), identity)
        before = self._asks("lookup", seq, prefix)
        self._call(0, "lookup", seq, list(tokens))
        self.looked[seq] = prefix
        self._played(before)

    def forget(self, seq: int) -> None:
        """The prompt that was looked up is not admitted."""
        before = self._begins("forget", seq)
        self._call(0, "forget", seq)
        del self.looked[seq]
        self._played(before)

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
        """The sequence is finished, wherever it is."""
        before = self._begins("free", seq)
        self._call(0, "free", seq)
        del (self.live if seq in self.live else self.swapped)[seq]
        self._played(before)

    def swap_out(self, seq: int) -> bool:
        """The sequence gives its blocks up, and what is in them goes to the host; False if there is no room."""
        before = self._begins("swap_out", seq)
        done, _ = self._call(NEVER, "swap_out", seq)
        if done:
            self.swapped[seq] = self.live.pop(seq), len(before[seq])
            self._played(before)
        return done

    def swap_in(self, seq: int) -> bool:
        """The sequence comes back from the host; False if it was refused."""
        before = self._begins("swap_in", seq)
        prefix, entries = self.swapped[seq]
        done, _ = self._call(entries + self.watermark + self.lookahead, "swap_in", seq)
        if done:
            self.live[seq] = prefix
            del self.swapped[seq]
            self._played(before)
        return done

    def lease(self, seq: int, lease: int) -> None:
        """A transfer reads what the sequence has now, whatever becomes of it."""
        before = self._begins("lease", seq, lease)
        self._call(0, "lease", seq, lease)
        places = [(self.shadow.place(before[seq], p), self.live[seq].content(p)) for p in range(len(self.live[seq]))]
        self.leases[lease] = {place: content for place, content in places if place[0] not in self.reserved}
        self._leased.add(lease)
        self._played(before)

    def unlease(self, lease: int) -> None:
        """The transfer is done."""
        before = self._begins("unlease", lease)
        self._call(0, "unlease", lease)
        del self.leases[lease]
        self._played(before)

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
        """End every step and transfer, free every sequence: all blocks must be back."""
        while self.steps:
            self.end_step()
        for seq in [*self.live, *self.swapped]:
            self.free(seq)
        for seq in list(self.looked):
            self.forget(seq)
        for lease in list(self.leases):
            self.unlease(lease)

    def allows(self, name: str, *args: Any) -> bool:
        """Whether the caller may do this now: a call that is not allowed says nothing of the allocator."""
        if name == "add":
            seq, tokens, identity = args[0], args[1], args[2] if len(args) > 2 else ()
            again = self.preempted.get(seq)
            return seq not in self._used if again is None else again == Prefix(tokens, identity)
        allowed: Callable[..., bool] = _ALLOWED.get(name, _lives)
        return allowed(self, *args)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _asks(self, name: str, seq: int, prefix: Prefix) -> Tables:
        """`_begins`, for an operation with a prompt of some identity."""
        if prefix.identity:
            self._ask("identity", seq, prefix.identity)
        return self._begins(name, seq, prefix.tokens[:], *([prefix.identity] if prefix.identity else []))

    def _needs(self, prefix: Prefix) -> int:
        """Free blocks from which on a prompt must be admitted."""
        return -(-len(prefix) // self.block_size) + self.watermark + self.lookahead


def _lives(harness: Harness, seq: int, *_: Any) -> bool:
    return seq in harness.live


def _is_new(harness: Harness, seq: int, *_: Any) -> bool:
    return seq not in harness._used


_ALLOWED: dict[str, Callable[..., bool]] = {
    "abandon": _is_new,
    "lookup": _is_new,
    "forget": lambda harness, seq: seq in harness.looked,
    "fork": lambda harness, parent, child: parent in harness.live and child not in {*harness._used, *harness.looked},
    "truncate": lambda harness, seq, length: seq in harness.live and length <= len(harness.live[seq]),
    "free": lambda harness, seq: seq in harness.live or seq in harness.swapped,
    "swap_out": lambda harness, seq: seq in harness.live and not harness.steps,
    "swap_in": lambda harness, seq: seq in harness.swapped,
    "lease": lambda harness, seq, lease: seq in harness.live and lease not in harness._leased,
    "unlease": lambda harness, lease: lease in harness.leases,
    "begin_step": lambda harness, seqs: all(seq in harness.live for seq in seqs),
    "end_step": lambda harness: bool(harness.steps),
}
