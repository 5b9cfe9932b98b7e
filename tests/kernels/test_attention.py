"""Decode and prefill attention over paged caches, against dense attention in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

LENGTHS = st.sampled_from([0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200])
HEADS = st.sampled_from([(2, 2), (4, 2), (6, 2), (3, 1), (9, 3)])
EDGES = [0, 1, 15, 16, 17, 63, 64, 65]


def check_decode(lab, pool, heads):
    q = pool.random(len(pool.lengths), heads)
    out = pool.decode(q)
    for row, length in enumerate(pool.lengths):
        if length:
            lab.close(out[row : row + 1], pool.expected(q[row : row + 1], row))
        else:
            assert (out[row] == 0).all()


def check_prefill(lab, pool, counts, heads, padding=0):
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    q = pool.random(starts[-1] + padding, heads)
    out = pool.prefill(q, starts)
    for row in range(len(counts)):
        part = slice(starts[row], starts[row + 1])
        if counts[row]:
            lab.close(out[part], pool.expected(q[part], row))
    assert (out[starts[-1] :] == 0).all()


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(LENGTHS, min_size=1, max_size=5), heads=HEADS, data=st.data())
def test_decode_any_lengths_heads_and_block_order(lab, lengths, heads, data):
    block_size = data.draw(st.sampled_from([8, 16, 32]))
    pool = lab.pool(lengths, kv_heads=heads[1], block_size=block_size, seed=data.draw(st.integers(0, 999)))
    check_decode(lab, pool, heads[0])


@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(st.tuples(LENGTHS, st.sampled_from([0, 1, 2, 7, 16, 100])), min_size=1, max_size=4),
    heads=HEADS,
    padding=st.sampled_from([0, 3, 70]),
    seed=st.integers(0, 999),
)
def test_prefill_any_lengths_chunks_and_padding(lab, rows, heads, padding, seed):
    pool = lab.pool([length for length, _ in rows], kv_heads=heads[1], seed=seed)
    check_prefill(lab, pool, [min(length, count) for length, count in rows], heads[0], padding)


def test_decode_at_every_edge_in_each_dtype(lab, dtype):
    check_decode(lab, lab.pool(EDGES, dtype=dtype), 4)


def test_prefill_at_every_edge_in_each_dtype(lab, dtype):
    check_prefill(lab, lab.pool(EDGES, dtype=dtype), EDGES, 4)


def test_long_context_in_each_dtype(lab, dtype):
    pool = lab.pool([lab.long, 1, lab.long // 3], dtype=dtype)
    check_decode(lab, pool, 8)
    check_prefill(lab, pool, [70, 1, lab.long // 3], 8)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
def test_head_dims_in_each_dtype(lab, dim, dtype):
    pool = lab.pool([0, 17, 70], dim=dim, dtype=dtype)
    check_decode(lab, pool, 4)
    check_prefill(lab, pool, [0, 3, 70], 4)


@pytest.mark.parametrize("block_size", [8, 64, 256])
def test_block_sizes(lab, block_size, dtype):
    pool = lab.pool([block_size - 1, block_size, block_size + 1], block_size=block_size, kv_heads=1, dtype=dtype)
    check_decode(lab, pool, 2)
    check_prefill(lab, pool, [1, block_size, 2], 2)


@pytest.mark.parametrize("heads", [(1, 1), (8, 1), (32, 2), (5, 5), (20, 1)])
def test_head_ratios(lab, heads):
    pool = lab.pool([40, 5], kv_heads=heads[1])
    check_decode(lab, pool, heads[0])
    check_prefill(lab, pool, [3, 5], heads[0])


def test_mixed_batch_of_decodes_chunks_and_empty_rows(lab, dtype):
    pool = lab.pool([90, 33, 0, 1, 64, 150], dtype=dtype)
    check_prefill(lab, pool, [1, 1, 0, 1, 64, 37], 4, padding=5)


def test_queries_may_be_slices_of_a_fused_projection(lab):
    pool = lab.pool([20, 40], kv_heads=2)
    fused = pool.random(2, 8).to(lab.device)
    q = fused[:, :4]
    assert not q.is_contiguous()
    assert torch.equal(pool.decode(q), pool.decode(q.contiguous()))


def test_caches_with_a_gap_between_blocks(lab):
    pool = lab.pool([40, 17])
    q = pool.random(2, 4)
    want = pool.decode(q)
    wide = torch.full((2, pool.kv.shape[2], 48, 2, 64), float("nan"), device=lab.device)
    wide[:, :, 8:24] = pool.kv[0]
    pool.k_cache, pool.v_cache = wide[0, :, 8:24], wide[1, :, 8:24]
    assert torch.equal(pool.decode(q), want)
    check_prefill(lab, pool, [7, 17], 4)


def test_rows_do_not_depend_on_their_neighbours_content(lab):
    pool = lab.pool([33, 64])
    q = pool.random(2, 4)
    want = pool.decode(q)[0]
    slots = pool.slots[1].to(lab.device)
    pool.v_cache[slots // 16, slots % 16] = float("nan")
    assert torch.equal(pool.decode(q)[0], want)


def test_no_rows_and_no_tokens(lab):
    pool = lab.pool([0])
    pool.block_table, pool.seq_lens = pool.block_table[:0], pool.seq_lens[:0]
    assert pool.decode(pool.random(0, 4)).shape == (0, 4, 64)
    assert pool.prefill(pool.random(0, 4), [0]).shape == (0, 4, 64)
