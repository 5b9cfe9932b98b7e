"""What recording and being watched cost a served decode: `kvscope bench telemetry [--rounds N] [--json]`.

The engine loop of the server with the real model, eight requests at once. Three ways in turn, in changing order:
nothing recorded; recorded; recorded, with a Prometheus scrape every second and every request told to OpenTelemetry.
Processor time of the whole process counts, its background threads included; the median of the rounds' ratios is shown
with the interval that holds it with 95 %, and judged only where that is narrow enough to tell.

On a busy machine it is not. So the same is done once more without the model's arithmetic, request after request, with
as many scrapes and looks at the trace as would fall on so many real steps: what recording and telemetry add to such a
step is known to some microseconds, and is set against the real step at its fastest (rows "alone").
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kvscope.benchmarks.program import as_program
from kvscope.benchmarks.shown import median_within, progress_of, say_now

GATES = {"recorded": 1.01, "watched": 1.02}
WAYS = ("off", "recorded", "watched")
BATCH, PROMPT, BLOCK = 8, 32, 16
SCRAPE_S, LOOK_S, EXPORT_S = 1.0, 5.0, 60.0  # between scrapes, looks of the span maker, exports of metrics
WAVES = 6  # of requests in a run without arithmetic


class Decode:
    """Runs of a served decode, each with an engine, a trace and watchers of its own.

    Args:
        folder: where traces go.
        tokens: new tokens per request.
        model: which one.
    """

    def __init__(self, folder: Path, tokens: int, model: str) -> None:
        import torch

        from kvscope.engine.model import load_model
        from kvscope.engine.sizing import fastest_threads

        torch.set_num_threads(fastest_threads())
        self._folder, self._tokens = folder, tokens
        say_now(f"loading {model}")
        self._loaded = load_model(model)

    def real(self, way: str) -> float:
        """Processor seconds of a step, the prompts' share included."""
        with ExitStack() as stack:
            loop, watch = stack.enter_context(self._started(way, arithmetic=True))
            if way == "watched":
                stack.enter_context(_watched_meanwhile(watch))
            began = time.process_time()
            asyncio.run(self._ask(loop))
            taken = time.process_time() - began
        return taken / self._tokens

    def bare(self, way: str, step_s: float) -> float:
        """Processor seconds of a step that computes nothing; step_s is what a real one takes."""
        steps = WAVES * self._tokens
        with self._started(way, arithmetic=False) as (loop, watch):
            watchers = _Watchers(watch) if way == "watched" else None
            began = time.process_time()
            for _ in range(WAVES):
                asyncio.run(self._ask(loop))
            if loop.engine.sink is not None:
                loop.engine.sink.seal()
            if watchers is not None:
                watchers.as_often_as_in(steps * step_s)
            taken = time.process_time() - began
            if watchers is not None:
                watchers.close()
        return taken / steps

    @contextmanager
    def _started(self, way: str, *, arithmetic: bool) -> Iterator[tuple[Any, Any]]:
        """An engine loop, and what watches it; its thread ends with the block, or it would still compute at exit."""
        import torch

        from kvscope.engine.engine import Engine, EngineConfig
        from kvscope.engine.server.loop import EngineLoop
        from kvscope.inspector.telemetry.cost import RecordingCost
        from kvscope.inspector.telemetry.watch import Watch
        from kvscope.traces import PoolFacts, Recorder

        blocks = 16 * BATCH
        path = self._folder / "run.kvtrace"
        facts = PoolFacts(blocks, BLOCK, BLOCK * self._loaded.config.bytes_per_token(4))
        sink = None if way == "off" else Recorder(path, pool=facts, overwrite=True)
        # Each wave computes its prompts, as if they were others.
        engine = Engine(self._loaded, EngineConfig(num_blocks=blocks, block_size=BLOCK, share_prefixes=False),
                        sink=sink)  # fmt: skip
        if not arithmetic:
            logits = torch.zeros(BATCH, self._loaded.config.vocab_size)
            engine.runner.run = lambda plan, sampled: logits[: len(sampled)]  # type: ignore[method-assign]
        cost = None if sink is None else RecordingCost(sink)
        loop = EngineLoop(engine, before_step=None if cost is None else cost.before_step,
                          on_step=None if cost is None else cost.after_step).start()  # fmt: skip
        watch = Watch(loop, path, model="m", cost=cost) if way == "watched" else None
        try:
            yield loop, watch
        finally:
            loop.stop(0)
            if sink is not None:
                sink.close()

    async def _ask(self, loop: Any) -> None:
        from kvscope.engine.sequence import SamplingParams

        vocab = self._loaded.config.vocab_size

        async def one(row: int) -> None:
            prompt = [(31 * i + 7 * row) % (vocab - 200) + 100 for i in range(PROMPT)]
            stream = await loop.submit(prompt, SamplingParams(self._tokens, ignore_eos=True))
            async for _ in stream:
                pass
            loop.release(stream)

        await asyncio.gather(*(one(row) for row in range(BATCH)))


