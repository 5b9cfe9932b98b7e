"""How much KV a model keeps per token: from a name, a folder with config.json, or sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model matters to its cache."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_kv_heads", "head_dim", "max_model_len", "dtype_bytes"):
            value = getattr(self, field)
            if not 1 <= value <= 1 << 24:
                raise UsageError(f"{field} is {value}: must be 1..{1 << 24}")

    @property
    def bytes_per_token(self) -> int:
        """2 * layers * kv_heads * head_dim * dtype_bytes."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype_bytes


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
        from kvscope.engine.model.config import config_from_folder

        config = config_from_folder(folder)
        shape = ModelShape(config.name, config.num_layers, config.num_kv_heads, config.head_dim, config.max_model_len)
    return shape if dtype_bytes is None else replace(shape, dtype_bytes=dtype_bytes)


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
