"""An engine whose pool changes its size between steps: the same tokens, and memory that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.sequence import SamplingParams
from kvscope.engine.sizing import check_fits, free_memory, parse_memory
from kvscope.errors import UsageError
from kvscope.inspector.findings import check
from kvscope.traces import Kind, MemoryRecorder


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


def run(loaded: LoadedModel, sizes: dict[int, int]) -> tuple[list[tuple[int, int]], MemoryRecorder, Engine]:
    """Three requests, two samples each; before step i the pool gets `sizes[i]` blocks."""
    sink = MemoryRecorder(num_blocks=20, block_size=4)
    engine = Engine(loaded, EngineConfig(num_blocks=20, block_size=4, hash_key=b"test"), sink=sink)
    for prompt in ([5, 9, 2], [5, 9, 2, 7, 7, 1, 3], [8] * 10):
        engine.submit(prompt, SamplingParams(max_tokens=12, n=2, temperature=1.0, seed=3, ignore_eos=True))
    tokens, step = [], 0
    while engine.has_work:
        if step in sizes:
            assert engine.resize(sizes[step]) == engine.manager.num_blocks == engine.cache.kv.shape[2]
        tokens += [(token.seq_id, token.token) for token in engine.step()]
        engine.manager.check_integrity()
        step += 1
    return tokens, sink, engine


def test_tokens_do_not_depend_on_the_size_of_the_pool(loaded: LoadedModel) -> None:
    expected, _, _ = run(loaded, {})
    tokens, sink, _ = run(loaded, {2: 40, 4: 24, 6: 60, 8: 26})
    assert sorted(tokens) == sorted(expected)
    kinds = sink.events["kind"].tolist()
    assert (kinds.count(Kind.GROW), kinds.count(Kind.SHRINK)) == (2, 2)
    assert kinds.count(Kind.COPY_DONE) > 0
    assert check(sink).findings == ()


def test_pool_stays_large_enough_for_what_lives(loaded: LoadedModel) -> None:
    engine = Engine(loaded, EngineConfig(num_blocks=20, block_size=4))
    engine.submit([1] * 20, SamplingParams(max_tokens=21), name="long")
    with pytest.raises(UsageError) as error:
        engine.resize(9)
    assert str(error.value) == (
        "shrink to 9 blocks: request long may need 10 to end; abort it, wait for it, or keep at least 10"
    )
    assert engine.resize(10) == 10
    with pytest.raises(UsageError, match="the pool has 10"):
        engine.submit([1] * 40, SamplingParams(max_tokens=10))


def test_share_of_free_memory() -> None:
    free = free_memory("cpu")
    assert 0.3 * free < parse_memory("50%", "cpu") < 0.7 * free
    assert parse_memory("1.5 GiB", "cpu") == 3 * 2**29
    for text, says in (("0%", "above 0%"), ("101%", "at most 100%"), ("50 percent", "is not a size"), ("-5%", "size")):
        with pytest.raises(UsageError, match=says):
            parse_memory(text, "cpu")


def test_large_pool_is_announced_and_one_that_does_not_fit_refused() -> None:
    assert check_fits(16, 1024, 16, "cpu") == ""
    blocks = free_memory("cpu") // 2**30 * 2
    with pytest.raises(UsageError, match=r"GiB and does not fit: cpu has \S+ GiB free, enough for \d+ blocks"):
        check_fits(blocks, 2**30, 1024, "cpu")
    assert check_fits(1, 2**30, 1024, "cpu").startswith("a pool of 1 blocks of 1024 slots takes 1.0 GiB of")
