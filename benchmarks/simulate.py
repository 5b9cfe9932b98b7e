"""How fast a simulation is: `python -m kvscope.benchmarks.simulate [--json] [--requests N]`.

The workload has the rate and the mean lengths of the Azure 2023 conversation trace (19,366 requests in 3,501 s, prompts
of 1,155 and outputs of 211 tokens). Requests per second of processor time; the baseline is stepping the engine's own
scheduler and pool through the first hundred of the same requests, in the same process.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from kvscope.inspector.simulate import ALLOCATORS, Cell, Settings, simulate
from kvscope.inspector.workloads import open_workload

SPEC = "gen:requests={},rate=5.53,prompt=ln:1155:0.9,output=ln:211:0.6,seed=1"
GATE = 20.0  # counted / driven, requests per second


def measure(requests: int, driven: int = 100) -> list[dict[str, Any]]:
    """One row per allocator, with arrivals as they come and all at once; the gate is on the paged rows' ratio."""
    spec, rows = SPEC.format(requests), []
    work, some = open_workload(spec), open_workload(spec, limit=driven)
    for at_once in (False, True):
        settings = Settings(58 * 2**30, 131072, 32768, at_once=at_once)
        for allocator in ALLOCATORS:
            cell = Cell(allocator, 16)
            value = simulate(work, cell, settings).requests_per_cpu_s
            paged = allocator == "paged"
            baseline = simulate(some, cell, settings, drive=True).requests_per_cpu_s if paged else None
            ratio = value / baseline if value and baseline else None
            rows.append({
                "name": f"{allocator}, {'all at once' if at_once else 'as they arrive'}", "value": value,
                "unit": "requests/s", "baseline": baseline, "ratio": ratio, "gate": GATE if paged else None,
                "ok": None if ratio is None else ratio >= GATE,
            })  # fmt: skip
    return rows


def main() -> int:
    """Print the rows; exit code 1 when a gate is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print {'rows': [...]}")
    parser.add_argument("--requests", type=int, default=10_000)
    options = parser.parse_args()
    rows = measure(options.requests)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            ratio = f"{row['ratio']:8.0f} x" if row["ratio"] else ""
            gate = "" if row["gate"] is None else f"  gate {row['gate']:g} x  {'ok' if row['ok'] else 'MISSED'}"
            print(f"{row['name']:28} {row['value']:10,.0f} {row['unit']}{ratio}{gate}")
    return 0 if all(row["ok"] is not False for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
