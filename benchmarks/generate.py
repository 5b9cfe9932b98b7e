"""How fast the engine decodes on the CPU: `kvscope bench generate [--json] [--tokens N] [--rounds N]`.

SmolLM2-135M in fp32, greedy, beside transformers' `generate` on the same weights in the same process with as many
threads; and the engine with and without recording. What counts is processor time, of all threads: it stays what it is
on a shared machine. The ways run in turn, in changing order, and each of their steps is taken at its fastest, since
whatever else runs can only make it slower. A batch is its prompts' step and all decode steps; the two parts have rows
of their own. Gates: a batch, and its decoding, take no longer than transformers'; recording adds 1 % (what it adds is
measured finer by `kvscope bench overhead`, so that row has no gate here).
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvscope.benchmarks.program import as_program
from kvscope.benchmarks.shown import row, say_now, show

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin for one another are not work

PROMPT, BLOCK = 64, 16
GATE = 1.0
Steps = list[float]  # processor seconds, the prompts' step first


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench generate", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per sequence")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not 2 <= options.tokens <= 1024 or options.rounds < 1 or not 1 <= options.threads <= 256:
        parser.error("--tokens is 2..1024, --rounds 1 or more, --threads 1..256")
    rows = run(options.tokens, options.rounds, options.threads)
    if not options.json:
        print(f"{options.threads} threads, {PROMPT} prompt + {options.tokens} new tokens per sequence, processor time")
    show(rows, as_json=options.json)
    return 1 if any(r["ok"] is False for r in rows) else 0


def run(tokens: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """The rows of batch 1 and batch 8."""
    import torch

    from kvscope.benchmarks.peers import transformers_model
    from kvscope.engine.model import load_model, registry

    torch.set_num_threads(threads)
    say_now("loading smollm2")
    loaded = load_model("smollm2")
    say_now("loading smollm2 into transformers")
    peer = transformers_model(registry.get("smollm2"))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as folder:
        for batch in (1, 8):
            plain, close_plain = _engine(loaded, batch, tokens, None)
            traced, close_traced = _engine(loaded, batch, tokens, Path(folder) / f"{batch}.kvtrace")
            ways = {"transformers": _transformers(peer, batch, tokens), "engine": plain, "recording": traced}
            best = _fastest_steps(ways, rounds, f"batch {batch}, round")
            close_plain()
            close_traced()
            rows += _rows(batch, best)
    return rows


def _fastest_steps(ways: dict[str, Callable[[], Steps]], rounds: int, label: str) -> dict[str, Steps]:
    best: dict[str, Steps] = {}
    names = list(ways)
    for number in range(rounds + 1):  # the first round warms everything up
        for name in names if number % 2 else reversed(names):
            say_now(f"{label} {number} of {rounds}, {name}" if number else f"{label}s: warming up, {name}")
            steps = ways[name]()
            if number:
                best[name] = [min(pair) for pair in zip(steps, best.get(name, steps), strict=True)]
    say_now("")
    return best


def _rows(batch: int, best: dict[str, Steps]) -> list[dict[str, Any]]:
    """Lower is better: a ratio is processor time over the baseline's."""
    ours, theirs, traced = best["engine"], best["transformers"], best["recording"]
    count = len(ours)

    def one(name: str, mine: float, other: float, gate: float | None) -> dict[str, Any]:
        return row(f"{name}, batch {batch}", mine * 1e3, "ms", round(other * 1e3, 4), gate)

    return [
        one(f"engine, {count} tokens each", sum(ours), sum(theirs), GATE),
        one("  its prompts", ours[0], theirs[0], None),
        one("  a decode step", sum(ours[1:]) / (count - 1), sum(theirs[1:]) / (count - 1), GATE),
        one("engine recording, beside engine", sum(traced), sum(ours), None),
    ]


def _prompts(batch: int) -> list[list[int]]:
    return [[(31 * i + 7 * row) % 40_000 + 100 for i in range(PROMPT)] for row in range(batch)]


def _between(times: Steps) -> Steps:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def _transformers(model: Any, batch: int, tokens: int) -> Callable[[], Steps]:
    import torch

    ids = torch.tensor(_prompts(batch))
    going_on = torch.zeros(batch, dtype=torch.bool)

    def body() -> Steps:
        times = [time.process_time()]

        def after_each(ids: Any, scores: Any, **_: Any) -> Any:
            times.append(time.process_time())
            return going_on

        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens,
                           do_sample=False, eos_token_id=None, pad_token_id=0,
                           stopping_criteria=[after_each])  # fmt: skip
        return _between(times)

    return body


def _engine(loaded: Any, batch: int, tokens: int, path: Path | None) -> tuple[Callable[[], Steps], Callable[[], None]]:
    """What runs the prompts once, and what ends the engine, which is started once, as the peer's model is."""
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.sequence import SamplingParams
    from kvscope.traces import PoolFacts, Recorder

    blocks = (-(-(PROMPT + tokens) // BLOCK) + 1) * batch
    config = EngineConfig(num_blocks=blocks, block_size=BLOCK, share_prefixes=False)  # each round computes its prompts
    sink = None
    if path is not None:
        sink = Recorder(path, pool=PoolFacts(blocks, BLOCK, BLOCK * loaded.config.bytes_per_token(4)))
    engine = Engine(loaded, config, sink=sink)

    def body() -> Steps:
        times = [time.process_time()]
        for prompt in _prompts(batch):
            engine.submit(prompt, SamplingParams(tokens, ignore_eos=True))
        while engine.has_work:
            engine.step()
            times.append(time.process_time())
        return _between(times)

    return body, (lambda: None) if sink is None else sink.close


if __name__ == "__main__":
    sys.exit(as_program(main))
