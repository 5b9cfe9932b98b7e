"""Writing keys and values into slots, and copying blocks: the right places, and no others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import kernels
from kvscope.errors import UsageError

ALL_DTYPES = [torch.float32, torch.float16, torch.bfloat16]  # moving bytes is exact in the interpreter too


@settings(max_examples=10, deadline=None)
@given(
    slots=st.lists(st.integers(0, 5 * 16 - 1), unique=True, max_size=9),
    skipped=st.integers(0, 3),
    stored=st.sampled_from(ALL_DTYPES),
    shape=st.sampled_from([(1, 64), (3, 64), (2, 80), (5, 256)]),
    seed=st.integers(0, 99),
)
def test_write_fills_its_slots_and_no_others(lab, slots, skipped, stored, shape, seed):
    gen = torch.Generator().manual_seed(seed)
    mapping = torch.tensor(slots + [-1 - i for i in range(skipped)], dtype=torch.int64)
    mapping = mapping[torch.randperm(len(mapping), generator=gen)]
    fused = torch.randn(len(mapping), 2, *shape, generator=gen).to(stored).to(lab.device)
    cache = torch.randn(2, 5, 16, *shape, generator=gen).to(stored).to(lab.device)
    want = cache.clone().view(2, 80, *shape)
    for token, slot in enumerate(mapping.tolist()):
        if slot >= 0:
            want[:, slot] = fused[token]
    kernels.write_kv(fused[:, 0], fused[:, 1], cache[0], cache[1], mapping.to(lab.device), backend=lab.backend)
    assert torch.equal(cache.view_as(want), want)


def test_write_into_caches_with_gaps(lab):
    wide = torch.zeros(2, 4, 24, 3, 64, device=lab.device)
    k = torch.randn(2, 3, 64, device=lab.device)
    slots = torch.tensor([17, 63], device=lab.device)
    kernels.write_kv(k, -k, wide[0, :, :16], wide[1, :, :16], slots, backend=lab.backend)
    assert torch.equal(wide[0, 1, 1], k[0])
    assert torch.equal(wide[1, 3, 15], -k[1])
    assert int((wide != 0).sum()) == 4 * 3 * 64


def test_a_head_that_lies_far_away_is_written_where_it_is(lab):
    """Head by head over the whole cache: the third begins 2**31 elements behind the first, untouched but for a few."""
    blocks = 2**30 // (16 * 128) + 8
    heads = torch.empty(3, blocks + 1, 16, 128, dtype=torch.float16, device=lab.device)
    k_cache, v_cache = (heads[:, first : first + blocks].permute(1, 2, 0, 3) for first in (0, 1))
    k = torch.randn(1, 3, 128, device=lab.device).half()
    kernels.write_kv(k, -k, k_cache, v_cache, torch.tensor([35], device=lab.device), backend=lab.backend)
    assert torch.equal(heads[:, 2, 3], k[0])
    assert torch.equal(heads[:, 3, 3], -k[0])
    q, cos, sin = torch.zeros_like(k), torch.ones(1, 64, device=lab.device), torch.zeros(1, 64, device=lab.device)
    slots = torch.tensor([100], device=lab.device)
    kernels.rope_write_kv(q, k, -k, cos, sin, k_cache, v_cache, slots, backend=lab.backend)
    assert torch.equal(heads[:, 6, 4], k[0])
    assert torch.equal(heads[:, 7, 4], -k[0])


@pytest.mark.parametrize("stored", ALL_DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "side_by_side"), [((8, 1, 8), True), ((16, 3, 64), False), ((32, 2, 80), True)])
def test_copy_moves_every_layer_and_leaves_the_neighbours(lab, stored, shape, side_by_side):
    gen = torch.Generator().manual_seed(1)
    kv = torch.randn(3, 2, 9, *shape, generator=gen).to(stored).to(lab.device)
    kv = lab.together(kv) if side_by_side else kv
    want = kv.clone()
    pairs = [(1, 0), (4, 3), (4, 8), (7, 5)]
    for source, target in pairs:
        want[:, :, target] = kv[:, :, source]
    ids = torch.tensor(pairs, device=lab.device)
    kernels.copy_blocks(kv, ids[:, 0].contiguous(), ids[:, 1].contiguous(), backend=lab.backend)
    assert torch.equal(kv, want)


def test_each_copy_of_a_chain_sees_the_one_before_it(lab):
    """No wait between the launches; on Hopper each of them may begin before the one that wrote its source has ended."""
    rows, links = (256, 12) if lab.cuda else (2, 3)
    kv = lab.together(torch.zeros(8, 2, rows * (links + 1), 16, 2, 64).to(lab.device))
    first = torch.randn(8, 2, rows, 16, 2, 64).to(lab.device)
    for _ in range(5 if lab.cuda else 1):
        kv.zero_()
        kv[:, :, :rows] = first
        for link in range(links):
            source = torch.arange(rows, device=lab.device) + link * rows  # made on the device right before it is read
            kernels.copy_blocks(kv, source.flip(0), source + rows, backend=lab.backend)
        last = first.flip(2) if links % 2 else first
        assert torch.equal(kv[:, :, links * rows :], last)


def test_copy_keeps_bit_patterns(lab):
    kv = torch.randint(-(2**15), 2**15, (1, 2, 3, 8, 1, 64), dtype=torch.int16).view(torch.bfloat16).to(lab.device)
    kernels.copy_blocks(kv, torch.tensor([0]), torch.tensor([2]), backend=lab.backend)
    assert torch.equal(kv[:, :, 0].view(torch.int16), kv[:, :, 2].view(torch.int16))


def test_a_cache_with_gaps_inside_a_block_is_refused(lab):
    kv = torch.zeros(1, 2, 2, 8, 1, 128, device=lab.device)[..., :64]
    with pytest.raises(UsageError, match="a block of kv must be contiguous"):
        kernels.copy_blocks(kv, torch.tensor([0]), torch.tensor([1]), backend=lab.backend)


def test_copy_of_nothing(lab):
    kv = torch.ones(1, 2, 2, 8, 1, 64, device=lab.device)
    none = torch.empty(0, dtype=torch.int64)
    kernels.copy_blocks(kv, none, none, backend=lab.backend)
    assert (kv == 1).all()


def test_ids_on_the_cpu_serve_a_cache_on_any_device(lab):
    kv = torch.arange(3.0).view(1, 1, 3, 1, 1, 1).expand(1, 2, 3, 8, 1, 64).contiguous().to(lab.device)
    kernels.copy_blocks(kv, torch.tensor([2]), torch.tensor([0]), backend=lab.backend)
    assert kv[0, 0, :, 0, 0, 0].tolist() == [2, 1, 2]
