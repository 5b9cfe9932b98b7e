"""The engine on a GPU, through the Triton kernels, writes what it writes on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvscope.engine.engine import Engine, EngineConfig
from kvscope.engine.model import load_model
from kvscope.engine.scheduler import SchedulerConfig
from kvscope.engine.sequence import SamplingParams
from kvscope.inspector.findings import check
from kvscope.traces import MemoryRecorder, PoolFacts

PROMPTS = [[5, 9, 7, 30, 31, 32, 33, 34, 35, 36, 37], [5, 9, 7, 30, 31, 32, 33, 34, 99], [200, 3], [17] * 41]


def run(folder: Path, device: str, dtype: torch.dtype, **options: Any) -> tuple[dict[tuple[int, int], list[int]], Any]:
    loaded = load_model(folder, device=device, dtype=dtype)
    limits = SchedulerConfig(max_batched_tokens=options.pop("max_batched_tokens", 512))
    config = EngineConfig(**{"num_blocks": 64, "scheduler": limits, "device": device, "dtype": dtype, **options})
    sink = MemoryRecorder(pool=PoolFacts(config.num_blocks, config.block_size))
    engine = Engine(loaded, config, sink=sink)
    for prompt in PROMPTS:
        engine.submit(prompt, SamplingParams(40, temperature=0.7, seed=3, n=3, ignore_eos=True))
    out: dict[tuple[int, int], list[int]] = {}
    for token in engine.run():
        out.setdefault((token.request_id, token.sample), []).append(token.token)
    engine.manager.check_integrity()
    assert check(sink).findings == ()
    return out, engine


@pytest.mark.parametrize(
    "options",
    [{}, {"block_size": 8, "num_blocks": 40}, {"block_size": 32, "max_batched_tokens": 9}, {"num_blocks": 14}],
    ids=str,
)
def test_float32_equals_the_cpu(tiny_folder: Path, options: dict[str, Any]) -> None:
    expected, _ = run(tiny_folder, "cpu", torch.float32)
    out, engine = run(tiny_folder, "cuda", torch.float32, **options)
    assert out == expected
    if options == {"num_blocks": 14}:
        assert engine.scheduler.preemptions > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_runs_and_memory_never_matters(tiny_folder: Path, dtype: torch.dtype) -> None:
    wide, _ = run(tiny_folder, "cuda", dtype)
    again, _ = run(tiny_folder, "cuda", dtype)
    assert wide == again
    assert all(len(tokens) == 40 for tokens in wide.values())


def test_swapping_on_a_gpu_changes_no_token(tiny_folder: Path) -> None:
    """Blocks move to pinned memory and back on a stream of their own; whatever comes after waits for them."""
    plenty, _ = run(tiny_folder, "cuda", torch.float32, block_size=16, num_blocks=64)
    limits = SchedulerConfig(max_batched_tokens=512, preemption="swap")
    swapped, engine = run(
        tiny_folder, "cuda", torch.float32, block_size=16, num_blocks=14, scheduler=limits, host_blocks=64
    )
    assert engine.scheduler.swap_outs == engine.scheduler.preemptions > 0
    assert engine.manager.host_free() == 64
    assert swapped == plenty
