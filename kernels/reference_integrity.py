"""Digest and provenance check in plain torch: what their kernels are tested against, and the CPU's way."""

from __future__ import annotations

import torch
from torch import Tensor

LOW = 0xFFFFFFFF
STEP, SPREAD = 0x9E3779B1, 0x85EBCA6B  # as in kernels/digest.py, which needs triton
DIGEST_WORDS = 1 << 22  # words digested at a time: bounds the int64 temporaries


def digest_blocks(kv: Tensor, blocks: Tensor | None) -> Tensor:
    """Digest of whole blocks; see `integrity.digest_blocks`."""
    if blocks is None:
        blocks = torch.arange(kv.shape[2], device=kv.device)
    return _digest(kv.flatten(3).unsqueeze(3), blocks)


def digest_slots(kv: Tensor, slots: Tensor) -> Tensor:
    """Digest of single slots; see `integrity.digest_slots`."""
    return _digest(kv.flatten(4), slots)


def _digest(kv: Tensor, units: Tensor) -> Tensor:
    """kv[L, 2, N, U, words of a unit]; unit u is [:, :, u // U, u % U]."""
    words = kv.view(torch.int32)
    layers, _, _, per_block, unit_words = words.shape
    planes = 2 * layers
    out = torch.zeros(units.shape[0], dtype=torch.int64, device=kv.device)
    group = max(1, DIGEST_WORDS // max(1, planes * unit_words))
    plane = torch.arange(planes, device=kv.device)[None, :, None] * (per_block * unit_words)
    word = torch.arange(unit_words, device=kv.device)
    for start in range(0, units.shape[0], group):
        unit = units[start : start + group]
        near = unit.clamp(min=0)
        content = words[:, :, near // per_block, near % per_block].flatten(0, 1).transpose(0, 1).to(torch.int64) & LOW
        index = plane + (near % per_block * unit_words)[:, None, None] + word
        y = ((content ^ (index * STEP & LOW)) * SPREAD) & LOW
        x = y ^ (y >> 15)
        out[start : start + group] = torch.where(unit < 0, 0, (x * x).sum((1, 2)))
    return out


def write_words(
    shadow: Tensor, writers: Tensor, slots: Tensor, words: Tensor, by: Tensor,
    expected: Tensor, rows: Tensor, columns: Tensor, values: Tensor,
) -> None:  # fmt: skip
    """Words and writers of slots, and expected words; see `integrity.write_words`."""
    kept = slots >= 0
    slots = slots[kept]
    shadow.view(-1)[slots] = words[kept]
    writers.view(-1)[slots] = by[kept]
    expected[rows, columns] = values


def check_provenance(
    shadow: Tensor, block_table: Tensor, seq_lens: Tensor, expected: Tensor, window: int = 0, rows: Tensor | None = None
) -> Tensor:
    """First wrong position of each sequence, or -1; see `integrity.check_provenance`."""
    block_size = shadow.shape[1]
    width = min(expected.shape[1], block_table.shape[1] * block_size)
    position = torch.arange(width, device=shadow.device)
    length = seq_lens[:, None]
    live = position < length
    if window:
        live &= position >= length - window
    ids = block_table.gather(1, (position // block_size).expand(block_table.shape[0], -1)).to(torch.int64)
    have = shadow[torch.where(live, ids, 0), position % block_size]
    wrong = live & (have != (expected if rows is None else expected[rows])[:, :width])
    first = torch.where(wrong, position, width).amin(1) if width else torch.zeros_like(seq_lens)
    return torch.where(first == width, -1, first).to(torch.int32)
