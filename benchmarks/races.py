"""What the race explorer needs to find what is planted: `python -m kvscope.benchmarks.races [--json] [--seeds N]`.

Per kind of concurrency fault: schedules and seconds until it is found, medians over seeds, and beside it how many
schedules the right pool, or engine, passed in the same search without a finding (the baseline: it must find nothing).
Then the articles' bug in plain Python, and, with --exhaustive, every schedule of our pool with at most so many
preemptions, 2 threads of 3 operations and 3 of 2. --docs FILE writes the table into a page. Exit code 1 when a planted
fault is missed, takes longer than 30 s, or a right one has a finding.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from kvscope.benchmarks.shown import positive
from kvscope.inspector.races.examples import article
from kvscope.inspector.races.exploration import explore_race
from kvscope.inspector.races.kinds import KINDS, ConcurrencyKind, pool_race, prepared, search

GATE_S = 30.0
TWO = ([("fork", 0, 2), ("append", 0, 7), ("free", 2)], [("append", 1, 8), ("append", 1, 8), ("free", 1)])
THREE = ([("fork", 0, 2), ("free", 2)], [("append", 1, 8), ("free", 1)], [("append", 9, 1), ("append", 9, 2)])
Row = dict[str, Any]


def kind_row(kind: ConcurrencyKind, seeds: int) -> Row:
    """One planted kind, and the same search over what is right."""
    found = [search(kind, seed=seed, seconds=GATE_S, shrink_s=0.01) for seed in range(seeds)]
    wanted = max(20, sum(result.schedules for result in found) // seeds)
    right = search(kind, seed=seeds, seconds=GATE_S, broken=False, schedules=wanted)
    seconds = statistics.median(result.seconds for result in found)
    codes = {r.outcome.failure.code or r.outcome.failure.kind for r in found if r.outcome and r.outcome.failure}
    missed = sum(result.outcome is None for result in found)
    return {
        "name": f"{kind.family} {kind.name}", "title": kind.title, "value": round(seconds, 3), "unit": "s to find",
        "schedules": int(statistics.median(result.schedules for result in found)),
        "most_s": round(max(result.seconds for result in found), 2), "found": seeds - missed, "seeds": seeds,
        "codes": sorted(codes), "baseline": 0, "right_schedules": right.schedules, "ratio": None, "gate": GATE_S,
        "ok": not missed and right.outcome is None and max(r.seconds for r in found) <= GATE_S,
    }  # fmt: skip


def article_row(seeds: int) -> Row:
    """The articles' bug at instructions: seconds to find, switches, and how often its string brings it back."""
    outcomes = [explore_race(article(), level="opcode", seconds=GATE_S, seed=seed) for seed in range(seeds)]
    again = [explore_race(article(), replay=outcomes[0].replay) for _ in range(100)]
    back = sum(o.failure == outcomes[0].failure and not o.notes for o in again)
    seconds = [outcome.to_failure_s for outcome in outcomes]
    return {
        "name": "articles' bug, plain Python", "title": "refcount += 1 and -= 1 without atomicity",
        "value": round(statistics.median(seconds), 3), "unit": "s to find", "most_s": round(max(seconds), 3),
        "schedules": int(statistics.median(o.schedules for o in outcomes)), "found": sum(o.found for o in outcomes),
        "seeds": seeds, "codes": ["violation"], "switches": max(o.switches for o in outcomes), "replayed": back,
        "baseline": None, "ratio": None, "gate": 1.0,
        "ok": all(o.found and o.switches <= 3 for o in outcomes) and back == 100 and max(seconds) <= 1.0,
    }  # fmt: skip


def exhaustive_rows(preemptions: int, seconds: float) -> list[Row]:
    """Every schedule of our pool up to a bound, and the same pool with its lock removed, which has to fail."""
    rows = []
    for name, programs in (("2 threads x 3 operations", TWO), ("3 threads x 2 operations", THREE)):
        begun = time.perf_counter()
        race = pool_race(*programs)
        outcome = explore_race(
            race, level="hook", scheduler="exhaustive", preemptions=preemptions, seconds=seconds,
            on_progress=lambda n, s, name=name: print(f"\r  {name}: {n:,} ({s:.0f} s)", end="", file=sys.stderr),
        )  # fmt: skip
        print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
        control = explore_race(
            pool_race(*programs, make=lambda: prepared(lock=False)), level="hook", scheduler="exhaustive", seconds=60
        )
        complete = outcome.explored[0]["complete_to"]
        rows.append({
            "name": f"our pool, {name}", "title": f"every schedule up to {preemptions} preemptions",
            "value": outcome.schedules, "unit": "schedules", "histories": outcome.histories, "complete_to": complete,
            "sequential_orders": outcome.sequential, "seconds": round(time.perf_counter() - begun, 1),
            "without_lock": control.failure.kind if control.failure else None, "control_schedules": control.schedules,
            "baseline": None, "ratio": None, "gate": preemptions,
            "ok": not outcome.found and complete == preemptions and control.found,
        })  # fmt: skip
    return rows


def table(rows: list[Row]) -> str:
    """The rows of kinds as Markdown."""
    head = "| kind | planted | found as | schedules | seconds | most | right one: schedules without a finding |"
    lines = [head, "|" + "---|" * 7]
    for row in rows:
        lines.append(
            f"| {row['name']} | {row['title']} | {', '.join(row['codes'])} | {row['schedules']} | {row['value']:.2f} | "
            f"{row['most_s']:.1f} | {row.get('right_schedules', '')} |"
        )
    return "\n".join(lines)


def write_docs(page: Path, rows: list[Row]) -> None:
    """Put the table between the marks of a page."""
    text = page.read_text()
    marked = re.compile(r"(<!-- table of kinds[^>]*-->\n).*?(<!-- end of table -->)", re.DOTALL)
    page.write_text(marked.sub(lambda m: m.group(1) + table(rows) + "\n" + m.group(2), text))


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when one is not ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kinds", nargs="*", help="only these")
    parser.add_argument("--exhaustive", type=int, default=0, metavar="PREEMPTIONS", help="every schedule up to these")
    parser.add_argument("--seconds", type=positive, default=3600.0, help="limit of each exhaustive run")
    parser.add_argument("--docs", type=Path, help="write the table of kinds into this page")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for kind in KINDS.values():
        if options.kinds is None or kind.name in options.kinds:
            print(f"{kind.family} {kind.name} ...", file=sys.stderr)
            rows.append(kind_row(kind, options.seeds))
    rows.append(article_row(options.seeds))
    if options.docs:
        write_docs(options.docs, rows)
    if options.exhaustive:
        rows += exhaustive_rows(options.exhaustive, options.seconds)
    if options.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            extra = {k: v for k, v in row.items() if k in ("schedules", "found", "seeds", "histories", "complete_to",
                     "right_schedules", "without_lock", "seconds", "most_s", "switches", "replayed")}  # fmt: skip
            words = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in extra.items())
            print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['name']:34} {row['value']} {row['unit']}; {words}")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
