"""Blocks to host memory and back."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import kernels
from kvscope.errors import UsageError
from kvscope.kernels import swap


def cache(lab, stored=torch.float32, blocks=7):
    gen = torch.Generator().manual_seed(0)
    kv = torch.randn(3, 2, blocks, 8, 2, 16, generator=gen).to(stored).to(lab.device)
    return lab.together(kv)


@settings(max_examples=6, deadline=None)
@given(
    blocks=st.lists(st.integers(0, 6), unique=True, max_size=6),
    group=st.sampled_from([1, 2, 100]),
    data=st.data(),
)
def test_blocks_return_wherever_they_waited(lab, blocks, group, data):
    kv = cache(lab, data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    before = kv.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swap, "STAGING_BYTES", group * kv[:, :, :1].numel() * kv.element_size())
        space = kernels.SwapSpace(kv, 9, backend=lab.backend)
    places = data.draw(st.permutations(range(9)))[: len(blocks)]
    space.out(blocks, places).wait()
    assert torch.equal(kv, before)
    kv[:, :, blocks] = float("nan")
    targets = data.draw(st.permutations(range(7)))[: len(blocks)]
    transfer = space.back(places, targets)
    transfer.finish()
    assert transfer.done()
    assert torch.equal(kv[:, :, targets], before[:, :, blocks])
    others = [b for b in range(7) if b not in targets and b not in blocks]
    assert torch.equal(kv[:, :, others], before[:, :, others])


def test_a_transfer_takes_what_was_queued_before_it_and_not_what_comes_after_the_wait(lab):
    kv = cache(lab, blocks=4000 if lab.cuda else 8)
    space = kernels.SwapSpace(kv, kv.shape[2], backend=lab.backend)
    every = list(range(kv.shape[2]))
    for round_ in range(3):
        kv.fill_(float(round_))
        transfer = space.out(every, every)
        transfer.wait()
        kv.fill_(-1.0)
        transfer.finish()
        assert (space.host == round_).all()
    space.back(every, every).wait()
    assert (kv == 2.0).all()


def test_wrong_ids_are_refused(lab):
    space = kernels.SwapSpace(cache(lab), 4, backend=lab.backend)
    with pytest.raises(UsageError, match="outside"):
        space.out([7], [0])
    with pytest.raises(UsageError, match="below 4"):
        space.out([1], [4])
    with pytest.raises(UsageError, match="different"):
        space.back([1, 1], [1, 2])
    with pytest.raises(UsageError, match="target of two"):
        space.back([0, 1], [2, 2])
    with pytest.raises(UsageError, match="must be equal"):
        space.out([1, 2], [0])
