"""Is the cache's content what it should be: digests of blocks, and the prefix every slot was written for.

Backends and checks as in `dispatch`; a tensor's values are never read from a GPU here either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels import reference_integrity as reference
from kvscope.kernels.checks import (
    BLOCK_SIZES,
    check_cache_tensor,
    check_ids,
    check_inside,
    check_window,
    choose_backend,
    describe,
    triton_module,
)


def digest_blocks(kv: Tensor, blocks: Tensor | None = None, *, backend: str | None = None) -> Tensor:
    """Digest of each block's content in all layers, int64 [P] (or [N]): equal content, equal digest.

    A block's digest is the sum (mod 2**64) of its slots' (`digest_slots`), so it is kept up to date by what was
    written: digest += digest_slots(after) - digest_slots(before).

    Args:
        kv: [L, 2, N, block_size, HK, D], contiguous within a block, of any type; 4 bytes
            must divide a slot's bytes in one layer.
        blocks: [P] int64 block ids (a negative one gives 0), or None for every block in order.

    Raises:
        UsageError: a shape, dtype or device does not fit, on the CPU an id too, or the backend is not available.
    """
    chosen = _checked(kv, backend)
    if blocks is not None:
        check_ids("blocks", blocks, (blocks.numel(),), torch.int64, kv)
        _check_units("block", blocks, kv.shape[2], kv)
    run = reference if chosen == "torch" else triton_module("digest")
    return run.digest_blocks(kv, blocks)


def digest_slots(kv: Tensor, slots: Tensor, *, backend: str | None = None) -> Tensor:
    """The share of each slot in its block's digest, int64 [T]; a negative slot (padding) gives 0.

    Args:
        kv: as for `digest_blocks`.
        slots: [T] int64, block * block_size + offset.

    Raises:
        UsageError: a shape, dtype or device does not fit, on the CPU a slot too, or the backend is not available.
    """
    chosen = _checked(kv, backend)
    check_ids("slots", slots, (slots.numel(),), torch.int64, kv)
    _check_units("slot", slots, kv.shape[2] * kv.shape[3], kv)
    run = reference if chosen == "torch" else triton_module("digest")
    return run.digest_slots(kv, slots)


def write_words(
    shadow: Tensor,
    writers: Tensor,
    slots: Tensor,
    words: Tensor,
    by: Tensor,
    expected: Tensor,
    rows: Tensor,
    columns: Tensor,
    values: Tensor,
    *,
    backend: str | None = None,
) -> None:
    """Store what a step writes, in one launch: word and writer of each slot, and new words of `expected`.

    Args:
        shadow, writers: [N, block_size] int64, contiguous: of every slot its word, and who wrote it.
        slots, words, by: [T] int64 each: shadow[slot] becomes words, writers[slot] by. No slot twice; a
            negative one (padding) is skipped.
        expected: [R, W] int64, as for `check_provenance`.
        rows, columns, values: [E] int64 each: expected[row, column] becomes value. No place twice.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available.
    """
    chosen = choose_backend(backend, shadow)
    _check_shadow("shadow", shadow)
    _check_shadow("writers", writers)
    check_ids("writers", writers, tuple(shadow.shape), torch.int64, shadow)
    if expected.dim() != 2 or expected.stride(1) != 1:
        raise UsageError(f"expected must have one contiguous row per sequence, got {describe(expected)}")
    check_ids("expected", expected, tuple(expected.shape), torch.int64, shadow)
    for count, columns_of in (
        (slots.numel(), {"slots": slots, "words": words, "by": by}),
        (rows.numel(), {"rows": rows, "columns": columns, "values": values}),
    ):
        for name, column in columns_of.items():
            check_ids(name, column, (count,), torch.int64, shadow)
    run = reference if chosen == "torch" else triton_module("provenance")
    run.write_words(shadow, writers, slots, words, by, expected, rows, columns, values)


def check_provenance(
    shadow: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    expected: Tensor,
    *,
    window: int = 0,
    rows: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """The first position of each sequence whose slot holds another prefix, int32 [B]; -1 where all are right.

    Args:
        shadow: [N, block_size] int64, contiguous: the word (`prefix.prefix_words`) each slot was last written with.
        block_table: [B, M] int32; its rows hold `seq_lens` tokens.
        seq_lens: [B] int32, at most W and at most what the table has room for; 0 for padding, which is always right.
        expected: [B, W] int64, the words of each sequence's tokens; what lies past its length is not read.
        window: only the last `window` positions are checked. 0: all.
        rows: [B] int64: which row of `expected`, that may then have any number of them, belongs to each sequence.

    Raises:
        UsageError: a shape, dtype or device does not fit, or the backend is not available; on the CPU, where values
            are looked at, also what a sequence would not be compared by: a length, a block or a row that is not there.
    """
    chosen = choose_backend(backend, shadow)
    _check_shadow("shadow", shadow)
    if chosen != "torch" and shadow.shape[1] not in BLOCK_SIZES:
        raise UsageError(f"block_size {shadow.shape[1]} is not one of {', '.join(map(str, BLOCK_SIZES))}")
    if block_table.dim() != 2 or expected.dim() != 2:
        raise UsageError(
            f"block_table and expected must have one row per sequence, got {describe(block_table)} "
            f"and {describe(expected)}"
        )
    batch = block_table.shape[0]
    check_window(window)
    check_ids("block_table", block_table, tuple(block_table.shape), torch.int32, shadow)
    check_ids("seq_lens", seq_lens, (batch,), torch.int32, shadow)
    if rows is None:
        check_ids("expected", expected, (batch, expected.shape[1]), torch.int64, shadow)
    else:
        check_ids("expected", expected, tuple(expected.shape), torch.int64, shadow)
        check_ids("rows", rows, (batch,), torch.int64, shadow)
    if shadow.device.type == "cpu" and batch:
        _check_compared(shadow, block_table, seq_lens, expected, window, rows)
    run = reference if chosen == "torch" else triton_module("provenance")
    return run.check_provenance(shadow, block_table, seq_lens, expected, window, rows)


def _check_compared(
    shadow: Tensor, block_table: Tensor, seq_lens: Tensor, expected: Tensor, window: int, rows: Tensor | None
) -> None:
    """Nothing of a sequence is left out, and nothing else is read in its place."""
    num_blocks, block_size = shadow.shape
    room, longest = min(expected.shape[1], block_table.shape[1] * block_size), int(seq_lens.max())
    if longest > room:
        raise UsageError(
            f"a sequence of {longest} tokens cannot be compared: expected has {expected.shape[1]} words a row and "
            f"block_table room for {block_table.shape[1] * block_size} tokens"
        )
    if rows is not None:
        check_inside("row", rows, expected.shape[0], f"expected, which has {expected.shape[0]} rows")
    entry = torch.arange(block_table.shape[1])
    first = (seq_lens - window).clamp(min=0) // block_size if window else torch.zeros_like(seq_lens)
    read = (entry >= first[:, None]) & (entry * block_size < seq_lens[:, None])
    check_inside("block", block_table[read], num_blocks, f"the shadow of {num_blocks} blocks")


def _check_units(name: str, ids: Tensor, size: int, kv: Tensor) -> None:
    if ids.device.type == "cpu":
        check_inside(name, ids.clamp(min=0), size, f"the cache of {kv.shape[2]} blocks of {kv.shape[3]} slots")


def _check_shadow(name: str, cells: Tensor) -> None:
    if cells.dim() != 2 or cells.dtype != torch.int64 or not cells.is_contiguous():
        raise UsageError(f"{name} must be contiguous int64 [num_blocks, block_size], got {describe(cells)}")


def _checked(kv: Tensor, backend: str | None) -> str:
    """The backend for a digest of this cache."""
    check_cache_tensor(kv)
    slot_bytes = kv.shape[4] * kv.shape[5] * kv.element_size()
    if slot_bytes % 4:
        raise UsageError(f"a slot of {slot_bytes} bytes in one layer is not a whole number of 32-bit words")
    return choose_backend(backend, kv)
