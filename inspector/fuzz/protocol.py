"""What a paged allocator must offer to be fuzzed, and how it is told that it broke a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvscope.errors import OutOfBlocks, UsageError

__all__ = ["Copy", "Factory", "OutOfBlocks", "PagedAllocator", "Violation", "Write", "build", "offers"]


@dataclass(frozen=True, slots=True)
class Write:
    """The KV of `position` of sequence `seq` was written into `slot` of `block`."""

    block: int
    slot: int
    seq: int
    position: int


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `slots` slots of block `src` were copied to `dst`."""

    src: int
    dst: int
    slots: int


class PagedAllocator(Protocol):
    """What a block manager must offer to be fuzzed. Sequence ids and tokens are ints."""

    num_blocks: int
    block_size: int

    def add(self, seq: int, tokens: Sequence[int]) -> int | None:
        """Admit with its prompt; returns cached tokens (None: no prefix cache). Raises OutOfBlocks, unchanged."""
        ...

    def append(self, seq: int, token: int) -> None:
        """One decoded token; the same failure rule."""
        ...

    def free(self, seq: int) -> None:
        """The sequence is finished."""
        ...

    def table(self, seq: int) -> Sequence[int]:
        """Physical block ids, logical order."""
        ...

    def num_free(self) -> int:
        """Blocks that an allocation could take now (evictable ones included)."""
        ...

    # Optional from here on: a manager without one skips the rules that need it.

    def refcount(self, block: int) -> int:
        """Holders among sequences; the cache and leases do not count."""
        ...

    def fork(self, parent: int, child: int) -> None:
        """The child continues from everything the parent has."""
        ...

    def truncate(self, seq: int, length: int) -> None:
        """Speculative rollback: positions from `length` on are dropped."""
        ...

    def preempt(self, seq: int) -> None:
        """Give up the blocks; add() again later."""
        ...

    def begin_step(self, seqs: Sequence[int]) -> None:
        """Blocks of these sequences are in use ..."""
        ...

    def end_step(self) -> None:
        """... until here; steps end in the order they began."""
        ...

    def identity(self, seq: int, extras: tuple[object, ...]) -> None:
        """LoRA, salt, ... before add(): equal tokens of another identity are another prefix."""
        ...

    def drain(self) -> Sequence[Write | Copy]:
        """Data moves since the last drain, in order."""
        ...


Factory = Callable[[int, int], PagedAllocator]

REQUIRED = ("add", "append", "free", "table", "num_free")
NAMES = {
    "KV004": "refcount-underflow",
    "KV005": "leak",
    "KV006": "write-while-shared",
    "KV009": "uninitialised-read",
    "KV012": "conservation",
    "KV013": "early-reuse",
    "KV014": "double-allocation",
    "KV016": "early-publication",
    "KV018": "bad-table",
    "KV019": "bad-slot",
    "KV023": "provenance",
    "KV025": "refused-but-changed",
    "KV026": "broken-promise",
    "crash": "unexpected exception",
}


class Violation(AssertionError):
    """An allocator broke a rule; `code` is that of the sanitizer's finding of the same name, or "crash"."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(f"{why} [{code} {NAMES[code]}]")
        self.code = code
        self.why = why


def offers(target: object, *names: str) -> bool:
    """Whether an allocator has all of these optional methods."""
    return all(callable(getattr(target, name, None)) for name in names)


def build(factory: Factory, num_blocks: int, block_size: int) -> PagedAllocator:
    """A new allocator from its factory.

    Raises:
        UsageError: it lacks a method that none can do without.
    """
    target = factory(num_blocks, block_size)
    missing = [name for name in REQUIRED if not offers(target, name)]
    if missing:
        raise UsageError(
            f"{type(target).__name__} cannot be fuzzed: it has no {', '.join(missing)}; see PagedAllocator"
        )
    return target