class _Watchers:
    """Prometheus' collector and OpenTelemetry's providers around a watched engine, called by hand."""

    def __init__(self, watch: Any) -> None:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from prometheus_client import CollectorRegistry

        from kvscope.inspector.telemetry.otel import Telemetry
        from kvscope.inspector.telemetry.prometheus import KVCollector

        traces, self._reader = TracerProvider(), InMemoryMetricReader()
        traces.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
        self.telemetry = Telemetry(watch, traces=traces, metrics=MeterProvider([self._reader]))
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(KVCollector(watch))

    def scrape(self) -> None:
        """What Prometheus reads."""
        from prometheus_client import generate_latest

        generate_latest(self._registry)

    def as_often_as_in(self, seconds: float) -> None:
        """Everything that so many seconds of serving bring; at least once each."""
        from kvscope.inspector.telemetry.watch import FRESH_S

        for _ in range(max(1, round(seconds / SCRAPE_S))):
            time.sleep(FRESH_S)  # a younger look would be given out again
            self.scrape()
        for _ in range(max(1, round(seconds / LOOK_S))):
            self.telemetry.poll()
        for _ in range(max(1, round(seconds / EXPORT_S))):
            self._reader.get_metrics_data()

    def close(self) -> None:
        """Tell the rest."""
        self.telemetry.close()


@contextmanager
def _watched_meanwhile(watch: Any) -> Iterator[None]:
    """Scrapes and spans, until the block ends."""
    watchers, over = _Watchers(watch), threading.Event()
    watchers.telemetry.start()

    def scrape() -> None:
        while not over.wait(SCRAPE_S):
            watchers.scrape()

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        watchers.close()


def run(rounds: int, bare_rounds: int, tokens: int, model: str) -> list[dict[str, Any]]:
    """Two rows for each way beside the unrecorded one: with the model, and alone."""
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as name:
        decode = Decode(Path(name), tokens, model)
        real = _in_turn(decode.real, rounds, "round")
        fastest = min(real["off"])
        bare = _in_turn(lambda way: decode.bare(way, fastest), bare_rounds, "without the model, round")
    rows: list[dict[str, Any]] = []
    for way, gate in GATES.items():
        ratio, low, high = median_within([a / b for a, b in zip(real[way], real["off"], strict=True)])
        tells = rounds >= 30 and high - low < gate - 1
        with_it, without = statistics.median(real[way]), statistics.median(real["off"])
        rows.append(_row(way, with_it, without, ratio, gate if tells else None)
                    | {"low": round(low, 4), "high": round(high, 4), "pairs": rounds})  # fmt: skip
        # Whatever else runs can only add, to either: the fastest rounds are nearest to what it costs.
        extra = min(bare[way]) - min(bare["off"])
        rows.append(_row(f"{way}, alone", extra, fastest, 1 + extra / fastest, gate))
    return rows


def _in_turn(measure: Callable[[str], float], rounds: int, label: str) -> dict[str, list[float]]:
    progress = progress_of(label, rounds) if sys.stderr.isatty() else lambda _: None
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for way in WAYS:
        say_now(f"{label}s: warming up, {way}")
        measure(way)
    say_now("")
    for number in range(rounds):
        for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
            times[way].append(measure(way))
        progress(number + 1)
    return times


def _row(name: str, value_s: float, baseline_s: float, ratio: float, gate: float | None) -> dict[str, Any]:
    return {
        "name": f"served decode, batch {BATCH}, {name}", "value": round(value_s * 1e3, 4), "unit": "ms/step",
        "baseline": round(baseline_s * 1e3, 4), "ratio": round(ratio, 4), "gate": gate,
        "ok": None if gate is None else ratio <= gate,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench telemetry", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5, help="with the model; from 30 on they can be judged")
    parser.add_argument("--bare-rounds", type=int, default=12, help="without the model's arithmetic")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per request")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.bare_rounds < 1 or not 1 <= options.tokens <= 200:
        parser.error("--rounds and --bare-rounds are 1 or more, --tokens 1..200")
    rows = run(options.rounds, options.bare_rounds, options.tokens, options.model)
    if options.json:
        print(json.dumps({"rows": rows}))
        return 1 if any(r["ok"] is False for r in rows) else 0
    for r in rows:
        within = f" ({r['low']:.3f}..{r['high']:.3f})" if "low" in r else ""
        judged = "not judged" if r["gate"] is None else f"gate {r['gate']:g}  {'ok' if r['ok'] else 'MISSED'}"
        print(f"{r['name']:40} {r['value']:9.3f} {r['unit']}  off {r['baseline']:9.3f}  x {r['ratio']:.4f}{within}"
              f"  {judged}")  # fmt: skip
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(as_program(main))
