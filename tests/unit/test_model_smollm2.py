"""The embedded model computes what transformers computes from the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from kvscope.engine.model.load import LoadedModel, load_model

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a small village by the sea, there lived an old lighthouse keeper who",
    "12 + 30 = 42. 7 * 8 =",
    "Zürich, 東京 and Αθήνα are 🎉",
    "<|im_start|>user\nWhat is a page table?<|im_end|>\n<|im_start|>assistant\n",
    "a",
    "word " * 300,
]


def dense(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    heads_first = (tensor.transpose(0, 1) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(0, 1)


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load_model("smollm2")


def test_facts(loaded: LoadedModel) -> None:
    config = loaded.config
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (30, 9, 3, 64)
    assert (config.vocab_size, config.max_model_len, config.eos_ids) == (49152, 8192, (2,))
    assert config.bytes_per_token(2) == 2 * 30 * 3 * 64 * 2
    assert config.tie_embeddings
    assert loaded.model.lm_head is loaded.model.embeddings


def test_logits_equal_transformers(loaded: LoadedModel, smollm2_reference: PreTrainedModel) -> None:
    for text in PROMPTS:
        tokens = torch.tensor(loaded.tokenizer.encode(text))
        logits = loaded.model.forward(tokens, torch.arange(len(tokens)), dense)
        with torch.no_grad():
            expected = smollm2_reference(tokens[None]).logits[0]
        assert (logits - expected).abs().max() < 1e-3, text


def test_answers_a_question(loaded: LoadedModel) -> None:
    tokenizer = loaded.tokenizer
    tokens = tokenizer.encode(tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}]))
    stream, text = tokenizer.stream(tokens), ""
    for _ in range(16):
        ids = torch.tensor(tokens)
        logits = loaded.model.forward(ids, torch.arange(len(ids)), dense, torch.tensor([len(ids) - 1]))
        tokens.append(int(logits[0].argmax()))
        if tokens[-1] in tokenizer.eos_ids:
            break
        text += stream.push(tokens[-1])
    assert text + stream.finish() == "The capital of France is Paris."
