"""What the rooms above hold of a trace: the writing side (`EventSink`) and the reading side (`Trace`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from kvscope.errors import UsageError
from kvscope.traces.schema import EventArray, Kind

if TYPE_CHECKING:
    from kvscope.traces.sheet import Sheet

Ints = int | Sequence[int] | npt.NDArray[np.integer[Any]]
Details = tuple[npt.NDArray[np.int64], list[tuple[int, ...]]]

MAX_BLOCK_SIZE = 2**15 - 1  # `fill` is an int16
_ALLOC, _RELEASE, _FREE = int(Kind.ALLOC), int(Kind.RELEASE), int(Kind.FREE)


class Frame(NamedTuple):
    """One frame of a call stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Site:
    """Where in the program an operation was called; `frames` is the stack above it, innermost (this one) first."""

    file: str
    line: int
    function: str
    frames: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else self.function


UNKNOWN_SITE = Site("", 0, "unknown")


@dataclass(frozen=True)
class PoolFacts:
    """The geometry of the pool that a trace speaks of.

    Args:
        num_blocks: blocks of the pool; their ids are below it. Which are never handed out, a fact says (`reserved`).
        block_size: token slots per block, at most 32,767.
        block_bytes: bytes per block over all layers; 0 where the memory is only accounted for.
        name: which pool, when a run has several; one trace folder each.

    Raises:
        UsageError: a size is no whole number or out of its range.
    """

    num_blocks: int
    block_size: int
    block_bytes: int = 0
    name: str = "pool"

    def __post_init__(self) -> None:
        for field in ("num_blocks", "block_size", "block_bytes"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise UsageError(f"{field} is a whole number, got {value!r:.40}")
            object.__setattr__(self, field, int(value))
        if not isinstance(self.name, str):
            raise UsageError(f"the name of a pool is text, got {self.name!r:.40}")
        if not 0 < self.num_blocks < 2**31:
            raise UsageError(f"a pool needs 1 to 2**31 - 1 blocks, got {self.num_blocks}")
        if not 0 < self.block_size <= MAX_BLOCK_SIZE:
            raise UsageError(f"a block holds 1 to {MAX_BLOCK_SIZE} slots, got {self.block_size}")
        if self.block_bytes < 0:
            raise UsageError(f"block_bytes is not negative, got {self.block_bytes}")
        if self.num_blocks * self.block_bytes >= 2**63:
            raise UsageError(f"a pool holds less than 2**63 bytes, got {self.num_blocks} blocks of {self.block_bytes}")

    def to_json(self) -> dict[str, Any]:
        """As the object the manifest holds."""
        return asdict(self)


@runtime_checkable
class EventSink(Protocol):
    """Where an engine writes what it does; `sink is None` means that nothing is recorded.

    Calls belong inside the critical section that guards the state they speak of: the order of the rows is the order
    of the operations. A row written by a thread outside of it is never lost, doubled or torn, but it takes `t_ns`,
    site and actor from whichever operation began last.
    """

    step: int

    @property
    def next_seq(self) -> int:
        """The number that the next row gets."""
        ...

    def skip_frames(self, files: Iterable[str]) -> None:
        """Never name these files (a pool's own modules) as the call site of an operation."""
        ...

    def begin(self, above: int = 1) -> None:
        """Start an operation: one clock read, one call site and one actor, shared by the rows that follow.

        `above`: how many frames above this one the operation was called, as far as the caller knows; a hint.
        """
        ...

    def emit(
        self,
        kind: int,
        reason: int = 0,
        block: int = -1,
        gen: int = -1,
        ref_before: int = -1,
        ref_after: int = -1,
        fill: int = -1,
        seq_id: int = -1,
        lblock: int = -1,
        aux: int = 0,
    ) -> int:
        """Append one row; returns its seq, or -1 when it had to be dropped (and was counted)."""
        ...

    def emit_many(
        self,
        kind: int,
        reason: int = 0,
        *,
        block: Ints = -1,
        gen: Ints = -1,
        ref_before: Ints = -1,
        ref_after: Ints = -1,
        fill: Ints = -1,
        seq_id: Ints = -1,
        lblock: Ints = -1,
        aux: Ints = 0,
        details: npt.NDArray[np.int64] | None = None,
    ) -> int:
        """Append one row per array element, scalars repeated; returns the first seq, or -1 when rows were dropped.

        `details` [rows, values], at most 8 values, are attached as by `detail`.
        """
        ...

    def emit_alloc(self, reason: int, block: int, gen: int, seq_id: int, lblock: int) -> int:
        """`emit` of the ALLOC row of an empty block with its first holder."""
        ...

    def emit_end(self, reason: int, block: int, gen: int, fill: int, seq_id: int, lblock: int) -> int:
        """`emit` of the RELEASE row of a block's last holder and of the FREE row behind it; returns the first seq."""
        ...

    def emit_lives(
        self, kind: int, reason: int, lives: npt.NDArray[np.int64], ref_before: Ints, ref_after: Ints, fill: Ints,
        seq_id: Ints = -1, lblock: Ints = -1,
    ) -> int:  # fmt: skip
        """`emit_many` with block and life of each row in one number: `block | gen << 32`."""
        ...

    def emit_ends(
        self, reason: int, lives: npt.NDArray[np.int64], fill: Ints, seq_id: Ints = -1, lblock: Ints = -1
    ) -> int:
        """`emit_lives` of the RELEASE rows of the blocks' last holders, and then of their FREE rows."""
        ...

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """Append the rows of a sheet; returns the first seq, or -1 when rows were dropped.

        `details` [rows, values], at most 8 values, are attached to the last rows of the sheet.
        """
        ...

    def detail(self, seq: int, values: Sequence[int]) -> None:
        """Attach int64 values to the row `seq` (schema.DETAIL_FIELDS); a second call for the same row replaces them."""
        ...

    def fact(self, record: Mapping[str, Any]) -> None:
        """Append one JSON object to the facts of the run."""
        ...


class SpelledOut:
    """The short calls of an `EventSink` by means of `emit` and `emit_many`: for a sink that looks at each row."""

    def emit_alloc(self: EventSink, reason: int, block: int, gen: int, seq_id: int, lblock: int) -> int:
        """As `EventSink.emit_alloc`."""
        return self.emit(_ALLOC, reason, block, gen, 0, 1, 0, seq_id, lblock)

    def emit_end(self: EventSink, reason: int, block: int, gen: int, fill: int, seq_id: int, lblock: int) -> int:
        """As `EventSink.emit_end`."""
        seq = self.emit(_RELEASE, reason, block, gen, 1, 0, fill, seq_id, lblock)
        self.emit(_FREE, reason, block, gen, 0, 0, 0)
        return seq

    def emit_lives(
        self: EventSink, kind: int, reason: int, lives: npt.NDArray[np.int64], ref_before: Ints, ref_after: Ints,
        fill: Ints, seq_id: Ints = -1, lblock: Ints = -1,
    ) -> int:  # fmt: skip
        """As `EventSink.emit_lives`."""
        halves = lives.view("<i4")
        return self.emit_many(
            kind, reason, block=halves[0::2], gen=halves[1::2], ref_before=ref_before, ref_after=ref_after, fill=fill,
            seq_id=seq_id, lblock=lblock,
        )  # fmt: skip

    def emit_ends(
        self: EventSink, reason: int, lives: npt.NDArray[np.int64], fill: Ints, seq_id: Ints = -1, lblock: Ints = -1
    ) -> int:
        """As `EventSink.emit_ends`."""
        seq = self.emit_lives(_RELEASE, reason, lives, 1, 0, fill, seq_id, lblock)
        self.emit_lives(_FREE, reason, lives, 0, 0, 0)
        return seq


class Trace(Protocol):
    """What can be read: a `TraceReader` or a `MemoryRecorder`."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def events(self) -> EventArray:
        """All rows, EVENT_DTYPE, in seq order."""
        ...

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """The seq of each row; rising, and dense from 0 unless events were lost."""
        ...

    @property
    def sites(self) -> Sequence[Site]: ...
    @property
    def actors(self) -> Sequence[str]: ...
    @property
    def facts(self) -> Sequence[dict[str, Any]]: ...
    @property
    def warnings(self) -> Sequence[str]: ...
    @property
    def clean(self) -> bool: ...
    @property
    def dropped(self) -> int: ...
    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of the row `seq`, None where it has none."""
        ...

    def details_of(self, kind: int) -> Details:
        """(seqs, values) of every row of a kind that has details, in seq order."""
        ...
