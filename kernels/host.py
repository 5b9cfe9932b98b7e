"""Attention of one step on the CPU: what all layers share is worked out once, before the first.

The paged calls of `reference` take one layer at a time and find every slot anew: with a small model that costs as much
as attending. Here the rows of the cache that a step writes and reads are indices, made once; a layer is a scatter,
a gather straight into the layout that attention wants, and attention.

Keys and values of a block lie side by side, kv [layers, num_blocks, 2, block_size, kv_heads, head_dim] in memory:
key of slot s and head h is row ((s // bs * 2) * bs + s % bs) * HK + h of a layer, its value bs * HK rows behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels.reference import (
    PREFILL_ROWS,
    _check_context,
    _check_queries,
    _groups_of_similar_length,
    _slots,
    _visible,
)


class _Piece(NamedTuple):
    """Queries [first, end) of each sequence of a group, and keys [low, high), of which they see what is not masked."""

    first: int
    end: int
    low: int
    high: int
    mask: Tensor | None = None  # added to the scores, [B HK or 1, 1, queries, keys]
    causal: bool = False  # instead of a mask, where queries and keys are the same tokens


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences that are attended together, their contexts padded to the longest.

    tokens: T-indices of their queries, row by row; a slice where they are neighbours. rows: [2 B HK L] of the cache,
    keys then values, in the order sequence, head, position. batch: B. count: queries of each sequence.
    """

    tokens: slice | Tensor
    rows: Tensor
    batch: int
    count: int
    pieces: list[_Piece]


