"""Greedy tokens of the engine equal transformers', alone and in every kind of company.

The reference is transformers' own forward pass over prompt and answer at once: its best token at every position is
what `generate` would have chosen there, as long as the answer was the same so far. Some prompts are generated for
real as well.

A difference is allowed only where transformers' own two best logits are within 1e-4 of each other: there two correct
programs may round to different words. Each such place is printed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.engine.sizing import fastest_threads

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

TOKENS = 64
# Where not every prompt gets all its tokens in the usual run; with --thorough all do.
BRIEF = 6  # for most prompts by themselves, one sequence a step being slow
HALF = 20  # in company, which the preempted run shows in full
TIE = 1e-4
SYSTEM = (
    "You are a patient teacher in a small harbour town. You explain everything step by step, in plain words, "
    "with one example from daily life, and you never use a word that a child of ten would not know."
)
SHARED = [  # ten prompts behind one system message: whole blocks in common
    "Why does the tide rise and fall?",
    "What is a fraction?",
    "How do birds find their way home?",
    "Why is the sky blue?",
    "What does a judge do?",
    "How is bread made?",
    "Why do we sleep?",
    "What is a computer program?",
    "How does a lighthouse help a ship?",
    "Why do leaves fall in autumn?",
]
PLAIN = [  # ten without anything in common
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8,",
    "Once upon a time, in a village by the sea, there lived",
    "The three most important things in life are",
    "Water boils at",
    "To be, or not to be, that is",
    "import numpy as np\n\n# compute the mean of a list\n",
    "In 1969, two men",
    "Dear Sir or Madam,\n\nI am writing to",
]


@dataclass
class Reference:
    """What transformers makes of one prompt: its greedy tokens, and its logits behind every one of them.

    Behind the first token that differs from the engine's answer it says nothing.
    """

    prompt: list[int]
    tokens: list[int]
    logits: torch.Tensor  # [TOKENS, vocab]; row i chose tokens[i]


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    torch.set_num_threads(os.cpu_count() or 1)  # whatever ran before
    torch.set_num_threads(fastest_threads())
    return load_model("smollm2")


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[list[int]]:
    tokenizer = loaded.tokenizer
    return [
        tokenizer.encode(tokenizer.chat([{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]))
        for text in SHARED
    ] + [tokenizer.encode(text) for text in PLAIN]


@pytest.fixture(scope="module")
def references(loaded: LoadedModel, smollm2_reference: Any, prompts: list[list[int]]) -> list[Reference]:
    answers = run(engine_for(loaded, share_prefixes=False), prompts)
    return [_reference(smollm2_reference, *pair) for pair in zip(prompts, answers, strict=True)]


def _reference(model: Any, prompt: list[int], answer: list[int]) -> Reference:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer[:-1]])).logits[0, len(prompt) - 1 :].float()
    return Reference(prompt, logits.argmax(-1).tolist(), logits)


def run(engine: Engine, prompts: list[list[int]], tokens: int = TOKENS) -> list[list[int]]:
    """Greedy tokens of all prompts, submitted together."""
    ids = [engine.submit(prompt, SamplingParams(tokens, ignore_eos=True)) for prompt in prompts]
    outputs: dict[int, list[int]] = {number: [] for number in ids}
    for token in engine.run():
        outputs[token.request_id].append(token.token)
    engine.manager.check_integrity()
    return [outputs[number] for number in ids]


def assert_same(references: list[Reference], outputs: list[list[int]]) -> None:
    assert len(outputs) == len(references) == 20
    for number, (reference, output) in enumerate(zip(references, outputs, strict=True)):
        assert len(output) in (TOKENS, HALF, BRIEF)
        different = [i for i in range(len(output)) if output[i] != reference.tokens[i]]
        if not different:
            continue
        at = different[0]
        best = reference.logits[at].topk(2).values
        gap = float(best[0] - best[1])
        print(f"prompt {number}, token {at}: {output[at]} against {reference.tokens[at]}, logits {gap:.2e} apart")
        assert gap <= TIE, f"prompt {number} differs at token {at}, where the two best logits are {gap:.2e} apart"


def engine_for(loaded: LoadedModel, **options: Any) -> Engine:
    limits = SchedulerConfig(
        max_seqs=options.pop("max_seqs", 64), max_batched_tokens=options.pop("max_batched_tokens", 4096)
    )
    return Engine(loaded, EngineConfig(**{"num_blocks": 512, "scheduler": limits, **options}))


def test_alone_and_logits(
    loaded: LoadedModel, references: list[Reference], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    thorough = request.config.getoption("--thorough")
    engine = engine_for(loaded, share_prefixes=False)
    seen: list[torch.Tensor] = []
    original = engine.runner.run

    def keep(*arguments: Any) -> torch.Tensor:
        seen.append(original(*arguments))
        return seen[-1]

    monkeypatch.setattr(engine.runner, "run", keep)
    outputs, worst = [], 0.0
    for number, reference in enumerate(references):
        seen.clear()
        tokens = TOKENS if thorough or number % 5 == 0 else BRIEF
        outputs += run(engine, [reference.prompt], tokens)
        same = next((i for i, t in enumerate(outputs[-1]) if t != reference.tokens[i]), tokens - 1)
        ours = torch.cat(seen)[: same + 1]
        worst = max(worst, float((ours - reference.logits[: same + 1]).abs().max()))
    print(f"largest logit difference: {worst:.2e}")
    assert worst <= 1e-3
    assert_same(references, outputs)


@pytest.mark.parametrize("number", [0, 13])
def test_transformers_generates_the_same(
    loaded: LoadedModel, smollm2_reference: Any, references: list[Reference], number: int
) -> None:
    ids = torch.tensor([references[number].prompt])
    with torch.no_grad():
        out = smollm2_reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    assert out[0, ids.shape[1] :].tolist() == references[number].tokens


@pytest.fixture
def half(request: pytest.FixtureRequest) -> int:
    return TOKENS if request.config.getoption("--thorough") else HALF


def test_company(loaded: LoadedModel, references: list[Reference], half: int) -> None:
    engine = engine_for(loaded, share_prefixes=False)
    assert_same(references, run(engine, [r.prompt for r in references], half))


def test_prefix_sharing(loaded: LoadedModel, references: list[Reference], half: int) -> None:
    engine = engine_for(loaded)
    hits: list[int] = []
    admit = engine.manager.admit
    engine.manager.admit = lambda *a, **k: hits.append(admit(*a, **k)) or hits[-1]  # type: ignore[method-assign]
    assert_same(references, run(engine, [r.prompt for r in references], half))
    assert sum(h > 0 for h in hits) >= 9, "the ten prompts behind one system message share its blocks"


def test_chunked_prefill(loaded: LoadedModel, references: list[Reference], half: int) -> None:
    engine = engine_for(loaded, max_batched_tokens=24, max_seqs=12)
    assert_same(references, run(engine, [r.prompt for r in references], half))


def test_preemption(loaded: LoadedModel, references: list[Reference]) -> None:
    engine = engine_for(loaded, num_blocks=80, block_size=8, max_batched_tokens=256)
    assert_same(references, run(engine, [r.prompt for r in references]))
    assert engine.scheduler.preemptions > 0
