"""What a model is, in numbers: read from a GGUF header or a Hugging Face config.json, without torch.

Only the Llama family is run. What would be computed wrongly is refused here, before any weight is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvscope.engine.model.text import read_json, short
from kvscope.errors import ModelError

ARCHITECTURES = ("llama", "mistral", "qwen2")
_MISTRAL_DEFAULT_WINDOW = 4096  # what transformers takes when a mistral config.json does not say


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies differ from theta ** (-2i / head_dim).

    kind "linear": all divided by `factor`. kind "llama3": by wavelength, as Llama 3.1 does. kind "factors": each
    divided by its own number, which the weights bring along.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and constants of one Llama-family model; checked when made.

    Raises:
        ModelError: a size is not positive or the sizes do not fit each other.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rope_scaling: RopeScaling | None
    rms_eps: float
    max_model_len: int
    tie_embeddings: bool
    eos_ids: tuple[int, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    architecture: str = "llama"
    window: int = 0  # positions that a query attends to, its own included, in every layer; 0: all before it

    def __post_init__(self) -> None:
        for field in _SIZES:
            if getattr(self, field) < 1:
                raise ModelError(f"model {self.name}: {field} is {getattr(self, field)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"model {self.name}: {self.num_heads} attention heads cannot share {self.num_kv_heads} key-value heads "
                "evenly; the config is corrupt"
            )
        if self.head_dim % 2:
            raise ModelError(f"model {self.name}: head_dim is {self.head_dim}; rotary embedding needs an even number")
        scaling = self.rope_scaling or RopeScaling("none")
        for field, value in (("rms_eps", self.rms_eps), ("rope_theta", self.rope_theta), ("factor", scaling.factor)):
            if not 0 < value < math.inf:
                raise ModelError(f"model {self.name}: {field} is {value}; it must be a positive number")
        if not (scaling.low_freq_factor < scaling.high_freq_factor and scaling.original_max_len > 0):
            raise ModelError(f"model {self.name}: its rope scaling {scaling} is contradictory; the config is corrupt")

    def bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of KV cache that one token takes over all layers, keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype_bytes


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_model_len",
)


def check_architecture(name: str, architecture: object) -> str:
    """Return `architecture` if its models can be run.

    Raises:
        ModelError: it is another one.
    """
    if architecture is None:
        raise ModelError(f"model {name}: its file names no architecture; it is damaged, or no language model")
    if architecture not in ARCHITECTURES:
        raise ModelError(
            f"model {name}: architecture {short(architecture)} is not supported; "
            f"Llama-family ({', '.join(ARCHITECTURES)}) only"
        )
    return str(architecture)


class _Facts:
    """Typed access to a config's values, with errors that name the key."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.values = values

    def get(self, key: str, kind: type[int] | type[float], default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"model {self.name}: its config has no '{key}'; the file is incomplete")
        if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
            raise ModelError(f"model {self.name}: '{key}' is {short(value)}; expected one number")
        return kind(value)

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.get(key, int, default))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self.get(key, float, default))

    def refuse(self, what: str) -> ModelError:
        return ModelError(f"model {self.name}: {what} is not supported; use a plain dense Llama-family model")


