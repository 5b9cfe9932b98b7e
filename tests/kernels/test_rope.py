"""Rotary embedding fused with the write of keys and values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import kernels

ROWS = 50


def tables(half):
    angle = torch.arange(ROWS, dtype=torch.float64)[:, None] * 100.0 ** (-torch.arange(half) / half)
    return angle.cos(), angle.sin()


def turned(x, rows, half):
    """x[T, H, D] as complex numbers (dim i, dim i + D/2) turned by each token's angles, in float64."""
    cos, sin = tables(half)
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.complex(cos, sin)[rows][:, None]
    return torch.cat((z.real, z.imag), -1)


def run(lab, slots, heads, kv_heads, dim, dtype, indexed, seed):
    gen = torch.Generator().manual_seed(seed)
    count = len(slots)
    fused = torch.randn(count, heads + 2 * kv_heads, dim, generator=gen).to(dtype)
    before = fused.clone()
    fused = fused.to(lab.device)
    cache = torch.randn(2, 5, 16, kv_heads, dim, generator=gen).to(dtype)
    want = cache.clone().view(2, 80, kv_heads, dim)
    cache = cache.to(lab.device)
    positions = torch.randint(0, ROWS, (count,), generator=gen)
    rows = positions if indexed else torch.arange(count)
    cos, sin = (table.float().to(lab.device) for table in tables(dim // 2))
    q, k, v = fused.split((heads, kv_heads, kv_heads), 1)
    mapping = torch.tensor(slots, dtype=torch.int64)
    options = {"positions": positions.to(lab.device)} if indexed else {}
    kernels.rope_write_kv(q, k, v, cos, sin, cache[0], cache[1], mapping.to(lab.device), backend=lab.backend, **options)
    fused, kept = fused.cpu(), mapping >= 0
    assert torch.equal(fused[:, heads:], before[:, heads:])
    assert torch.equal(fused[~kept], before[~kept])
    lab.close(fused[kept][:, :heads], turned(before[:, :heads], rows, dim // 2)[kept])
    out = cache.cpu().view_as(want)
    written = torch.zeros(80, dtype=torch.bool)
    written[mapping[kept]] = True
    assert torch.equal(out[:, ~written], want[:, ~written])
    assert torch.equal(out[1][mapping[kept]], before[kept][:, heads + kv_heads :])
    lab.close(out[0][mapping[kept]], turned(before[:, heads : heads + kv_heads], rows, dim // 2)[kept])


@settings(max_examples=12, deadline=None)
@given(
    slots=st.lists(st.integers(0, 79), unique=True, max_size=6),
    skipped=st.integers(0, 2),
    heads=st.sampled_from([(1, 1), (6, 2), (9, 3), (8, 1)]),
    dim=st.sampled_from([16, 64, 80, 128]),
    indexed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_turns_queries_and_keys_and_fills_its_slots_alone(lab, slots, skipped, heads, dim, indexed, seed):
    mixed = [-1] * (skipped // 2) + slots + [-7] * (skipped - skipped // 2)
    run(lab, mixed, *heads, dim, torch.float32, indexed, seed)


def test_in_each_dtype(lab, dtype):
    run(lab, [3, 79, -1, 16, 0], 8, 2, 96, dtype, True, 1)


def test_position_zero_leaves_queries_bit_for_bit(lab):
    q = torch.randn(1, 4, 64, device=lab.device)
    before = q.clone()
    cache = torch.zeros(2, 1, 16, 2, 64, device=lab.device)
    cos, sin = torch.ones(1, 32, device=lab.device), torch.zeros(1, 32, device=lab.device)
    slots = torch.zeros(1, dtype=torch.int64, device=lab.device)
    kernels.rope_write_kv(q, q[:, :2].clone(), q[:, 2:].clone(), cos, sin, *cache, slots, backend=lab.backend)
    assert torch.equal(q, before)
    assert torch.equal(cache[0, 0, 0], before[0, :2])
    assert torch.equal(cache[1, 0, 0], before[0, 2:])


def test_equals_rotation_then_write(lab, dtype):
    """What the fused call replaces: keys rotated by torch in float32, then `write_kv`."""
    gen = torch.Generator().manual_seed(3)
    k, v, q = (torch.randn(7, heads, 64, generator=gen).to(dtype).to(lab.device) for heads in (2, 2, 4))
    fused = torch.zeros(2, 2, 16, 2, 64, dtype=dtype, device=lab.device)
    apart = fused.clone()
    cos, sin = (table.float().to(lab.device) for table in tables(32))
    slots = torch.tensor([0, 5, 31, 17, 2, 9, 30], device=lab.device)
    kernels.rope_write_kv(q, k, v, cos, sin, *fused, slots, backend=lab.backend)
    low, high = k.float().chunk(2, -1)
    c, s = cos[:7, None], sin[:7, None]
    rotated = torch.cat((low * c - high * s, high * c + low * s), -1).to(dtype)
    kernels.write_kv(rotated, v, *apart, slots, backend=lab.backend)
    assert torch.equal(fused[1], apart[1])
    torch.testing.assert_close(fused[0], apart[0], rtol=2e-2 if dtype == torch.bfloat16 else 2e-3, atol=1e-5)


@pytest.mark.parametrize("rows", [0, 3])
def test_no_tokens(lab, rows):
    empty, cache = torch.empty(0, 2, 16, device=lab.device), torch.zeros(2, 1, 16, 2, 16, device=lab.device)
    table = torch.empty(rows, 8, device=lab.device)
    slots = torch.empty(0, dtype=torch.int64, device=lab.device)
    kernels.rope_write_kv(empty, empty, empty, table, table, *cache, slots, backend=lab.backend)
    assert not cache.any()
