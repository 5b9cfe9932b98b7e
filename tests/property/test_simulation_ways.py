"""Counting and stepping the real scheduler are two ways to one row, for any workload, allocator and limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvscope.inspector.simulate import ALLOCATORS, Cell, ServiceTime, Settings, simulate
from kvscope.inspector.simulate.shared import prompt_keys
from kvscope.inspector.workloads import Workload, WorkRequest
from kvscope.inspector.workloads.request import prompt_tokens

REQUESTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 30), st.integers(1, 2)), min_size=1, max_size=14
)


@given(
    requests=REQUESTS,
    allocator=st.sampled_from(ALLOCATORS),
    block_size=st.sampled_from([1, 2, 3, 4, 16]),
    tokens=st.integers(16, 160),
    limit=st.integers(2, 80),
    max_seqs=st.integers(1, 8),
    extra=st.integers(0, 40),
    watermark=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_counting_agrees_with_the_scheduler(
    requests: list[tuple[int, int, int, int]],
    allocator: str,
    block_size: int,
    tokens: int,
    limit: int,
    max_seqs: int,
    extra: int,
    watermark: float,
) -> None:
    arrivals = sorted(wait for wait, *_ in requests)
    work = Workload("any", "gen", [
        WorkRequest(when * 10**6, prompt, output, samples)
        for when, (_, prompt, output, samples) in zip(arrivals, requests, strict=True)
    ])  # fmt: skip
    config = Settings(
        kv_memory=tokens, bytes_per_token=1, max_model_len=limit, max_seqs=max_seqs,
        max_batched_tokens=max_seqs + extra, watermark=watermark, sharing=False,
        service=ServiceTime(10**9, 10**8, 10**6, 10**7),
    )  # fmt: skip
    cell = Cell(allocator, block_size)
    counted, driven = simulate(work, cell, config), simulate(work, cell, config, drive=True)
    assert (counted.way, driven.way) == ("counted", "driven")
    assert counted.without_wall() == driven.without_wall()
    refused = counted.rejected_too_long + counted.rejected_too_big
    assert counted.sequences_finished <= sum(r.samples for r in work.requests)
    assert (counted.sequences_finished == 0) == (refused == len(work.requests))


# Few identities, short parts, and prompts that often end with a shared part: common prefixes, forks of them, and
# prompts that are equal to the last token.
PARTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8)), max_size=4)
SHARING = st.lists(
    st.tuples(PARTS, st.integers(0, 12), st.integers(1, 30)).filter(lambda r: r[0] or r[1]), min_size=1, max_size=14
)


def shared_workload(requests: list[tuple[list[tuple[int, int]], int, int]], gap_ms: int) -> Workload:
    made = []
    for i, (parts, own, output) in enumerate(requests):
        named = tuple((10 * depth + identity, count) for depth, (identity, count) in enumerate(parts))
        prompt = sum(count for _, count in named) + own
        made.append(WorkRequest(i * gap_ms * 10**6, prompt, output, parts=named))
    return Workload("any", "gen", made)


@given(
    requests=SHARING,
    gap_ms=st.integers(0, 9),
    block_size=st.sampled_from([1, 2, 3, 4, 8]),
    tokens=st.integers(16, 160),
    max_seqs=st.integers(1, 8),
    extra=st.integers(0, 40),
    watermark=st.sampled_from([0.0, 0.05, 0.3]),
)
def test_counting_shared_prefixes_agrees_with_the_pool(
    requests: list[tuple[list[tuple[int, int]], int, int]],
    gap_ms: int,
    block_size: int,
    tokens: int,
    max_seqs: int,
    extra: int,
    watermark: float,
) -> None:
    work = shared_workload(requests, gap_ms)
    config = Settings(
        kv_memory=tokens, bytes_per_token=1, max_model_len=80, max_seqs=max_seqs, max_batched_tokens=max_seqs + extra,
        watermark=watermark, service=ServiceTime(10**9, 10**8, 10**6, 10**7),
    )  # fmt: skip
    cell = Cell("paged", block_size)
    counted, driven = simulate(work, cell, config), simulate(work, cell, config, drive=True)
    assert (counted.way, driven.way) == ("counted", "driven")
    assert counted.without_wall() == driven.without_wall()


@given(requests=SHARING, block_size=st.integers(1, 9))
def test_keys_are_equal_where_prefixes_are(
    requests: list[tuple[list[tuple[int, int]], int, int]], block_size: int
) -> None:
    work = shared_workload(requests, 0)
    keyed = [(prompt_tokens(r, i), prompt_keys(r, i, block_size)) for i, r in enumerate(work.requests)]
    for tokens, keys in keyed:
        assert len(keys) == len(tokens) // block_size
        for other, other_keys in keyed:
            for i, (one, two) in enumerate(zip(keys, other_keys, strict=False)):
                end = (i + 1) * block_size
                assert (one == two) == (tokens[:end] == other[:end])
