"""The engine on a tiny random model: the text never depends on how the memory was managed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import UsageError
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Reason

PROMPTS = [[5, 9, 7, 30, 31, 32, 33, 34, 35, 36, 37], [5, 9, 7, 30, 31, 32, 33, 34, 99], [200, 3], [17] * 21]


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


def build(loaded: LoadedModel, sink: MemoryRecorder | None = None, **options: Any) -> Engine:
    limits = SchedulerConfig(
        max_seqs=options.pop("max_seqs", 64), max_batched_tokens=options.pop("max_batched_tokens", 512)
    )
    return Engine(loaded, EngineConfig(**{"num_blocks": 64, "scheduler": limits, **options}), sink=sink)


def recorder(num_blocks: int = 64, block_size: int = 16) -> MemoryRecorder:
    return MemoryRecorder(pool=PoolFacts(num_blocks, block_size))


def outputs(
    engine: Engine, params: SamplingParams, prompts: list[list[int]] = PROMPTS
) -> dict[tuple[int, int], list[int]]:
    for prompt in prompts:
        engine.submit(prompt, params)
    out: dict[tuple[int, int], list[int]] = {}
    for token in engine.run():
        out.setdefault((token.request_id, token.sample), []).append(token.token)
        engine.manager.check_integrity()
    counts = engine.manager.pool.counts()
    assert counts["free"] + counts["cached"] == engine.config.num_blocks, "everything is given back"
    return out


SAMPLED = SamplingParams(24, temperature=0.9, top_k=50, top_p=0.95, seed=3, n=3, ignore_eos=True)


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel) -> dict[tuple[int, int], list[int]]:
    return outputs(build(loaded, share_prefixes=False), SAMPLED)


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 1, "num_blocks": 600},
        {"block_size": 4, "num_blocks": 200},
        {"block_size": 5, "num_blocks": 90},
        {"block_size": 4, "num_blocks": 24},
        {"block_size": 8, "num_blocks": 12},
        {"block_size": 16, "num_blocks": 8, "max_batched_tokens": 7},
        {"block_size": 4, "num_blocks": 64, "max_seqs": 3},
        {"block_size": 8, "num_blocks": 20, "max_batched_tokens": 3, "max_seqs": 5},
    ],
    ids=str,
)
def test_memory_management_never_changes_the_text(
    loaded: LoadedModel, expected: dict[tuple[int, int], list[int]], options: dict[str, Any]
) -> None:
    assert len(expected) == 12
    assert outputs(build(loaded, **options), SAMPLED) == expected


def test_tight_pools_preempt(loaded: LoadedModel) -> None:
    engine = build(loaded, block_size=4, num_blocks=24)
    outputs(engine, SAMPLED)
    assert engine.scheduler.preemptions > 0


def test_max_seqs_counts_samples_that_are_not_forked_yet(loaded: LoadedModel) -> None:
    engine = build(loaded, max_seqs=4)
    for prompt in PROMPTS:
        engine.submit(prompt, SAMPLED)
    while engine.has_work:
        engine.step()
        assert len(engine.scheduler.running) <= 4


def test_first_sample_of_many_is_the_only_one_of_one(loaded: LoadedModel) -> None:
    alone = outputs(build(loaded), SamplingParams(20, temperature=1.0, seed=11, n=1, ignore_eos=True))
    among = outputs(build(loaded), SamplingParams(20, temperature=1.0, seed=11, n=4, ignore_eos=True))
    assert all(among[request, 0] == tokens for (request, _), tokens in alone.items())
    assert among[0, 0] != among[0, 1]


def test_n_samples_make_n_minus_one_copies(loaded: LoadedModel) -> None:
    sink = recorder()
    outputs(build(loaded, sink), SamplingParams(8, temperature=1.0, n=5, ignore_eos=True), [list(range(20))])
    kinds = sink.events["kind"]
    assert np.count_nonzero(kinds == Kind.COW) == 4
    assert np.count_nonzero(kinds == Kind.COPY_DONE) == 4
    assert np.count_nonzero(kinds == Kind.LEASE) == np.count_nonzero(kinds == Kind.UNLEASE) == 4


def test_whole_block_prompts_need_no_copy(loaded: LoadedModel) -> None:
    sink = recorder()
    outputs(build(loaded, sink), SamplingParams(8, temperature=1.0, n=5, ignore_eos=True), [list(range(32))])
    assert not np.any(sink.events["kind"] == Kind.COW)


def test_equal_prompts_arriving_together_are_computed_once(loaded: LoadedModel) -> None:
    sink = recorder()
    prompt = list(range(100, 135))
    outputs(build(loaded, sink), SamplingParams(4, ignore_eos=True), [prompt] * 6)
    hits = np.count_nonzero(sink.events["kind"] == Kind.HIT)
    assert hits == 5 * 2, "five followers take the two full blocks of the first"
    waits = sink.events[sink.events["kind"] == Kind.WAIT]
    assert set(waits["reason"]) == {Reason.PREFIX_PENDING}


def test_other_identity_shares_nothing(loaded: LoadedModel) -> None:
    sink = recorder()
    engine = build(loaded, sink)
    prompt = list(range(100, 135))
    for tenant in ("a", "b"):
        engine.submit(prompt, SamplingParams(2, ignore_eos=True), extras=(tenant,))
        list(engine.run())
    assert not np.any(sink.events["kind"] == Kind.HIT)


def test_every_request_is_in_the_trace_from_submit_to_finish(loaded: LoadedModel) -> None:
    sink = recorder(24, 4)
    outputs(build(loaded, sink, block_size=4, num_blocks=24), SAMPLED)
    events = sink.events
    count = {kind: int(np.count_nonzero(events["kind"] == kind)) for kind in Kind}
    assert count[Kind.SUBMIT] == len(PROMPTS)
    assert count[Kind.ADMIT] + count[Kind.FORK] == count[Kind.FINISH] == 12
    assert count[Kind.RESUME] == count[Kind.PREEMPT] > 0
    assert count[Kind.STEP_BEGIN] == count[Kind.STEP_END] == count[Kind.WITNESS]
    gained = count[Kind.ALLOC] + count[Kind.SHARE] + count[Kind.HIT]
    assert gained == count[Kind.RELEASE], "every table entry is given back"
    witness = sink.details_of(Kind.WITNESS)[1][-1]
    assert sum(witness[:6]) == 24
    assert [fact["type"] for fact in sink.facts].count("output") == 12
    assert not any("prompt" in fact or "text" in fact for fact in sink.facts), "no text unless asked"


def test_text_is_recorded_when_asked(loaded: LoadedModel) -> None:
    sink = recorder()
    engine = build(loaded, sink, record_text=True)
    engine.submit([5, 6, 7], SamplingParams(3, ignore_eos=True), prompt_text="hello")
    list(engine.run())
    assert [fact.get("prompt") for fact in sink.facts if fact["type"] == "request"] == ["hello"]
    assert all("text" in fact for fact in sink.facts if fact["type"] == "output")


@pytest.mark.parametrize("after", [0, 1, 2, 6])
def test_abort_gives_everything_back(loaded: LoadedModel, after: int) -> None:
    sink = recorder(32, 4)
    engine = build(loaded, sink, block_size=4, num_blocks=32, max_batched_tokens=8)
    numbers = [engine.submit(prompt, SAMPLED) for prompt in PROMPTS]
    for _ in range(after):
        engine.step()
    engine.abort(numbers[0])
    engine.abort(numbers[0])
    engine.manager.check_integrity()
    list(engine.run())
    assert np.any(sink.events["kind"] == Kind.ABORT)
    counts = engine.manager.pool.counts()
    assert counts["free"] + counts["cached"] == 32


def test_close_aborts_what_is_left(loaded: LoadedModel) -> None:
    engine = build(loaded)
    engine.submit(PROMPTS[0], SAMPLED)
    engine.submit(PROMPTS[1], SAMPLED)
    engine.step()
    engine.close()
    assert not engine.has_work
    assert engine.manager.sequences() == []


def test_end_of_sequence_stops(loaded: LoadedModel) -> None:
    engine = build(loaded)
    first = outputs(engine, SamplingParams(6, ignore_eos=True), [[5, 6, 7]])[0, 0]
    loaded.tokenizer.eos_ids = frozenset({first[2]}) if isinstance(loaded.tokenizer.eos_ids, frozenset) else (first[2],)
    try:
        engine = build(loaded)
        engine.submit([5, 6, 7], SamplingParams(6))
        tokens = list(engine.run())
    finally:
        loaded.tokenizer.eos_ids = loaded.config.eos_ids
    at = first.index(first[2])
    assert [t.token for t in tokens] == first[: at + 1]
    assert tokens[-1].finish is Reason.STOP


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(4), "the prompt is empty"),
        (list(range(200)) * 3, SamplingParams(4), "the model's context is 512"),
        (list(range(60)), SamplingParams(50), "need 7 blocks of 16, the pool has 6; raise num_blocks to at least 7"),
        ([1], SamplingParams(4, n=65), "max_seqs = 64"),
    ],
    ids=["empty", "long", "pool", "samples"],
)
def test_impossible_requests_are_refused_in_one_line(
    loaded: LoadedModel, prompt: list[int], params: SamplingParams, message: str
) -> None:
    engine = build(loaded, num_blocks=6)
    with pytest.raises(UsageError, match=message) as error:
        engine.submit(prompt, params)
    assert "\n" not in str(error.value)
    assert not engine.has_work


def test_a_request_that_just_fits_runs(loaded: LoadedModel) -> None:
    outputs(build(loaded, num_blocks=6), SamplingParams(37, ignore_eos=True), [list(range(60))])


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0}, {"max_tokens": -1}, {"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": -1},
        {"top_p": 0.0}, {"top_p": 1.5}, {"n": 0}, {"n": 10**9}, {"seed": -1},
    ],
    ids=str,
)  # fmt: skip
def test_absurd_sampling_parameters_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        SamplingParams(**bad)


@pytest.mark.parametrize(
    "bad",
    [{"num_blocks": 0}, {"num_blocks": -5}, {"num_blocks": 1 << 40}, {"block_size": 0}, {"block_size": 1 << 20}],
    ids=str,
)
def test_absurd_pools_are_refused(loaded: LoadedModel, bad: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(bad))):
        build(loaded, **bad)
