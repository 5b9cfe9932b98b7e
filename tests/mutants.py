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
import ast
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("engine", "kernels", "traces", "inspector", "dashboard", "benchmarks", "src", "tests")
UNIT = "tests/unit/test_"
PROPERTY = "tests/property/test_"
POOL_QUICK = tuple(f"{UNIT}{name}.py" for name in ("step_writes", "resized_pool", "leases_and_windows", "swapping"))


@dataclass(frozen=True, slots=True)
class Part:
    """Modules, and the tests that watch them: quick ones (about a second each), then slower ones, quickest first."""

    modules: tuple[str, ...]
    quick: tuple[str, ...]
    slow: tuple[str, ...]

    def tests(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.quick, *self.slow)


_DETECTORS = ("ledger", "life", "sharing", "moves", "beside", "replay", "passing", "records")
_SCREEN = ("blocks", "columns", "entries", "plain", "runs", "screen", "sequences")
_DETECTOR_TESTS = (*(f"{UNIT}{name}.py" for name in ("state", "detectors_life", "detectors_sharing",
                   "detectors_ledger", "report")), "tests/golden/test_golden_traces.py")  # fmt: skip
PARTS = {
    "pool": Part(
        ("engine/pool.py", "engine/block_life.py", "engine/block_arrays.py", "engine/free_list.py"),
        (f"{PROPERTY}free_list.py", *POOL_QUICK),
        (f"{PROPERTY}soak.py", f"{PROPERTY}all_or_nothing.py", f"{PROPERTY}lanes.py", f"{PROPERTY}prefix_sharing.py",
         f"{PROPERTY}block_manager.py"),
    ),
    "tables": Part(
        ("engine/tables.py", "engine/table_core.py", "engine/copies.py"),
        POOL_QUICK,
        (f"{PROPERTY}soak.py", f"{PROPERTY}all_or_nothing.py", f"{PROPERTY}lanes.py", f"{PROPERTY}prefix_sharing.py",
         f"{PROPERTY}block_manager.py"),
    ),
    "prefix": Part(
        ("engine/prefix.py", "engine/prefix_cache.py", "engine/prefix_store.py", "engine/orphans.py"),
        (f"{UNIT}prefix_arrays.py", f"{UNIT}leases_and_windows.py", f"{UNIT}swapping.py"),
        (f"{PROPERTY}all_or_nothing.py", f"{PROPERTY}lanes.py", f"{PROPERTY}prefix_sharing.py",
         f"{PROPERTY}block_manager.py"),
    ),
    "sanitizer": Part(
        (*(f"inspector/detectors/{name}.py" for name in _DETECTORS), "inspector/online.py", "inspector/rules.py"),
        _DETECTOR_TESTS,
        (f"{PROPERTY}online.py", f"{PROPERTY}kill_matrix.py"),
    ),
    "screen": Part(
        tuple(f"inspector/screen/{name}.py" for name in _SCREEN),
        _DETECTOR_TESTS,
        (f"{PROPERTY}online.py", f"{PROPERTY}screen.py"),
    ),
}  # fmt: skip
QUICK_S, SLOW_S = 30, 150  # CPU seconds after which a mutant counts as one that never ends
LEFT_ALONE = ("no-op", "variable", "remove-decorator", "exception")  # operators that name no mistake people make


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operator can change something: the operator's name, and which of its places in the module."""

    part: str
    module: str
    operator: str
    number: int


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed place. `shown`: the line before and after."""

    part: str
    module: str
    operator: str
    line: int
    shown: tuple[str, str]
    code: str

    @property
    def key(self) -> str:
        """What it is known by, whatever stands in front of it in the file."""
        return f"{self.module}: {self.shown[0]} -> {self.shown[1]}"


def places(part: str, module: str) -> Iterator[Place]:
    """Every place of a module, for every operator that names a mistake people make."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast((ROOT / module).read_text())))
    for name in sorted(operator_names()):
        made = get_operator(name)
        if any(word in name for word in LEFT_ALONE) or made.arguments():
            continue
        count = sum(1 for node in nodes for _ in made().mutation_positions(node))
        yield from (Place(part, module, name, number) for number in range(count))


