"""Loads a model from what a user names: `smollm2`, a folder, or a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from kvscope.engine.model.config import ModelConfig, config_from_folder, config_from_gguf
from kvscope.engine.model.gguf import GgufFile
from kvscope.engine.model.llama import Llama, build_llama
from kvscope.engine.model.registry import locate
from kvscope.engine.model.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf
from kvscope.engine.model.weights import GgufWeights
from kvscope.errors import ModelError


@dataclass(frozen=True)
class LoadedModel:
    """Everything needed to run a model."""

    config: ModelConfig
    model: Llama
    tokenizer: Tokenizer


def load_model(
    spec: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> LoadedModel:
    """Load config, tokenizer and weights; fetches nothing.

    Args:
        spec: a registered name ("smollm2"), a folder with config.json and safetensors, or a .gguf file.
        dtype: dtype of weights, activations and KV cache.
        device: torch device string.
        progress: called with (layers read, layers) while the weights are read.

    Raises:
        ModelError: the model is not there, damaged, or of a kind that is not supported.
    """
    path = locate(spec)
    if path.is_dir():
        from kvscope.engine.model.safetensors_dir import SafetensorsWeights

        config = config_from_folder(path)
        tokenizer = tokenizer_from_folder(path, config.eos_ids)
        model = build_llama(config, SafetensorsWeights(path), dtype=dtype, device=device, progress=progress)
    else:
        file = GgufFile(path)
        config = config_from_gguf(path.stem, file.fields, file.shapes)
        tokenizer = tokenizer_from_gguf(path.stem, file.fields, config.eos_ids)
        model = build_llama(config, GgufWeights(file, config), dtype=dtype, device=device, progress=progress)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"model {config.name}: its tokenizer has {tokenizer.vocab_size:,} tokens but its embeddings "
            f"{config.vocab_size:,} rows; they are of different models"
        )
    return LoadedModel(config, model, tokenizer)
