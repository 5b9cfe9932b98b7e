"""The articles' numbers (docs/articles.md), each computed by the tool; where an article is wrong, the right one."""

from __future__ import annotations

import pytest

from kvscope.benchmarks import articles
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.inspector import plan
from kvscope.inspector.shapes import model_shape

GIB = 1 << 30


def test_bytes_grow_linearly_with_length_and_batch() -> None:
    shape = model_shape("llama-2-7b")
    held = [plan.pool(size * GIB, shape, 16).tokens for size in (8, 16, 32)]
    assert held == [16_384, 32_768, 65_536]  # 16 requests of 4,096 in 32 GiB


def test_a_gibibyte_of_llama_3() -> None:
    shape = model_shape("llama-3-8b")
    assert shape.bytes_per_token == 128 * 1024
    assert plan.bytes_of(shape, 32 * 1024, 16) == 4 * GIB
    assert plan.bytes_of(shape, 6 * 1024, 16) == 0.75 * GIB


def test_six_of_thirty_two_is_a_fifth() -> None:
    (row,) = plan.waste(32 * 1024, [6 * 1024])
    assert round(1 - row.waste, 2) == 0.19


def test_reserving_a_limit_takes_256_blocks_and_fifty_tokens_take_4() -> None:
    assert plan.blocks_of(4096, 16) == 256
    assert plan.blocks_of(50, 16) == 4


def test_equal_tokens_behind_a_difference_are_not_shared() -> None:
    manager = BlockManager(16, 4)
    manager.admit(0, list(range(12)))
    manager.write(0, 0, 12)
    manager.begin_step([Scheduled(0, 0, 12)])
    manager.end_step()
    # Equal at positions 4-11, different at 0: not one block is common. Different at 4: the first block is.
    assert manager.probe([99, *range(1, 12)]).cached_tokens == 0
    assert manager.probe([0, 1, 2, 3, 99, *range(5, 12)]).cached_tokens == 4


def test_the_short_load_uses_what_it_holds() -> None:
    over_time, at_end, share, _ = articles.use(300)
    assert share["ok"]
    assert over_time["baseline"] == pytest.approx(0.249, abs=0.005)
    assert at_end["baseline"] == pytest.approx(0.278, abs=0.001)
    assert over_time["value"] >= 0.95
    assert at_end["value"] >= 0.95


def test_paged_runs_several_times_as_many_on_the_same_requests() -> None:
    rows = {row["name"]: row for row in articles.concurrency(200)}
    theory = rows["6k of 32k, theory: paged, reserving beside it"]
    assert (theory["value"], theory["baseline"]) == (77, 14)
    paged = rows["6k of 32k, all there at once: paged, mean"]
    assert paged["ratio"] > 3
    assert paged["baseline"] <= 14
