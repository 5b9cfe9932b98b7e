"""The operations in plain torch: the truth the Triton kernels are tested against, and the CPU's way.

Slots past a sequence's length are never read, so whatever lies in them (NaN included) cannot reach a result.
Half precision is computed in float32 and rounded once at the end.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kvscope.errors import UsageError
from kvscope.kernels.checks import check_inside

# Sequences are decoded together when the shortest is at least this share of the longest (the rest is padding).
PADDING_SHARE = 0.5
# Query rows attended at once in prefill: bounds the boolean mask to this many rows.
PREFILL_ROWS = 1024
LARGEST = 448.0  # of float8 e4m3; what lies beyond is stored as this, not as NaN
Scales = tuple[Tensor, Tensor] | None


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: Scales = None,
) -> Tensor:
    """Attention of one query token per sequence over its cached context; see `dispatch.paged_decode`."""
    lengths = seq_lens.tolist()
    _check_context(lengths, block_table, k_cache)
    groups = _groups_of_similar_length([_visible(length, window) for length in lengths])
    if len(groups) == 1 and len(groups[0]) == len(lengths):
        return _decode_group(q, k_cache, v_cache, block_table, lengths, scale, window, soft_cap, scales)
    out = torch.zeros_like(q)
    for rows in groups:
        index = torch.tensor(rows, device=q.device)
        part = [lengths[row] for row in rows]
        out[index] = _decode_group(
            q[index], k_cache, v_cache, block_table[index], part, scale, window, soft_cap, scales
        )
    return out


def _visible(length: int, window: int) -> int:
    """Tokens the query at the end of `length` sees."""
    return min(length, window) if window else length


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, soft_cap: float) -> Tensor:
    """softmax(q k^T) v; mask is True where a query sees a key."""
    if not soft_cap:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = torch.tanh(q @ k.transpose(-1, -2) * (scale / soft_cap)) * soft_cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.softmax(scores, -1) @ v


def _groups_of_similar_length(lengths: list[int]) -> list[list[int]]:
    """Rows with a context, in groups that waste little on padding; rows of a group in ascending order."""
    order = sorted((row for row, length in enumerate(lengths) if length > 0), key=lambda row: -lengths[row])
    groups: list[list[int]] = []
    for row in order:
        if groups and lengths[row] >= PADDING_SHARE * lengths[groups[-1][0]]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return [sorted(group) for group in groups]


def _decode_group(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    lengths: list[int],
    scale: float,
    window: int,
    soft_cap: float,
    scales: Scales,
) -> Tensor:
    """q[B, HQ, D] over contexts padded to the longest; the G query heads of a KV head are the rows of one matrix."""
    batch, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    counts = [_visible(length, window) for length in lengths]
    longest = max(counts)
    count = torch.tensor(counts, device=q.device)[:, None]
    first = torch.tensor(lengths, device=q.device)[:, None] - count
    index = torch.arange(longest, device=q.device)
    mask = (index < count)[:, None, None, :] if min(counts) < longest else None
    # Padding repeats the last live position: masked in the scores, and never a slot that was not written.
    slots = _slots(block_table, first + torch.minimum(index, count - 1), k_cache.shape[1], k_cache.shape[0])
    keys, values = _gather(k_cache, slots, scales, 0), _gather(v_cache, slots, scales, 1)
    rows = q.reshape(batch, kv_heads, heads // kv_heads, dim)
    out = _attend(_working(rows), keys.transpose(1, 2), values.transpose(1, 2), mask, scale, soft_cap)
    return out.reshape(batch, heads, dim).to(q.dtype)


def paged_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start: Tensor,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    scales: Scales = None,
) -> Tensor:
    """Causal attention of the last tokens of each sequence over its cached context; see `dispatch.paged_prefill`."""
    lengths, starts = seq_lens.tolist(), query_start.tolist()
    _check_context(lengths, block_table, k_cache)
    _check_queries(lengths, starts, q.shape[0])
    out = torch.zeros_like(q)
    single = [r for r in range(len(lengths)) if starts[r + 1] - starts[r] == 1 and lengths[r] > 0]
    if len(single) > 1:  # decoding sequences of a mixed batch go together
        tokens = torch.tensor([starts[r] for r in single], device=q.device)
        rows = torch.tensor(single, device=q.device)
        out[tokens] = paged_decode(
            q[tokens], k_cache, v_cache, block_table[rows], seq_lens[rows], scale, window, soft_cap, scales
        )
    done = set(single) if len(single) > 1 else set()
    for row, length in enumerate(lengths):
        first, last = starts[row], starts[row + 1]
        if row in done or last == first or length == 0:
            continue
        out[first:last] = _prefill_one(
            q[first:last], k_cache, v_cache, block_table[row : row + 1], length, scale, window, soft_cap, scales
        )
    return out


def _prefill_one(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table: Tensor,
    length: int,
    scale: float,
    window: int,
    soft_cap: float,
    scales: Scales,
) -> Tensor:
    """q[n, HQ, D] are positions length-n .. length-1; query i sees positions up to its own, at most `window`."""
    count, heads, dim = q.shape
    kv_heads = k_cache.shape[2]
    base = max(0, length - count - window + 1) if window else 0  # the first position any query sees
    positions = torch.arange(base, length, device=q.device)
    slots = _slots(table, positions[None], k_cache.shape[1], k_cache.shape[0])[0]
    group = heads // kv_heads
    shape = (kv_heads, group, length - base, dim)
    keys = _gather(k_cache, slots, scales, 0).transpose(0, 1)[:, None].expand(shape)
    values = _gather(v_cache, slots, scales, 1).transpose(0, 1)[:, None].expand(shape)
    queries = _working(q).transpose(0, 1).reshape(kv_heads, group, count, dim)
    parts = []
    for first in range(0, count, PREFILL_ROWS):
        rows = queries[:, :, first : first + PREFILL_ROWS]
        own = positions[length - count + first - base :][: rows.shape[2], None]
        seen = slice(0, length - count + first + rows.shape[2] - base)  # what any of these rows may see
        if window:
            seen = slice(max(0, length - count + first - window + 1 - base), seen.stop)
        near = keys[:, :, seen], values[:, :, seen]
        if rows.shape[2] == seen.stop - seen.start and not soft_cap and (not window or window >= rows.shape[2]):
            out = F.scaled_dot_product_attention(rows, *near, is_causal=True, scale=scale)
        else:
            mask = positions[seen] <= own
            if window:
                mask &= positions[seen] > own - window
            out = _attend(rows, *near, mask, scale, soft_cap)
        parts.append(out)
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return out.reshape(heads, count, dim).transpose(0, 1).to(q.dtype)


def write_kv(
    k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, scales: Scales = None
) -> None:
    """Store each token's key and value in its slot; a negative slot is skipped. See `dispatch.write_kv`."""
    block_size = k_cache.shape[1]
    if slot_mapping.numel() == 0:
        return
    low, high = (int(x) for x in slot_mapping.aminmax())
    if high >= k_cache.shape[0] * block_size:
        raise UsageError(
            f"slot {high} is outside the cache of {k_cache.shape[0]} blocks of {block_size} slots; "
            "a slot is block * block_size + offset"
        )
    if low < 0:
        kept = slot_mapping >= 0
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    if scales is not None:
        k, v = (
            (x.float() / scale[:, None]).clamp(-LARGEST, LARGEST).to(k_cache.dtype).view(torch.uint8)
            for x, scale in zip((k, v), scales, strict=True)
        )
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    for cache, new in ((k_cache, k), (v_cache, v)):
        flat = _flat(cache)
        if flat is not None:
            flat.index_copy_(0, slot_mapping, new)
        else:
            cache[slot_mapping // block_size, slot_mapping % block_size] = new


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    positions: Tensor | None = None,
    scales: Scales = None,
) -> None:
    """Rotate q in place, write rotated k and v into their slots; see `dispatch.rope_write_kv`."""
    kept = slot_mapping >= 0
    rows = kept.nonzero()[:, 0] if positions is None else positions[kept]
    check_inside("position", rows, cos.shape[0], f"the rotary tables of {cos.shape[0]} rows")
    angles = cos[rows].float()[:, None], sin[rows].float()[:, None]
    q[kept] = _rotate(q[kept], *angles)
    turned = _rotate(k[kept] if scales is None else k[kept].float(), *angles)
    write_kv(turned, v[kept], k_cache, v_cache, slot_mapping[kept], scales)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Dims (i, i + D/2) of x[T, H, D] turned by the angles of cos, sin [T, 1, D/2]; rounded once."""
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def copy_blocks(kv: Tensor, source: Tensor, target: Tensor) -> None:
    """Copy whole blocks in every layer, keys and values; all are read before any is written."""
    kv[:, :, target] = kv[:, :, source]


def _slots(block_table: Tensor, positions: Tensor, block_size: int, num_blocks: int) -> Tensor:
    """Slot of positions[B, L] in each row's table, int64 from the id on."""
    ids = block_table.gather(1, (positions // block_size).expand(block_table.shape[0], -1))
    check_inside("block", ids, num_blocks, f"a cache of {num_blocks} blocks")
    return ids.to(torch.int64) * block_size + positions % block_size


def _flat(cache: Tensor) -> Tensor | None:
    """The cache as one row per slot, or None when its strides do not allow that without a copy."""
    if cache.stride(0) != cache.shape[1] * cache.stride(1):
        return None
    return cache.view(cache.shape[0] * cache.shape[1], *cache.shape[2:])


def _gather(cache: Tensor, slots: Tensor, scales: Scales, side: int) -> Tensor:
    """Rows of the cache at slots[...], as [..., HK, D] in the working precision, scaled."""
    if scales is not None:
        found = _gather(cache.view(torch.uint8), slots, None, side).view(cache.dtype)
        return found.float() * scales[side][:, None]
    flat = _flat(cache)
    if flat is None:
        return _working(cache[slots // cache.shape[1], slots % cache.shape[1]])
    return _working(flat.index_select(0, slots.reshape(-1)).view(*slots.shape, *cache.shape[2:]))


def _working(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _check_context(lengths: list[int], block_table: Tensor, k_cache: Tensor) -> None:
    room = block_table.shape[1] * k_cache.shape[1]
    longest = max(lengths, default=0)
    if longest > room:
        raise UsageError(
            f"a sequence of {longest} tokens does not fit its block table: {block_table.shape[1]} blocks of "
            f"{k_cache.shape[1]} slots hold {room}; pass a wider block_table"
        )


def _check_queries(lengths: list[int], starts: list[int], tokens: int) -> None:
    if starts[0] != 0 or starts[-1] > tokens:
        raise UsageError(f"query_start must run from 0 to at most {tokens} tokens, got {starts[0]} .. {starts[-1]}")
    for row, length in enumerate(lengths):
        count = starts[row + 1] - starts[row]
        if count < 0 or (count > length > 0):
            raise UsageError(
                f"sequence {row} has {count} query tokens but a context of {length}; "
                "seq_lens counts the new tokens too, and query_start never falls"
            )
