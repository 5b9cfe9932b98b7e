"""What the pages about fuzzing show is what happens: the example, the plugin, and the programs about other engines."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from kvscope.inspector.cli import run as command_line
from kvscope.inspector.fuzz import Violation, load_target
from kvscope.inspector.fuzz.hunt import hunt
from kvscope.inspector.fuzz.program import Program
from kvscope.inspector.fuzz.report import Job
from kvscope.inspector.fuzz.sandbox import run
from kvscope.inspector.fuzz.simulator import Simulator
from kvscope.inspector.fuzz.strategies import programs
from kvscope.inspector.races import explore_allocator
from kvscope.inspector.races.pylevel import CRASHING

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = (DOCS / "fuzz-your-allocator.md").read_text()
MEND = """
    def append(self, seq, token):
        table, (lblock, slot) = self.tables[seq], divmod(self.lengths[seq], self.block_size)
        if lblock == len(table):
            table += self._take(1)
        elif self.refs[table[lblock]] > 1:
            self.refs[table[lblock]] -= 1
            try:
                table[lblock:] = self._take(1)
            except OutOfBlocks:
                self.refs[table[lblock]] += 1
                raise
        self.lengths[seq] += 1
"""


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (code,) = blocks_of(GUIDE)
    assert len([line for line in code.splitlines() if line.strip()]) <= 40
    (tmp_path / "mypool.py").write_text(code)
    (tmp_path / "mended.py").write_text(code.replace("class MyPool", "class Mended") + MEND)
    return tmp_path


def test_the_example_fails_as_the_guide_shows_and_its_mended_form_does_not(example: Path) -> None:
    failure = hunt(load_target(f"{example}/mypool.py:MyPool"))
    assert failure is not None
    shown = failure.program.source("mypool.py:MyPool", failure.violation).splitlines()
    for line in shown[:-1]:  # the last one is the message
        assert line.strip() in GUIDE
    assert failure.violation.why in GUIDE
    assert hunt(load_target(f"{example}/mended.py:Mended"), examples=60) is None


def test_the_workflow_runs_as_it_is(example: Path) -> None:
    """Its Python is one in which threads are traced, and its options are ones that the command takes."""
    workflow = (DOCS / "github-workflow-fuzz.yml").read_text()
    (version,) = re.findall(r'python-version: "(\d+)\.(\d+)"', workflow)
    assert tuple(map(int, version)) >= (3, 11)
    assert tuple(map(int, version)) != CRASHING
    (command,) = re.findall(r"- run: kvscope (fuzz .*)", workflow)
    given = command.replace("$TARGET", f"{example}/mended.py:Mended").replace("${{ github.run_number }}", "7")
    words = shlex.split(given.replace("--seconds 120", "--seconds 3"))
    report = words.index("--junit") + 1
    words[report] = str(example / words[report])
    assert command_line([*words, "--no-database"]) in (0, 1)  # whether 3 s are enough for its race is not the question
    assert Path(words[report]).is_file()


def test_plugin(example: Path) -> None:
    (example / "test_pools.py").write_text(
        """
import pytest
from mypool import MyPool
from mended import Mended

def test_broken(kvscope_fuzz):
    kvscope_fuzz(MyPool, seconds=60)

def test_whole(kvscope_fuzz):
    kvscope_fuzz(Mended, seconds=1)

def test_single_operations(kvscope_harness):
    harness = kvscope_harness(Mended, 2, 2)
    assert harness.add(0, [1, 2, 3])
    assert not harness.add(1, [1])
    harness.finish()

@pytest.mark.kvscope_race(threads=2, seconds=60)
def test_broken_with_threads():
    return MyPool

@pytest.mark.kvscope_race(threads=2, seconds=1)
def test_no_factory():
    pass
"""
    )
    plugin = ["-p", "kvscope.inspector.fuzz.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--strict-markers", *plugin, "test_pools.py"],
        cwd=example, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout
    assert "3 failed" in done.stdout
    assert "harness.fork(0, 1)" in done.stdout
    assert "replay of program and schedule: kvra1/" in done.stdout
    assert "returns factory(num_blocks, block_size), got None" in done.stdout


def test_plugin_ends_what_hangs_and_refuses_what_it_does_not_know(example: Path) -> None:
    (example / "test_pools.py").write_text(
        """
import time
import pytest
from mypool import MyPool
from mended import Mended

