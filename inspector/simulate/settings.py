"""What all cells of a simulation have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvscope.engine.scheduler import SchedulerConfig
from kvscope.errors import UsageError
from kvscope.inspector.simulate.costs import ServiceTime


@dataclass(frozen=True, slots=True)
class Settings:
    """Memory, limits and policy; the same for every allocator.

    Args:
        kv_memory: bytes of the pool. bytes_per_token: KV bytes of one token over all layers.
        max_model_len: a request ends there, and a reservation is made for that much.
        sharing: share equal prefixes and the samples of a request (a paged pool only; others cannot).
        at_once: all requests are there at the start, whatever the workload says.
    """

    kv_memory: int
    bytes_per_token: int
    max_model_len: int
    max_seqs: int = 256
    max_batched_tokens: int = 2048
    watermark: float = 0.01
    sharing: bool = True
    at_once: bool = False
    service: ServiceTime = field(default_factory=ServiceTime)

    def __post_init__(self) -> None:
        if self.bytes_per_token < 1:
            raise UsageError(f"bytes_per_token is {self.bytes_per_token}: must be at least 1")
        if not 2 <= self.max_model_len <= 1 << 24:
            raise UsageError(f"max_model_len is {self.max_model_len}: must be 2..{1 << 24} tokens")
        _ = self.scheduler  # refuses what the scheduler would refuse

    @property
    def scheduler(self) -> SchedulerConfig:
        """The limits as the engine's scheduler takes them."""
        return SchedulerConfig(self.max_seqs, self.max_batched_tokens, self.watermark)

    def num_blocks(self, block_size: int) -> int:
        """Blocks of this many slots that the memory holds.

        Raises:
            UsageError: not even one.
        """
        each = block_size * self.bytes_per_token
        if self.kv_memory < each:
            raise UsageError(
                f"{self.kv_memory:,} bytes hold no block: one block of {block_size} slots takes {each:,} bytes "
                f"({self.bytes_per_token:,} per token)"
            )
        return self.kv_memory // each
