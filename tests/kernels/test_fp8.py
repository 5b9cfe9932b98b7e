"""Caches of 8-bit keys and values with scales: attention over them, and writes into them."""

from __future__ import annotations

import pytest
import torch

from kvscope import kernels

FP8 = torch.float8_e4m3fn


def narrow(pool, lab, per_head):
    """The pool's cache in 8 bits; keys and values of the pool become what the cache now holds. Returns the scales."""
    gen = torch.Generator().manual_seed(9)
    count = pool.kv_heads if per_head else 1
    scales = [0.005 + 0.02 * torch.rand(count, generator=gen) for _ in range(2)]
    stored = []
    for side, kept in ((0, pool.k), (1, pool.v)):
        full = (pool.kv[0, side].cpu().float() / scales[side][:, None]).to(FP8)
        flat = full.view(-1, pool.kv_heads, pool.dim)
        for row, slots in enumerate(pool.slots):
            kept[row] = flat.view(torch.uint8)[slots].view(FP8).float() * scales[side][:, None]
        stored.append(full.to(lab.device))
    pool.k_cache, pool.v_cache = stored
    return {"k_scale": scales[0].to(lab.device), "v_scale": scales[1].to(lab.device)}


def check(lab, pool, counts, heads, **options):
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    plain = {name: value for name, value in options.items() if not name.endswith("_scale")}
    slack = 10.0 if plain.get("soft_cap") else 2.0
    q = pool.random(starts[-1], heads)
    out = pool.prefill(q, starts, **options)
    for row in range(len(counts)):
        part = slice(starts[row], starts[row + 1])
        if counts[row]:
            lab.close(out[part], pool.expected(q[part], row, **plain), slack)
    q = pool.random(len(counts), heads)
    out = pool.decode(q, **options)
    for row, length in enumerate(pool.lengths):
        if length:
            lab.close(out[row : row + 1], pool.expected(q[row : row + 1], row, **plain), slack)


@pytest.mark.parametrize("per_head", [False, True])
def test_attention_in_each_dtype_of_query(lab, dtype, per_head):
    pool = lab.pool([0, 1, 17, 90], dtype=dtype)
    check(lab, pool, [0, 1, 3, 40], 4, **narrow(pool, lab, per_head))


@pytest.mark.parametrize("dim", [80, 128, 256])
def test_head_dims(lab, dim):
    pool = lab.pool([17, 70], dim=dim, dtype=torch.float16)
    check(lab, pool, [3, 70], 8, **narrow(pool, lab, True))


def test_with_window_and_soft_cap(lab):
    pool = lab.pool([90, lab.long], dtype=torch.float16)
    check(lab, pool, [33, 5], 4, **narrow(pool, lab, True), window=40, soft_cap=2.0)


@pytest.mark.parametrize("rope", [False, True])
def test_writes_divide_by_the_scale_and_saturate(lab, rope):
    # Values that 8 bits hold exactly (the interpreter rounds others wrongly), and two far outside.
    gen = torch.Generator().manual_seed(0)
    exact = torch.randint(-15, 16, (3, 2, 64), generator=gen).float()
    exact[0, 0, :2] = torch.tensor([1000.0, -1000.0])
    k_scale, v_scale = torch.tensor([0.5, 2.0]), torch.tensor([4.0])
    k, v = exact * k_scale[:, None], exact.flip(0) * v_scale
    cache = torch.zeros(2, 2, 16, 2, 64, dtype=torch.uint8).view(FP8).to(lab.device)
    slots = torch.tensor([20, -1, 7], device=lab.device)
    options = {"k_scale": k_scale.to(lab.device), "v_scale": v_scale.to(lab.device), "backend": lab.backend}
    k, v = k.to(lab.device, torch.float16), v.to(lab.device, torch.float16)
    if rope:
        cos, sin = torch.ones(3, 32, device=lab.device), torch.zeros(3, 32, device=lab.device)
        kernels.rope_write_kv(k.clone(), k, v, cos, sin, cache[0], cache[1], slots, **options)
    else:
        kernels.write_kv(k, v, cache[0], cache[1], slots, **options)
    want = torch.zeros(2, 32, 2, 64)
    want[0, [20, 7]] = exact[[0, 2]].clamp(-448, 448)
    want[1, [20, 7]] = exact.flip(0)[[0, 2]].clamp(-448, 448)
    assert torch.equal(cache.cpu().float().view_as(want), want)
