"""What commands print with `--json` is what docs/schemas says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from kvscope.inspector import cli
from kvscope.traces import Kind, PoolFacts, Recorder

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"


@pytest.fixture
def traces(toy_traces: dict[str, Path], tmp_path: Path) -> list[Path]:
    """A clean run, a faulty one, one of nothing, one that was not closed."""
    nothing, cut = tmp_path / "nothing.kvtrace", tmp_path / "cut.kvtrace"
    with Recorder(nothing, pool=PoolFacts(4, 4)):
        pass
    recorder = Recorder(cut, pool=PoolFacts(4, 4), sealing="inline")
    recorder.emit(Kind.ALLOC, block=1, gen=1, ref_before=0, ref_after=1, seq_id=1, lblock=0)
    return [*toy_traces.values(), nothing, cut]


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> object:
    assert cli.run([str(argument) for argument in arguments]) in (0, 1, 2)
    return json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize("name", ["inspect", "check", "query", "export"])
def test_forms(capsys: pytest.CaptureFixture[str], traces: list[Path], tmp_path: Path, name: str) -> None:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    more: dict[str, list[object]] = {
        "query": ["SELECT * FROM events LIMIT 2"],
        "export": ["--to", "jsonl", "--overwrite", "--out", tmp_path / "out.jsonl"],
    }
    for trace in traces:
        told = printed(capsys, name, trace, *more.get(name, []), "--json")
        Draft202012Validator(schema).validate(told)
        assert isinstance(told, dict)
        assert set(told) <= set(schema["properties"]) or name == "check", "a member without a description"


def test_form_of_an_import(capsys: pytest.CaptureFixture[str], traces: list[Path], tmp_path: Path) -> None:
    printed(capsys, "export", traces[0], "--to", "jsonl", "--out", tmp_path / "a.jsonl", "--json")
    told = printed(capsys, "import", tmp_path / "a.jsonl", "--from", "jsonl", "--out", tmp_path / "b.kvtrace", "--json")
    Draft202012Validator(json.loads((SCHEMAS / "import.json").read_text())).validate(told)
