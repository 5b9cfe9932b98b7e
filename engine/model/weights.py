"""One way to ask for weights, whatever file they lie in: Hugging Face names, their shapes, fp tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from kvscope.engine.model.config import ModelConfig
from kvscope.engine.model.gguf import GgufFile
from kvscope.engine.model.text import one_line
from kvscope.errors import ModelError


class WeightSource(Protocol):
    """Tensors under their Hugging Face names (`model.layers.0.self_attn.q_proj.weight`, ...)."""

    @property
    def place(self) -> str:
        """Where the weights lie, for messages."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor there is, with its shape."""

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor as a floating-point CPU tensor."""

    def rope_factors(self) -> torch.Tensor | None:
        """Divisors of the rotary frequencies [head_dim / 2], where the file brings them."""


_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufWeights:
    """The weights of a GGUF file under Hugging Face names, with llama.cpp's reordering of Q and K undone."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._names = {_huggingface_name(name): name for name in file.tensors if name != "rope_freqs.weight"}

    @property
    def place(self) -> str:
        return str(self._file.path)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {ours: self._file.tensors[theirs].shape for ours, theirs in self._names.items()}

    def read(self, name: str) -> torch.Tensor:
        values = self._file.read(self._names[name])
        if self._config.architecture == "llama":
            if ".q_proj." in name:
                values = _unpermute(values, self._config.num_heads)
            elif ".k_proj." in name:
                values = _unpermute(values, self._config.num_kv_heads)
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def rope_factors(self) -> torch.Tensor | None:
        if "rope_freqs.weight" not in self._file.tensors:
            return None
        return torch.from_numpy(self._file.read("rope_freqs.weight"))


def _huggingface_name(name: str) -> str:
    """Translate a GGUF tensor name; an unknown one stays as it is, and is refused as unknown later."""
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _GGUF_LAYER:
        return f"model.layers.{parts[1]}.{_GGUF_LAYER[parts[2]]}.{parts[3]}"
    return name


def _unpermute(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of a llama's Q and K rows: it pairs rotary dims (2i, 2i+1), we pair (i, i + D/2)."""
    rows = values.shape[0]
    split = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of this config has."""
    hidden, q_rows, kv_rows = (
        config.hidden_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for part, rows in (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)):
            shapes[f"{prefix}self_attn.{part}.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{prefix}self_attn.{part}.bias"] = (rows,)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, q_rows)
        if config.output_bias:
            shapes[prefix + "self_attn.o_proj.bias"] = (hidden,)
        shapes[prefix + "mlp.gate_proj.weight"] = (config.intermediate_size, hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (config.intermediate_size, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, config.intermediate_size)
    return shapes


def check_weights(config: ModelConfig, source: WeightSource) -> None:
    """Promise that the source holds exactly what the config asks for, before anything large is read.

    Raises:
        ModelError: a tensor is missing, has another shape, or is one that this model would silently ignore.
    """
    found = source.shapes
    if config.num_layers > len(found):  # before a list of their names is made: a corrupt count may be billions
        raise ModelError(
            f"{source.place}: its config asks for {config.num_layers:,} layers but there are {len(found)} tensors; "
            "the file is incomplete or of another model"
        )
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelError(f"{source.place}: {_say(missing, 'missing')}; the file is incomplete or of another model")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise ModelError(
                f"{source.place}: tensor {name} has shape {tuple(found[name])}, its config asks for {shape}; "
                "config and weights are of different models"
            )
    unknown = [name for name in found if name not in expected and not _ignorable(config, name)]
    if unknown:
        what = f"unknown to a {config.num_layers}-layer {config.architecture}"
        raise ModelError(f"{source.place}: {_say(unknown, what)}; the model has parts that are not supported")


def _ignorable(config: ModelConfig, name: str) -> bool:
    """Buffers that are recomputed, and a copy of the embeddings in a model that ties them."""
    return name.endswith("rotary_emb.inv_freq") or (config.tie_embeddings and name == "lm_head.weight")


def _say(names: list[str], what: str) -> str:
    first = one_line(names[0])
    return f"tensor {first} is {what}" if len(names) == 1 else f"{len(names)} tensors are {what} (first: {first})"
