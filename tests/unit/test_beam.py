"""Beam search over the paged pool: transformers' own tokens, however the memory was managed; every table move legal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvscope.engine.beam import best_candidates, heirs
from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.errors import UsageError
from kvscope.inspector.findings import check
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Reason

PROMPTS = [[5, 9, 7, 30, 31, 32, 33, 34, 35, 36, 37], [5, 9, 7, 30, 31, 32, 33, 34, 99], [200, 3], [17] * 21]
Answers = dict[tuple[int, int], list[int]]


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder)


@pytest.fixture(scope="module")
def reference(tiny_folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


def expected(model: Any, prompt: list[int], params: SamplingParams, eos: list[int] | None = None) -> list[list[int]]:
    """What transformers answers, without the padding behind an end token."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=params.max_tokens, do_sample=False,
            num_beams=params.beams, num_return_sequences=params.n, length_penalty=params.length_penalty,
            early_stopping=False, eos_token_id=eos, pad_token_id=-7 if eos is None else 287,
        )  # fmt: skip
    answers = []
    for row in out[:, len(prompt) :].tolist():
        at = next((i for i, token in enumerate(row) if eos is not None and token in eos), len(row) - 1)
        answers.append(row[: at + 1])
    return answers


class Watched:
    """An engine whose memory is looked at after every step, and whose events are judged at the end."""

    def __init__(self, loaded: LoadedModel, **options: Any) -> None:
        limits = SchedulerConfig(
            max_seqs=options.pop("max_seqs", 64), max_batched_tokens=options.pop("max_batched_tokens", 512)
        )
        config = EngineConfig(**{"num_blocks": 128, "block_size": 4, "scheduler": limits, **options})
        self.sink = MemoryRecorder(pool=PoolFacts(config.num_blocks, config.block_size))
        self.engine = Engine(loaded, config, sink=self.sink)

    def submit(self, prompts: list[list[int]], params: SamplingParams) -> list[int]:
        return [self.engine.submit(prompt, params) for prompt in prompts]

    def run(self) -> Answers:
        out: Answers = {}
        idle = 0
        while self.engine.has_work:
            steps = np.count_nonzero(self.sink.events["kind"] == Kind.STEP_BEGIN)
            for token in self.engine.step():
                out.setdefault((token.request_id, token.sample), []).append(token.token)
            self.engine.manager.check_integrity()
            idle = 0 if np.count_nonzero(self.sink.events["kind"] == Kind.STEP_BEGIN) > steps else idle + 1
            assert idle < 3, "the engine stands still"
            assert len(self.engine.scheduler.running) <= self.engine.config.scheduler.max_seqs
        self.given_back()
        return out

    def given_back(self) -> None:
        counts = self.engine.manager.pool.counts()
        assert counts["free"] + counts["cached"] == self.engine.config.num_blocks, "everything is given back"
        assert self.engine.manager.sequences() == []
        assert check(self.sink).findings == ()

    def count(self, kind: Kind, reason: Reason | None = None) -> int:
        events = self.sink.events
        return int(np.count_nonzero((events["kind"] == kind) & (reason is None or events["reason"] == reason)))


def answers(found: Answers, request: int) -> list[list[int]]:
    return [found[key] for key in sorted(found) if key[0] == request]


# -- the tokens are transformers' -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 9, 24])
@pytest.mark.parametrize("beams", [1, 2, 3, 4])
def test_all_answers_equal_transformers(loaded: LoadedModel, reference: Any, beams: int, tokens: int) -> None:
    params = SamplingParams(tokens, beams=beams, n=beams, ignore_eos=True)
    watched = Watched(loaded)
    watched.submit(PROMPTS, params)
    found = watched.run()
    for number, prompt in enumerate(PROMPTS):
        assert answers(found, number) == expected(reference, prompt, params)


