"""What recording costs a decode run: `kvscope bench overhead [--seconds N] [--gpu] [--rounds N] [--json]`.

On the CPU two engines decode the same prompts with the real model, one with a recorder and one without, a step each in
turn and in changing order, in processor time; the median of the ratios is shown with the interval that holds it with
95 %. (Rows are sealed between the steps, off the clock: a segment for each step is not what a run writes.) On a busy
machine that interval is wider than what is asked, so the same engines then go on without the model's arithmetic: what
recording adds to such a step, its sealing included, is known to a microsecond, and is set against the real step. With
--gpu it is one layer of the 8B shape, random weights, at batch 64, 32 times a step as a model of 32 layers has it,
with the real block manager, in pairs of runs (wall time). Needs no network.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvscope.benchmarks.shown import median_within, positive, progress_of

CPU_GATE, GPU_GATE = 1.01, 1.005
BLOCK, PROMPT, TOKENS, BARE_STEPS = 16, 32, 97, 12


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


class Lockstep:
    """Two engines that decode the same prompts: one with a recorder, one without."""

    def __init__(self, folder: Path, loaded: Any, batch: int) -> None:
        from kvscope.engine.engine import Engine, EngineConfig
        from kvscope.engine.sequence import SamplingParams
        from kvscope.traces import PoolFacts, Recorder

        blocks = (PROMPT + TOKENS) // BLOCK * batch + 2 * batch
        facts = PoolFacts(blocks, BLOCK, BLOCK * loaded.config.bytes_per_token(4))
        self.sink = Recorder(folder / f"batch-{batch}.kvtrace", pool=facts)
        config = EngineConfig(num_blocks=blocks, block_size=BLOCK)
        self.engines = {True: Engine(loaded, config, sink=self.sink), False: Engine(loaded, config)}
        self._submit = lambda engine, prompt: engine.submit(prompt, SamplingParams(TOKENS, ignore_eos=True))
        self.batch = batch

    def again(self) -> None:
        """The same prompts for both, and their first step."""
        for engine in self.engines.values():
            for row in range(self.batch):
                self._submit(engine, [(31 * i + 7 * row) % 40_000 + 100 for i in range(PROMPT)])
            engine.step()

    def without_model(self) -> None:
        """From now on a step is all but the model's arithmetic."""
        import torch

        for engine in self.engines.values():
            logits = torch.zeros(self.batch, engine.loaded.config.vocab_size)
            engine.runner.run = lambda plan, sampled, logits=logits: logits[: len(sampled)]  # type: ignore[method-assign]

    def taken(self, traced: bool, steps: int, *, sealing: bool) -> float:
        """Processor time of some steps; of the recording engine with all sealing that they bring, if asked for."""
        engine = self.engines[traced]
        start = time.process_time()
        for _ in range(steps):
            engine.step()
        if traced and sealing:
            self.sink.seal()
        spent = time.process_time() - start
        self.sink.seal()
        return spent

    def pieces(
        self, seconds: float, steps: int, progress: Callable[[int], None], *, sealing: bool
    ) -> Iterator[tuple[float, float]]:
        """Seconds of a step (with, without a recorder), in the order A B B A, for so long; one at least."""
        start = time.monotonic()
        while True:
            self.again()
            for number in range((TOKENS - 1) // (2 * steps)):
                first = bool(number % 2)
                times = [self.taken(turn, steps, sealing=sealing) for turn in (first, not first, not first, first)]
                ours, other = times[0] + times[3], times[1] + times[2]
                yield tuple(value / 2 / steps for value in ((ours, other) if first else (other, ours)))  # type: ignore[misc]
                progress(min(int(time.monotonic() - start), int(seconds)))
                if time.monotonic() - start >= seconds:
                    break
            for engine in self.engines.values():
                for request in engine.live():
                    engine.abort(request.request_id)
            if time.monotonic() - start >= seconds:
                return


def cpu_rows(folder: Path, seconds: float) -> list[dict[str, Any]]:
    """One figure for each batch size."""
    import torch

    from kvscope.engine.model import load_model

    torch.set_num_threads(1)  # threads that spin for one another would be most of what is measured
    loaded = load_model("smollm2")
    return [row for batch in (1, 8) for row in batch_rows(folder, loaded, batch, seconds / 2)]


def batch_rows(folder: Path, loaded: Any, batch: int, seconds: float) -> list[dict[str, Any]]:
    """The figures for one batch size: the real step with and without recording, and recording alone."""
    progress = progress_of(f"batch {batch}, seconds", int(0.8 * seconds)) if sys.stderr.isatty() else lambda _: None
    pair = Lockstep(folder, loaded, batch)
    real = list(pair.pieces(0.8 * seconds, 1, progress, sealing=False))
    pair.without_model()
    bare = list(pair.pieces(0.2 * seconds, BARE_STEPS, lambda _: None, sealing=True))
    pair.sink.close()
    ratios = [with_it / without for with_it, without in real]
    ratio, low, high = median_within(ratios)
    with_it, without = (statistics.median(piece[i] for piece in real) for i in (0, 1))
    extra = statistics.median(with_it - without for with_it, without in bare)
    alone = extra / min(without for _, without in real)  # against the fastest step: what is left is rather too much
    tells = len(ratios) >= 30 and high - low < CPU_GATE - 1  # on a busy machine only the second row is judged
    return [
        {"name": f"real model, batch {batch}, recording", "value": round(with_it * 1e3, 4), "unit": "ms/step",
         "baseline": round(without * 1e3, 4), "ratio": round(ratio, 5), "gate": CPU_GATE if tells else None,
         "ok": ratio <= CPU_GATE if tells else None, "low": round(low, 5), "high": round(high, 5),
         "pairs": len(ratios)},
        {"name": f"real model, batch {batch}, recording alone", "value": round(extra * 1e3, 5), "unit": "ms/step",
         "baseline": round(without * 1e3, 4), "ratio": round(1 + alone, 5), "gate": CPU_GATE,
         "ok": 1 + alone <= CPU_GATE},
    ]  # fmt: skip


def gpu_body(folder: Path, batch: int, steps: int, layers: int, context: int) -> Callable[[bool], float]:
    """Wall time of a decode step: blocks by the real block manager, then the kernels of all layers, in one stream."""
    import torch

    from kvscope.benchmarks.gpu_step import BLOCK as PAGE
    from kvscope.benchmarks.gpu_step import decode_step
    from kvscope.engine.block_manager import BlockManager
    from kvscope.engine.steps import Scheduled
    from kvscope.traces import PoolFacts, Recorder

    made = decode_step(batch, layers, context, steps)
    blocks, tables, on_card = made.blocks, made.tables, made.lengths

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
        everyone, ones = list(range(batch)), [1] * batch
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(steps):
            rows = manager.append_many(everyone, ones)
            manager.begin_step(rows)
            known = manager.inputs_of(rows)
            assert known is not None
            tables[:, : known[1].shape[1]].copy_(torch.from_numpy(known[1]))
            on_card.fill_(context + number + 1)
            made.graph.replay()
            torch.cuda.synchronize()
            manager.end_step()
        taken = time.perf_counter() - start
        if sink is not None:
            sink.close()
        return taken / steps

    return body


def run(gpu: bool, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """One row for each load."""
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as name:
        folder = Path(name)
        if not gpu:
            return cpu_rows(folder, seconds)
        ratio, without, with_it = pairs(gpu_body(folder, 64, 64, 32, 1024), rounds)
        return [
            {"name": "8B shape, 32 layers, batch 64 x 1k, recording", "value": round(with_it * 1e3, 4),
             "unit": "ms/step", "baseline": round(without * 1e3, 4), "ratio": round(ratio, 5), "gate": GPU_GATE,
             "ok": ratio <= GPU_GATE}
        ]  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--gpu", action="store_true", help="a decode step of the 8B shape on the GPU")
    parser.add_argument("--seconds", type=positive, default=90.0, help="how long the CPU decodes in all (default 90)")
    parser.add_argument("--rounds", type=int, default=15, help="with --gpu: pairs of runs (default 15)")
    options = parser.parse_args(arguments)
    rows = run(options.gpu, options.rounds, options.seconds)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for r in rows:
            gate = f"  gate {r['gate']:g}  {'ok' if r['ok'] else 'MISSED'}" if r["gate"] else "  too noisy to judge"
            spread = f" ({r['low']:.4f} .. {r['high']:.4f} of {r['pairs']} pairs)" if "low" in r else ""
            print(f"{r['name']:46} {r['value']:9.3f} {r['unit']}  without {r['baseline']:9.3f}  x {r['ratio']:.4f}"
                  f"{spread}{gate}")  # fmt: skip
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
