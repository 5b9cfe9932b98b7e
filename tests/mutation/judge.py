"""Says whether the tests notice a mutant."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from mutation.making import Mutant
from mutation.parts import PARTS, ROOT, Part

ROOMS = ("engine", "kernels", "traces", "inspector", "dashboard", "benchmarks", "src", "tests")
QUICK_S, SLOW_S = 30, 150  # CPU seconds after which a mutant counts as one that never ends


class Judge:
    """A copy of the rooms, without what is written in C, and processes that look at one mutant in it each."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvscope-mutants-"))
        self.passing: set[tuple[str, str]] = set()  # parts and stages that pass without a mutant
        for room in ROOMS:
            shutil.copytree(ROOT / room, self.folder / room, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__", "*.kvtrace-tmp", "*.so"))  # fmt: skip
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
