"""What layer 2 costs on the CPU: `python -m kvscope.benchmarks.provenance [--json] [--rounds N]`.

Decode steps of the embedded model, with and without shadow words, alternating step by step in two engines with the same
requests; processor time of the process, the median of all steps of a kind. Beside it the same for a step of many
sequences without a model, where the check alone is timed: words written, extended and compared for 64 sequences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from kvscope.benchmarks.sanitizer import row
from kvscope.inspector.shadow_words import Expected, Reading, SlotWords

GATE = 0.05  # of a step's processor time
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


def main(arguments: list[str] | None = None) -> int:
    """Print both; exit code 1 when the gate is missed."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.provenance", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: must be 1 or more")
    rows = [alone(), with_model(options.rounds)]
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for found in rows:
            base = f", without it {found['baseline']} ms: {100 * found['share']:.1f} % more" if "share" in found else ""
            print(f"{found['name']}: {found['value']} {found['unit']}{base}")
    return 0 if all(found["ok"] in (None, True) for found in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
