"""The sampler draws from the right distribution, and a seed means the same token in any company."""

from __future__ import annotations

import pytest
import torch

from kvscope.engine import sampler
from kvscope.engine.sampler import sample, uniform
from kvscope.engine.sequence import Request, SamplingParams, Sequence

LOGITS = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1]))


def sequence(position: int = 0, number: int = 0, **params: float) -> Sequence:
    request = Request(0, [1] * (position + 1), SamplingParams(**params))  # type: ignore[arg-type]
    return Sequence(0, request, number)


def draw(count: int, **params: float) -> list[float]:
    rows = [sequence(position, **params) for position in range(count)]
    tokens = sample(LOGITS.expand(count, -1), rows)
    return [tokens.count(token) / count for token in range(4)]


def test_greedy_takes_the_best() -> None:
    assert sample(LOGITS[None], [sequence()]) == [0]


@pytest.mark.parametrize("params", [{"top_k": 1}, {"top_p": 0.4}, {"temperature": 1e-3}], ids=str)
def test_cuts_that_leave_one(params: dict[str, float]) -> None:
    assert draw(50, **{"temperature": 1.0, **params})[0] == 1.0


def test_frequencies_follow_the_distribution() -> None:
    assert draw(4000, temperature=1.0) == pytest.approx([0.5, 0.25, 0.15, 0.1], abs=0.03)


def test_top_k_and_top_p_renormalise() -> None:
    assert draw(4000, temperature=1.0, top_k=2) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.03)
    assert draw(4000, temperature=1.0, top_p=0.8) == pytest.approx([0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0], abs=0.03)


def test_temperature_flattens() -> None:
    weights = (LOGITS / 2).softmax(0).tolist()
    assert draw(4000, temperature=2.0) == pytest.approx(weights, abs=0.03)


def test_company_does_not_matter() -> None:
    rows = [sequence(p, n, temperature=1.0, seed=5) for p in range(20) for n in range(3)]
    together = sample(LOGITS.expand(60, -1), rows)
    assert together == [sample(LOGITS[None], [row])[0] for row in rows]


CUTS = [{}, {"top_k": 5}, {"top_k": 40}, {"top_p": 0.9}, {"top_p": 0.05}, {"top_k": 30, "top_p": 0.7}]


@pytest.mark.parametrize("params", CUTS, ids=str)
@pytest.mark.parametrize("logits", ["steep", "flat", "ties"])
def test_the_likeliest_decide_as_the_whole_vocabulary_does(
    params: dict[str, float], logits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = torch.Generator().manual_seed(3)
    few = {"steep": 4 * torch.randn(300, 200, generator=made), "flat": torch.randn(300, 200, generator=made) / 8,
           "ties": torch.randint(0, 4, (300, 200), generator=made).float()}[logits]  # fmt: skip
    rows = [sequence(position, temperature=1.0, seed=9, **params) for position in range(300)]
    whole = sample(few, rows)
    for head in (1, 7, 32):
        monkeypatch.setattr(sampler, "HEAD", head)
        assert sample(few, rows) == whole


def test_greedy_and_drawn_rows_keep_their_places() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    rows = [sequence(place, temperature=float(place % 2), top_k=1) for place in range(6)]
    assert sample(logits, rows) == logits.argmax(-1).tolist()


def test_logits_that_are_no_numbers_do_not_stop_the_engine() -> None:
    for bad in (torch.full((1, 2000), float("nan")), torch.full((1, 2000), float("-inf"))):
        for params in CUTS:
            (token,) = sample(bad, [sequence(temperature=1.0, **params)])
            assert 0 <= token < 2000


def test_seed_sample_and_position_all_count() -> None:
    numbers = {uniform(seed, number, position) for seed in range(8) for number in range(8) for position in range(8)}
    assert len(numbers) == 512
    assert all(0 <= number < 1 for number in numbers)
