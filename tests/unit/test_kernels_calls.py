"""The kernels' one door: what it refuses and how, and what only the torch backend does."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from kvscope import kernels
from kvscope.errors import UsageError


def example(dtype=torch.float32):
    """q and a cache with two sequences of 20 and 5 tokens, blocks in order."""
    gen = torch.Generator().manual_seed(0)
    kv = torch.randn(1, 2, 4, 16, 2, 16, generator=gen).to(dtype)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    return torch.randn(2, 4, 16, generator=gen).to(dtype), kv, table, torch.tensor([20, 5], dtype=torch.int32)


def test_prefill_in_pieces_of_rows_equals_one_piece(monkeypatch):
    from kvscope.kernels import reference

    _, kv, table, lens = example()
    q = torch.randn(23, 4, 16)
    args = (q, kv[0, 0], kv[0, 1], table, lens, torch.tensor([0, 18, 23], dtype=torch.int32), 0.25)
    want = kernels.paged_prefill(*args)
    monkeypatch.setattr(reference, "PREFILL_ROWS", 4)
    assert torch.allclose(kernels.paged_prefill(*args), want, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    q, kv, table, lens = example(dtype)
    out = kernels.paged_decode(q, kv[0, 0], kv[0, 1], table, lens, 0.25)
    want = kernels.paged_decode(q.float(), kv[0, 0].float(), kv[0, 1].float(), table, lens, 0.25)
    assert torch.equal(out, want.to(dtype))


def bad_calls():
    q, kv, table, lens = example()
    good = (q, kv[0, 0], kv[0, 1], table, lens, 0.25)
    decode = kernels.paged_decode
    yield "rows", lambda: decode(q[:1], *good[1:])
    yield "heads", lambda: decode(torch.randn(2, 3, 16), *good[1:])
    yield "head_dim", lambda: decode(torch.randn(2, 4, 8), *good[1:])
    yield "dtype", lambda: decode(q.half(), *good[1:])
    yield "block_table", lambda: decode(*good[:3], table.long(), *good[4:])
    yield "seq_lens", lambda: decode(*good[:4], lens[:1], 0.25)
    yield "wider block_table", lambda: decode(*good[:4], lens + 100, 0.25)
    yield "scale", lambda: decode(*good[:5], 0.0)
    fp8 = kv[0].to(torch.float8_e4m3fn)
    one = torch.ones(1)
    yield "need k_scale", lambda: decode(q, fp8[0], fp8[1], *good[3:])
    yield "are for caches", lambda: decode(*good, k_scale=one, v_scale=one)
    yield "v_scale must be", lambda: decode(q, fp8[0], fp8[1], *good[3:], k_scale=one, v_scale=torch.ones(3))
    yield "window", lambda: decode(*good, window=-1)
    yield "soft_cap", lambda: decode(*good, soft_cap=-2.0)
    yield "not known", lambda: decode(*good, backend="cuda")
    yield "needs tensors on CUDA", lambda: decode(*good, backend="triton")
    yield "TRITON_INTERPRET=1", lambda: decode(*good, backend="triton-interpret")
    starts = torch.tensor([0, 30, 30], dtype=torch.int32)
    yield "query tokens", lambda: kernels.paged_prefill(torch.randn(30, 4, 16), *good[1:5], starts, 0.25)
    yield "query_start", lambda: kernels.paged_prefill(torch.randn(3, 4, 16), *good[1:5], starts[:2], 0.25)
    k = torch.randn(1, 2, 16)
    yield "slot", lambda: kernels.write_kv(k, k, *good[1:3], torch.tensor([16 * 4]))
    yield "slot_mapping", lambda: kernels.write_kv(k, k, *good[1:3], torch.tensor([1, 2]))
    tables = torch.randn(1, 8), torch.randn(1, 8)
    rope = kernels.rope_write_kv
    slot = torch.tensor([3])
    yield "cos must be", lambda: rope(k, k, k, torch.randn(1, 16), tables[1], *good[1:3], slot)
    yield "a row for every token", lambda: rope(k, k, k, tables[0], torch.randn(2, 8), *good[1:3], slot)
    yield "rotary tables of 1", lambda: rope(k, k, k, *tables, *good[1:3], slot, positions=torch.tensor([1]))
    yield "target of two", lambda: kernels.copy_blocks(kv, torch.tensor([0, 1]), torch.tensor([2, 2]))
    yield "both source and target", lambda: kernels.copy_blocks(kv, torch.tensor([0, 1]), torch.tensor([1, 2]))
    yield "outside", lambda: kernels.copy_blocks(kv, torch.tensor([0]), torch.tensor([99]))
    yield "blocks must be", lambda: kernels.digest_blocks(kv, torch.tensor([0], dtype=torch.int32))
    yield "32-bit words", lambda: kernels.digest_blocks(torch.zeros(1, 2, 4, 16, 1, 3, dtype=torch.int8))
    shadow, words = torch.zeros(4, 16, dtype=torch.int64), torch.zeros(2, 20, dtype=torch.int64)
    yield "shadow must be", lambda: kernels.check_provenance(shadow.int(), table, lens, words)
    yield "expected must be", lambda: kernels.check_provenance(shadow, table, lens, words[:1])
    pair = torch.tensor([0]), torch.tensor([1])
    yield "block of kv must be contiguous", lambda: kernels.copy_blocks(kv[..., ::2], *pair)
    yield "must not overlap", lambda: kernels.copy_blocks(kv[:, :, :1].expand(-1, -1, 4, -1, -1, -1), *pair)


@pytest.mark.parametrize(("words", "call"), list(bad_calls()), ids=[words for words, _ in bad_calls()])
def test_a_bad_call_is_refused_in_one_line(words, call):
    with pytest.raises(UsageError, match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_importing_the_room_does_not_import_torch():
    code = "import sys, kvscope.kernels; sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
