"""Logits of random tiny models equal transformers', from safetensors folders and from GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from kvscope.engine.model.config import config_from_folder, config_from_gguf
from kvscope.engine.model.gguf import GgufFile
from kvscope.engine.model.llama import Llama, build_llama
from kvscope.engine.model.load import load_model
from kvscope.engine.model.safetensors_dir import SafetensorsWeights
from kvscope.engine.model.weights import GgufWeights

TOLERANCE = 1e-4
SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "untied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "wide heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=32)),
    "bias": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True)),
    "large theta": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    ),
    "llama3 scaling": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "linear scaling": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0})
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "mistral, window as long as the context": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=256)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
}


def dense(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of one whole sequence."""
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("qhd,khd->hqk", q, k.repeat_interleave(group, dim=1)) / q.shape[2] ** 0.5
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    return torch.einsum(
        "hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v.repeat_interleave(group, 1)
    )


def make(kind: str) -> PreTrainedModel:
    torch.manual_seed(3)
    model = MODELS[kind]().eval()
    with torch.no_grad():  # fresh norms and biases are all ones and zeros, which would hide a mix-up
        for name, value in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                value.copy_(torch.rand_like(value) + 0.5)
    return model


def folder_model(folder: Path) -> Llama:
    return build_llama(config_from_folder(folder), SafetensorsWeights(folder), dtype=torch.float32, device="cpu")