class HostStep:
    """One step's writes and attention over a float32 cache on the CPU.

    Args:
        kv: [layers, 2, num_blocks, block_size, kv_heads, head_dim], as `KVCache` lays it out.
        slots: [T] int64, where each token's key and value go; none negative.
        tables: [rows, max_blocks] int32; entries in use are block ids.
        seq_lens: [rows] int32, the new tokens included.
        query_start: [rows + 1] int32, from 0.
        scale: multiplies the scores.
        window: tokens a query sees, its own included; 0: all.

    Raises:
        UsageError: a slot or a block is not in the cache, or a context does not fit its table.
    """

    def __init__(
        self, kv: Tensor, slots: Tensor, tables: Tensor, seq_lens: Tensor, query_start: Tensor, scale: float,
        window: int = 0,
    ) -> None:  # fmt: skip
        layers, _, blocks, size, heads, dim = kv.shape
        self._size, self._heads, self._dim, self._scale, self._window = size, heads, dim, scale, window
        self._blocks = blocks
        together = kv.transpose(1, 2)
        self._tokens_of = together.view(layers, blocks * 2 * size, heads, dim)  # a row per token and side
        self._heads_of = together.view(layers, blocks * 2 * size * heads, dim)  # a row per token, side and head
        lengths, starts = seq_lens.tolist(), query_start.tolist()
        _check_context(lengths, tables, kv[0, 0])
        _check_queries(lengths, starts, slots.shape[0])
        if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < blocks * size:
            raise UsageError(
                f"slots {int(slots.min())}..{int(slots.max())}: the cache has {blocks} blocks of {size} slots, "
                "and a slot is block * block_size + offset"
            )
        self._keys = self._row(slots)
        self._values = self._keys + size
        self._groups = [
            self._group(rows, lengths, starts, tables) for rows in _alike(lengths, starts) if lengths[rows[0]]
        ]

    @staticmethod
    def fits(kv: Tensor) -> bool:
        """Whether this cache can be taken: float32 on the CPU, keys and values of a block side by side."""
        return kv.device.type == "cpu" and kv.dtype == torch.float32 and kv.transpose(1, 2).is_contiguous()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [T, HK, D] of a layer, then attend with q [T, HQ, D]; like q."""
        cache = self._tokens_of[layer]
        cache.index_copy_(0, self._keys, k)
        cache.index_copy_(0, self._values, v)
        cache = self._heads_of[layer]
        if len(self._groups) == 1 and self._groups[0].batch * self._groups[0].count == q.shape[0]:
            return self._attended(self._groups[0], cache, q)
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for group in self._groups:
            out[group.tokens] = self._attended(group, cache, q[group.tokens])
        return out

    def _attended(self, group: _Group, cache: Tensor, q: Tensor) -> Tensor:
        """[B n, HQ, D] of one group's queries."""
        batch, count, heads, dim = group.batch, group.count, self._heads, self._dim
        both = cache.index_select(0, group.rows).view(2, batch * heads, 1, -1, dim)
        shared = q.shape[1] // heads  # query heads of a KV head
        if count == 1:  # they are the rows of one matrix
            queries = q.reshape(batch * heads, 1, shared, dim)
            mask = group.pieces[0].mask
            out = F.scaled_dot_product_attention(queries, both[0], both[1], attn_mask=mask, scale=self._scale)
            return out.view(batch, heads * shared, dim)
        queries = q.view(batch, count, heads, shared, dim).permute(0, 2, 3, 1, 4).reshape(-1, shared, count, dim)
        keys, values = (side.expand(-1, shared, -1, -1) for side in both)
        parts = [
            F.scaled_dot_product_attention(
                queries[:, :, p.first : p.end], keys[:, :, p.low : p.high], values[:, :, p.low : p.high],
                attn_mask=p.mask, is_causal=p.causal, scale=self._scale,
            )
            for p in group.pieces
        ]  # fmt: skip
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return out.view(batch, heads, shared, count, dim).permute(0, 3, 1, 2, 4).reshape(-1, heads * shared, dim)

    def _row(self, slots: Tensor) -> Tensor:
        """Of a layer's rows per token and side, the keys' ones."""
        return (slots // self._size) * (2 * self._size) + slots % self._size

    def _group(self, rows: list[int], lengths: list[int], starts: list[int], tables: Tensor) -> _Group:
        count = starts[rows[0] + 1] - starts[rows[0]]
        lens = [lengths[row] for row in rows]
        seen = [min(_visible(n, self._window + count - 1 if self._window else 0), n) for n in lens]
        longest = max(seen)
        first = torch.tensor([n - s for n, s in zip(lens, seen, strict=True)])[:, None]
        index = torch.arange(longest)
        last = torch.tensor(seen)[:, None] - 1
        # Padding repeats the last live position: masked in the scores, and never a slot that was not written.
        slots = _slots(tables[rows], first + torch.minimum(index, last), self._size, self._blocks)
        by_head = self._row(slots)[:, None, :] * self._heads + torch.arange(self._heads)[:, None]  # [B, HK, L]
        both = torch.cat((by_head.reshape(-1), by_head.reshape(-1) + self._size * self._heads))
        if rows == list(range(rows[0], rows[-1] + 1)):
            tokens: slice | Tensor = slice(starts[rows[0]], starts[rows[-1] + 1])
        else:
            tokens = torch.tensor([t for row in rows for t in range(starts[row], starts[row + 1])])
        pieces = self._decode(seen, index) if count == 1 else self._pieces(count, longest)
        return _Group(tokens, both, len(rows), count, pieces)

    def _decode(self, seen: list[int], index: Tensor) -> list[_Piece]:
        mask = None
        if min(seen) < max(seen):
            mask = _added(index < torch.tensor(seen)[:, None]).repeat_interleave(self._heads, 0)[:, None, None, :]
        return [_Piece(0, 1, 0, max(seen), mask)]

    def _pieces(self, count: int, length: int) -> list[_Piece]:
        """All of a group are equally long: query i sees keys up to its own, at most `window` of them."""
        window, before, pieces = self._window, length - count, []
        for first in range(0, count, PREFILL_ROWS):
            end = min(first + PREFILL_ROWS, count)
            low, high = max(0, before + first - window + 1) if window else 0, before + end
            if high - low == end - first and (not window or window >= end - first):
                pieces.append(_Piece(first, end, low, high, causal=True))
                continue
            own, keys = torch.arange(before + first, before + end)[:, None], torch.arange(low, high)
            visible = keys <= own
            mask = _added(visible & (keys > own - window) if window else visible)
            pieces.append(_Piece(first, end, low, high, mask))
        return pieces


def _added(visible: Tensor) -> Tensor:
    """What to add to the scores: 0 where a key is seen, else minus infinity."""
    return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))


def _alike(lengths: list[int], starts: list[int]) -> list[list[int]]:
    """Rows to attend together: decodes of similar length; equally long prompts with as many new tokens."""
    single = [row for row in range(len(lengths)) if starts[row + 1] - starts[row] == 1]
    groups = [[single[i] for i in part] for part in _groups_of_similar_length([lengths[row] for row in single])]
    prompts: dict[tuple[int, int], list[int]] = {}
    for row, length in enumerate(lengths):
        count = starts[row + 1] - starts[row]
        if count > 1:
            prompts.setdefault((count, length), []).append(row)
    return groups + list(prompts.values())
