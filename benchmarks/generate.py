"""How fast the engine decodes on the CPU: `python -m kvscope.benchmarks.generate [--json] [--tokens N]`.

SmolLM2-135M in fp32, greedy, beside transformers' `generate` on the same weights in the same process; and the engine
with and without recording. Runs are interleaved; the median of three counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

PROMPT = 64
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per sequence")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    import torch

    from kvscope.benchmarks.peers import transformers_model
    from kvscope.engine.model import load_model, registry
    from kvscope.engine.sizing import fastest_threads

    path = registry.get("smollm2")
    torch.set_num_threads(fastest_threads())
    loaded, peer = load_model("smollm2"), transformers_model(path)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for batch in (1, 8):
            bodies: dict[str, Callable[[], int]] = {
                "transformers": lambda batch=batch: _transformers(peer, batch, arguments.tokens),
                "engine": lambda batch=batch: _engine(loaded, batch, arguments.tokens, None),
                "engine, recording": lambda batch=batch: _engine(loaded, batch, arguments.tokens, Path(folder)),
            }
            rates: dict[str, list[float]] = {name: [] for name in bodies}
            for _ in range(ROUNDS):
                for name, body in bodies.items():
                    start = time.perf_counter()
                    count = body()
                    rates[name].append(count / (time.perf_counter() - start))
            median = {name: statistics.median(values) for name, values in rates.items()}
            rows.append(_row(f"engine, batch {batch}", median["engine"], median["transformers"]))
            rows.append(_row(f"engine recording, batch {batch}", median["engine, recording"], median["engine"]))
    if arguments.json:
        print(json.dumps({"threads": torch.get_num_threads(), "rows": rows}))
        return
    print(f"{torch.get_num_threads()} threads, {PROMPT} prompt + {arguments.tokens} new tokens per sequence")
    for row in rows:
        print(
            f"{row['name']:28} {row['value']:8.1f} {row['unit']}  baseline {row['baseline']:8.1f}  x {row['ratio']:.3f}"
        )


def _row(name: str, value: float, baseline: float) -> dict[str, Any]:
    return {"name": name, "value": round(value, 2), "unit": "tokens/s", "baseline": round(baseline, 2),
            "ratio": round(value / baseline, 4), "gate": None, "ok": True}  # fmt: skip


def _prompts(batch: int) -> list[list[int]]:
    return [[(31 * i + 7 * row) % 40_000 + 100 for i in range(PROMPT)] for row in range(batch)]


def _transformers(model: Any, batch: int, tokens: int) -> int:
    import torch

    ids = torch.tensor(_prompts(batch))
    with torch.no_grad():
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                       do_sample=False, eos_token_id=None, pad_token_id=0)  # fmt: skip
    return batch * tokens


def _engine(loaded: Any, batch: int, tokens: int, folder: Path | None) -> int:
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.sequence import SamplingParams
    from kvscope.traces import PoolFacts, Recorder

    config = EngineConfig(num_blocks=128, block_size=16)
    sink = None
    if folder is not None:
        facts = PoolFacts(128, 16, 16 * loaded.config.bytes_per_token(4))
        sink = Recorder(folder / "run.kvtrace", pool=facts, overwrite=True)
    engine = Engine(loaded, config, sink=sink)
    for prompt in _prompts(batch):
        engine.submit(prompt, SamplingParams(tokens, ignore_eos=True))
    done = sum(1 for _ in engine.run())
    if sink is not None:
        sink.close()
    return done


if __name__ == "__main__":
    main()
