"""Small programs for threads on one paged allocator, and the string that brings one back."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import count

from kvscope.errors import UsageError

Operation = tuple[str, int, int]  # name, which of the thread's sequences, how much
_NAMES = ("append", "append", "add", "fork", "free", "free", "truncate")
_HEAD = "kvra1"
_MOST = 1_000  # of anything in a replay string
MAX_THREADS = 4
_LIMITS = {"threads": (2, MAX_THREADS), "operations of a thread": (0, 90), "as the amount of an operation": (0, _MOST)}


@dataclass(frozen=True, slots=True)
class ThreadProgram:
    """A pool, a prompt that every thread gets a fork of (where it can), and what each thread does."""

    num_blocks: int
    block_size: int
    prompt: int
    threads: tuple[tuple[Operation, ...], ...]

    @classmethod
    def draw(cls, source: random.Random, threads: int, size: int) -> ThreadProgram:
        """A random one with up to `size` operations per thread."""
        block_size = source.randint(1, 3)
        programs = tuple(tuple(_operation(source) for _ in range(source.randint(1, size))) for _ in range(threads))
        return cls(source.randint(threads, threads + 4), block_size, source.randint(1, 2 * block_size), programs)

    def lines(self, offered: Collection[str] = ("fork", "truncate")) -> list[str]:
        """For people: the calls that an allocator which offers so much is made, as long as it refuses none."""
        own = [f"worker-{i + 1}: {'; '.join(self._calls(i, offered)) or 'nothing'}" for i in range(len(self.threads))]
        return [f"{self.num_blocks} blocks of {self.block_size}, a prompt of {self.prompt} that all threads have", *own]

    def prompt_of(self, amount: int) -> list[int]:
        """The tokens of an `add` of this amount."""
        return [(amount >> i) & 1 for i in range(1 + amount % (2 * self.block_size))]

    def _calls(self, thread: int, offered: Collection[str]) -> Iterator[str]:
        lengths = {thread: self.prompt}  # of the thread's sequences, in the order in which they came
        new = count(first_of(thread))
        for name, pick, amount in self.threads[thread]:
            own = list(lengths)
            if name == "add" or not own:
                seq, tokens = next(new), self.prompt_of(amount)
                lengths[seq] = len(tokens)
                yield f"add({seq}, {tokens})"
                continue
            seq = own[pick % len(own)]
            if name == "append":
                lengths[seq] += 1
                yield f"append({seq}, {2 + thread})"
            elif name == "free":
                del lengths[seq]
                yield f"free({seq})"
            elif name == "fork" and name in offered:
                child = next(new)
                lengths[child] = lengths[seq]
                yield f"fork({seq}, {child})"
            elif name == "truncate" and name in offered:
                lengths[seq] = max(1, lengths[seq] - amount)
                yield f"truncate({seq}, {lengths[seq]})"

    def __str__(self) -> str:
        own = "/".join("-".join(f"{name}.{pick}.{n}" for name, pick, n in ops) or "none" for ops in self.threads)
        return f"{_HEAD}/{self.num_blocks}.{self.block_size}.{self.prompt}/{own}"

    @classmethod
    def parse(cls, text: str) -> tuple[ThreadProgram, str]:
        """A program and the schedule behind it.

        Raises:
            UsageError: the string is not one of these.
        """
        try:
            program, schedule = text.strip().split("@")
            head, sizes, *own = program.split("/")
            blocks, size, prompt = (int(number) for number in sizes.split("."))
            calls = [[c.split(".") for c in ops.split("-")] if ops != "none" else [] for ops in own]
            threads = tuple(tuple((name, int(pick), int(n)) for name, pick, n in ops) for ops in calls)
            if head != _HEAD or any(name not in _NAMES for ops in threads for name, _, _ in ops):
                raise ValueError
        except ValueError:
            raise UsageError(
                f"{text.strip()[:60]!r} is no replay string of an allocator: one begins {_HEAD}/"
            ) from None
        sizes_of = {"blocks": blocks, "slots per block": size, "tokens of the prompt": prompt, "threads": len(threads)}
        sizes_of["operations of a thread"] = max(map(len, threads), default=0)
        sizes_of["as the amount of an operation"] = max((n for ops in threads for _, _, n in ops), default=0)
        for what, value in sizes_of.items():
            least, most = _LIMITS.get(what, (1, _MOST))
            if not least <= value <= most:
                raise UsageError(f"the replay string has {value} {what}: must be {least} to {most:,}")
        return cls(blocks, size, prompt, threads), schedule

    def smaller(self) -> list[ThreadProgram]:
        """With one operation less."""
        return [
            replace(self, threads=(*self.threads[:t], ops[:i] + ops[i + 1 :], *self.threads[t + 1 :]))
            for t, ops in enumerate(self.threads)
            for i in range(len(ops))
        ]


def first_of(thread: int) -> int:
    """The id of the first sequence that a thread admits; those of the prompt are the threads' numbers."""
    return 100 * (thread + 1) + 1


def owner_of(seq: int) -> int:
    """The thread whose sequence it is."""
    return seq // 100 - 1 if seq >= first_of(0) else seq


def _operation(source: random.Random) -> Operation:
    return source.choice(_NAMES), source.randrange(4), source.randrange(8)