class Loops(Mended):
    def append(self, seq, token):
        while True:
            pass

class Sleeps(Mended):
    def table(self, seq):
        time.sleep(1000)

@pytest.mark.parametrize("pool", [Loops, Sleeps])
def test_hang(kvscope_fuzz, pool):
    kvscope_fuzz(pool, seconds=5, hang=0.5)

def test_unusable(kvscope_fuzz):
    kvscope_fuzz(lambda blocks, size: None, seconds=5)

def test_broken(kvscope_fuzz):
    kvscope_fuzz(MyPool, seconds=60)

@pytest.mark.kvscope_race(thread=2)
def test_typo():
    return Mended

@pytest.mark.kvscope_race(threads=9)
def test_many():
    return Mended
"""
    )
    plugin = ["-p", "kvscope.inspector.fuzz.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--strict-markers", *plugin, "test_pools.py"], cwd=example, text=True,
        capture_output=True, check=False, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, timeout=120,
    )  # fmt: skip
    assert "6 failed" in done.stdout, done.stdout
    assert re.search(r"append\(\d+, \d\) did not return within 0.5 s \(it is at test_pools.py:\d+\)", done.stdout)
    assert "table(0) did not return within 0.5 s (it is at test_pools.py:" in done.stdout
    assert "the target cannot be used: NoneType cannot be fuzzed" in done.stdout
    assert "has no thread: it takes threads, seconds, seed, replay" in done.stdout
    assert "threads is 9: must be 2 to 4" in done.stdout
    assert "Traceback" not in done.stdout
    assert "During handling" not in done.stdout
    shown = done.stdout[done.stdout.index("from kvscope.inspector.fuzz import Harness\n") :].split("\n\n")[0]
    lines = shown.splitlines()
    assert lines[1:3] == ["from mypool import MyPool", "factory = MyPool"]
    pasted = "\n".join(line for line in lines if line.startswith(("from ", "factory ", "harness")))
    assert "KV006" in subprocess.run(
        [sys.executable, "-c", pasted], cwd=example, capture_output=True, text=True, check=False
    ).stderr  # fmt: skip


def test_interleaving_is_played_again_by_the_command_and_by_the_pasted_test(example: Path) -> None:
    """The mended pool has no lock: whole with one thread, broken with two."""
    found = explore_allocator(load_target(f"{example}/mended.py:Mended"), seconds=60)
    assert found.found
    report = run(Job(f"{example}/mended.py:Mended", replay=found.replay))
    assert report.status == 1, report.text()
    assert report.finding is not None
    assert report.finding.replay == found.replay
    assert "worker-2" in report.text()
    pasted: dict[str, Callable[[], None]] = {}
    exec(report.finding.program, pasted)
    with pytest.raises(AssertionError, match="replay of program and schedule"):
        pasted["test_race"]()


@settings(max_examples=30)
@given(program=programs())
def test_strategies_make_programs_that_run(program: Program) -> None:
    assert program.run(Simulator) is None
    assert Program.from_json(program.to_json()) == program


def test_programs_about_transformers() -> None:
    transformers = pytest.importorskip("transformers", minversion="5.24")
    assert transformers
    shown = blocks_of((DOCS / "fuzzed-engines.md").read_text())
    assert len(shown) >= 4
    for code in shown:
        exec(code, {})
    program = Program(4, 2, (("add", (0, [0] * 7)), ("fork", (0, 1))))
    unguarded = program.run(load_target("kvscope.inspector.adapters.transformers:unguarded"))
    assert isinstance(unguarded, Violation)
    assert unguarded.why in (DOCS / "fuzzed-engines.md").read_text()
    # A cached block counts as free: what drives the cache evicts it before it forks, as the scheduler does.
    cached = Program(2, 2, (("add", (0, [0, 0])), ("free", (0,)), ("add", (1, [0])), ("fork", (1, 2))))
    assert cached.run(load_target("kvscope.inspector.adapters.transformers:unguarded")) is None
    shown_by_the_command = hunt(load_target("kvscope.inspector.adapters.transformers:unguarded"), shrink_seconds=15)
    assert shown_by_the_command is not None
    assert shown_by_the_command.code == "KV025"
    assert shown_by_the_command.program.calls[-1][0] == "fork"
    assert hunt(load_target("transformers"), examples=25) is None
