"""Mutation testing of the pool, the tables, the prefix cache and the sanitizer: who watches the tests.

`python tests/mutants.py [--seconds 840] [--sample N] [--seed 0] [--jobs 1] [--modules pool,prefix] [--report FILE]
[--markdown FILE]`. Mutations are those of Cosmic Ray; each is written into a copy of the rooms and judged by processes
forked from this one, which has the libraries loaded already: first the quick tests of that part, then quick runs of the
engine beside its reference, then the slower tests. Mutants that compile to the same program (annotations, docstrings)
are none. Survivors are listed with what is known of them.

`--plan FILE` writes the sample's mutants and judges none; `--from FILE` judges those, and needs neither Cosmic Ray nor
more than pytest, hypothesis, numpy and pyarrow (torch where a test of the engine does), with PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from mutation.judge import Judge
from mutation.making import Mutant, Place, digest, mutant, places
from mutation.parts import PARTS
from mutation.result import Result


def judged(items: Sequence[Place | Mutant], options: argparse.Namespace, until: float) -> Result:
    """What becomes of these mutants, looked at by so many processes at once until the time is over."""
    result = Result(len(items), options.seed)
    folder = Path(tempfile.mkdtemp(prefix="kvscope-judged-"))
    children = []
    for number in range(options.jobs):
        pid = os.fork()
        if pid == 0:
            try:
                _work(items[number :: options.jobs], folder / str(number), until, -(-options.sample // options.jobs))
            except BaseException:  # noqa: BLE001 - told, and the others go on
                traceback.print_exc()
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            told = json.loads(line)
            if told["mutant"] is None:
                result.same += 1
            else:
                result.note(_mutant(told["mutant"]), told["how"])
    shutil.rmtree(folder)
    return result


def _work(items: Sequence[Place | Mutant], path: Path, until: float, sample: int) -> None:
    judge, seen, done = Judge(), set[str](), 0
    try:
        with path.open("w") as out:
            for item in items:
                if time.monotonic() > until or done >= sample:
                    break
                made = item if isinstance(item, Mutant) else mutant(item, seen)
                how = "" if made is None else judge.kills(made)
                done += made is not None
                out.write(json.dumps({"mutant": made and asdict(made), "how": how}) + "\n")
                out.flush()
    finally:
        judge.close()


def _mutant(told: dict[str, Any]) -> Mutant:
    return Mutant(**{**told, "shown": tuple(told["shown"])})


def _items(options: argparse.Namespace) -> list[Place | Mutant]:
    """Mutants of a plan, or places where one can be made, in a random order."""
    wanted = [name for name in options.modules.split(",") if name]
    if options.planned:
        planned = [_mutant(told) for told in json.loads(options.planned.read_text())]
        mutants = [made for made in planned if made.of == digest(made.module)]
        if len(mutants) < len(planned):
            print(
                f"{len(planned) - len(mutants)} mutants of modules that changed since the plan are left out", flush=True
            )
        return [m for m in mutants if not wanted or m.part in wanted or Path(m.module).stem in wanted]
    chosen = [(name, module) for name, part in PARTS.items() for module in part.modules
              if not wanted or name in wanted or Path(module).stem in wanted]  # fmt: skip
    every = [place for part, module in chosen for place in places(part, module)]
    print(f"{len(every):,} places: {dict(Counter(place.module for place in every))}", flush=True)
    random.Random(options.seed).shuffle(every)
    return list(every)


def _write_plan(items: Sequence[Place | Mutant], path: Path, sample: int) -> None:
    seen: set[str] = set()
    plan: list[dict[str, Any]] = []
    for item in items:
        made = mutant(item, seen) if isinstance(item, Place) and len(plan) < sample else None
        plan += [] if made is None else [asdict(made)]
    path.write_text(json.dumps(plan))
    print(f"{len(plan):,} mutants in {path}")


def main(arguments: list[str] | None = None) -> int:
    """Judge a sample, or all; exit code 1 when less than 95 % were killed, 2 when nothing could be said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=840.0, help="how long to go on (840)")
    parser.add_argument("--sample", type=int, default=10**9, help="how many mutants at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (1)")
    parser.add_argument("--modules", default="", help="parts or modules, by comma; all if none")
    parser.add_argument("--report", type=Path, help="write the result as JSON")
    parser.add_argument("--markdown", type=Path, help="write the result as a page")
    parser.add_argument("--list", action="store_true", help="only say how many there are")
    parser.add_argument("--plan", type=Path, help="write the mutants of the sample, and judge none")
    parser.add_argument("--from", dest="planned", type=Path, help="judge the mutants of a plan")
    options = parser.parse_args(arguments)
    begun, items = time.monotonic(), _items(options)
    if options.plan:
        _write_plan(items, options.plan, options.sample)
    if options.list or options.plan:
        return 0
    for name in ("hypothesis.stateful", "numpy", "pyarrow", "pytest"):  # loaded once, for all that are forked
        import_module(name)
    result = judged(items, options, begun + options.seconds)
    print(f"{result.words()}, in {time.monotonic() - begun:.0f} s")
    if options.report:
        options.report.write_text(json.dumps(result.to_json(), indent=1))
    if options.markdown:
        options.markdown.write_text(result.page())
    return 2 if not result.judged else 0 if result.share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
