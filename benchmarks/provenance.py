"""What layer 2 costs: `kvscope bench provenance [--gpu] [--json] [--rounds N]`.

Decode steps of the embedded model, with and without shadow words, alternating step by step in two engines with the same
requests; processor time of the process, the median of all steps of a kind. Beside it the same for a step of many
sequences without a model, where the check alone is timed: words written, extended and compared for 64 sequences; and
for each of 256 slots of one sequence the comparison by itself, beside one slot by slot.

With --gpu: the 8B shape's decode step at batch 64, a CUDA graph, with and without the words written and compared on the
device before it, in pairs. Once as an engine runs that queues ahead (wall time of many steps, launches included), and
once for one that waits for every step and so pays for the host's part as well.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvscope.benchmarks.sanitizer import row
from kvscope.inspector.shadow_words import Expected, Reading, SlotWords

GATE = 0.05  # of a step's processor time
GPU_GATE = 0.005  # of a step's time
SLOT_GATE, ONE_GATE, BATCH = 30.0, 100.0, 256  # nanoseconds for each of so many slots, together and one by one
SEQUENCES, LENGTH, SIZE = 8, 160, 16


def with_model(rounds: int) -> dict[str, Any]:
    """Processor time of a decode step with provenance, beside one without."""
    import torch

    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.model import load_model
    from kvscope.engine.sequence import SamplingParams
    from kvscope.inspector.provenance import Provenance

    torch.set_num_threads(1)
    loaded = load_model("smollm2")
    engines = []
    for watched in (False, True):
        engine = Engine(loaded, EngineConfig(num_blocks=256, block_size=SIZE))
        if watched:
            Provenance(engine)
        for i in range(SEQUENCES):
            prompt = [100 + i, *range(200, 200 + LENGTH)]
            engine.submit(prompt, SamplingParams(rounds + 4, ignore_eos=True))
        for _ in range(4):
            engine.step()
        engines.append(engine)
    times: list[list[int]] = [[], []]
    for _ in range(rounds):
        for kind, engine in enumerate(engines):
            start = time.process_time_ns()
            engine.step()
            times[kind].append(time.process_time_ns() - start)
    plain, checked = (statistics.median(found) * 1e-6 for found in times)
    share = statistics.median((b - a) / a for a, b in zip(*times, strict=True))
    name = f"decode step with provenance, {SEQUENCES} sequences of about {LENGTH} tokens"
    return row(name, checked, "ms", plain, gate=GATE, ok=share <= GATE) | {"share": round(share, 4)}


def alone() -> dict[str, Any]:
    """The check of one decode step by itself: 64 sequences of 512 tokens."""
    count, length, blocks = 64, 512, 64 * 33
    words, expected = SlotWords(blocks, SIZE), Expected()
    tables = np.arange(blocks).reshape(count, -1)
    for seq_id in range(count):
        known = expected.of(seq_id, list(range(seq_id, seq_id + length)), length)
        slots = (tables[seq_id][:, None] * SIZE + np.arange(SIZE)).ravel()[:length]
        words.write(slots, known, np.full(length, seq_id), 0)
    ids, best = list(range(count)), float("inf")
    for step in range(1, 8):
        start = time.thread_time_ns()
        expected.continue_many(ids, ids)
        end = length + step
        wanted = [expected.words(seq_id, end) for seq_id in ids]
        slots = tables[:, (end - 1) // SIZE] * SIZE + (end - 1) % SIZE
        words.write(slots, np.array([w[-1] for w in wanted]), np.array(ids), step)
        compared, wrong = words.check([Reading(s, tables[s], 0, end) for s in ids], wanted)
        best = min(best, (time.thread_time_ns() - start) * 1e-6)
        assert compared == count * end
        assert not wrong
    return row(f"the check alone, {count} sequences of {length} tokens", best, "ms")


def per_slot() -> list[dict[str, Any]]:
    """One sequence of 256 tokens, all of them compared; beside it the same, slot by slot in Python."""
    words, expected = SlotWords(64, SIZE), Expected()
    table = np.random.default_rng(0).permutation(64)[: BATCH // SIZE]
    known = expected.of(1, list(range(BATCH)), BATCH)
    slots = (table[:, None] * SIZE + np.arange(SIZE)).ravel()
    words.write(slots, known, np.full(BATCH, 1), 0)
    readings, lists = [Reading(1, table, 0, BATCH)], (words.words.ravel().tolist(), slots.tolist(), known.tolist())

    def loop() -> int:
        memory, places, wanted = lists
        return sum(memory[place] != word for place, word in zip(places, wanted, strict=True))

    best = {"check": float("inf"), "loop": float("inf")}
    for _ in range(50):
        for name, body in (("check", lambda: words.check(readings, [known])), ("loop", loop)):
            start = time.perf_counter_ns()
            for _ in range(20):
                body()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / 20 / BATCH)
    assert words.check(readings, [known]) == (BATCH, [])
    of = f"of {BATCH} slots of one sequence, per slot"
    return [
        row(f"the check {of}", best["check"], "ns", best["loop"], gate=SLOT_GATE, ok=best["check"] <= SLOT_GATE),
        row(f"the same comparison slot by slot in Python, {of}", best["loop"], "ns", gate=ONE_GATE,
            ok=best["loop"] <= ONE_GATE),
    ]  # fmt: skip


def on_gpu(rounds: int, batch: int = 64, context: int = 1024, steps: int = 24) -> list[dict[str, Any]]:
    """Wall time of a decode step of the 8B shape, with provenance beside without."""
    import torch

    from kvscope.benchmarks.gpu_step import BLOCK, decode_step
    from kvscope.engine.steps import Scheduled
    from kvscope.inspector.shadow_device import DeviceWords

    made = decode_step(batch, 32, context, steps)
    width = made.tables.shape[1]
    made.tables.copy_(torch.randperm(batch * width).to(torch.int32).view(batch, width))
    expected = Expected()
    known = [expected.of(i, list(range(i, i + context + steps)), context + steps) for i in range(batch)]
    tables = made.tables.cpu()

    def plan_of(lo: int, hi: int) -> tuple[Any, Any, list[Any]]:
        positions = torch.arange(lo, hi).repeat(batch)
        of_row = torch.arange(batch).repeat_interleave(hi - lo)
        slots = tables[of_row, positions // BLOCK].long() * BLOCK + positions % BLOCK
        rows = [Scheduled(i, lo, hi) for i in range(batch)]
        inputs = SimpleNamespace(
            tables=made.tables, slots=slots.cuda(), positions=positions.cuda(),
            seq_lens=torch.full((batch,), hi, dtype=torch.int32, device="cuda"), decodes=batch if hi == lo + 1 else 0,
        )  # fmt: skip
        return SimpleNamespace(rows=rows), inputs, [word[:hi] for word in known]

    prompts = plan_of(0, context)
    plans = [plan_of(context + i, context + i + 1) for i in range(steps)]

    def body(checked: bool, waits: bool) -> float:
        words = DeviceWords(made.blocks, BLOCK, device="cuda")
        words.step(*prompts, 0, 0)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number, plan in enumerate(plans):
            if checked:
                words.packed()
            made.graph.replay()
            if checked:
                words.step(*plan, number + 1, 0)
            if waits:
                torch.cuda.synchronize()
                words.fetch()
        torch.cuda.synchronize()
        taken = (time.perf_counter() - start) / steps * 1e3
        _, wrong = words.fetch()
        assert not wrong
        return taken

    found = []
    for name, waits in (("queued ahead", False), ("waiting for every step", True)):
        for checked in (True, False):
            body(checked, waits)
        pairs = [[body(checked, waits) for checked in (False, True)] for _ in range(rounds)]
        plain, with_it = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
        share = statistics.median((b - a) / a for a, b in pairs)
        title = f"8B step, 32 layers, batch {batch} x 1k, {name}"
        found.append(row(title, with_it, "ms", plain, gate=GPU_GATE, ok=share <= GPU_GATE) | {"share": round(share, 5)})
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print both; exit code 1 when the gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.provenance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gpu", action="store_true", help="a decode step of the 8B shape on a GPU")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: must be 1 or more")
    rows = on_gpu(options.rounds) if options.gpu else [*per_slot(), alone(), with_model(options.rounds)]
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for found in rows:
            base = ""
            if "share" in found:
                base = f", without it {found['baseline']} ms: {100 * found['share']:.2f} % more"
            elif found["baseline"]:
                base = f", slot by slot in Python {found['baseline']:.2f} ns"
            print(f"{found['name']}: {found['value']} {found['unit']}{base}")
    return 0 if all(found["ok"] in (None, True) for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