@pytest.fixture
def end_tokens(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """End tokens that these prompts do reach: the commonest of what the model says."""
    watched = Watched(loaded)
    watched.submit(PROMPTS, SamplingParams(24, beams=4, n=4, ignore_eos=True))
    said = [token for tokens in watched.run().values() for token in tokens[3:]]
    eos = [int(np.bincount(said).argmax())]
    monkeypatch.setattr(loaded.tokenizer, "eos_ids", frozenset(eos))
    return eos


@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.5])
@pytest.mark.parametrize("beams", [1, 2, 3, 4])
def test_end_tokens_and_length_penalty_equal_transformers(
    loaded: LoadedModel, reference: Any, end_tokens: list[int], beams: int, penalty: float
) -> None:
    params = SamplingParams(24, beams=beams, n=beams, length_penalty=penalty)
    watched = Watched(loaded)
    watched.submit(PROMPTS, params)
    found = watched.run()
    for number, prompt in enumerate(PROMPTS):
        wanted = expected(reference, prompt, replace(params, length_penalty=penalty), end_tokens)
        assert answers(found, number) == wanted
    if beams > 1 and penalty <= 1:
        assert any(tokens[-1] in end_tokens for tokens in found.values()), "some answer ends with an end token"
        assert len({len(tokens) for tokens in found.values()}) > 1


def test_several_end_tokens(
    loaded: LoadedModel, reference: Any, end_tokens: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    eos = [*end_tokens, 257, 44]
    monkeypatch.setattr(loaded.tokenizer, "eos_ids", frozenset(eos))
    params = SamplingParams(16, beams=3, n=3)
    watched = Watched(loaded)
    watched.submit(PROMPTS, params)
    found = watched.run()
    for number, prompt in enumerate(PROMPTS):
        assert answers(found, number) == expected(reference, prompt, params, eos)


def test_n_takes_the_best_of_the_beams(loaded: LoadedModel) -> None:
    all_four, best = Watched(loaded), Watched(loaded)
    all_four.submit(PROMPTS, SamplingParams(12, beams=4, n=4, ignore_eos=True))
    best.submit(PROMPTS, SamplingParams(12, beams=4, n=2, ignore_eos=True))
    everything = all_four.run()
    assert best.run() == {key: tokens for key, tokens in everything.items() if key[1] < 2}


def test_a_search_ends_at_the_context(loaded: LoadedModel, reference: Any) -> None:
    prompt = [random.Random(4).randrange(250) for _ in range(504)]
    params = SamplingParams(30, beams=2, n=2, ignore_eos=True)
    watched = Watched(loaded, num_blocks=300)
    watched.submit([prompt], params)
    assert answers(watched.run(), 0) == expected(reference, prompt, replace(params, max_tokens=8))


# -- however the memory is managed ------------------------------------------------------------------------------------

SEARCH = SamplingParams(20, beams=4, n=4, ignore_eos=True)


@pytest.fixture(scope="module")
def wanted(reference: Any) -> list[list[list[int]]]:
    return [expected(reference, prompt, SEARCH) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 1, "num_blocks": 400},
        {"block_size": 1, "num_blocks": 104},
        {"block_size": 2, "num_blocks": 56},
        {"block_size": 3, "num_blocks": 37},
        {"block_size": 4, "num_blocks": 28},
        {"block_size": 4, "num_blocks": 40, "share_prefixes": False},
        {"block_size": 5, "num_blocks": 25, "max_batched_tokens": 7},
        {"block_size": 7, "num_blocks": 24, "max_batched_tokens": 2},
        {"block_size": 8, "num_blocks": 16, "max_seqs": 4},
        {"block_size": 8, "num_blocks": 20, "share_prefixes": False, "max_batched_tokens": 3},
        {"block_size": 16, "num_blocks": 9},
        {"block_size": 16, "num_blocks": 12, "max_batched_tokens": 1, "max_seqs": 5},
    ],
    ids=str,
)
def test_memory_management_never_changes_the_answers(
    loaded: LoadedModel, wanted: list[list[list[int]]], options: dict[str, Any]
) -> None:
    watched = Watched(loaded, **options)
    watched.submit(PROMPTS, SEARCH)
    found = watched.run()
    assert [answers(found, number) for number in range(len(PROMPTS))] == wanted


@pytest.mark.parametrize(("num_blocks", "share"), [(28, True), (40, False)])
def test_tight_pools_preempt_whole_units(loaded: LoadedModel, num_blocks: int, share: bool) -> None:
    watched = Watched(loaded, num_blocks=num_blocks, share_prefixes=share)
    watched.submit(PROMPTS, SEARCH)
    watched.run()
    assert watched.count(Kind.PREEMPT) == watched.count(Kind.RESUME) > 4


