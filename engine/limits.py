"""What an engine refuses at the door: requests that could never run there."""

from __future__ import annotations

from kvscope.engine.sequence import SamplingParams
from kvscope.errors import UsageError


def check_request(
    prompt: list[int],
    params: SamplingParams,
    *,
    context: int,
    max_seqs: int,
    num_blocks: int,
    block_size: int,
    share_prefixes: bool,
) -> None:
    """Refuse a request that could not run even alone.

    Args:
        context: the model's, in tokens.
        max_seqs, num_blocks, block_size, share_prefixes: of the engine.

    Raises:
        UsageError: it is empty, longer than the context, wider than `max_seqs`, or more than the whole pool.
    """
    if not prompt:
        raise UsageError("the prompt is empty: give at least one token")
    if len(prompt) >= context:
        raise UsageError(f"the prompt has {len(prompt)} tokens: the model's context is {context}; shorten it")
    if params.width > max_seqs:
        name, what = ("beams", "beams") if params.beams else ("n", "samples")
        raise UsageError(f"{name} is {params.width}: at most max_seqs = {max_seqs} {what} run at once")
    needed = blocks_needed(len(prompt), params, context=context, block_size=block_size, share_prefixes=share_prefixes)
    if needed > num_blocks:
        beams = f" with {params.beams} beams" if params.beams else ""
        raise UsageError(
            f"pool too small for one request: {len(prompt)} prompt + {params.max_tokens} new tokens{beams} need "
            f"{needed} blocks of {block_size}, the pool has {num_blocks}; raise num_blocks to at least {needed}"
        )


def blocks_needed(
    prompt_tokens: int, params: SamplingParams, *, context: int, block_size: int, share_prefixes: bool
) -> int:
    """Blocks with which a request can always end when it runs alone.

    Samples of one request can be preempted one by one, so one of them is enough. Beams cannot: at worst they have
    nothing in common but the full blocks of the prompt, and, computed again after a preemption, not even those
    unless the prefix index finds them.
    """
    # The newest token is never written, so a request ends with one position less than it has tokens.
    positions = min(prompt_tokens + params.max_tokens, context) - 1
    blocks = -(-positions // block_size)
    if not params.beams or positions == prompt_tokens:
        return blocks
    common = prompt_tokens // block_size if share_prefixes else 0
    return common + params.beams * (blocks - common)
