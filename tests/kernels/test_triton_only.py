"""What only the Triton kernels have: splits, address width, CUDA graphs. Not collected for the torch backend."""

from __future__ import annotations

import itertools

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import kernels
from kvscope.errors import UsageError
from kvscope.kernels import tuning
from kvscope.kernels.address import slot_offset


@pytest.mark.parametrize("wanted", [2, 5, 9, 40])
def test_any_split_gives_the_same(lab, wanted, monkeypatch):
    split = tuning.Split("mid", wanted, wanted)
    monkeypatch.setattr(tuning, "decode_split", lambda *args: split)
    monkeypatch.setattr(tuning, "MIN_PIECE", 16)
    pool = lab.pool([0, 1, 64, 65, 129, 300])
    q = pool.random(6, 4)
    plan = kernels.plan_decode(pool.seq_lens, 2, backend=lab.backend)
    for _ in range(2):  # as two layers would use one plan
        out = pool.decode(q, plan=plan)
        assert (out[0] == 0).all()
        for row in range(1, 6):
            lab.close(out[row : row + 1], pool.expected(q[row : row + 1], row))
    assert (plan.arrived == 0).all()


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    kv_heads=st.sampled_from([1, 3, 8]),
    wanted=st.integers(1, 300),
    even=st.integers(1, 9),
)
def test_a_plan_covers_every_token_once(lab, lengths, kv_heads, wanted, even):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "decode_split", lambda *args: tuning.Split("mid", even, wanted))
        seq_lens = torch.tensor(lengths, dtype=torch.int32, device=lab.device)
        plan = kernels.plan_decode(seq_lens, kv_heads, backend=lab.backend)
    pieces = plan.pieces.tolist()
    used = [piece for piece in pieces if piece[0] >= 0]
    assert pieces[: len(used)] == used
    index = 0
    for row, length in enumerate(lengths):
        own = used[index : index + used[index][4]]
        assert all(piece[0] == row and piece[3] == index and piece[4] == len(own) for piece in own)
        assert own[0][1] == 0
        assert own[-1][2] == length
        assert all(before[2] == after[1] for before, after in itertools.pairwise(own))
        assert len(own) == 1 or all(piece[1] < piece[2] and piece[1] % tuning.PIECE_ALIGN == 0 for piece in own)
        index += len(own)
    assert index == len(used)
    assert (plan.arrived == 0).all()


def test_a_large_even_batch_stays_whole_and_a_ragged_one_is_cut(lab, monkeypatch):
    monkeypatch.setattr(tuning, "multiprocessors", lambda device: 4)

    def pieces(lengths):
        lens = torch.tensor(lengths, dtype=torch.int32, device=lab.device)
        return int((kernels.plan_decode(lens, 2, backend=lab.backend).pieces[:, 0] >= 0).sum())

    assert pieces([4096] * 8) == 8
    assert pieces([4096] * 7 + [3500]) == 8
    assert pieces([9000] + [1000] * 7) > 8
    assert pieces([4096]) > 1  # one row does not fill the chip


def test_a_plan_for_another_batch_is_refused(lab):
    pool = lab.pool([5, 6])
    plan = kernels.plan_decode(pool.seq_lens[:1], 2, backend=lab.backend)
    with pytest.raises(UsageError, match="plan is for 1 rows"):
        pool.decode(pool.random(2, 2), plan=plan)
    plan = kernels.plan_decode(pool.seq_lens, 2, window=3, backend=lab.backend)
    with pytest.raises(UsageError, match="window 3"):
        pool.decode(pool.random(2, 2), plan=plan, window=4)


@triton.jit
def offset_kernel(blocks, out, within, block_stride, slot_stride):
    index = tl.arange(0, 4)
    tl.store(out + index, slot_offset(tl.load(blocks + index), within, block_stride, slot_stride))


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_offsets_pass_32_bits(lab, id_type):
    blocks = torch.tensor([0, 7_782, 1_000_000, 2**31 - 1], dtype=id_type, device=lab.device)
    out = torch.zeros(4, dtype=torch.int64, device=lab.device)
    block_stride, slot_stride = 276_480, 17_280
    offset_kernel[(1,)](blocks, out, 15, block_stride, slot_stride)
    assert out.tolist() == [int(b) * block_stride + 15 * slot_stride for b in blocks.tolist()]


def test_block_sizes_and_head_dims_outside_the_kernels_are_refused(lab):
    pool = lab.pool([5], block_size=4)
    with pytest.raises(UsageError, match="block_size 4 is not one of"):
        pool.decode(pool.random(1, 2))
    pool = lab.pool([5], dim=60)
    with pytest.raises(UsageError, match="head_dim 60 is not"):
        pool.decode(pool.random(1, 2))


def test_cache_larger_than_32_bit_offsets(lab):
    if not lab.cuda:
        pytest.skip("needs a 9 GB cache")
    blocks, heads, dim = 140_000, 8, 128
    kv = torch.empty(2, blocks, 16, heads, dim, dtype=torch.bfloat16, device="cuda").fill_(float("nan"))
    assert kv[0].numel() > 2**31
    k, v, q = (torch.randn(32, heads, dim, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    ids = torch.tensor([[blocks - 1, blocks - 2]], dtype=torch.int32, device="cuda")
    slots = torch.cat([torch.arange(16, device="cuda") + b * 16 for b in ids[0].long()])
    kernels.write_kv(k, v, kv[0], kv[1], slots)
    small = torch.stack([k.view(2, 16, heads, dim), v.view(2, 16, heads, dim)])
    near = torch.tensor([[0, 1]], dtype=torch.int32, device="cuda")
    lens = torch.tensor([30], dtype=torch.int32, device="cuda")
    start = torch.tensor([0, 30], dtype=torch.int32, device="cuda")
    far_out = kernels.paged_decode(q[:1], kv[0], kv[1], ids, lens, 0.1)
    assert torch.equal(far_out, kernels.paged_decode(q[:1], small[0], small[1], near, lens, 0.1))
    far_out = kernels.paged_prefill(q[:30], kv[0], kv[1], ids, lens, start, 0.1)
    assert torch.equal(far_out, kernels.paged_prefill(q[:30], small[0], small[1], near, lens, start, 0.1))
    kernels.copy_blocks(kv[None], torch.tensor([blocks - 1]), torch.tensor([blocks // 2 + 9]))
    assert torch.equal(kv[:, blocks // 2 + 9], kv[:, blocks - 1])


def test_one_graph_serves_growing_lengths_and_padded_rows(lab):
    if not lab.cuda:
        pytest.skip("needs CUDA graphs")
    pool = lab.pool([700, 40, 2000], dtype=torch.bfloat16)
    q = pool.random(3, 8).to("cuda")
    lengths = torch.zeros(3, dtype=torch.int32, device="cuda")
    args = (q, pool.k_cache, pool.v_cache, pool.block_table, lengths, pool.scale)
    kernels.paged_decode(*args)  # compiles outside the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernels.paged_decode(*args)
    for step in ([1, 0, 1], [17, 0, 700], [700, 40, 2000]):
        lengths.copy_(torch.tensor(step))
        graph.replay()
        want = kernels.paged_decode(*args, backend="torch")
        assert (out[[n == 0 for n in step]] == 0).all()
        assert float((out - want).float().norm() / want.float().norm()) < 1e-2
