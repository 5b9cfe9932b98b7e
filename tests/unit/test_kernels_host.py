"""A step's attention on the CPU, all layers' slots worked out at once, is what the paged calls compute one by one."""

from __future__ import annotations

import random

import pytest
import torch

from kvscope.errors import UsageError
from kvscope.kernels import paged_prefill, write_kv
from kvscope.kernels.host import HostStep

LAYERS, BLOCKS, DIM = 2, 64, 16


def empty_cache(size: int, heads: int) -> torch.Tensor:
    """As `KVCache` lays it out; a slot that was never written is NaN, so that reading one shows."""
    return torch.full((LAYERS, BLOCKS, 2, size, heads, DIM), float("nan")).transpose(1, 2)


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_paged_calls(seed: int) -> None:
    torch.manual_seed(seed)
    draw = random.Random(seed)
    size, heads, shared, window = draw.choice([4, 16]), draw.choice([1, 3]), draw.choice([1, 3]), draw.choice([0, 0, 5])
    rows = []  # (new tokens, all tokens)
    for _ in range(draw.randint(1, 6)):
        length = draw.randint(1, min(60, size * 8))
        rows.append((draw.choice([1, 1, length, draw.randint(1, length)]), length))
    if draw.random() < 0.3:
        rows = rows[:1] * 3  # equally long ones are attended together
    kv, free = empty_cache(size, heads), draw.sample(range(BLOCKS), BLOCKS)
    tables, starts, slots = torch.zeros(len(rows), 16, dtype=torch.int32), [0], []
    for i, (count, length) in enumerate(rows):
        mine = [free.pop() for _ in range(-(-length // size))]
        tables[i, : len(mine)] = torch.tensor(mine)
        for number, block in enumerate(mine):
            filled = min(size, length - number * size)
            kv[:, :, block, :filled] = torch.randn(LAYERS, 2, filled, heads, DIM)
        starts.append(starts[-1] + count)
        slots += [mine[p // size] * size + p % size for p in range(length - count, length)]
    where, ends = torch.tensor(slots), torch.tensor([length for _, length in rows], dtype=torch.int32)
    begins = torch.tensor(starts, dtype=torch.int32)
    step = HostStep(kv, where, tables, ends, begins, 0.3, window)
    for layer in range(LAYERS):
        fused = torch.randn(starts[-1], heads * shared + 2 * heads, DIM)
        q, k, v = fused.split([heads * shared, heads, heads], dim=1)
        other = kv.clone()
        write_kv(k, v, other[layer, 0], other[layer, 1], where)
        expected = paged_prefill(q, other[layer, 0], other[layer, 1], tables, ends, begins, 0.3, window=window)
        assert torch.allclose(step.attend(layer, q, k, v), expected, atol=1e-5)
        assert torch.equal(kv.nan_to_num(7.0), other.nan_to_num(7.0))


def test_long_prompts_are_attended_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvscope.kernels.host.PREFILL_ROWS", 7)
    kv = empty_cache(16, 2)
    q, k, v = torch.randn(20, 4, DIM), torch.randn(20, 2, DIM), torch.randn(20, 2, DIM)
    place = (torch.tensor([[3, 5]], dtype=torch.int32), torch.tensor([20], dtype=torch.int32),
             torch.tensor([0, 20], dtype=torch.int32))  # fmt: skip
    slots = torch.tensor([*range(48, 64), *range(80, 84)])
    for window in (0, 4):
        out = HostStep(kv, slots, *place, 0.3, window).attend(0, q, k, v)
        assert torch.allclose(out, paged_prefill(q, kv[0, 0], kv[0, 1], *place, 0.3, window=window), atol=1e-5)


@pytest.mark.parametrize(
    ("slots", "length", "said"),
    [([BLOCKS * 16], 1, "slots 1024"), ([-1], 1, "slots -1"), ([0], 40, "does not fit its block table")],
)
def test_what_is_not_in_the_cache_is_refused(slots: list[int], length: int, said: str) -> None:
    tables, starts = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(UsageError, match=said):
        HostStep(empty_cache(16, 1), torch.tensor(slots), tables, torch.tensor([length], dtype=torch.int32), starts, 1)


def test_takes_only_caches_in_its_layout() -> None:
    assert HostStep.fits(empty_cache(16, 1))
    assert not HostStep.fits(empty_cache(16, 1).contiguous())
    assert not HostStep.fits(empty_cache(16, 1).half())
