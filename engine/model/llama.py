"""The Llama forward pass over a flat list of tokens; attention and its cache belong to the caller.

Numerics follow transformers' LlamaForCausalLM: norms and rotary angles in fp32, everything else in the weights' dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from kvscope.engine.model.config import ModelConfig
from kvscope.engine.model.weights import WeightSource, check_weights
from kvscope.errors import ModelError

FEW_ROWS = 64  # what `_project` multiplies the other way round


class Attend(Protocol):
    """What a runner gives: store this layer's keys and values, attend, return the heads' outputs."""

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
        """q [T, HQ, D], k and v [T, HK, D] (rotary embedding applied) -> [T, HQ, D]."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; rows of `qkv` are all Q heads, then K, then V; rows of `gate_up` gate, then up."""

    input_norm: Tensor  # [H]
    qkv: Tensor  # [(HQ + 2 HK) D, H]
    qkv_bias: Tensor | None
    output: Tensor  # [H, HQ D]
    output_bias: Tensor | None
    mlp_norm: Tensor  # [H]
    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]


class Llama:
    """A Llama-family decoder whose forward takes tokens of any number of sequences, one after another."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embeddings: Tensor,
        layers: list[Layer],
        final_norm: Tensor,
        lm_head: Tensor,
        inv_freq: Tensor,
    ) -> None:
        self.config = config
        self.embeddings = embeddings  # [V, H]
        self.layers = layers
        self.final_norm = final_norm  # [H]
        self.lm_head = lm_head  # [V, H]; the embeddings themselves where they are tied
        self.inv_freq = inv_freq  # [D / 2] fp32

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights, activations and so of the KV cache."""
        return self.embeddings.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.embeddings.device

    @torch.inference_mode()
    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, rows: Tensor | None = None) -> Tensor:
        """Compute the logits of the chosen rows.

        Args:
            tokens: token ids [T] int64, of all sequences of the step, concatenated.
            positions: position of each token in its sequence [T] int64.
            attend: called once per layer, in order.
            rows: which of the T tokens need logits [R] int64; None means all.

        Returns:
            Logits [R, vocab] in the weights' dtype (an inference tensor: change it in place only in inference mode).
        """
        config = self.config
        q_heads, qk_heads = config.num_heads, config.num_heads + config.num_kv_heads
        cos, sin = self._rotary(positions)
        x = F.embedding(tokens, self.embeddings)
        for index, layer in enumerate(self.layers):
            qkv = _project(_rms_norm(x, layer.input_norm, config.rms_eps), layer.qkv, layer.qkv_bias)
            qkv = qkv.view(x.shape[0], -1, config.head_dim)
            # Q and K heads lie side by side, so one rotation serves both.
            turned = _rotate(qkv[:, :qk_heads], cos, sin)
            attended = attend(index, turned[:, :q_heads], turned[:, q_heads:], qkv[:, qk_heads:])
            x += F.linear(attended.reshape(x.shape[0], -1), layer.output, layer.output_bias)
            gate, up = _gate_and_up(_rms_norm(x, layer.mlp_norm, config.rms_eps), layer.gate_up)
            x += F.linear(F.silu(gate).mul_(up), layer.down)
        if rows is not None:
            x = x.index_select(0, rows)
        return _project(_rms_norm(x, self.final_norm, config.rms_eps), self.lm_head).contiguous()

    def _rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, 1, D], each angle twice because dims (i, i + D/2) turn together."""
        angles = positions.to(torch.float32)[:, None] * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias for weights that have more rows than columns; the result may be a transposed view.

    A few rows in float32 on the CPU are multiplied the other way round: MKL then takes up to half the time.
    """
    if bias is None and 1 < x.shape[0] <= FEW_ROWS and _by_mkl(x):
        return torch.mm(weight, x.t()).t()
    return F.linear(x, weight, bias)


def _gate_and_up(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Both projections [T, I]; many rows in float32 on the CPU are faster in two products than in one twice as wide."""
    if x.shape[0] > FEW_ROWS and _by_mkl(x):
        gate, up = weight.chunk(2)
        return F.linear(x, gate), F.linear(x, up)
    gate, up = _project(x, weight).chunk(2, dim=-1)
    return gate, up


def _by_mkl(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype == torch.float32


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


def rotary_frequencies(config: ModelConfig, factors: Tensor | None = None) -> Tensor:
    """Radians per position of each pair of dims, scaling applied: [head_dim / 2] fp32 on the CPU.

    Args:
        config: theta and scaling.
        factors: divisors [head_dim / 2], for scaling kind "factors".

    Raises:
        ModelError: the factors are of another number.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(torch.float32) / config.head_dim
    inv_freq = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return inv_freq
    if scaling.kind == "factors":
        if factors is None or factors.shape != inv_freq.shape:
            raise ModelError(f"model {config.name}: its rope_freqs are not one for each of {len(inv_freq)} frequencies")
        return inv_freq / factors
    if scaling.kind == "linear":
        return inv_freq / scaling.factor
    # llama3: long waves are stretched by `factor`, short ones kept, those between blended.
    wavelength = 2 * torch.pi / inv_freq
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    blend = ((scaling.original_max_len / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * inv_freq / scaling.factor + blend * inv_freq


def build_llama(
    config: ModelConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype,
    device: str,
    progress: Callable[[int, int], None] | None = None,
) -> Llama:
    """Read the weights tensor by tensor into their final, fused place; no second copy of the model ever exists.

    Args:
        config: what to build.
        source: where the weights are.
        dtype: dtype of weights and activations.
        device: torch device string.
        progress: called with (layers read, layers) after each layer.

    Raises:
        ModelError: tensors are missing, unknown, or of another shape.
    """
    check_weights(config, source)
    shapes = source.shapes

    def fused(*names: str) -> Tensor:
        rows, row = sum(shapes[name][0] for name in names), shapes[names[0]][1:]
        target, start = torch.empty((rows, *row), dtype=dtype, device=device), 0
        for name in names:
            end = start + shapes[name][0]
            target[start:end].copy_(source.read(name))
            start = end
        return target

    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        qkv = ("q_proj", "k_proj", "v_proj")
        layers.append(
            Layer(
                input_norm=fused(prefix + "input_layernorm.weight"),
                qkv=fused(*(f"{attention}{part}.weight" for part in qkv)),
                qkv_bias=fused(*(f"{attention}{part}.bias" for part in qkv)) if config.qkv_bias else None,
                output=fused(attention + "o_proj.weight"),
                output_bias=fused(attention + "o_proj.bias") if config.output_bias else None,
                mlp_norm=fused(prefix + "post_attention_layernorm.weight"),
                gate_up=fused(prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"),
                down=fused(prefix + "mlp.down_proj.weight"),
            )
        )
        if progress is not None:
            progress(index + 1, config.num_layers)
    embeddings = fused("model.embed_tokens.weight")
    return Llama(
        config,
        embeddings=embeddings,
        layers=layers,
        final_norm=fused("model.norm.weight"),
        lm_head=embeddings if config.tie_embeddings else fused("lm_head.weight"),
        inv_freq=rotary_frequencies(config, source.rope_factors()).to(device),
    )
