"""The long runs of the fuzzer, short; and what the mutation runner takes for the same program."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvscope.benchmarks import fuzz_faults, rules
from kvscope.engine.block_manager import BlockManager

ROOT = Path(__file__).resolve().parents[2]


def test_rule_steps_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert rules.main(["--steps", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rules"] >= 1
    assert told["failure"] is None


def test_a_fault_is_found_and_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    names = "double-free,window-frees-twice"
    assert fuzz_faults.main(["--seeds", "2", "--faults", names, "--json", "--markdown", str(page)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["detail"]["part"] for row in rows] == ["machine", "soak"]
    assert all(row["ok"] for row in rows)
    assert "2 of 2 faults were found with every one" in page.read_text()


@pytest.mark.parametrize("part", ["soak", "device"])
def test_nothing_is_found_where_nothing_is_planted(part: str) -> None:
    one = fuzz_faults.attempt(part, BlockManager, 0, 0.5)
    assert not one.found
    assert one.examples > 0


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", module)
    spec.loader.exec_module(module)
    return module


def test_mutants_of_annotations_and_words_are_none(mutants: ModuleType) -> None:
    code = 'def f(a: int | None) -> int | None:\n    """Words."""\n    b: int | str = a\n    return b\n'
    same = 'def f(a: int & None) -> int + None:\n    """Other words."""\n    b: int - str = a\n    return b\n'
    assert mutants._program(code) == mutants._program(same)
    assert mutants._program(code) != mutants._program(code.replace("= a", "= -a"))


def test_mutants_name_files_that_are_there(mutants: ModuleType) -> None:
    for part in mutants.PARTS.values():
        for name in (*part.modules, *part.tests()):
            assert (ROOT / name).is_file()


def test_mutants_are_counted_with_an_interval_and_shown(mutants: ModuleType) -> None:
    result = mutants.Result(400, 0)
    assert (result.share, result.interval) == (0.0, (0.0, 1.0))
    for number in range(100):
        made = mutants.Mutant("pool", "engine/pool.py", "Op", number, (f"a = {number}", "a = b"), "")
        result.note(made, "quick" if number >= 4 else "")
    low, high = result.interval
    assert result.share == 0.96
    assert (round(low, 3), round(high, 3)) == (0.902, 0.984)  # Wilson's interval of 96 in 100
    assert "- a = 3\n+ a = b" in result.page()
    assert result.to_json()["modules"] == {"engine/pool.py": {"alive": 4, "quick": 96}}
