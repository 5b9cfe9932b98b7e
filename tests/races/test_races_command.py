"""`kvscope races`: targets, exit codes, JSON and JUnit."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator, ValidationError

from kvscope.inspector.cli import run

RACE = """
from kvscope.inspector.races import Race

class Counter:
    def __init__(self):
        self.value = 0
    def bump(self):
        self.value += 1

def bump(counter):
    counter.bump()

def race():
    return Race(Counter, [bump, bump], check=lambda c: c.value == 2 or f"it is {c.value}", name="counter")

RACE = race()
NOTHING = 3

def raises():
    raise ValueError("no")
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "counting.py"
    path.write_text(RACE)
    return path


@pytest.mark.parametrize("name", ["race", "RACE"])
def test_a_race_of_the_user_is_found_and_replayed(
    module: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "races.xml"
    assert run(["races", f"{module}:{name}", "--json", "--junit", str(report), "--seconds", "60"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "kvscope-races/1"
    assert told["failure"]["message"] == "it is 1"
    assert ElementTree.parse(report).getroot().get("failures") == "1"
    assert run(["races", f"{module}:{name}", "--replay", told["replay"]]) == 1
    out = capsys.readouterr().out
    assert "worker-1 is stopped here" in out
    assert "self.value += 1" in out


def test_an_example_that_is_clean_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["races", "--example", "articles-locked", "--level", "line", "--schedules", "40", "--seconds", "250"]) == 0
    )
    assert "no schedule of 40 failed" in capsys.readouterr().out


def test_examples_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["races", "--example", "list", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert {"articles", "smollm2", "pool", "shared-staging"} <= names


@pytest.mark.parametrize("example", ["preempt-without-fence", "lease-ends-early"])
@pytest.mark.parametrize("seed", ["1", "7"])
def test_an_example_that_is_planted_is_found_and_its_string_plays_it_under_any_seed(
    example: str, seed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["races", "--example", example, "--seed", seed, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert run(["races", "--example", example, "--replay", told["replay"], "--json"]) == 1
    again = json.loads(capsys.readouterr().out)
    assert (again["replay"], again["failure"]) == (told["replay"], told["failure"])
    assert not again["notes"] or "not the run" not in again["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a target, or --example NAME"),
        (["--example", "nothing"], "is unknown"),
        (["counting"], "give package.module:name"),
        (["no.such.module:race"], "importing no.such.module raised"),
        (["{module}:nothing"], "is no race"),
        (["{module}:NOTHING"], "is no race"),
        (["{module}:raises"], "raised ValueError: no"),
        (["{module}:race", "--replay", "xyz"], "no replay string"),
        (["{module}:race", "--scheduler", "lucky"], "must be one of"),
        (["{folder}/nowhere.py:race"], "is not there"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_2(
    module: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(module=module, folder=module.parent) for argument in arguments]
    assert run(["races", *given]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--example", "articles"], True),
        (["--example", "articles-locked", "--schedules", "20"], False),
        (["kvscope.inspector.fuzz.simulator:Simulator", "--seconds", "60"], True),
    ],
)
def test_json_is_what_its_schema_says(arguments: list[str], found: bool, capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "races.json").read_text())
    Draft202012Validator.check_schema(schema)
    assert run(["races", *arguments, "--json"]) == found
    told = json.loads(capsys.readouterr().out)
    Draft202012Validator(schema).validate(told)
    assert told["found"] == found
    with pytest.raises(ValidationError):
        Draft202012Validator(schema).validate({**told, "other": 1})


def test_a_python_that_crashes_is_refused(
    module: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.inspector.races.pylevel._CRASHES", True)
    assert run(["races", f"{module}:race"]) == 2
    told = capsys.readouterr().err
    assert "use Python 3.11 or 3.13" in told
    assert "kvscope races --level hook, kvscope fuzz --threads 1" in told
    assert run(["races", f"{module}:race", "--level", "hook", "--seconds", "20"]) == 0
    assert "Traceback" not in told
