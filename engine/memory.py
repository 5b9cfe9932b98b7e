"""What the scheduler needs of the memory it plans for; the block manager and the baselines both are such memories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from kvscope.engine.host_tier import Swap
from kvscope.engine.prefix import Extras
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import PrefixMatch
from kvscope.traces.schema import Kind, Reason


class SequenceMemory(Protocol):
    """Room for sequences, given and taken back by whole operations."""

    num_blocks: int
    block_size: int

    def probe(self, tokens: Sequence[int], extras: Extras = ()) -> PrefixMatch:
        """What admitting this prompt would find and take; changes nothing."""
        ...

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        """Give a sequence the room of its whole prompt; returns how many leading tokens are cached already."""
        ...

    def write(self, seq_id: int, lo: int, hi: int) -> None:
        """Reserve and record the writes of positions [lo, hi)."""
        ...

    def append(self, seq_id: int, token: int) -> None:
        """One more token, to be computed in the next step. Raises OutOfBlocks; nothing was changed then."""
        ...

    def can_append_many(self, seq_ids: Sequence[int]) -> bool:
        """Whether `append_many` for these sequences would be served now."""
        ...

    def append_many(self, seq_ids: Sequence[int], tokens: Sequence[int]) -> Sequence[Scheduled]:
        """`append` of one token to each of these sequences, all or nothing; only where `can_append_many` says so.

        Returns the rows of the step that computes them.
        """
        ...

    def free(self, seq_id: int, kind: Kind = ..., reason: Reason = ..., aux: int = 0) -> None:
        """Give all that the sequence holds back."""
        ...

    def record(
        self, kind: Kind, reason: Reason, seq_id: int, aux: int = 0, *, details: Sequence[int] = (),
        needed: int | None = None,
    ) -> None:  # fmt: skip
        """Record an event that touches no block; with `needed`, its details begin with needed, free, evictable."""
        ...

    def held(self) -> dict[int, int]:
        """Blocks in the table of each sequence that holds one."""
        ...

    def supply(self) -> tuple[int, int]:
        """Blocks that are free, and cached ones that could be evicted now."""
        ...

    def in_flight(self) -> int:
        """Steps and transfers under way: when they end, what waits for them may go on."""
        ...


@runtime_checkable
class SwappingMemory(Protocol):
    """A memory with a host tier behind it, where preempted sequences can wait."""

    def host_free(self) -> int:
        """Slots of the host tier that nobody holds."""
        ...

    def swap_cost(self, seq_ids: Sequence[int]) -> int | None:
        """Slots that swapping these sequences out takes; None if one cannot be moved now."""
        ...

    def swap_out(self, seq_id: int, aux: int = 0) -> None:
        """Preempt a sequence; what its blocks hold goes to the host tier."""
        ...

    def probe_swap_in(self, seq_id: int, length: int) -> PrefixMatch:
        """What bringing the sequence back would find and take, with room for `length` tokens."""
        ...

    def swap_in(self, seq_id: int) -> None:
        """Give a parked sequence blocks again, filled from the host tier."""
        ...

    def drain_swaps(self) -> list[Swap]:
        """Transfers that the device must run now, in order."""
        ...

    def swaps_done(self, swaps: Iterable[Swap]) -> None:
        """These transfers have run, or all later work is queued behind them."""
        ...
