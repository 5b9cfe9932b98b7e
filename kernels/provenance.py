"""Words of a step written, and checked before attention: does every slot a sequence reads hold the prefix it should?"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvscope.kernels.address import load_ids

STRETCH = 1024  # positions per program
GROUP = 256  # words written per program


# Parts of one array, or of a step: where they begin and how many they are changes with every step, and is no reason to
# compile again.
@triton.jit(
    do_not_specialize=["tokens", "count"],
    do_not_specialize_on_alignment=["slots_ptr", "words_ptr", "by_ptr", "rows_ptr", "columns_ptr", "values_ptr"],
)
def write_words_kernel(
    shadow, writers, slots_ptr, words_ptr, by_ptr, tokens,
    expected, rows_ptr, columns_ptr, values_ptr, count, expected_stride, GROUP: tl.constexpr,
):  # fmt: skip
    """Both lists in one launch: each program takes a group of either."""
    item = tl.program_id(0) * GROUP + tl.arange(0, GROUP)
    token = item < tokens
    slot = tl.load(slots_ptr + item, mask=token, other=-1)
    token &= slot >= 0
    tl.store(shadow + slot, tl.load(words_ptr + item, mask=token, other=0), mask=token)
    tl.store(writers + slot, tl.load(by_ptr + item, mask=token, other=0), mask=token)
    more = item < count
    at = tl.load(rows_ptr + item, mask=more, other=0) * expected_stride + tl.load(
        columns_ptr + item, mask=more, other=0
    )
    tl.store(expected + at, tl.load(values_ptr + item, mask=more, other=0), mask=more)


def write_words(
    shadow: Tensor, writers: Tensor, slots: Tensor, words: Tensor, by: Tensor,
    expected: Tensor, rows: Tensor, columns: Tensor, values: Tensor,
) -> None:  # fmt: skip
    """Launch the writes; arguments as in `integrity.write_words`, already checked."""
    tokens, count = slots.shape[0], rows.shape[0]
    if tokens or count:
        write_words_kernel[(triton.cdiv(max(tokens, count), GROUP),)](
            shadow, writers, slots, words, by, tokens,
            expected, rows, columns, values, count, expected.stride(0), GROUP=GROUP, num_warps=4,
        )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "rows_ptr"])
def provenance_kernel(
    shadow, table_ptr, lens_ptr, expected_ptr, first_ptr, table_stride, expected_stride, window, rows_ptr,
    PAGE: tl.constexpr, STRETCH: tl.constexpr, LISTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lens_ptr + row)
    position = tl.program_id(1) * STRETCH + tl.arange(0, STRETCH)
    begin = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    live = (position < length) & (position >= begin)
    if (tl.program_id(1) + 1) * STRETCH <= begin or tl.program_id(1) * STRETCH >= length:
        return
    ids = load_ids(table_ptr + row * table_stride, position, length, PAGE)
    wanted = tl.load(rows_ptr + row).to(tl.int64) if LISTED else row
    want = tl.load(expected_ptr + wanted * expected_stride + position, mask=live, other=0)
    have = tl.load(shadow + ids.to(tl.int64) * PAGE + position % PAGE, mask=live, other=0)
    wrong = tl.min(tl.where(have != want, position, 2147483647), 0)
    if wrong != 2147483647:
        # As an unsigned number -1 (nothing wrong) is the largest.
        tl.atomic_min(first_ptr + row, wrong.to(tl.uint32), sem="relaxed")


def check_provenance(
    shadow: Tensor, block_table: Tensor, seq_lens: Tensor, expected: Tensor, window: int = 0, rows: Tensor | None = None
) -> Tensor:
    """Launch the check; arguments as in `integrity.check_provenance`, already checked."""
    batch, width = block_table.shape[0], expected.shape[1]
    first = torch.full((batch,), -1, dtype=torch.int32, device=shadow.device)
    if batch and width:
        provenance_kernel[(batch, triton.cdiv(width, STRETCH))](
            shadow, block_table, seq_lens, expected, first.view(torch.uint32),
            block_table.stride(0), expected.stride(0), window, seq_lens if rows is None else rows,
            PAGE=shadow.shape[1], STRETCH=STRETCH, LISTED=rows is not None, num_warps=4,
        )  # fmt: skip
    return first
