"""A model with a sliding window in the engine: transformers' own greedy tokens, and blocks given back on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import LoadedModel, load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.inspector.findings import check
from kvscope.traces import Kind, MemoryRecorder, Reason

WINDOW, TOKENS = 8, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A tiny Mistral with random weights, beside the tokenizer of the tiny model."""
    out = tmp_path_factory.mktemp("mistral")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tiny_folder / name).is_file():
            (out / name).write_bytes((tiny_folder / name).read_bytes())
    torch.manual_seed(5)
    config = MistralConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, sliding_window=WINDOW,
        attn_implementation="eager", initializer_range=0.2,
    )  # fmt: skip
    MistralForCausalLM(config).save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder)


@torch.no_grad()
def expected(folder: Path, prompt: list[int]) -> list[int]:
    """Greedy tokens by whole forward passes, eager attention."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    tokens = list(prompt)
    for _ in range(TOKENS):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


PROMPTS = [[5, 9, 2, 7], list(range(10, 33)), [int(i * 37 % 300) for i in range(19)]]


@pytest.mark.parametrize("block_size", [4, 16])
def test_tokens_are_those_of_transformers_and_the_window_bounds_what_is_held(
    folder: Path, loaded: LoadedModel, block_size: int
) -> None:
    assert loaded.config.window == WINDOW
    sink = MemoryRecorder(num_blocks=64, block_size=block_size)
    limits = SchedulerConfig(max_batched_tokens=16)  # prompts in chunks, longer than the window
    engine = Engine(loaded, EngineConfig(num_blocks=64, block_size=block_size, scheduler=limits), sink=sink)
    for prompt in PROMPTS:
        engine.submit(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    answers: dict[int, list[int]] = {}
    held = 0
    while engine.has_work:
        for token in engine.step():
            answers.setdefault(token.request_id, []).append(token.token)
        tables = [engine.manager.table(seq_id) for seq_id in engine.manager.sequences()]
        if all(len(tokens) > 12 for tokens in answers.values()) and len(answers) == 3:
            held = max([held, *(sum(block >= 0 for block in table) for table in tables)])
        engine.manager.check_integrity()
    for request, prompt in enumerate(PROMPTS):
        assert answers[request] == expected(folder, prompt), prompt
    assert 0 < held <= -(-WINDOW // block_size) + 1
    gone = sink.events[(sink.events["reason"] == Reason.WINDOW) & (sink.events["kind"] == Kind.RELEASE)]
    assert len(gone) > 0
    assert check(sink).findings == ()
