"""What recording costs a decode run: `python -m kvscope.benchmarks.overhead [--gpu] [--rounds N] [--json]`.

Pairs of runs, one with a recorder and one without, in turn and in changing order; the median of the pairs' ratios
counts. On the CPU the real model decodes (processor time); with --gpu it is one layer of the 8B shape, random weights,
at batch 64, 32 times a step as a model of 32 layers has it, with the real block manager (wall time). Needs no network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CPU_GATE, GPU_GATE = 1.01, 1.005
BLOCK = 16


def pairs(body: Callable[[bool], float], rounds: int) -> tuple[float, float, float]:
    """(median ratio, seconds without, seconds with a recorder); the order within a pair changes."""
    body(True)
    body(False)
    ratios: list[float] = []
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        taken = {traced: body(traced) for traced in ((True, False) if number % 2 else (False, True))}
        ratios.append(taken[True] / taken[False])
        for traced, value in taken.items():
            times[traced].append(value)
    return statistics.median(ratios), statistics.median(times[False]), statistics.median(times[True])


def cpu_body(folder: Path, batch: int, tokens: int) -> Callable[[bool], float]:
    """Processor and waiting time of a decode run of the real model, per token."""
    import torch

    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.model import load_model
    from kvscope.engine.sequence import SamplingParams
    from kvscope.engine.sizing import fastest_threads
    from kvscope.traces import PoolFacts, Recorder

    torch.set_num_threads(fastest_threads())
    loaded = load_model("smollm2")
    config = EngineConfig(num_blocks=16 * batch, block_size=BLOCK)

    def body(traced: bool) -> float:
        facts = PoolFacts(16 * batch, BLOCK, BLOCK * loaded.config.bytes_per_token(4))
        sink = Recorder(folder / "run.kvtrace", pool=facts, overwrite=True) if traced else None
        engine = Engine(loaded, config, sink=sink)
        for row in range(batch):
            prompt = [(31 * i + 7 * row) % 40_000 + 100 for i in range(32)]
            engine.submit(prompt, SamplingParams(tokens, ignore_eos=True))
        start = time.process_time()
        count = sum(1 for _ in engine.run())
        taken = time.process_time() - start
        if sink is not None:
            sink.close()
        return taken / count

    return body


def gpu_body(folder: Path, batch: int, steps: int, layers: int, context: int) -> Callable[[bool], float]:
    """Wall time of a decode step: blocks by the real block manager, then the kernels of all layers, in one stream."""
    import torch

    from kvscope.benchmarks.gpu import BLOCK as PAGE
    from kvscope.benchmarks.gpu import DIM, HEADS, KV_HEADS, SCALE
    from kvscope.engine.block_manager import BlockManager
    from kvscope.engine.steps import Scheduled
    from kvscope.kernels import paged_decode, plan_decode
    from kvscope.traces import PoolFacts, Recorder

    hidden, inner = HEADS * DIM, 14_336
    blocks = batch * (-(-(context + steps + 1) // PAGE) + 1)
    half: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    kv = torch.randn(2, blocks, PAGE, KV_HEADS, DIM, **half)
    qkv = torch.randn(hidden, (HEADS + 2 * KV_HEADS) * DIM, **half) * 0.01
    shapes = ((hidden, hidden), (hidden, 2 * inner), (inner, hidden))
    out, up, down = (torch.randn(*shape, **half) * 0.01 for shape in shapes)

    x0 = torch.randn(batch, hidden, **half)
    tables = torch.zeros(batch, -(-(context + steps) // PAGE), dtype=torch.int32, device="cuda")
    on_card = torch.full((batch,), context, dtype=torch.int32, device="cuda")

    def step() -> Any:
        plan, x = plan_decode(on_card, KV_HEADS), x0
        for _ in range(layers):
            q = (x @ qkv)[:, : HEADS * DIM].view(batch, HEADS, DIM)
            attended = paged_decode(q, kv[0], kv[1], tables, on_card, SCALE, plan=plan)
            x = x + attended.reshape(batch, hidden) @ out
            gate, value = (x @ up).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * value) @ down
        return x

    graph = _graph(step)

    def body(traced: bool) -> float:
        sink = Recorder(folder / "run.kvtrace", pool=PoolFacts(blocks, PAGE), overwrite=True) if traced else None
        manager = BlockManager(blocks, PAGE, sink=sink)
        for seq_id in range(batch):
            lo = manager.admit(seq_id, [seq_id, *range(context - 1)])
            manager.write(seq_id, lo, context)
            manager.begin_step([Scheduled(seq_id, lo, context)])
            manager.end_step()
        if sink is not None:
            sink.seal()  # the prompts' rows are not a decode step's cost
        lengths, everyone, ones = [context] * batch, list(range(batch)), [1] * batch
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            manager.append_many(everyone, ones)
            manager.begin_step([Scheduled(seq_id, lengths[seq_id], lengths[seq_id] + 1) for seq_id in everyone])
            lengths = [length + 1 for length in lengths]
            rows = torch.tensor([manager.table(seq_id) for seq_id in everyone], dtype=torch.int32)
            tables[:, : rows.shape[1]].copy_(rows)
            on_card.copy_(torch.tensor(lengths, dtype=torch.int32))
            graph.replay()
            torch.cuda.synchronize()
            manager.end_step()
        taken = time.perf_counter() - start
        if sink is not None:
            sink.close()
        return taken / steps

    return body


def _graph(step: Callable[[], Any]) -> Any:
    """A CUDA graph of one step, as engines run it: what is left on the processor is the accounting."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def run(gpu: bool, rounds: int) -> list[dict[str, Any]]:
    """One row for each load."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as name:
        folder = Path(name)
        if gpu:
            loads = {"8B shape, 32 layers, batch 64 x 1k, recording": gpu_body(folder, 64, 64, 32, 1024)}
        else:
            loads = {f"real model, batch {batch}, recording": cpu_body(folder, batch, 24) for batch in (1, 8)}
        for label, body in loads.items():
            ratio, without, with_it = pairs(body, rounds)
            gate = GPU_GATE if gpu else CPU_GATE
            rows.append(
                {"name": label, "value": round(with_it * 1e3, 4), "unit": "ms/step" if gpu else "ms/token",
                 "baseline": round(without * 1e3, 4), "ratio": round(ratio, 5), "gate": gate, "ok": ratio <= gate}
            )  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--gpu", action="store_true", help="a decode step of the 8B shape on the GPU")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of runs (default 15)")
    options = parser.parse_args(arguments)
    rows = run(options.gpu, options.rounds)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for r in rows:
            print(f"{r['name']:48} {r['value']:10.3f} {r['unit']}  without {r['baseline']:10.3f}  x {r['ratio']:.4f}"
                  f"  gate {r['gate']:g}  {'ok' if r['ok'] else 'MISSED'}")  # fmt: skip
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
