"""What is said of configurations and calls that can never work: word for word, so that a change of words is seen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.limits import check_request
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.engine.sizing import blocks_in
from kvscope.engine.steps import Scheduled
from kvscope.errors import KVScopeError


def computed(num_blocks: int = 8, *, length: int = 6) -> BlockManager:
    """A manager of blocks of 2 slots in which sequence 3 has `length` computed positions."""
    manager = BlockManager(num_blocks, 2, share_prefixes=False)
    manager.admit(3, [1] * length)
    manager.write(3, 0, length)
    manager.begin_step([Scheduled(3, 0, length)])
    manager.end_step()
    return manager


def crowded() -> BlockManager:
    """The last blocks are held, and those in front too."""
    manager = computed(4, length=4)
    manager.fork(3, 5)
    manager.admit(4, [1, 1, 1, 1])
    return manager


def in_step() -> BlockManager:
    manager = computed(3)
    manager.begin_step([Scheduled(3, 6, 6)])
    return manager


def leased() -> BlockManager:
    manager = computed(3)
    manager.lease([2], holder="offload stream", seq_id=3, ttl=4)
    return manager


def to_write() -> BlockManager:
    manager = computed(4)
    manager.append(3, 2)
    return manager


def copied() -> BlockManager:
    manager = computed(4, length=5)
    manager.fork(3, 4)
    manager.append(4, 2)
    return manager


def slid() -> BlockManager:
    manager = computed()
    manager.slide(3, 4)
    return manager


def request(prompt: int, tokens: int, **more: Any) -> None:
    params = SamplingParams(max_tokens=tokens, **more)
    check_request([1] * prompt, params, context=64, max_seqs=4, num_blocks=4, block_size=4, share_prefixes=True)


TINY = SimpleNamespace(bytes_per_token=lambda dtype_bytes: 1024 * dtype_bytes)

REFUSALS: dict[str, tuple[Callable[[], object], str]] = {
    "no blocks": (lambda: BlockManager(0, 4), "num_blocks is 0: must be 1..16777216"),
    "a block of no slots": (lambda: BlockManager(4, 0), "block_size is 0: must be 1..1024 slots"),
    "a block too large": (lambda: BlockManager(4, 2048), "block_size is 2048: must be 1..1024 slots"),
    "memory for no block": (
        lambda: blocks_in(1000, TINY, 16, 4),  # type: ignore[arg-type]
        "1,000 bytes hold no block: one block of 16 slots takes 65,536 bytes (4,096 per token)",
    ),
    "watermark that admits nothing": (
        lambda: SchedulerConfig(watermark=1.0), "watermark is 1.0: must be 0 or more, below 1",
    ),
    "request larger than the pool": (
        lambda: request(10, 10),
        "pool too small for one request: 10 prompt + 10 new tokens need 5 blocks of 4, the pool has 4; raise "
        "num_blocks to at least 5",
    ),
    "prompt longer than the context": (
        lambda: request(64, 1), "the prompt has 64 tokens: the model's context is 64; shorten it",
    ),
    "more samples than run at once": (
        lambda: request(2, 2, n=5), "n is 5: at most max_seqs = 4 samples run at once",
    ),
    "prompt larger than what is free": (
        lambda: computed(4).admit(9, [1] * 5),
        "pool exhausted: need 3 blocks, 1 free of 4 (0 cached are evictable); raise num_blocks or lower the load",
    ),
    "grow by nothing": (lambda: computed().grow(0), "grow by 0 blocks: must be 1 or more (shrink takes blocks away)"),
    "grow without end": (lambda: computed().grow(1 << 24), "num_blocks is 16777224: must be 1..16777216"),
    "shrink to nothing": (lambda: computed().shrink(8), "shrink by 8 blocks: the pool has 8, and at least 1 must stay"),
    "shrink below what is held": (
        lambda: crowded().shrink(2),
        "shrink to 2 of 4 blocks: 2 held blocks must move, 0 of the first 2 can be had; held by sequences 4; end or "
        "preempt some of them, or shrink by less",
    ),
    "shrink under an open step": (
        lambda: in_step().shrink(1),
        "shrink to 2 of 3 blocks: block b2#1 is used by step 1, which is open (sequence 3 as its block 2); end that "
        "first",
    ),
    "shrink under a lease": (
        lambda: leased().shrink(1),
        "shrink to 2 of 3 blocks: block b2#1 is held by lease 0 (transfer) of offload stream, since 0, deadline 4; end "
        "that first",
    ),
    "shrink under a waiting write": (
        lambda: to_write().shrink(1),
        "shrink to 3 of 4 blocks: block b3#1 is to be written by sequence 3 in the next step; end that first",
    ),
    "window beyond what is there": (
        lambda: computed().slide(3, 7), "slide of sequence 3 to position 7: its KV has positions 0..6",
    ),
    "rollback behind the window": (
        lambda: slid().truncate(3, 3),
        "truncate of sequence 3 to 3: positions below 4 were given back behind its window; preempt it to compute them "
        "again",
    ),
    "lease of a free block": (lambda: computed().lease([7]), "block b7#0 is free: only a live block can be leased"),
    "lease of no such block": (
        lambda: computed().lease([8]), "block 8 does not exist: the pool has blocks 0..7",
    ),
    "lease of no such slots": (
        lambda: computed().lease([0], slots=(0, 3)), "a lease of slots [0:3]: a block has slots 0..1",
    ),
    "lease that is over when it begins": (
        lambda: computed().lease([0], ttl=-1), "ttl is -1: a lease cannot be overdue when it is taken; give 0 or more",
    ),
    "end of no lease": (lambda: computed().unlease(5), "lease 5 was never taken"),
    "end of a copy's lease": (
        lambda: copied().unlease(0), "lease 0 is a copy's: it ends when the copy has run (copies_done)",
    ),
    "holders of no block": (lambda: computed().holders(8), "block 8 does not exist: the pool has blocks 0..7"),
    "identity of an object": (
        lambda: BlockManager(4, 2).admit(0, [1, 2, 3], ([],)),  # type: ignore[arg-type]
        "an identity holds []: use text, bytes, numbers, None, or tuples of them",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_says_what_where_and_what_to_do(name: str) -> None:
    call, text = REFUSALS[name]
    with pytest.raises(KVScopeError) as error:
        call()
    assert str(error.value) == text
    assert "\n" not in text
