"""Every planted fault against the fuzzing suite: which part of it finds the fault, after how much, in how many seconds.

`kvscope bench fuzz_faults`, or `python -m kvscope.benchmarks.fuzz_faults [--seeds 10] [--limit 30] [--faults A,B]
[--json] [--markdown FILE]`. The parts: `machine` drives the allocator from outside (examples are programs), `device`
puts a device behind it that runs its steps late (examples are runs of 60 operations), `soak` compares it with a
reference after each operation, windows, leases, transfers, swaps and a pool that changes its size included (examples
are operations), and `ledger` gives the trace of such runs as the device's to the sanitizer, for what is wrong with the
story alone. A fault that shows from outside is left to the machine; for the others the part is taken that is quickest
for the first seed, and the ledger where no other finds it. Seconds are those of one core. A name in place of a code is
the exception with which the manager's own checks stopped it.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvscope.benchmarks.shown import positive
from kvscope.engine.block_manager import BlockManager
from kvscope.errors import UsageError
from kvscope.inspector.faults import FAULTS, Fault
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.fuzz.hunt import hunt
from kvscope.inspector.fuzz.machine import Tally, TimeUp
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.soak import Soak
from kvscope.traces.memory import MemoryRecorder

Made = type[BlockManager]
GEOMETRIES = ((24, 4), (8, 2), (40, 1), (12, 3))  # of the soak


class Over(KeyboardInterrupt):
    """The time for one try is over."""


@dataclass(frozen=True, slots=True)
class Try:
    """One try: whether it was found, as what, after how many examples and CPU seconds."""

    found: bool
    code: str
    examples: int
    seconds: float


@dataclass(slots=True)
class Row:
    """A fault, the part of the suite that is quickest, and its tries, one per seed."""

    fault: Fault
    part: str
    tries: list[Try]

    @property
    def found(self) -> bool:
        """Whether every seed found it."""
        return all(one.found for one in self.tries)

    def to_json(self) -> dict[str, Any]:
        """Plain values; medians are null where not every seed found it."""
        middle = [float(median(getattr(t, name) for t in self.tries)) for name in ("examples", "seconds")]
        return {
            "name": self.fault.name, "kind": self.fault.kind, "part": self.part, "found": self.found,
            "codes": sorted({t.code for t in self.tries if t.found}), "examples": middle[0] if self.found else None,
            "seconds": round(middle[1], 3) if self.found else None,
            "slowest_s": round(max(t.seconds for t in self.tries), 3), "tries": [asdict(t) for t in self.tries],
        }  # fmt: skip


def machine(made: Made, seed: int, count: Callable[[int], None]) -> str | None:
    """The state machine, from outside."""

    class Counting(Tally):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "examples":
                count(value)

    def factory(blocks: int, slots: int) -> EngineAllocator:
        return EngineAllocator(blocks, slots, manager=made)

    try:
        failure = hunt(factory, examples=10**9, seed_value=1000 * seed, shrink_seconds=0, tally=Counting())
    except UsageError:  # the first calls on a new allocator fail
        return "crash"
    return failure.code if failure else None


def device(made: Made, seed: int, count: Callable[[int], None]) -> str | None:
    """Runs of operations in front of a device that is late."""
    for number in range(10**9):
        rng = random.Random(f"{seed}:{number}")
        operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
        count(number + 1)
        blocks, slots = rng.randint(2, 6), rng.randint(1, 4)
        code = _code(DeviceRun(blocks, slots, manager=made).play, operations)
        if code is not None:
            return code
    return None


def ledger(made: Made, seed: int, count: Callable[[int], None]) -> str | None:
    """The runs of `device`, unchecked: what they wrote down goes to the sanitizer."""
    for number in range(10**9):
        rng = random.Random(f"{seed}:{number}")
        operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
        count(number + 1)
        blocks, slots = rng.randint(2, 6), rng.randint(1, 4)
        sink = MemoryRecorder(num_blocks=blocks, block_size=slots)
        code = _code(DeviceRun(blocks, slots, manager=made, sink=sink, checked=False).play, operations)
        findings = check(sink).findings
        if findings or code is not None:
            return findings[0].code if findings else code
    return None


def soak(made: Made, seed: int, count: Callable[[int], None]) -> str | None:
    """Mixed operations beside the reference, each run drained at its end."""
    done = 0
    for number in range(10**9):
        blocks, slots = GEOMETRIES[number % len(GEOMETRIES)]
        run = Soak(seed * 1000 + number, num_blocks=blocks, block_size=slots, manager=made)

        def play() -> None:
            run.run(2000)  # noqa: B023
            run.finish()  # noqa: B023

        code = _code(play)
        done += sum(run.done.values())
        count(done)
        if code is not None:
            return code
    return None


PARTS = {"machine": machine, "device": device, "soak": soak, "ledger": ledger}


def _code(call: Callable[..., object], *args: object) -> str | None:
    try:
        call(*args)
    except Violation as violation:
        return violation.code
    except Exception as error:  # noqa: BLE001 - the manager's own checks, or a broken one trips over its state
        return type(error).__name__
    return None


def attempt(part: str, made: Made, seed: int, limit: float) -> Try:
    """One part on one fault with one seed, for so many CPU seconds at most."""
    examples = [0]

    def over(*_: object) -> None:
        raise Over

    def count(number: int) -> None:
        examples[0] = number
        if time.process_time() - begun > limit:
            raise TimeUp

    before = signal.signal(signal.SIGPROF, over)
    begun = time.process_time()
    # An interrupt in the middle of Hypothesis is not what it expects: the machine looks at the time itself.
    signal.setitimer(
        signal.ITIMER_PROF, limit * (3 if part == "machine" else 1) + 1, 0.5
    )  # again: a broken manager may swallow it
    try:
        code = PARTS[part](made, seed, count)
    except (Over, TimeUp):
        code = None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return Try(code is not None, code or "", examples[0], time.process_time() - begun)


def measure(fault: Fault, seeds: int, limit: float) -> Row:
    """The machine where the fault shows from outside, else the quickest part for the first seed; then it for all."""
    made = fault.manager()
    first: dict[str, Try] = {}
    for part in ("machine",) if fault.fuzz_codes else ("soak", "device"):
        quickest = min((t.seconds for t in first.values() if t.found), default=limit)
        first[part] = attempt(part, made, 0, quickest)
    if not any(t.found for t in first.values()):
        first["ledger"] = attempt("ledger", made, 0, limit)
    part = min(first, key=lambda name: (not first[name].found, first[name].seconds))
    tries = [first[part]]
    if first[part].found:
        tries += [attempt(part, made, seed, limit) for seed in range(1, seeds)]
    return Row(fault, part, tries)


def page(rows: list[Row], seeds: int, limit: float) -> str:
    """The table as a Markdown page."""
    found = sum(row.found for row in rows)
    lines = [
        "# Planted faults against the fuzzing suite",
        "",
        f"Made by `kvscope bench fuzz_faults --markdown FILE`: {found} of {len(rows)} faults were found with every one",
        f"of {seeds} seeds within {limit:g} CPU seconds. Medians; `machine` counts programs, `device` runs of 60",
        "operations, `soak` single operations, `ledger` runs whose trace the sanitizer reads. A name in place",
        "of a code is the exception of the manager's own checks.",
        "What the sanitizer says of the same faults is another table: `kvscope faults run`.",
        "",
        "| fault | kind | part | found as | examples | seconds | slowest |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        told = row.to_json()
        middle = (
            [f"{told['examples']:,.0f}", f"{told['seconds']:.2f}", f"{told['slowest_s']:.1f}"]
            if row.found
            else [f"found by {sum(t.found for t in row.tries)} of {len(row.tries)}", "", ""]
        )
        lines.append(f"| {row.fault.name} | {row.fault.kind} | {row.part} | {' '.join(told['codes'])} | "
                     + " | ".join(middle) + " |")  # fmt: skip
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Print a row per fault; exit code 1 when one was not found."""
    parser = argparse.ArgumentParser(prog="kvscope bench fuzz_faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=positive, default=30.0)
    parser.add_argument("--faults", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    names = [name for name in options.faults.split(",") if name] or list(FAULTS)
    if unknown := [name for name in names if name not in FAULTS]:
        parser.error(f"no such fault: {', '.join(unknown)}")
    rows = []
    for name in names:
        rows.append(measure(FAULTS[name], options.seeds, options.limit))
        told = rows[-1].to_json()
        words = f"{told['part']:8} {' '.join(told['codes']) or 'NOT FOUND':16} {told['examples']} {told['seconds']}"
        print(f"{name:24} {words}", file=sys.stderr, flush=True)
    if options.markdown:
        options.markdown.write_text(page(rows, options.seeds, options.limit), encoding="utf-8")
    if options.json:
        made = [
            {"name": row.fault.name, "value": row.to_json()["seconds"], "unit": "s", "baseline": None, "ratio": None,
             "gate": options.limit, "ok": row.found, "detail": row.to_json()}
            for row in rows
        ]  # fmt: skip
        print(json.dumps({"rows": made}))
    else:
        print(page(rows, options.seeds, options.limit))
    return 0 if all(row.found for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
