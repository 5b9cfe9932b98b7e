"""Sliding windows and soft caps in decode and prefill; what lies before a window may be gone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

LENGTHS = st.sampled_from([1, 15, 16, 17, 63, 64, 65, 128, 129, 200])
WINDOWS = st.sampled_from([1, 2, 15, 16, 17, 64, 65, 100, 1000])


def check(lab, pool, counts, heads, window, soft_cap=0.0):
    """Decode and prefill of the last `counts` tokens, after the tokens no query sees were lost."""
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    options = {"window": window, "soft_cap": soft_cap}
    slack = 10.0 if soft_cap else 1.0
    if window:
        for row, length in enumerate(pool.lengths):
            pool.forget(row, max(0, length - counts[row] - window + 1))
    q = pool.random(starts[-1], heads)
    out = pool.prefill(q, starts, **options)
    for row in range(len(counts)):
        part = slice(starts[row], starts[row + 1])
        lab.close(out[part], pool.expected(q[part], row, **options), slack)
    if window:
        for row, length in enumerate(pool.lengths):
            pool.forget(row, max(0, length - window))
    q = pool.random(len(counts), heads)
    out = pool.decode(q, **options)
    for row in range(len(counts)):
        lab.close(out[row : row + 1], pool.expected(q[row : row + 1], row, **options), slack)


@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(st.tuples(LENGTHS, st.sampled_from([1, 2, 16, 90])), min_size=1, max_size=3),
    window=WINDOWS,
    block_size=st.sampled_from([8, 16, 32]),
    seed=st.integers(0, 99),
)
def test_any_window_reads_nothing_before_it(lab, rows, window, block_size, seed):
    pool = lab.pool([length for length, _ in rows], block_size=block_size, seed=seed)
    check(lab, pool, [min(row) for row in rows], 4, window)


def test_window_in_each_dtype(lab, dtype):
    check(lab, lab.pool([lab.long, 40, 1], dtype=dtype), [100, 40, 1], 4, 70)


@pytest.mark.parametrize("window", [0, 20])
def test_soft_cap_in_each_dtype(lab, dtype, window):
    check(lab, lab.pool([150, 17, 64], dtype=dtype), [33, 17, 1], 4, window, soft_cap=1.5)


def test_a_soft_cap_bounds_scores_far_outside_it(lab):
    pool = lab.pool([40, 7])
    pool.scale = 300.0
    check(lab, pool, [5, 7], 4, 0, soft_cap=3.0)


def test_empty_rows_give_zeros_with_a_window(lab):
    pool = lab.pool([0, 30])
    assert (pool.decode(pool.random(2, 4), window=8, soft_cap=2.0)[0] == 0).all()
    assert (pool.prefill(pool.random(5, 4), [0, 0, 3], window=8)[3:] == 0).all()
