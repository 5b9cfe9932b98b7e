"""Beam search with the embedded model: all answers equal transformers', with pages shared, copied and given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.sequence import SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

PROMPTS = ["The three most important things in life are", "Once upon a time, in a village by the sea, there lived"]
SEARCH = SamplingParams(16, beams=4, n=4)


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def expected(loaded: LoadedModel, smollm2_reference: Any) -> list[list[list[int]]]:
    return [_answers(smollm2_reference, loaded, loaded.tokenizer.encode(text)) for text in PROMPTS]


def _answers(model: Any, loaded: LoadedModel, prompt: list[int]) -> list[list[int]]:
    """transformers' answers, without the padding behind an end token."""
    ids, eos = torch.tensor([prompt]), sorted(loaded.tokenizer.eos_ids)
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=SEARCH.max_tokens, do_sample=False,
            num_beams=SEARCH.beams, num_return_sequences=SEARCH.n, early_stopping=False, eos_token_id=eos,
            pad_token_id=eos[0],
        )  # fmt: skip
    rows = out[:, len(prompt) :].tolist()
    ends = [next((i for i, token in enumerate(row) if token in eos), len(row) - 1) for row in rows]
    return [row[: end + 1] for row, end in zip(rows, ends, strict=True)]


@pytest.mark.parametrize(("num_blocks", "block_size"), [(256, 16), (26, 4)], ids=["roomy", "tight"])
def test_answers_equal_transformers(
    loaded: LoadedModel, expected: list[list[list[int]]], num_blocks: int, block_size: int
) -> None:
    engine = Engine(loaded, EngineConfig(num_blocks=num_blocks, block_size=block_size))
    for text in PROMPTS:
        engine.submit(loaded.tokenizer.encode(text), SEARCH)
    found: list[list[list[int]]] = [[[] for _ in range(SEARCH.n)] for _ in PROMPTS]
    for token in engine.run():
        found[token.request_id][token.sample].append(token.token)
    engine.manager.check_integrity()
    assert found == expected
    assert (engine.scheduler.preemptions > 0) == (num_blocks < 256)
