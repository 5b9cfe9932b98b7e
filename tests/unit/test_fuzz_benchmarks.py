"""The long runs of the fuzzer, short; and what the mutation runner takes for the same program."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
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
def mutation(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Modules of `tests/mutation`, as `tests/mutants.py` sees them."""
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    return lambda name: importlib.import_module(f"mutation.{name}")


def test_mutants_of_annotations_and_words_are_none(mutation: Callable[[str], ModuleType]) -> None:
    code = 'def f(a: int | None, *, c: int) -> int | None:\n    """Words."""\n    b: int | str = a\n    return b\n'
    same = (
        'def f(a: int & None, /, c: int) -> int + None:\n    """Other words."""\n    b: int - str = a\n    return b\n'
    )
    program = mutation("making").program
    assert program(code) == program(same)
    assert program(code) != program(code.replace("= a", "= -a"))
    mask = "rows = (place >= 0) | (gen < 0)"
    assert program(mask) == program(mask.replace("|", "+")) != program(mask.replace("|", "&"))
    assert program("rows = place | gen") != program("rows = place + gen")


def test_mutants_name_files_that_are_there(mutation: Callable[[str], ModuleType]) -> None:
    for part in mutation("parts").PARTS.values():
        for name in (*part.modules, *part.tests()):
            assert (ROOT / name).is_file()


def test_mutants_are_counted_with_an_interval_and_shown(mutation: Callable[[str], ModuleType]) -> None:
    result = mutation("result").Result(400, 0)
    assert (result.share, result.interval) == (0.0, (0.0, 1.0))
    for number in range(100):
        made = mutation("making").Mutant("pool", "engine/pool.py", "Op", number, (f"a = {number}", "a = b"), "", "")
        result.note(made, "quick" if number >= 4 else "")
    low, high = result.interval
    assert result.share == 0.96
    assert (round(low, 3), round(high, 3)) == (0.902, 0.984)  # Wilson's interval of 96 in 100
    assert "- a = 3\n+ a = b" in result.page()
    assert result.to_json()["modules"] == {"engine/pool.py": {"alive": 4, "quick": 96}}
