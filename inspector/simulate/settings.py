"""What all cells of a simulation have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvscope.engine.policy import Policy, Preemption
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
        policy: order of the queue. preemption: recompute, or swap to `swap_space` bytes of host memory (paged only).
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
    policy: str = Policy.FCFS
    preemption: str = Preemption.RECOMPUTE
    swap_space: int = 0

    def __post_init__(self) -> None:
        if self.bytes_per_token < 1:
            raise UsageError(f"bytes_per_token is {self.bytes_per_token}: must be at least 1")
        if not 2 <= self.max_model_len <= 1 << 24:
            raise UsageError(f"max_model_len is {self.max_model_len}: must be 2..{1 << 24} tokens")
        if (self.preemption == Preemption.SWAP) != (self.swap_space > 0):
            raise UsageError("swapping needs both preemption swap and a swap space, such as 16GiB")
        _ = self.scheduler  # refuses what the scheduler would refuse

    @property
    def scheduler(self) -> SchedulerConfig:
        """The limits as the engine's scheduler takes them."""
        return SchedulerConfig(
            self.max_seqs, self.max_batched_tokens, self.watermark, policy=self.policy, preemption=self.preemption
        )

    @property
    def plain(self) -> bool:
        """Whether the policy is the one that can be counted: first come, first served, and recompute."""
        return self.policy == Policy.FCFS and self.preemption == Preemption.RECOMPUTE

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
