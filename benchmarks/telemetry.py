"""What recording and being watched cost a served decode: `kvscope bench telemetry [--rounds N] [--json]`.

The engine loop of the server with the real model, eight requests at once. Three ways in turn, in changing order:
nothing recorded; recorded; recorded, with a Prometheus scrape every second and every request told to OpenTelemetry.
Processor time of the whole process counts, its background threads included; the median of the rounds' ratios.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

GATES = {"recorded": 1.01, "watched": 1.02}
BATCH, PROMPT, BLOCK = 8, 32, 16
SCRAPE_S = 1.0


def body(folder: Path, tokens: int, model: str) -> Callable[[str], float]:
    """Processor seconds per token of one run: "off", "recorded" or "watched"."""
    import torch

    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.model import load_model
    from kvscope.engine.sequence import SamplingParams
    from kvscope.engine.server.loop import EngineLoop
    from kvscope.engine.sizing import fastest_threads
    from kvscope.inspector.telemetry.cost import RecordingCost
    from kvscope.inspector.telemetry.watch import Watch
    from kvscope.traces import PoolFacts, Recorder

    torch.set_num_threads(fastest_threads())
    loaded = load_model(model)
    blocks = 16 * BATCH
    vocab = loaded.config.vocab_size

    async def ask(loop: EngineLoop) -> int:
        async def one(row: int) -> int:
            prompt = [(31 * i + 7 * row) % (vocab - 200) + 100 for i in range(PROMPT)]
            stream = await loop.submit(prompt, SamplingParams(tokens, ignore_eos=True))
            count = 0
            async for items in stream:
                count += len(items)
            loop.release(stream)
            return count

        return sum(await asyncio.gather(*(one(row) for row in range(BATCH))))

    def run(way: str) -> float:
        facts = PoolFacts(blocks, BLOCK, BLOCK * loaded.config.bytes_per_token(4))
        path = folder / "run.kvtrace"
        sink = None if way == "off" else Recorder(path, pool=facts, overwrite=True)
        engine = Engine(loaded, EngineConfig(num_blocks=blocks, block_size=BLOCK), sink=sink)
        cost = None if sink is None else RecordingCost(sink)
        loop = EngineLoop(engine, before_step=None if cost is None else cost.before_step,
                          on_step=None if cost is None else cost.after_step).start()  # fmt: skip
        end = _watched(Watch(loop, path, model="m", cost=cost)) if way == "watched" else None
        began = time.process_time()
        count = asyncio.run(ask(loop))
        taken = time.process_time() - began
        if end is not None:
            end()
        loop.stop(0)
        if sink is not None:
            sink.close()
        return taken / count

    return run


def _watched(watch: Any) -> Callable[[], None]:
    """Scrapes and spans, until what is returned is called."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from prometheus_client import CollectorRegistry, generate_latest

    from kvscope.inspector.telemetry.otel import Telemetry
    from kvscope.inspector.telemetry.prometheus import KVCollector

    traces = TracerProvider()
    traces.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    telemetry = Telemetry(watch, traces=traces, metrics=MeterProvider([InMemoryMetricReader()])).start()
    registry, over = CollectorRegistry(auto_describe=False), threading.Event()
    registry.register(KVCollector(watch))

    def scrape() -> None:
        while not over.wait(SCRAPE_S):
            generate_latest(registry)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()
        telemetry.close()

    return end


def run(rounds: int, tokens: int, model: str) -> list[dict[str, Any]]:
    """One row for each way beside the unrecorded one."""
    ways = ("off", "recorded", "watched")
    times: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as name:
        measure = body(Path(name), tokens, model)
        for way in ways:
            measure(way)
        for number in range(rounds):
            order = [*ways[number % 3 :], *ways[: number % 3]]
            for way in order:
                times[way].append(measure(way))
            if sys.stderr.isatty():
                print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr)
    rows = []
    for way, gate in GATES.items():
        ratio = statistics.median(mine / off for mine, off in zip(times[way], times["off"], strict=True))
        rows.append({
            "name": f"served decode, batch {BATCH}, {way}", "value": round(statistics.median(times[way]) * 1e3, 4),
            "unit": "ms/token", "baseline": round(statistics.median(times["off"]) * 1e3, 4), "ratio": round(ratio, 4),
            "gate": gate, "ok": ratio <= gate,
        })  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(prog="kvscope bench telemetry", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per request")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not 1 <= options.tokens <= 200:
        parser.error("--rounds is 1 or more, --tokens 1..200")
    rows = run(options.rounds, options.tokens, options.model)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for r in rows:
            print(f"{r['name']:36} {r['value']:9.3f} {r['unit']}  off {r['baseline']:9.3f}  x {r['ratio']:.4f}"
                  f"  gate {r['gate']:g}  {'ok' if r['ok'] else 'MISSED'}")  # fmt: skip
    return 1 if any(r["ok"] is False for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
