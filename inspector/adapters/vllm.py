"""vLLM's `KVCacheManager` with its `BlockPool`: one group of full attention, prefix caching on, no speculation.

Written for vLLM 0.33. Driven as its scheduler drives it: computed blocks are looked up, slots are allocated, and the
request counts as computed when the call returns. Block 0 is the null block.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from kvscope.errors import MissingDependency, OutOfBlocks

os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
try:
    import torch
    import transformers.models.auto  # noqa: F401  vLLM imports it half way otherwise
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request, RequestStatus
except ImportError as error:
    raise MissingDependency(f"fuzzing vLLM needs vLLM (0.33): {error}") from error

MAX_LENGTH = 1024
init_none_hash(sha256)


class Vllm:
    """A `KVCacheManager` and the requests it knows.

    Args:
        num_blocks, block_size: pool geometry, in blocks (the null block comes on top) and tokens.
    """

    reserved = (0,)

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks + 1, block_size
        spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        )
        self.manager = KVCacheManager(config, MAX_LENGTH, block_size, block_size)
        self._hasher = get_request_block_hasher(block_size, sha256)
        self._requests: dict[int, Any] = {}
        self._salts: dict[int, str] = {}

    def identity(self, seq: int, extras: tuple[object, ...]) -> None:
        """The identity as a cache salt, before `add`."""
        self._salts[seq] = repr(extras)

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        """Admit and compute the prompt. Raises: OutOfBlocks."""
        request = Request(
            str(seq), list(tokens), SamplingParams(max_tokens=MAX_LENGTH), None,
            cache_salt=self._salts.get(seq), block_hasher=self._hasher,
        )  # fmt: skip
        blocks, cached, _ = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - cached, cached, blocks) is None:
            raise OutOfBlocks(1, self.num_free(), f"{len(tokens)} tokens do not fit")
        request.num_computed_tokens, request.status = len(tokens), RequestStatus.RUNNING
        self._requests[seq] = request
        return int(cached)

    def append(self, seq: int, token: int) -> None:
        """One decoded token. Raises: OutOfBlocks."""
        request = self._requests[seq]
        request.append_output_token_ids(token)
        if self.manager.allocate_slots(request, 1) is None:
            request._output_token_ids.pop()
            request._all_token_ids.pop()
            del request.block_hashes[request.num_tokens // self.block_size :]
            raise OutOfBlocks(1, self.num_free(), "need a block, none is free")
        request.num_computed_tokens += 1

    def free(self, seq: int) -> None:
        """The request is finished."""
        self.manager.free(self._requests.pop(seq))

    preempt = free

    def table(self, seq: int) -> list[int]:
        """Physical block ids, logical order."""
        return list(self.manager.get_block_ids(str(seq))[0])

    def num_free(self) -> int:
        """Length of the free queue: what is cached and unheld lies in it, too."""
        return int(self.manager.block_pool.get_num_free_blocks())

    def refcount(self, block: int) -> int:
        """Requests that hold the block."""
        return int(self.manager.block_pool.blocks[block].ref_cnt)


factory = Vllm
