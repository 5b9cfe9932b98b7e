"""The articles' two headlines on the same requests: `python -m kvscope.benchmarks.articles [--json] [--requests N]`.

An 8B shape with 58 GiB for KV, a limit of 32k and lengths of 6k on average: how many run at once when each reserves the
limit, and when blocks are taken as they are needed (in theory 14 and 77; the article saw 8 and 26). And 450 + 120
tokens under a limit of 2,048: how much of the held memory is used. Accounting only; "at once" is the mean over the time
that steps took. Lengths are log-normal (sigma 0.8), four fifths of them prompt. The second load comes at the rate
that the paged pool serves when all requests are there.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvscope.inspector import plan
from kvscope.inspector.shapes import model_shape
from kvscope.inspector.simulate import Cell, Outcome, Settings, simulate
from kvscope.inspector.workloads import open_workload

GIB = 1 << 30
LLAMA = model_shape("llama-3-8b")
MEMORY, LIMIT, MEAN = 58 * GIB, 32 * 1024, 6 * 1024
LENGTHS = "prompt=ln:4915:0.8,output=ln:1229:0.8,seed=1"
SHORT = "prompt=450,output=120,seed=1"
ALLOCATORS = ("paged", "contiguous", "buddy")


def run(spec: str, allocator: str, memory: int, limit: int, *, at_once: bool) -> Outcome:
    """One allocator on one load, 16 slots per block, up to 1,024 sequences at once."""
    settings = Settings(memory, LLAMA.bytes_per_token, limit, max_seqs=1024, at_once=at_once)
    return simulate(open_workload(spec), Cell(allocator, 16), settings)


def row(name: str, value: float, unit: str, baseline: float | None, gate: float | None = None) -> dict[str, Any]:
    """One measurement; the ratio is value / baseline, the gate its least."""
    ratio = value / baseline if baseline else None
    return {"name": name, "value": value, "unit": unit, "baseline": baseline, "ratio": ratio, "gate": gate,
            "ok": None if gate is None or ratio is None else ratio >= gate}  # fmt: skip


def concurrency(requests: int) -> list[dict[str, Any]]:
    """Sequences at once, mean and most; the baseline of each row is reserving on the same requests."""
    theory = plan.capacity(MEMORY, LLAMA, LIMIT, MEAN)
    rows = [row("6k of 32k, theory: paged, reserving beside it", theory.paged, "sequences", theory.reserved)]
    for at_once in (True, False):
        spec = f"gen:requests={requests},{LENGTHS}"
        if not at_once:
            full = run(spec, "paged", MEMORY, LIMIT, at_once=True)
            spec += f",rate={full.sequences_finished / full.makespan_s:.6f}"
        when = "all there at once" if at_once else "as they arrive"
        base = run(spec, "reserved", MEMORY, LIMIT, at_once=at_once)
        for allocator in ALLOCATORS:
            found = run(spec, allocator, MEMORY, LIMIT, at_once=at_once)
            rows.append(row(f"6k of 32k, {when}: {allocator}, mean", found.concurrency_mean or 0.0, "sequences",
                            base.concurrency_mean, 2.0 if allocator == "paged" else None))  # fmt: skip
            rows.append(row(f"6k of 32k, {when}: {allocator}, most", found.concurrency_peak, "sequences",
                            base.concurrency_peak))  # fmt: skip
    return rows


def use(requests: int) -> list[dict[str, Any]]:
    """Used / held memory of 450 + 120 tokens under a limit of 2,048."""
    spec = f"gen:requests={requests},{SHORT}"
    paged, reserved = (run(spec, name, 8 * GIB, 2048, at_once=True) for name in ("paged", "reserved"))
    return [
        row("450 + 120 of 2,048: used / held over time", paged.utilization or 0.0, "ratio", reserved.utilization, 3.0),
        row("450 + 120 of 2,048: used / held at the end of each", paged.utilization_at_finish or 0.0, "ratio",
            reserved.utilization_at_finish, 3.0),
        row("450 + 120 of 2,048: the same, paged, of what can be used", paged.utilization or 0.0, "ratio", 1.0, 0.95),
        row("450 + 120 of 2,048: at once, mean", paged.concurrency_mean or 0.0, "sequences",
            reserved.concurrency_mean, 2.0),
    ]  # fmt: skip


def main() -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--requests", type=int, default=2_000)
    options = parser.parse_args()
    rows = concurrency(options.requests) + use(options.requests)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        print(f"{'':52} {'value':>9} {'':10} {'reserving':>9}")
        for found in rows:
            base = f"{found['baseline']:9.3g}" if found["baseline"] is not None else " " * 9
            ratio = f"{found['ratio']:6.2f} x" if found["ratio"] else ""
            gate = "" if found["gate"] is None else f"  gate {found['gate']:g} x  {'ok' if found['ok'] else 'MISSED'}"
            print(f"{found['name']:52} {found['value']:9.3g} {found['unit']:10} {base} {ratio}{gate}")
    return 0 if all(found["ok"] is not False for found in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
