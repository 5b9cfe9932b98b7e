"""Mutation testing of the pool, the tables, the prefix cache and the sanitizer: who watches the tests.

`python tests/mutants.py [--seconds 840] [--sample N] [--seed 0] [--modules pool,prefix] [--report FILE]`. Mutations are
those of Cosmic Ray; each is written into a copy of the rooms and judged by a process forked from this one, which has
the libraries loaded already: first quick runs of the engine beside its reference, then the tests of that part. Mutants
that compile to the same program (annotations, docstrings) are none. Survivors are listed with what is known of them.
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("engine", "kernels", "traces", "inspector", "dashboard", "benchmarks", "src", "tests")
POOL_TESTS = (
    "tests/unit/test_leases_and_windows.py", "tests/unit/test_step_writes.py", "tests/unit/test_resizing.py",
    "tests/unit/test_resized_pool.py", "tests/property/test_prefix_sharing.py", "tests/property/test_block_manager.py",
    "tests/property/test_all_or_nothing.py", "tests/property/test_free_list.py", "tests/property/test_soak.py",
    "tests/property/test_kill_matrix.py",
)  # fmt: skip
SANITIZER_TESTS = (
    "tests/unit/test_detectors_ledger.py", "tests/unit/test_detectors_life.py", "tests/unit/test_detectors_sharing.py",
    "tests/unit/test_state.py", "tests/unit/test_report.py", "tests/property/test_online.py",
    "tests/golden/test_golden_traces.py", "tests/property/test_planted.py", "tests/property/test_kill_matrix.py",
)  # fmt: skip
PARTS = {
    "pool": ("engine/pool.py", "engine/block_life.py", "engine/block_arrays.py", "engine/free_list.py"),
    "tables": ("engine/tables.py", "engine/table_core.py", "engine/copies.py"),
    "prefix": ("engine/prefix.py", "engine/orphans.py"),
    "sanitizer": (
        "inspector/detectors/ledger.py", "inspector/detectors/life.py", "inspector/detectors/sharing.py",
        "inspector/detectors/moves.py", "inspector/detectors/beside.py", "inspector/detectors/replay.py",
        "inspector/online.py", "inspector/rules.py",
    ),
}  # fmt: skip
QUICK_S, FULL_S = 20, 240  # CPU seconds after which a mutant counts as one that never ends
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
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.folder / room, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__", "*.kvtrace-tmp"))  # fmt: skip
        for name in ("pyproject.toml", "CHANGELOG.md", "README.md", "docs"):
            found = ROOT / name
            (shutil.copytree if found.is_dir() else shutil.copy)(found, self.folder / name)

    def kills(self, mutant: Mutant) -> str:
        """How it was killed: `quick`, `tests` or `time`; empty if it was not."""
        place = self.folder / mutant.module
        kept = place.read_text()
        place.write_text(mutant.code)
        tests = SANITIZER_TESTS if mutant.part == "sanitizer" else POOL_TESTS
        try:
            for how, limit, body in (("quick", QUICK_S, _quick), ("tests", FULL_S, lambda: _tests(tests))):
                status = self._forked(limit, body)
                if status is None:
                    return "time"
                if status != 0:
                    return how
            return ""
        finally:
            place.write_text(kept)

    def clean(self) -> bool:
        """Whether everything passes without a mutant."""
        return all(
            self._forked(FULL_S, body) == 0 for body in (_quick, lambda: _tests((*POOL_TESTS, *SANITIZER_TESTS)))
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
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return None
        return status


def _quick() -> int:
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
KNOWN: dict[str, str] = {}


def main(arguments: list[str] | None = None) -> int:
    """Judge a sample, or all; exit code 1 when less than 95 % were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=840.0, help="how long to go on (840)")
    parser.add_argument("--sample", type=int, default=10**9, help="how many mutants at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--modules", default="", help="parts or modules, by comma; all if none")
    parser.add_argument("--report", type=Path, help="write the result as JSON")
    parser.add_argument("--list", action="store_true", help="only say how many there are")
    options = parser.parse_args(arguments)
    wanted = [name for name in options.modules.split(",") if name]
    chosen = [(part, module) for part, modules in PARTS.items() for module in modules
              if not wanted or part in wanted or Path(module).stem in wanted]  # fmt: skip
    every = [place for part, module in chosen for place in places(part, module)]
    print(f"{len(every):,} places: {dict(Counter(place.module for place in every))}", flush=True)
    if options.list:
        return 0
    for name in ("hypothesis.stateful", "numpy", "pyarrow", "pytest"):  # loaded once, for all that are forked
        import_module(name)
    random.Random(options.seed).shuffle(every)
    judge, begun, result = Judge(), time.monotonic(), Result(len(every), options.seed)
    try:
        if not judge.clean():
            print("the tests fail without a mutant: nothing can be said", file=sys.stderr)
            return 2
        seen: set[str] = set()
        for place in every:
            if time.monotonic() - begun > options.seconds or result.judged >= options.sample:
                break
            made = mutant(place, seen)
            if made is None:
                result.same += 1
            else:
                result.note(made, judge.kills(made))
    finally:
        judge.close()
    print(f"{result.words()}, in {time.monotonic() - begun:.0f} s")
    if options.report:
        options.report.write_text(json.dumps(result.to_json(), indent=1))
    return 0 if result.share >= 0.95 else 1


@dataclass(slots=True)
class Result:
    """What was judged so far."""

    places: int
    seed: int
    same: int = 0
    by: Counter[str] = field(default_factory=Counter)
    alive: list[Mutant] = field(default_factory=list)

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
        if not how:
            self.alive.append(made)
            print(f"alive: {made.module}:{made.line} {made.operator}: {made.shown[0]}  ->  {made.shown[1]}", flush=True)
            if made.key in KNOWN:
                print(f"       {KNOWN[made.key]}", flush=True)

    def words(self) -> str:
        """In one line."""
        known = sum(made.key in KNOWN for made in self.alive)
        return (
            f"{self.judged - self.by['alive']} of {self.judged} mutants killed ({self.share:.1%}; {dict(self.by)}; "
            f"{known} survivors are explained), {self.same} were the same program, of {self.places:,} places"
        )

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        alive = [{k: v for k, v in asdict(m).items() if k != "code"} | {"known": KNOWN.get(m.key)} for m in self.alive]
        return {"places": self.places, "same": self.same, "judged": self.judged, "share": self.share,
                "by": dict(self.by), "seed": self.seed, "alive": alive}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
