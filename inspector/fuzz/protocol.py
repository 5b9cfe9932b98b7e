"""What a paged allocator must offer to be fuzzed, and how it is told that it broke a promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Protocol

from kvscope.errors import OutOfBlocks, UsageError
from kvscope.inspector.fuzz.answers import MOST, printable, shown, taken, told, whole

__all__ = [
    "OPTIONAL", "Copy", "Factory", "OutOfBlocks", "PagedAllocator", "Sizes", "Swap", "Violation", "Write", "build",
    "offers",
]  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class Swap:
    """Block `block` was copied to slot `host` of host memory (`out`), or filled from it."""

    block: int
    host: int
    out: bool


class PagedAllocator(Protocol):
    """What a block manager must offer to be fuzzed. Sequence ids and tokens are ints.

    Optional attributes: `reserved` (block ids that may repeat in tables, neither owned nor checked), `watermark` and
    `lookahead` (blocks that an admission keeps free, and that each operation takes ahead; 0). A factory that cannot
    make every size says which it can: `factory.block_sizes` and `factory.pool_sizes`, sequences of ints.
    """

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

    def drain(self) -> Sequence[Write | Copy | Swap]:
        """Data moves since the last drain, in order."""
        ...

    def abandon(self, seq: int, tokens: Sequence[int]) -> None:
        """Admit, and abort before any of it was computed. Raises OutOfBlocks, unchanged."""
        ...

    def lookup(self, seq: int, tokens: Sequence[int]) -> None:
        """Keep what the prefix cache has of this prompt until add(seq), or ..."""
        ...

    def forget(self, seq: int) -> None:
        """... until here."""
        ...

    def lease(self, seq: int, lease: int) -> None:
        """Transfer number `lease` reads all that the sequence has, from here, whatever becomes of it, ..."""
        ...

    def unlease(self, lease: int) -> None:
        """... until here."""
        ...

    def swap_out(self, seq: int) -> None:
        """Preempt, and keep the content in host memory (`drain` tells where). Raises OutOfBlocks, unchanged."""
        ...

    def swap_in(self, seq: int) -> None:
        """Blocks again, filled from host memory. Raises OutOfBlocks, unchanged. free() may come instead."""
        ...


Factory = Callable[[int, int], PagedAllocator]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Which pools a factory is asked for: small ones, where refusals, eviction and reuse are frequent."""

    pools: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    blocks: tuple[int, ...] = (1, 2, 3, 4)

    @classmethod
    def of(cls, factory: Factory) -> Sizes:
        """Those that the factory says it can make: its `pool_sizes` and `block_sizes`; else 1 to 6, and 1 to 4.

        Raises:
            UsageError: it names none, or what is no size.
        """
        return cls(_sizes(factory, "pool_sizes", cls().pools), _sizes(factory, "block_sizes", cls().blocks))


def _sizes(factory: Factory, name: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    given = getattr(factory, name, otherwise)
    sizes = tuple(whole(size, name) for size in taken(given, f"{name} of the factory"))
    if not sizes or min(sizes) < 1:
        raise UsageError(f"{name} of the factory is {shown(given)}: must be whole numbers of 1 or more")
    return sizes


REQUIRED = ("add", "append", "free", "table", "num_free")
OPTIONAL = (
    "refcount", "fork", "truncate", "preempt", "begin_step", "end_step", "identity", "drain", "abandon", "lookup",
    "forget", "lease", "unlease", "swap_out", "swap_in",
)  # fmt: skip
ARGUMENTS = {
    "add": 2, "append": 2, "free": 1, "table": 1, "num_free": 0, "refcount": 1, "fork": 2, "truncate": 2, "preempt": 1,
    "begin_step": 1, "end_step": 0, "identity": 2, "drain": 0, "abandon": 2, "lookup": 2,
    "forget": 1, "lease": 2, "unlease": 1, "swap_out": 1, "swap_in": 1,
}  # fmt: skip
NAMES = {
    "KV002": "read-after-free",
    "KV004": "refcount-underflow",
    "KV005": "leak",
    "KV006": "write-while-shared",
    "KV009": "uninitialised-read",
    "KV012": "conservation",
    "KV013": "early-reuse",
    "KV014": "double-allocation",
    "KV016": "early-publication",
    "KV017": "lease",
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
        why = printable(why)
        super().__init__(f"{why} [{code} {NAMES[code]}]")
        self.code = code
        self.why = why


def offers(target: object, *names: str) -> bool:
    """Whether an allocator has all of these optional methods."""
    return all(callable(getattr(target, name, None)) for name in names)


def build(factory: Factory, num_blocks: int, block_size: int) -> PagedAllocator:
    """A new allocator from its factory.

    Raises:
        UsageError: the factory raises, or what it makes lacks a method that none can do without, or has one that
            cannot be called as the protocol says.
    """
    try:
        target = factory(num_blocks, block_size)
    except UsageError:
        raise
    except SystemExit as error:
        raise UsageError(f"the factory calls sys.exit({error.code!r}): it must return an allocator") from error
    except Exception as error:
        raise UsageError(f"factory({num_blocks}, {block_size}) raised {told(error)}") from error
    missing = [name for name in REQUIRED if not offers(target, name)]
    if missing:
        raise UsageError(
            f"{type(target).__name__} cannot be fuzzed: it has no {', '.join(missing)}; see PagedAllocator"
        )
    for name, count in ARGUMENTS.items():
        if offers(target, name) and not _takes(getattr(target, name), count):
            raise UsageError(
                f"{type(target).__name__}.{name} cannot be called with {count} argument{'s' * (count != 1)}; "
                "see PagedAllocator"
            )
    for name in ("num_blocks", "block_size"):
        what = f"{type(target).__name__}.{name}"
        if (size := whole(getattr(target, name, 0), what)) > MOST:
            raise UsageError(f"{what} is {size}: must be at most {MOST:,} of a pool that is to be fuzzed")
    return target


def _takes(method: Callable[..., object], count: int) -> bool:
    try:
        bound = signature(method)
    except (TypeError, ValueError):  # written in C: it does not say
        return True
    try:
        bound.bind(*range(count))
    except TypeError:
        return False
    return True
