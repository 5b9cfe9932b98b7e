"""Swapping, priorities and turns on a tiny random model: the text stays, whoever waits and wherever."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import UsageError
from kvscope.inspector.findings import check
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Reason

PROMPTS = [[5, 9, 7, 30, 31, 32, 33, 34, 35, 36, 37], [5, 9, 7, 30, 31, 32, 33, 34, 99], [200, 3], [17] * 21]
SAMPLED = SamplingParams(24, temperature=0.9, top_k=50, top_p=0.95, seed=3, n=3, ignore_eos=True)
BEAMS = SamplingParams(10, beams=3, n=2, ignore_eos=True)


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


def build(loaded: LoadedModel, blocks: int, host: int = 0, sink: MemoryRecorder | None = None, **limits: str) -> Engine:
    config = SchedulerConfig(max_batched_tokens=40, **limits)  # type: ignore[arg-type]
    return Engine(loaded, EngineConfig(blocks, 4, config, host_blocks=host), sink=sink)


def answers(engine: Engine, params: SamplingParams) -> dict[tuple[int, int], list[int]]:
    for number, prompt in enumerate(PROMPTS):
        engine.submit(prompt, params, priority=-number, user="ab"[number % 2])
    out: dict[tuple[int, int], list[int]] = {}
    for token in engine.run():
        out.setdefault((token.request_id, token.sample), []).append(token.token)
        engine.manager.check_integrity()
    return out


@pytest.mark.parametrize(("params", "blocks"), [(SAMPLED, 24), (BEAMS, 26)], ids=["samples", "beams"])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_swapping_changes_no_token(loaded: LoadedModel, params: SamplingParams, blocks: int, policy: str) -> None:
    expected = answers(build(loaded, 200), params)
    sink = MemoryRecorder(pool=PoolFacts(blocks, 4))
    engine = build(loaded, blocks, 64, sink, preemption="swap", policy=policy)
    assert answers(engine, params) == expected
    assert engine.scheduler.swap_outs == engine.scheduler.preemptions > 0, "there was room for all of them"
    assert (engine.manager.host_free(), engine.manager.in_flight()) == (64, 0)
    assert not any(e["aux"] for e in sink.events[sink.events["kind"] == Kind.RESUME]), "nothing is computed twice"
    assert check(sink).findings == ()


def test_a_full_host_tier_falls_back_to_recompute(loaded: LoadedModel) -> None:
    expected = answers(build(loaded, 200), SAMPLED)
    sink = MemoryRecorder(pool=PoolFacts(24, 4))
    engine = build(loaded, 24, 6, sink, preemption="swap")
    assert answers(engine, SAMPLED) == expected
    assert 0 < engine.scheduler.swap_outs < engine.scheduler.preemptions
    preempted = sink.events[sink.events["kind"] == Kind.PREEMPT]
    assert {int(r) for r in preempted["reason"]} == {Reason.SWAPPED, Reason.CAPACITY}
    assert check(sink).findings == ()


def test_a_swapped_request_can_be_aborted(loaded: LoadedModel) -> None:
    sink = MemoryRecorder(pool=PoolFacts(12, 4))
    engine = build(loaded, 12, 64, sink, preemption="swap")
    ids = [engine.submit([i] * 9, SamplingParams(20, ignore_eos=True)) for i in (3, 4, 5)]
    while not engine.manager.swapped():
        engine.step()
    (parked,) = engine.manager.swapped()
    engine.abort(ids[parked])
    assert engine.manager.host_free() == 64
    left = {token.request_id for token in engine.run()}
    assert left == set(ids) - {ids[parked]}
    engine.close()
    assert check(sink).findings == ()


def test_closing_leaves_nothing_in_the_host_tier(loaded: LoadedModel) -> None:
    engine = build(loaded, 12, 64, preemption="swap")
    for i in (3, 4, 5):
        engine.submit([i] * 9, SamplingParams(20, ignore_eos=True))
    while not engine.manager.swapped():
        engine.step()
    engine.close()
    assert (engine.manager.host_free(), engine.manager.num_free()) == (64, 12)


def test_the_urgent_one_is_answered_first(loaded: LoadedModel) -> None:
    engine = build(loaded, 12, policy="priority")
    for priority in (2, 1, 0):
        engine.submit([7 + priority] * 20, SamplingParams(20, ignore_eos=True), priority=priority)
    ended = [token.request_id for token in engine.run() if token.finish]
    assert ended == [2, 1, 0]


def test_an_impossible_host_tier_is_refused(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match=r"the host tier has 20000000 blocks: must be 0\.\.16777216"):
        build(loaded, 8, 20_000_000)
