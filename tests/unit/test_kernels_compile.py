"""Shapes of kernels that serving launches compile for a Hopper GPU, without spills and within its memory.

Not all that it could launch, and with the Triton that is installed: 25 of the 63 entries of kernels/configs.json.
"""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("an interpreted kernel cannot be compiled", allow_module_level=True)

from kvscope.kernels import block_copy, decode, digest, kv_write, offline, plan, prefill, provenance, rope, tuning
from kvscope.kernels.plan import FIELDS, DecodePlan

DIMS = [64, 128, 256]


@pytest.fixture
def compiled(monkeypatch):
    """Runs a call with every launch compiled for an H200 instead of made; returns what the launches need."""
    monkeypatch.setattr(tuning, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(tuning, "launches_overlap", lambda device: True)

    def run(module, names, call):
        recorders = [offline.Recorder(getattr(module, name)) for name in names]
        with monkeypatch.context() as patch:
            for name, recorder in zip(names, recorders, strict=True):
                patch.setattr(module, name, recorder)
            call()
        needs = [need for recorder in recorders for need in recorder.needs]
        assert needs
        for need in needs:
            assert need.stack == 0, need
            assert need.shared <= offline.SHARED_LIMIT, need
        return needs

    return run


def caches(dtype, dim, kv_heads=8, block_size=16, apart=False):
    """As the engine has them, a block's keys and values side by side; or all keys, then all values."""
    if apart:
        return torch.empty(2, 4, block_size, kv_heads, dim, dtype=dtype).unbind(0)
    return torch.empty(4, 2, block_size, kv_heads, dim, dtype=dtype).unbind(1)


def run_decode(compiled, dtype, dim, batch, heads=32, kv_heads=8, block_size=16, stored=None, **options):
    q = torch.empty(batch, heads, dim, dtype=dtype)
    table = torch.zeros(batch, 1024, dtype=torch.int32)
    lens = torch.zeros(batch, dtype=torch.int32)
    pieces = torch.zeros(batch + 132, FIELDS, dtype=torch.int32)
    made = DecodePlan(pieces, torch.zeros(batch * kv_heads, dtype=torch.int32), batch, kv_heads)
    args = (q, *caches(stored or dtype, dim, kv_heads, block_size), table, lens, dim**-0.5)
    return compiled(decode, ["decode_kernel"], lambda: decode.paged_decode(*args, made, **options))


def run_prefill(compiled, dtype, dim, tokens, heads=32, kv_heads=8, block_size=16, stored=None, apart=False, **options):
    q = torch.empty(tokens, heads, dim, dtype=dtype)
    table, lens = torch.zeros(2, 1024, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    start = torch.zeros(3, dtype=torch.int32)
    args = (q, *caches(stored or dtype, dim, kv_heads, block_size, apart), table, lens, start, dim**-0.5)
    return compiled(prefill, ["prefill_kernel"], lambda: prefill.paged_prefill(*args, **options))


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("batch", [1, 32, 64])  # one for each of decode's three configurations
def test_decode(compiled, dim, batch):
    needs = run_decode(compiled, torch.bfloat16, dim, batch)
    assert needs[0].async_loads > 0


@pytest.mark.parametrize("dim", [128, 256])
def test_decode_float32(compiled, dim):
    run_decode(compiled, torch.float32, dim, 1)


@pytest.mark.parametrize(("heads", "kv_heads", "block_size", "dim"), [(9, 3, 16, 80), (64, 1, 256, 128)])
def test_decode_head_ratios(compiled, heads, kv_heads, block_size, dim):
    run_decode(compiled, torch.float16, dim, 8, heads, kv_heads, block_size)


@pytest.mark.parametrize("dim", [32, *DIMS])
@pytest.mark.parametrize("apart", [False, True])
def test_prefill(compiled, dim, apart):
    assert run_prefill(compiled, torch.bfloat16, dim, 4096, apart=apart)[0].async_loads > 0


def test_prefill_of_few_tokens(compiled):
    run_prefill(compiled, torch.bfloat16, 64, 64)


@pytest.mark.parametrize("dim", [128, 256])
def test_prefill_float32(compiled, dim):
    run_prefill(compiled, torch.float32, dim, 4096)


@pytest.mark.parametrize(("heads", "kv_heads", "block_size", "dim"), [(9, 3, 16, 80), (64, 1, 256, 128)])
def test_prefill_head_ratios(compiled, heads, kv_heads, block_size, dim):
    run_prefill(compiled, torch.float16, dim, 512, heads, kv_heads, block_size)


@pytest.mark.parametrize(("batch", "dim"), [(1, 128), (64, 128), (64, 256)])
def test_fp8(compiled, batch, dim):
    ones = torch.ones(8)
    run_decode(compiled, torch.bfloat16, dim, batch, stored=torch.float8_e4m3fn, scales=(ones, ones))
    run_prefill(compiled, torch.bfloat16, dim, 4096 // batch, stored=torch.float8_e4m3fn, scales=(ones, ones))


def test_window_and_soft_cap(compiled):
    run_decode(compiled, torch.bfloat16, 128, 64, soft_cap=50.0)
    run_prefill(compiled, torch.bfloat16, 128, 4096, window=4096, soft_cap=50.0)
    run_prefill(compiled, torch.bfloat16, 128, 4096, window=4096)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_memory_moves(compiled, dtype):
    new = torch.empty(4096, 8, 128, dtype=dtype)
    slots = torch.zeros(4096, dtype=torch.int64)
    compiled(kv_write, ["write_kernel"], lambda: kv_write.write_kv(new, new, *caches(dtype, 128), slots))
    angles, q = torch.empty(4096, 64), torch.empty(4096, 32, 128, dtype=dtype)
    args = (q, new, new, angles, angles, *caches(dtype, 128), slots, slots)
    compiled(rope, ["rope_kernel"], lambda: rope.rope_write_kv(*args))
    kv = torch.empty(2, 2, 4, 16, 8, 128, dtype=dtype)
    pairs = torch.zeros(5, dtype=torch.int64)
    compiled(block_copy, ["copy_kernel"], lambda: block_copy.copy_blocks(kv, pairs, pairs))


def test_integrity(compiled):
    kv, slots = torch.empty(2, 2, 4, 16, 8, 128, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int64)
    compiled(digest, ["digest_kernel"], lambda: digest.digest_blocks(kv, None))
    compiled(digest, ["digest_kernel"], lambda: digest.digest_slots(kv, slots))
    shadow, table = torch.zeros(4, 16, dtype=torch.int64), torch.zeros(4, 64, dtype=torch.int32)
    args = (shadow, table, table[:, 0].contiguous(), torch.zeros(4, 1024, dtype=torch.int64))
    compiled(provenance, ["provenance_kernel"], lambda: provenance.check_provenance(*args))
    args = (shadow, shadow, slots, slots, slots, args[3], slots, slots, slots)
    compiled(provenance, ["write_words_kernel"], lambda: provenance.write_words(*args))


@pytest.mark.parametrize("batch", [1, 256, 1024])
def test_plan(compiled, batch):
    compiled(plan, ["plan_kernel"], lambda: plan.plan_decode(torch.zeros(batch, dtype=torch.int32), 8))