@pytest.mark.parametrize("seed", range(6))
def test_in_company_of_other_requests(loaded: LoadedModel, wanted: list[list[list[int]]], seed: int) -> None:
    """Samples, greedy requests and searches in a pool of any size, arriving at any time, some of them aborted."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3, 4, 8, 16])
    least = 4 * -(-40 // size)
    watched = Watched(
        loaded, block_size=size, num_blocks=least + rng.choice([0, 1, least]), share_prefixes=rng.random() < 0.7,
        max_batched_tokens=rng.choice([1, 3, 17, 512]), max_seqs=rng.choice([4, 6, 64]),
    )  # fmt: skip
    engine = watched.engine
    searches: dict[int, int] = {}
    doomed: list[int] = []
    arriving: list[int] = rng.sample([*range(len(PROMPTS)), -1, -2, -3, -4], 8)
    found: Answers = {}
    while arriving or engine.has_work:
        while arriving and rng.random() < 0.4:
            which = arriving.pop()
            if which >= 0:
                searches[engine.submit(PROMPTS[which], SEARCH)] = which
            elif which == -1:
                doomed.append(engine.submit(PROMPTS[0], SEARCH))
            else:
                prompt = [rng.choice([5, 9, 17]) for _ in range(rng.randint(1, 20))]
                params = SamplingParams(rng.randint(1, 20), temperature=1.0, n=rng.randint(1, 3), ignore_eos=True)
                engine.submit(prompt, params)
        for token in engine.step():
            found.setdefault((token.request_id, token.sample), []).append(token.token)
        engine.manager.check_integrity()
        if doomed and rng.random() < 0.05:
            engine.abort(doomed.pop())
            engine.manager.check_integrity()
        assert watched.sink.step < 4000, "the engine stands still"
    watched.given_back()
    assert len(searches) == len(PROMPTS)
    for number, which in searches.items():
        assert answers(found, number) == wanted[which]


@pytest.mark.parametrize("after", [0, 1, 2, 5, 12])
def test_abort_gives_everything_back(loaded: LoadedModel, after: int) -> None:
    watched = Watched(loaded, num_blocks=30, max_batched_tokens=8)
    numbers = watched.submit(PROMPTS[:2], SEARCH)
    for _ in range(after):
        watched.engine.step()
    for number in numbers:
        watched.engine.abort(number)
        watched.engine.manager.check_integrity()
    assert not watched.engine.has_work
    watched.given_back()


def test_close_drops_a_search(loaded: LoadedModel) -> None:
    watched = Watched(loaded)
    watched.submit(PROMPTS[:1], SEARCH)
    for _ in range(5):
        assert watched.engine.step() == [], "a search says nothing before it is over"
    watched.engine.close()
    watched.given_back()


# -- what the trace says ----------------------------------------------------------------------------------------------


def groups(watched: Watched) -> Iterator[tuple[int, int]]:
    """(parent, child) of every fork."""
    events = watched.sink.events
    for row in events[events["kind"] == Kind.FORK]:
        yield int(row["aux"]), int(row["seq_id"])


def test_children_are_forks_and_dropped_beams_say_so(loaded: LoadedModel) -> None:
    watched = Watched(loaded)
    watched.submit(PROMPTS[:1], SEARCH)
    watched.run()
    born = {child for _, child in groups(watched)}
    assert watched.count(Kind.ADMIT) == 1
    assert watched.count(Kind.FINISH) == len(born) + 1, "every beam ends once"
    dropped, ended = watched.count(Kind.FINISH, Reason.BEAM), watched.count(Kind.FINISH, Reason.LENGTH)
    assert dropped + ended == len(born) + 1
    assert dropped > 0
    assert 1 <= ended <= 4
    assert watched.count(Kind.RELEASE, Reason.BEAM) > 0
    samples = [fact["seq_id"] for fact in watched.sink.facts if fact["type"] == "sample"]
    assert sorted(samples) == sorted(born)
    outputs = [fact for fact in watched.sink.facts if fact["type"] == "output"]
    assert [(fact["sample"], fact["tokens"], fact["finish"]) for fact in outputs] == [
        (k, 20, "length") for k in range(4)
    ]


def test_a_first_split_copies_once_per_further_beam(loaded: LoadedModel) -> None:
    watched = Watched(loaded, block_size=16)
    watched.submit(PROMPTS[:1], replace(SEARCH, max_tokens=2))
    watched.run()
    assert watched.count(Kind.FORK) == 3
    assert watched.count(Kind.COW) == watched.count(Kind.COPY_DONE) == 3


def test_a_beam_whose_parent_has_one_child_moves_nothing(loaded: LoadedModel) -> None:
    watched = Watched(loaded)
    watched.submit(PROMPTS[:1], SamplingParams(12, beams=1, ignore_eos=True))
    watched.run()
    assert watched.count(Kind.FORK) == watched.count(Kind.COW) == 0


def test_tokens_of_a_search_come_at_its_end(loaded: LoadedModel) -> None:
    watched = Watched(loaded)
    watched.submit(PROMPTS[:1], replace(SEARCH, n=2))
    steps = []
    while watched.engine.has_work:
        steps.append(watched.engine.step())
    assert all(tokens == [] for tokens in steps[:-1])
    assert [token.sample for token in steps[-1]] == [0] * 20 + [1] * 20
    assert [token.finish for token in steps[-1]] == ([Reason.NONE] * 19 + [Reason.LENGTH]) * 2


# -- the pure half, and refusals --------------------------------------------------------------------------------------


def test_candidates_are_compared_over_all_beams() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]]))
    best = best_candidates(logits, [-0.1, -0.5], 3)
    assert [(c.parent, c.token) for c in best] == [(1, 0), (0, 0), (0, 1)]
    assert best[0].score == pytest.approx(np.log(0.9) - 0.5, abs=1e-6)
    assert len(best_candidates(logits, [0.0, 0.0], 99)) == 6
    assert heirs(best, 3) == [[1, 2], [0], []]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"beams": -1}, "beams is -1"),
        ({"beams": 1000}, "beams is 1000"),
        ({"beams": 2, "n": 3}, "n is 3: must be at most beams = 2"),
        ({"beams": 2, "temperature": 0.5}, "temperature is 0.5: must be 0 with beams"),
        ({"beams": 2, "top_k": 5}, "top_k is 5: must be 0 with beams"),
        ({"beams": 2, "top_p": 0.5}, "top_p is 0.5: must be 1 with beams"),
        ({"beams": 2, "length_penalty": float("nan")}, "length_penalty is nan"),
        ({"beams": 2, "length_penalty": 99.0}, "length_penalty is 99"),
        ({"length_penalty": 2.0}, "length_penalty is 2.0: must be 1 without beams"),
    ],
    ids=str,
)
def test_parameters_that_contradict_beams_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplingParams(**bad)


def test_searches_that_cannot_run_are_refused(loaded: LoadedModel) -> None:
    with pytest.raises(UsageError, match="beams is 5: at most max_seqs = 4 beams run at once"):
        Watched(loaded, max_seqs=4).submit(PROMPTS, SamplingParams(4, beams=5))
    # 11 prompt + 20 new tokens: 30 positions, 8 blocks of 4 for each beam, 2 of them full of the prompt.
    with pytest.raises(UsageError, match="with 4 beams need 26 blocks of 4, the pool has 25"):
        Watched(loaded, num_blocks=25).submit(PROMPTS[:1], SEARCH)
    with pytest.raises(UsageError, match="need 32 blocks of 4, the pool has 31"):
        Watched(loaded, num_blocks=31, share_prefixes=False).submit(PROMPTS[:1], SEARCH)


@pytest.mark.parametrize(("num_blocks", "share"), [(26, True), (32, False)])
def test_a_search_that_just_fits_runs(
    loaded: LoadedModel, wanted: list[list[list[int]]], num_blocks: int, share: bool
) -> None:
    watched = Watched(loaded, num_blocks=num_blocks, share_prefixes=share)
    watched.submit(PROMPTS[:1], SEARCH)
    assert answers(watched.run(), 0) == wanted[0]
    assert watched.count(Kind.PREEMPT) == 0