def config_from_gguf(name: str, fields: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Make the config of a GGUF file.

    Args:
        name: what to call the model.
        fields: the key-value part of the header.
        tensors: shape of each tensor, by its GGUF name, outermost dimension first.

    Raises:
        ModelError: another architecture, a feature that would be computed wrongly, or a missing value.
    """
    arch = check_architecture(name, fields.get("general.architecture"))
    facts = _Facts(name, {k.removeprefix(arch + "."): v for k, v in fields.items() if k.startswith(arch + ".")})
    if "token_embd.weight" not in tensors or len(tensors["token_embd.weight"]) != 2:
        raise ModelError(f"model {name}: tensor token_embd.weight is missing or not a matrix; the file is incomplete")
    if facts.integer("expert_count", 0) > 0:
        raise facts.refuse("a mixture of experts")
    hidden, heads = facts.integer("embedding_length"), max(facts.integer("attention.head_count"), 1)
    head_dim = facts.integer("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if facts.integer(key, head_dim) != head_dim:
            raise facts.refuse(f"{key} {facts.integer(key)} beside a head of {head_dim}")
    max_len = facts.integer("context_length")
    _check_window(facts, facts.integer("attention.sliding_window", max_len), max_len)
    ids = ("eos", "eot", "eom")
    return ModelConfig(
        name=name,
        vocab_size=tensors["token_embd.weight"][0],
        hidden_size=hidden,
        intermediate_size=facts.integer("feed_forward_length"),
        num_layers=facts.integer("block_count"),
        num_heads=heads,
        num_kv_heads=facts.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        rope_theta=facts.number("rope.freq_base", 10000.0),
        rope_scaling=_gguf_scaling(facts, tensors),
        rms_eps=facts.number("attention.layer_norm_rms_epsilon"),
        max_model_len=max_len,
        tie_embeddings="output.weight" not in tensors,
        eos_ids=_eos(name, [fields.get(f"tokenizer.ggml.{which}_token_id") for which in ids]),
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        architecture=arch,
    )


def _gguf_scaling(facts: _Facts, tensors: Mapping[str, tuple[int, ...]]) -> RopeScaling | None:
    kind = facts.values.get("rope.scaling.type", "none")
    if "rope_freqs.weight" in tensors:
        return RopeScaling("factors")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", factor=facts.number("rope.scaling.factor"))
    raise facts.refuse(f"rope scaling {short(kind)}")


def config_from_folder(folder: Path) -> ModelConfig:
    """Make the config of a Hugging Face folder from its config.json (and generation_config.json, if there).

    Raises:
        ModelError: no such file, not JSON, another architecture, or a feature that would be computed wrongly.
    """
    name = folder.resolve().name
    values = read_json(folder / "config.json")
    arch = check_architecture(name, values.get("model_type"))
    facts = _Facts(name, values)
    if values.get("hidden_act", "silu") not in ("silu", "swish"):
        raise facts.refuse(f"activation {short(values['hidden_act'])}")
    for key, what in (("mlp_bias", "a bias in the MLP"), ("quantization_config", "a quantised checkpoint")):
        if values.get(key):
            raise facts.refuse(what)
    hidden, heads = facts.integer("hidden_size"), max(facts.integer("num_attention_heads"), 1)
    max_len = facts.integer("max_position_embeddings")
    window = _folder_window(facts, arch, max_len)
    theta, scaling = _folder_rope(facts)
    eos = [values.get("eos_token_id")]
    if (folder / "generation_config.json").is_file():
        eos.append(read_json(folder / "generation_config.json").get("eos_token_id"))
    bias = bool(values.get("attention_bias", False))
    return ModelConfig(
        name=name,
        vocab_size=facts.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=facts.integer("intermediate_size"),
        num_layers=facts.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=facts.integer("num_key_value_heads", heads if arch == "llama" else None),
        head_dim=facts.integer("head_dim", hidden // heads),
        rope_theta=theta,
        rope_scaling=scaling,
        rms_eps=facts.number("rms_norm_eps", 1e-6),
        max_model_len=max_len,
        tie_embeddings=bool(values.get("tie_word_embeddings", False)),
        eos_ids=_eos(name, eos),
        qkv_bias=arch == "qwen2" or (arch == "llama" and bias),
        output_bias=arch == "llama" and bias,
        architecture=arch,
        window=window if 0 < window < max_len else 0,
    )


def _folder_window(facts: _Facts, arch: str, max_len: int) -> int:
    """The attention window of every layer; `max_len` where attention is full.

    Raises:
        ModelError: some layers have one and others do not.
    """
    values = facts.values
    kinds = values.get("layer_types")
    sliding = isinstance(kinds, list) and "sliding_attention" in kinds
    if sliding or (arch == "qwen2" and values.get("use_sliding_window")):
        window = facts.integer("sliding_window", _MISTRAL_DEFAULT_WINDOW)
        if not sliding or set(kinds or ()) != {"sliding_attention"}:
            _check_window(facts, window, max_len)
        return window
    if arch == "mistral" and kinds is None:
        if "sliding_window" not in values:
            return _MISTRAL_DEFAULT_WINDOW
        return facts.integer("sliding_window", max_len)
    return max_len


def _check_window(facts: _Facts, window: int, max_len: int) -> None:
    if 0 < window < max_len:
        where = f"a sliding attention window of {window:,} tokens in a context of {max_len:,}"
        raise facts.refuse(f"{where}, in some layers or in a GGUF file,")


def _folder_rope(facts: _Facts) -> tuple[float, RopeScaling | None]:
    """Rope theta and scaling, from either of the two places that config.json files keep them in."""
    rope = facts.values.get("rope_parameters") or facts.values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(f"model {facts.name}: its rope settings are {short(rope)}; expected an object")
    inner = _Facts(facts.name, rope)
    theta = inner.number("rope_theta", facts.number("rope_theta", 10000.0))
    if inner.number("partial_rotary_factor", facts.number("partial_rotary_factor", 1.0)) != 1.0:
        raise facts.refuse("rotary embedding of a part of each head")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, RopeScaling("linear", factor=inner.number("factor"))
    if kind == "llama3":
        return theta, RopeScaling(
            "llama3",
            factor=inner.number("factor"),
            low_freq_factor=inner.number("low_freq_factor"),
            high_freq_factor=inner.number("high_freq_factor"),
            original_max_len=inner.integer("original_max_position_embeddings"),
        )
    raise facts.refuse(f"rope scaling {short(kind)}")


def _eos(name: str, found: Iterable[object]) -> tuple[int, ...]:
    """Flatten end-of-text ids (each None, a number, or a list of numbers), in order and without repeats."""
    ids: dict[int, None] = {}
    for entry in found:
        for value in entry if isinstance(entry, list) else [entry]:
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise ModelError(f"model {name}: end-of-text id {short(value)} is not a number; the config is corrupt")
            ids[value] = None
    return tuple(ids)
