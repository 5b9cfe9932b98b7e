"""How much KV a model keeps per token: from a name, a folder with config.json, or sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvscope.errors import ModelError, UsageError

MAX_CONFIG_BYTES = 1 << 22
DTYPE_BYTES = {"fp32": 4, "float32": 4, "fp16": 2, "float16": 2, "bf16": 2, "bfloat16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model matters to its cache.

    Multi-head, grouped-query and multi-query attention differ in `num_kv_heads` alone. With multi-head *latent*
    attention (DeepSeek-V2, 2024) each layer keeps one latent vector and one rotary key per token instead: `latent_dim`
    numbers, 0 for all others. `window`: tokens a sliding-window layer looks back, 0 for no window; `window_layers`
    layers have it.
    """

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    dtype_bytes: int = 2
    latent_dim: int = 0
    window: int = 0
    window_layers: int = 0

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_kv_heads", "head_dim", "max_model_len", "dtype_bytes"):
            value = getattr(self, field)
            if not 1 <= value <= 1 << 24:
                raise UsageError(f"{field} is {value}: must be 1..{1 << 24}")
        for field in ("latent_dim", "window"):
            if not 0 <= getattr(self, field) <= 1 << 24:
                raise UsageError(f"{field} is {getattr(self, field)}: must be 0..{1 << 24}")
        if not 0 <= self.window_layers <= self.num_layers:
            raise UsageError(f"window_layers is {self.window_layers}: must be 0..{self.num_layers}, the layers")

    @property
    def bytes_per_token_layer(self) -> int:
        """2 * kv_heads * head_dim * dtype_bytes, or latent_dim * dtype_bytes."""
        return (self.latent_dim or 2 * self.num_kv_heads * self.head_dim) * self.dtype_bytes

    @property
    def bytes_per_token(self) -> int:
        """2 * layers * kv_heads * head_dim * dtype_bytes (latent attention: layers * latent_dim * dtype_bytes)."""
        return self.num_layers * self.bytes_per_token_layer

    def split(self, ways: int) -> ModelShape:
        """What one of `ways` tensor-parallel ranks keeps: KV heads are divided, and repeated when they are fewer.

        A latent vector belongs to all heads: every rank keeps the whole of it.
        """
        if not 1 <= ways <= 1024:
            raise UsageError(f"tensor parallel is {ways}: must be 1..1024 ranks")
        heads = self.num_kv_heads
        if max(heads, ways) % min(heads, ways):
            raise UsageError(f"{heads} KV heads do not divide over {ways} ranks evenly: take a divisor or a multiple")
        return replace(self, num_kv_heads=max(1, heads // ways))


KNOWN = {
    shape.name: shape
    for shape in (
        ModelShape("smollm2", 30, 3, 64, 8192),
        ModelShape("llama-2-7b", 32, 32, 128, 4096),
        ModelShape("llama-2-13b", 40, 40, 128, 4096),
        ModelShape("llama-3-8b", 32, 8, 128, 8192),
        ModelShape("llama-3-70b", 80, 8, 128, 8192),
        ModelShape("llama-3.1-8b", 32, 8, 128, 131072),
        ModelShape("llama-3.1-70b", 80, 8, 128, 131072),
        ModelShape("mistral-7b", 32, 8, 128, 32768),
        ModelShape("qwen2.5-7b", 28, 4, 128, 32768),
    )
}


def model_shape(model: str, *, dtype_bytes: int | None = None) -> ModelShape:
    """The shape of a named model, or of a folder with `config.json`.

    Raises:
        UsageError: neither a known name nor such a folder. ModelError: its config cannot be read.
    """
    shape = KNOWN.get(model.lower())
    if shape is None:
        folder = Path(model)
        if folder.name == "config.json":
            folder = folder.parent
        if not (folder / "config.json").is_file():
            raise UsageError(f"no model {model!r}: there are {', '.join(KNOWN)}, or a folder with config.json")
        shape = shape_from_config(folder)
    return shape if dtype_bytes is None else replace(shape, dtype_bytes=dtype_bytes)


def shape_from_config(folder: Path) -> ModelShape:
    """The cache's shape from a Hugging Face config.json of any decoder: only its attention sizes are read.

    Raises:
        ModelError: it is no such file, or a size is missing or no positive whole number.
    """
    path = folder / "config.json"
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
        if len(raw) > MAX_CONFIG_BYTES:
            raise ModelError(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes: that is no config.json")
        read = json.loads(raw)
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is not JSON") from None
    if isinstance(read, dict) and isinstance(read.get("text_config"), dict):
        read = read["text_config"]  # a multimodal model: its language half has the cache
    if not isinstance(read, dict):
        raise ModelError(f"{path} holds no JSON object")
    return _shape(folder.resolve().name, read, path)


def _shape(name: str, config: Mapping[str, Any], path: Path) -> ModelShape:
    def size(*keys: str, default: int | None = None) -> int:
        for key in keys:
            value = config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 24:
                raise ModelError(f"{path}: {key} is {value!r:.40}; it must be a whole number from 1 to {1 << 24}")
            return value
        if default is None:
            raise ModelError(f"{path} gives no {' or '.join(keys)}: give --layers, --kv-heads and --head-dim instead")
        return default

    layers = size("num_hidden_layers", "n_layer", "num_layers")
    heads = size("num_attention_heads", "n_head")
    latent = 0
    if config.get("kv_lora_rank") is not None:
        latent = size("kv_lora_rank") + size("qk_rope_head_dim", default=64)
    head_dim = size("head_dim", default=0) or size("hidden_size", "n_embd") // heads
    used = config.get("use_sliding_window", True) is not False
    window = size("sliding_window", default=0) if used else 0
    kinds = config.get("layer_types")
    windowed = layers if window else 0
    if window and isinstance(kinds, list):
        windowed = min(layers, sum(kind == "sliding_attention" for kind in kinds))
    return ModelShape(
        name, layers, size("num_key_value_heads", default=heads), head_dim,
        size("max_position_embeddings", "n_positions", default=131_072), latent_dim=latent,
        window=window, window_layers=windowed,
    )  # fmt: skip


def parse_tokens(name: str, text: str) -> int:
    """Tokens from `2048` or `32k`; `k` is 1024.

    Raises:
        UsageError: it is no such number, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(k?)", text.strip().lower())
    value = float(match[1]) * (1024 if match[2] else 1) if match else 0.0
    if value < 1 or value != int(value) or value > 1 << 40:
        raise UsageError(f"{name} is {text!r}: wanted tokens, such as 2048 or 32k (k is 1024)")
    return int(value)


def parse_dtype(text: str) -> int:
    """Bytes of one number of the cache, from `fp16`, `bf16`, `fp8`, `int8` or `fp32`.

    Raises:
        UsageError: it is none of them.
    """
    try:
        return DTYPE_BYTES[text.strip().lower()]
    except KeyError:
        raise UsageError(f"dtype is {text!r}: choose one of {', '.join(DTYPE_BYTES)}") from None
