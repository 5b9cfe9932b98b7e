"""The torch reference against plain dense attention, written the long way."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope import kernels
from kvscope.errors import UsageError

LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 100]


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal softmax(q k^T) v in float64 for q[n, HQ, D] at the end of k, v[L, HK, D]; one head at a time."""
    count, heads, _ = q.shape
    length, kv_heads, _ = k.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    for h in range(heads):
        kv = h // (heads // kv_heads)
        scores = q[:, h].double() @ k[:, kv].double().T * scale
        for i in range(count):
            seen = length - count + i + 1
            out[i, h] = torch.softmax(scores[i, :seen], 0) @ v[:seen, kv].double()
    return out


class Pool:
    """A cache full of NaN in which only the given sequences' positions are written, in random blocks."""

    def __init__(self, lengths, kv_heads=2, dim=16, block_size=16, dtype=torch.float32, seed=0):
        gen = torch.Generator().manual_seed(seed)
        need = [-(-n // block_size) for n in lengths]
        num_blocks = sum(need) + 3
        self.kv = torch.full((1, 2, num_blocks, block_size, kv_heads, dim), float("nan"), dtype=dtype)
        self.k_cache, self.v_cache = self.kv[0, 0], self.kv[0, 1]
        order = torch.randperm(num_blocks, generator=gen).tolist()
        # Entries past a sequence's blocks point at NaN blocks: reading one shows in the result.
        self.block_table = torch.full((len(lengths), max([*need, 1]) + 1), order[-1], dtype=torch.int32)
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32)
        self.k, self.v = [], []
        for row, length in enumerate(lengths):
            blocks = [order.pop(0) for _ in range(need[row])]
            self.block_table[row, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            k = torch.randn(length, kv_heads, dim, generator=gen).to(dtype)
            v = torch.randn(length, kv_heads, dim, generator=gen).to(dtype)
            slots = torch.tensor([blocks[p // block_size] * block_size + p % block_size for p in range(length)])
            kernels.write_kv(k, v, self.k_cache, self.v_cache, slots.to(torch.int64), backend="torch")
            self.k.append(k)
            self.v.append(v)


def close(out: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert torch.isfinite(out).all()
    assert (out.double() - want).norm() <= tolerance * max(float(want.norm()), 1e-3)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=5),
    heads=st.sampled_from([(2, 2), (4, 2), (6, 1)]),
    block_size=st.sampled_from([8, 16, 32]),
    seed=st.integers(0, 1000),
)
def test_decode_equals_dense_attention(lengths, heads, block_size, seed):
    pool = Pool(lengths, kv_heads=heads[1], block_size=block_size, seed=seed)
    q = torch.randn(len(lengths), heads[0], 16, generator=torch.Generator().manual_seed(seed))
    out = kernels.paged_decode(q, pool.k_cache, pool.v_cache, pool.block_table, pool.seq_lens, 0.25)
    for row, length in enumerate(lengths):
        want = dense(q[row : row + 1], pool.k[row], pool.v[row], 0.25)[0] if length else torch.zeros(heads[0], 16)
        close(out[row], want.double())


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.sampled_from(LENGTHS), st.sampled_from([0, 1, 2, 7, 16, 100])), min_size=1, max_size=4),
    heads=st.sampled_from([(2, 2), (4, 2), (3, 1)]),
    padding=st.sampled_from([0, 3]),
    seed=st.integers(0, 1000),
)
def test_prefill_equals_dense_attention(rows, heads, padding, seed):
    lengths = [length for length, _ in rows]
    counts = [min(length, count) for length, count in rows]
    pool = Pool(lengths, kv_heads=heads[1], seed=seed)
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    q = torch.randn(starts[-1] + padding, heads[0], 16, generator=torch.Generator().manual_seed(seed))
    out = kernels.paged_prefill(
        q,
        pool.k_cache,
        pool.v_cache,
        pool.block_table,
        pool.seq_lens,
        torch.tensor(starts, dtype=torch.int32),
        0.25,
    )
    for row in range(len(rows)):
        part = slice(starts[row], starts[row + 1])
        close(out[part], dense(q[part], pool.k[row], pool.v[row], 0.25))
    assert (out[starts[-1] :] == 0).all()


def test_prefill_in_row_pieces_equals_one_piece(monkeypatch):
    from kvscope.kernels import reference

    pool = Pool([90])
    q = torch.randn(70, 4, 16)
    start = torch.tensor([0, 70], dtype=torch.int32)
    args = (q, pool.k_cache, pool.v_cache, pool.block_table, pool.seq_lens, start, 0.25)
    monkeypatch.setattr(reference, "PREFILL_ROWS", 16)
    close(kernels.paged_prefill(*args), dense(q, pool.k[0], pool.v[0], 0.25))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    pool = Pool([100, 37], dtype=dtype)
    q = torch.randn(2, 4, 16).to(dtype)
    out = kernels.paged_decode(q, pool.k_cache, pool.v_cache, pool.block_table, pool.seq_lens, 0.25)
    assert out.dtype == dtype
    for row in range(2):
        want = dense(q[row : row + 1], pool.k[row], pool.v[row], 0.25)[0]
        assert (out[row].double() - want).abs().max() <= torch.finfo(dtype).eps * want.abs().max()


def test_caches_with_a_gap_between_blocks_are_read_and_written():
    wide = torch.full((1, 2, 12, 32, 2, 16), float("nan"))
    pool = Pool([40, 17])
    spaced = wide[0, 0, :, :16], wide[0, 1, :, :16]
    n = pool.k_cache.shape[0]
    spaced = spaced[0][:n], spaced[1][:n]
    for row in range(2):
        ids = [int(pool.block_table[row, p // 16]) * 16 + p % 16 for p in range(int(pool.seq_lens[row]))]
        kernels.write_kv(pool.k[row], pool.v[row], *spaced, torch.tensor(ids))
    assert torch.isnan(wide[0, :, :, 16:]).all()
    q = torch.randn(2, 2, 16)
    want = kernels.paged_decode(q, pool.k_cache, pool.v_cache, pool.block_table, pool.seq_lens, 0.25)
    out = kernels.paged_decode(q, *spaced, pool.block_table, pool.seq_lens, 0.25)
    assert torch.equal(out, want)


def test_write_skips_negative_slots():
    kv = torch.zeros(1, 2, 3, 8, 1, 8)
    k, v = torch.ones(3, 1, 8), torch.full((3, 1, 8), 2.0)
    kernels.write_kv(k, v, kv[0, 0], kv[0, 1], torch.tensor([5, -1, 23]))
    assert kv[0, 0].view(24, 8).sum(1).nonzero().flatten().tolist() == [5, 23]
    assert kv[0, 1].view(24, 8).sum(1).nonzero().flatten().tolist() == [5, 23]


def test_copy_moves_every_layer_and_nothing_else():
    kv = torch.randn(3, 2, 6, 8, 2, 8)
    before = kv.clone()
    kernels.copy_blocks(kv, torch.tensor([1, 4]), torch.tensor([0, 5]))
    assert torch.equal(kv[:, :, 0], before[:, :, 1])
    assert torch.equal(kv[:, :, 5], before[:, :, 4])
    assert torch.equal(kv[:, :, 1:5], before[:, :, 1:5])


def bad_calls():
    pool = Pool([20, 5])
    q = torch.randn(2, 4, 16)
    good = (q, pool.k_cache, pool.v_cache, pool.block_table, pool.seq_lens, 0.25)
    decode = kernels.paged_decode
    yield "rows", lambda: decode(q[:1], *good[1:])
    yield "heads", lambda: decode(torch.randn(2, 3, 16), *good[1:])
    yield "head_dim", lambda: decode(torch.randn(2, 4, 8), *good[1:])
    yield "dtype", lambda: decode(q.half(), *good[1:])
    yield "block_table", lambda: decode(*good[:3], pool.block_table.long(), *good[4:])
    yield "seq_lens", lambda: decode(*good[:4], pool.seq_lens[:1], 0.25)
    yield "wider block_table", lambda: decode(*good[:4], pool.seq_lens + 100, 0.25)
    yield "not known", lambda: decode(*good, backend="cuda")
    yield "needs tensors on CUDA", lambda: decode(*good, backend="triton")
    starts = torch.tensor([0, 30, 30], dtype=torch.int32)
    yield "query tokens", lambda: kernels.paged_prefill(torch.randn(30, 4, 16), *good[1:5], starts, 0.25)
    yield "query_start", lambda: kernels.paged_prefill(torch.randn(3, 4, 16), *good[1:5], starts[:2], 0.25)
    k = torch.randn(1, 2, 16)
    yield "slot", lambda: kernels.write_kv(k, k, *good[1:3], torch.tensor([16 * pool.k_cache.shape[0]]))
    yield "slot_mapping", lambda: kernels.write_kv(k, k, *good[1:3], torch.tensor([1, 2]))
    yield "target of two", lambda: kernels.copy_blocks(pool.kv, torch.tensor([0, 1]), torch.tensor([2, 2]))
    yield "both source and target", lambda: kernels.copy_blocks(pool.kv, torch.tensor([0, 1]), torch.tensor([1, 2]))
    yield "outside", lambda: kernels.copy_blocks(pool.kv, torch.tensor([0]), torch.tensor([99]))
    yield "contiguous", lambda: kernels.copy_blocks(pool.kv[:, :, ::2], torch.tensor([0]), torch.tensor([1]))


@pytest.mark.parametrize(("words", "call"), list(bad_calls()))
def test_a_bad_call_is_refused_in_one_line(words, call):
    with pytest.raises(UsageError, match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_importing_the_room_does_not_import_torch():
    code = "import sys, kvscope.kernels; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
