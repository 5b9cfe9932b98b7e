"""A decode step of the 8B shape on a GPU, random weights, all layers in one CUDA graph as engines run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvscope.benchmarks.gpu import BLOCK, DIM, HEADS, KV_HEADS, SCALE
from kvscope.kernels import paged_decode, plan_decode

HIDDEN, INNER = HEADS * DIM, 14_336


@dataclass
class DecodeStep:
    """`graph.replay()` is one step; tables [batch, M] and lengths [batch] are read by it and may be overwritten."""

    graph: Any
    tables: Tensor
    lengths: Tensor
    blocks: int


def decode_step(batch: int, layers: int, context: int, steps: int) -> DecodeStep:
    """A step of `batch` sequences of `context` tokens, with room for `steps` more each.

    One layer's weights serve all layers: they are read from memory again each time, being larger than the cache.
    """
    width = -(-(context + steps + 1) // BLOCK)
    blocks = batch * (width + 1)
    half: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    kv = torch.randn(blocks, 2, BLOCK, KV_HEADS, DIM, **half)
    keys, values = kv[:, 0], kv[:, 1]
    qkv = torch.randn(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM, **half) * 0.01
    shapes = ((HIDDEN, HIDDEN), (HIDDEN, 2 * INNER), (INNER, HIDDEN))
    out, up, down = (torch.randn(*shape, **half) * 0.01 for shape in shapes)
    x0 = torch.randn(batch, HIDDEN, **half)
    tables = torch.zeros(batch, width, dtype=torch.int32, device="cuda")
    lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")

    def step() -> Tensor:
        plan, x = plan_decode(lengths, KV_HEADS), x0
        for _ in range(layers):
            q = (x @ qkv)[:, : HEADS * DIM].view(batch, HEADS, DIM)
            attended = paged_decode(q, keys, values, tables, lengths, SCALE, plan=plan)
            x = x + attended.reshape(batch, HIDDEN) @ out
            gate, value = (x @ up).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * value) @ down
        return x

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return DecodeStep(graph, tables, lengths, blocks)