def prompt(length: int = 50, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, SIZES["vocab_size"], (length,), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def reference(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[None]).logits[0]


@pytest.mark.parametrize("kind", MODELS)
def test_folder_logits_equal_transformers(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    model.save_pretrained(tmp_path)
    tokens = prompt()
    logits = folder_model(tmp_path).forward(tokens, torch.arange(len(tokens)), dense)
    expected = reference(model, tokens)
    assert expected.std() > 0.1  # the comparison would say nothing about logits that are all alike
    assert (logits - expected).abs().max() < TOLERANCE


def test_sharded_folder(tmp_path: Path) -> None:
    model = make("untied")
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = prompt()
    logits = folder_model(tmp_path).forward(tokens, torch.arange(len(tokens)), dense)
    assert (logits - reference(model, tokens)).abs().max() < TOLERANCE


def test_rows_choose_logits(tmp_path: Path) -> None:
    make("tied").save_pretrained(tmp_path)
    model, tokens = folder_model(tmp_path), prompt()
    positions = torch.arange(len(tokens))
    every = model.forward(tokens, positions, dense)
    some = model.forward(tokens, positions, dense, torch.tensor([49, 3]))
    assert torch.allclose(some, every[[49, 3]], atol=1e-5)


def test_sequences_side_by_side_do_not_touch(tmp_path: Path) -> None:
    make("tied").save_pretrained(tmp_path)
    model, one, two = folder_model(tmp_path), prompt(20, 1), prompt(30, 2)

    def apart(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.cat([dense(layer, q[:20], k[:20], v[:20]), dense(layer, q[20:], k[20:], v[20:])])

    positions = torch.cat([torch.arange(20), torch.arange(30)])
    together = model.forward(torch.cat([one, two]), positions, apart)
    alone = [model.forward(tokens, torch.arange(len(tokens)), dense) for tokens in (one, two)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)


def test_attend_sees_layers_in_order_and_documented_shapes(tmp_path: Path) -> None:
    make("wide heads").save_pretrained(tmp_path)
    seen: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = []

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append((layer, tuple(q.shape), tuple(k.shape), tuple(v.shape)))
        return dense(layer, q, k, v)

    folder_model(tmp_path).forward(prompt(5), torch.arange(5), attend)
    assert seen == [(layer, (5, 4, 32), (5, 2, 32), (5, 2, 32)) for layer in range(3)]


def test_half_precision_stays_near(tmp_path: Path) -> None:
    make("tied").save_pretrained(tmp_path)
    model = build_llama(config_from_folder(tmp_path), SafetensorsWeights(tmp_path), dtype=torch.bfloat16, device="cpu")
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    tokens = prompt()
    logits = model.forward(tokens, torch.arange(len(tokens)), dense)
    assert logits.dtype == torch.bfloat16
    expected = reference(half, tokens).float()
    assert (logits.float() - expected).abs().mean() < 0.05 * expected.std()


def llama_cpp_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to Q and K of a llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path, model: PreTrainedModel, *, quant: str = "F32", rope_freqs: np.ndarray | None = None, **fields: Any
) -> None:
    """Write a model as llama.cpp's converter would."""
    config, arch = model.config, model.config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(2)
    for key, value in fields.items():
        getattr(writer, key)(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    tied = config.tie_word_embeddings
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        rows = value.numpy()
        if arch == "llama" and ".q_proj" in name:
            rows = llama_cpp_order(rows, config.num_attention_heads)
        if arch == "llama" and ".k_proj" in name:
            rows = llama_cpp_order(rows, config.num_key_value_heads)
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        kind = gguf.GGMLQuantizationType[quant if rows.ndim == 2 else "F32"]
        if kind.name in ("F32", "F16"):
            writer.add_tensor(theirs, rows.astype(np.float32 if kind.name == "F32" else np.float16))
        else:
            writer.add_tensor(theirs, gguf.quants.quantize(np.ascontiguousarray(rows), kind), raw_dtype=kind)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_model(path: Path) -> Llama:
    file = GgufFile(path)
    config = config_from_gguf(path.stem, file.fields, file.shapes)
    return build_llama(config, GgufWeights(file, config), dtype=torch.float32, device="cpu")


@pytest.mark.parametrize("kind", ["tied", "untied", "bias", "large theta", "qwen2"])
def test_gguf_logits_equal_transformers(kind: str, tmp_path: Path) -> None:
    model, path = make(kind), tmp_path / "tiny.gguf"
    write_gguf(path, model)
    loaded, tokens = gguf_model(path), prompt()
    assert loaded.config.tie_embeddings == model.config.tie_word_embeddings
    logits = loaded.forward(tokens, torch.arange(len(tokens)), dense)
    assert (logits - reference(model, tokens)).abs().max() < TOLERANCE


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_1"])
def test_gguf_dequantises(quant: str, tmp_path: Path) -> None:
    model, path = make("untied"), tmp_path / "tiny.gguf"
    write_gguf(path, model, quant=quant)
    kind = gguf.GGMLQuantizationType[quant]
    with torch.no_grad():  # the reference computes with the same rounded weights
        for value in model.parameters():
            if value.ndim == 2:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(value.numpy(), kind), kind)
                value.copy_(torch.from_numpy(rounded.astype(np.float32)))
    tokens = prompt()
    logits = gguf_model(path).forward(tokens, torch.arange(len(tokens)), dense)
    assert (logits - reference(model, tokens)).abs().max() < TOLERANCE


def test_gguf_llama3_frequencies_come_as_a_tensor(tmp_path: Path) -> None:
    model, path = make("llama3 scaling"), tmp_path / "tiny.gguf"
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2) / 16)
    write_gguf(path, model, rope_freqs=plain / model.model.rotary_emb.inv_freq.numpy())
    tokens = prompt()
    logits = gguf_model(path).forward(tokens, torch.arange(len(tokens)), dense)
    assert (logits - reference(model, tokens)).abs().max() < TOLERANCE


def test_load_model_from_a_folder(tiny_folder: Path) -> None:
    layers: list[tuple[int, int]] = []
    loaded = load_model(tiny_folder, progress=lambda done, total: layers.append((done, total)))
    assert loaded.config.name == "tiny-llama"
    assert loaded.config.eos_ids == (257,)
    assert loaded.config.bytes_per_token(4) == 2 * 2 * 2 * 16 * 4
    assert layers == [(1, 2), (2, 2)]
    ids = loaded.tokenizer.encode("the cat")
    expected = AutoModelForCausalLM.from_pretrained(tiny_folder)
    logits = loaded.model.forward(torch.tensor(ids), torch.arange(len(ids)), dense)
    assert (logits - reference(expected, torch.tensor(ids))).abs().max() < TOLERANCE