def mutant(place: Place, seen: set[str]) -> Mutant | None:
    """The mutant of a place; None if it is the same program, or one that was there already."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / place.module).read_text()
    code = mutate_code(source, get_operator(place.operator)(), place.number)
    program = place.module + (_program(code) if code is not None else "")
    if code is None or program == place.module + _program(source) or program in seen:
        return None
    seen.add(program)
    return Mutant(place.part, place.module, place.operator.split("/")[-1], *_difference(source, code), code)


def _program(code: str) -> str:
    """What runs of it: without annotations, docstrings and type-checking imports."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs, node.args.vararg,
                             node.args.kwarg):  # fmt: skip
                if argument is not None:
                    argument.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            node.exc.args = [a for a in node.exc.args if not isinstance(a, ast.JoinedStr)]  # words are not behaviour
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(None)
    return ast.dump(tree)


def _difference(before: str, after: str) -> tuple[int, tuple[str, str]]:
    one, two = before.splitlines(), after.splitlines()
    for number, (a, b) in enumerate(zip(one, two, strict=False), 1):
        if a != b:
            return number, (a.strip(), b.strip())
    return len(one), ("", "")


class Judge:
    """A copy of the rooms, and processes that look at one mutant in it each."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvscope-mutants-"))
        self.passing: set[tuple[str, str]] = set()  # parts and stages that pass without a mutant
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.folder / room, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__", "*.kvtrace-tmp"))  # fmt: skip
        for name in ("pyproject.toml", "CHANGELOG.md", "README.md", "docs"):
            found = ROOT / name
            (shutil.copytree if found.is_dir() else shutil.copy)(found, self.folder / name)

    def kills(self, mutant: Mutant) -> str:
        """How it was killed: `quick`, `runs`, `slow` or `time`; empty if it was not.

        Raises:
            RuntimeError: what killed it fails without a mutant, too.
        """
        place = self.folder / mutant.module
        kept = place.read_text()
        place.write_text(mutant.code)
        stages = self._stages(PARTS[mutant.part])
        try:
            for stage in stages:
                status = self._forked(*stage[1:])
                if status != 0:
                    break
        finally:
            place.write_text(kept)
        if status == 0:  # it passes everything: so does the original
            self.passing |= {(mutant.part, how) for how, _, _ in stages}
            return ""
        if (mutant.part, stage[0]) not in self.passing:
            if self._forked(*stage[1:]) != 0:
                raise RuntimeError(f"{stage[0]} tests of {mutant.part} fail without a mutant: nothing can be said")
            self.passing.add((mutant.part, stage[0]))
        return "time" if status is None else stage[0]

    @staticmethod
    def _stages(part: Part) -> tuple[tuple[str, int, Callable[[], int]], ...]:
        return (
            ("quick", QUICK_S, lambda: _tests(part.quick)),
            ("runs", QUICK_S, _runs),
            ("slow", SLOW_S, lambda: _tests(part.slow)),
        )

    def close(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _forked(self, limit: int, body: Callable[[], int]) -> int | None:
        """Exit status of a body in a process of its own; None: it took too long."""
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                signal.alarm(10 * limit)  # a lock that is never given back takes no CPU time
                resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
                sys.dont_write_bytecode = True
                null = os.open(
                    os.environ.get("KVSCOPE_MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND
                )
                os.dup2(null, 1)
                os.dup2(null, 2)
                os.chdir(self.folder)
                sys.path[:] = [str(self.folder / "src"), *(p for p in sys.path if not p.endswith("/src"))]
                status = body()
            except BaseException:  # noqa: BLE001 - whatever it was, the mutant is dead
                traceback.print_exc()
                status = 98
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM):
            return None
        return status


def _runs() -> int:
    """The engine beside its reference and with a late device, prefix hits and evictions among it; every trace clean."""
    from kvscope.inspector.findings import check
    from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
    from kvscope.inspector.fuzz.soak import Soak
    from kvscope.traces.memory import MemoryRecorder

    for seed, (blocks, slots) in enumerate(((24, 4), (8, 2), (40, 1))):
        sink = MemoryRecorder(num_blocks=blocks, block_size=slots)
        run = Soak(seed, num_blocks=blocks, block_size=slots, sink=sink)
        run.run(700)
        run.finish()
        if check(sink).findings:
            return 1
    for seed in range(25):
        rng = random.Random(seed)
        blocks, slots = rng.randint(2, 6), rng.randint(1, 4)
        sink = MemoryRecorder(num_blocks=blocks, block_size=slots)
        operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(80)]
        DeviceRun(blocks, slots, sink=sink).play(operations)
        if check(sink).findings:
            return 1
    return 0


def _tests(files: tuple[str, ...]) -> int:
    import pytest

    known = [name for name in files if Path(name).exists()]
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", *known]))


# Survivors that no test can tell apart from the original, or that change nothing but speed: by `Mutant.key`.
KNOWN: dict[str, str] = {
    (
        "inspector/detectors/records.py: last_use: int = -1  # ordinal of the last step that used it, known once it is "
        "released -> last_use: int = - 2  # ordinal of the last step that used it, known once it is released"
    ): "the same: any number below that of the first step says that none used it",
    (
        "engine/tables.py: if keep == self.first or gone >= _MANY: -> if keep != self.first or gone >= _MANY:"
    ): "the same digest, computed anew or by subtraction",
    (
        "inspector/screen/runs.py: ROW_BITS = 20  # a chunk has less than 2**20 rows "
        "-> ROW_BITS = 19  # a chunk has less than 2**20 rows"
    ): "smaller chunks, the same findings",
    (
        "inspector/screen/sequences.py: _MOST = 1 << 40  # positions -> _MOST = 1 << 41  # positions"
    ): "positions beyond 2**40 are left to the replay; keys have room for 2**43",
}  # fmt: skip


@dataclass(slots=True)
class Result:
    """What was judged so far."""

    places: int
    seed: int
    same: int = 0
    by: Counter[str] = field(default_factory=Counter)
    alive: list[Mutant] = field(default_factory=list)
    modules: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        """Mutants that were tried."""
        return sum(self.by.values())

    @property
    def share(self) -> float:
        """Of these, how many died."""
        return 1 - self.by["alive"] / self.judged if self.judged else 0.0

    def note(self, made: Mutant, how: str) -> None:
        """One more; survivors are printed at once."""
        self.by[how or "alive"] += 1
        self.modules.setdefault(made.module, Counter())[how or "alive"] += 1
        if not how:
            self.alive.append(made)
            print(f"alive: {made.module}:{made.line} {made.operator}: {made.shown[0]}  ->  {made.shown[1]}", flush=True)
            if made.key in KNOWN:
                print(f"       {KNOWN[made.key]}", flush=True)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the share of all mutants lies with 95 % confidence (Wilson 1927)."""
        n, z = self.judged, 1.96
        if not n:
            return 0.0, 1.0
        middle, half = self.share + z * z / (2 * n), z * ((self.share * (1 - self.share) + z * z / (4 * n)) / n) ** 0.5
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)

    def words(self) -> str:
        """In one line."""
        known = sum(made.key in KNOWN for made in self.alive)
        return (
            f"{self.judged - self.by['alive']} of {self.judged} mutants killed ({self.share:.1%}, of all "
            f"{self.interval[0]:.1%} to {self.interval[1]:.1%} with 95 % confidence; {dict(self.by)}; "
            f"{known} survivors are explained), {self.same} were the same program, of {self.places:,} places"
        )

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        alive = [{k: v for k, v in asdict(m).items() if k != "code"} | {"known": KNOWN.get(m.key)} for m in self.alive]
        return {"places": self.places, "same": self.same, "judged": self.judged, "share": self.share,
                "interval": self.interval, "modules": {name: dict(by) for name, by in sorted(self.modules.items())},
                "by": dict(self.by), "seed": self.seed, "alive": alive}  # fmt: skip

    def page(self) -> str:
        """As Markdown: the share, each module, each survivor with its change."""
        lines = ["# Mutation testing", "", f"Made by `python tests/mutants.py --seed {self.seed} --markdown FILE`.", "",
                 f"{self.words()}.", "", "| module | judged | killed |", "|---|---|---|"]  # fmt: skip
        for name, by in sorted(self.modules.items()):
            lines.append(f"| {name} | {by.total()} | {1 - by['alive'] / by.total():.0%} |")
        lines += ["", "## Survivors", ""]
        for made in sorted(self.alive, key=lambda made: (made.module, made.line)):
            why = KNOWN.get(made.key, "not explained yet")
            lines += [f"{made.module}:{made.line} ({made.operator}): {why}.", "", "```diff", f"- {made.shown[0]}",
                      f"+ {made.shown[1]}", "```", ""]  # fmt: skip
        return "\n".join(lines)


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
        mutants = [_mutant(told) for told in json.loads(options.planned.read_text())]
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
