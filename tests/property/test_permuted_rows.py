"""A worker's row with its own entries in another order is told as that, and explain follows the reads through it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_text
from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.traces.schema import Kind

SIZE = 2
Order = list[int]


def swapped(order: Order, a: int, b: int) -> Order:
    order[a], order[b] = order[b], order[a]
    return order


def moved(order: Order, a: int, b: int) -> Order:
    order.insert(b, order.pop(a))
    return order


def reversed_part(order: Order, a: int, b: int) -> Order:
    lo, hi = sorted((a, b))
    return order[:lo] + order[lo : hi + 1][::-1] + order[hi + 1 :]


def turned(order: Order, a: int, b: int) -> Order:
    return order[a:] + order[:a]


WAYS: list[Callable[[Order, int, int], Order]] = [swapped, moved, reversed_part, turned]


def run(blocks: list[int], order: Order, steps: int = 1) -> HandTrace:
    """A sequence that has these blocks; in its last steps the worker has them in another order."""
    count = len(blocks)
    trace = HandTrace(num_blocks=max(blocks) + 1, block_size=SIZE).event(Kind.ADMIT, seq_id=1)
    for lblock, block in enumerate(blocks):
        trace.alloc(block, seq_id=1, lblock=lblock)
        trace.write(block, 0, SIZE if lblock < count - 1 else 1, seq_id=1, lblock=lblock)
    own, end = [(block, 1) for block in blocks], count * SIZE - 1
    trace.begin((1, 0, end, own)).end()
    for _ in range(steps):
        trace.begin((1, end - 1, end, [own[at] for at in order])).end()
    return trace


def told_of(trace: HandTrace, blocks: list[int], order: Order) -> None:
    (finding,) = check(trace).findings
    odd = [place for place, at in enumerate(order) if place != at]
    assert (finding.code, finding.block, finding.seq_id) == ("KV018", blocks[order[odd[0]]], 1)
    assert "its own entries in another order" in finding.why
    for place in odd[:3]:
        assert f"block {place} is b{blocks[order[place]]}#1" in finding.why
    told = explain(trace, "s1")
    assert (told.verdict, told.cause) == ("damaged", finding)
    assert told.read is not None
    assert (told.read.position, told.read.block) == (odd[0] * SIZE, blocks[order[odd[0]]])
    assert explanation_text(told, trace)


@given(seed=st.integers(0, 2**32), count=st.integers(2, 24), way=st.sampled_from(WAYS))
def test_a_row_in_another_order_is_told_entry_by_entry(seed: int, count: int, way: Callable[..., Order]) -> None:
    rng = random.Random(seed)
    blocks = rng.sample(range(40), count)
    order = way(list(range(count)), rng.randrange(count), rng.randrange(count))
    if order == list(range(count)):
        order = swapped(order, 0, 1)
    told_of(run(blocks, order, steps=2), blocks, order)


@given(order=st.permutations(range(5)))
def test_of_a_few_entries_every_order_is_told(order: Order) -> None:
    if order != sorted(order):
        told_of(run([7, 3, 9, 1, 4], order), [7, 3, 9, 1, 4], order)


def test_a_row_that_is_sorted_by_block_is_told() -> None:
    blocks = random.Random(3).sample(range(40), 12)
    order = sorted(range(12), key=blocks.__getitem__)
    told_of(run(blocks, order), blocks, order)


@pytest.mark.parametrize("count", [8, 200])
def test_a_row_in_no_order_that_is_tried_stays_unknown(count: int) -> None:
    order = list(range(count))
    random.Random(1).shuffle(order)
    trace = run(list(range(1, count + 1)), order, steps=3)
    assert "more than one entry differs" in check(trace).findings[0].why
    assert explain(trace, "s1").verdict == "unknown"
