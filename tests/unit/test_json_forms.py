"""What commands print with `--json` is what docs/schemas says."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from jsonschema import Draft202012Validator

from kvscope.engine.block_manager import BlockManager
from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json
from kvscope.inspector.explanation import BadRead, Explanation, TokenStep, Verdict, Victim, Write, exit_code
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.faults.stage import Stage, perform
from kvscope.inspector.findings import check
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


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("name", ["missing-copy", "stale-table", "hash-without-identity", "window-too-short", ""])
def test_form_of_an_explanation(name: str, tells: bool) -> None:
    """Of broken managers and of a right one, of each sequence and of one of its tokens."""
    schema = json.loads((SCHEMAS / "explain.json").read_text())
    Draft202012Validator.check_schema(schema)
    form, described, seen = Draft202012Validator(schema), set(schema["properties"]), set[str]()
    for play in PLAYS.values():
        stage = Stage(FAULTS[name].manager() if name else BlockManager, **play.options)
        stage.tells = tells
        trace = perform(play.act, stage)
        result = check(trace)
        for seq_id in sorted({int(s) for s in trace.events["seq_id"] if s >= 0}):
            for token in (None, 0):
                with suppress(UsageError):  # it has no such token
                    told = explain(trace, f"s{seq_id}", token, result=result)
                    made = json.loads(json.dumps(explanation_json(told, trace)))
                    form.validate(made)
                    assert set(made) <= described
                    seen.add(told.verdict)
    assert {"damaged", "clean"} & seen


def test_verdicts_that_are_described_are_those_that_there_are() -> None:
    schema = json.loads((SCHEMAS / "explain.json").read_text())
    page = (SCHEMAS.parent / "json.md").read_text()
    table = page[page.index("| `verdict` |") :].split("\n\n")[0].splitlines()[2:]
    rows = {cells[1].strip(" `"): int(cells[3]) for cells in (line.split("|") for line in table)}
    assert tuple(rows) == get_args(Verdict)
    assert set(schema["properties"]["verdict"]["enum"]) == set(rows)
    assert {verdict: exit_code(verdict) for verdict in get_args(Verdict)} == rows


@pytest.mark.parametrize("kind", [Explanation, BadRead, TokenStep, Victim, Write])
def test_members_of_an_explanation_are_described(kind: type) -> None:
    schema = json.loads((SCHEMAS / "explain.json").read_text())
    listed = schema["properties"]
    described = {
        Explanation: set(listed) | {"sample", "first_token", "first_step", "first_sample", "through", "victims",
                                    "elsewhere", "touching", "made", "lost"},
        BadRead: set(schema["$defs"]["read"]["properties"]),
        TokenStep: set(listed["token_steps"]["items"]["properties"]),
        Victim: set(listed["blast_radius"]["items"]["properties"]),
        Write: set(schema["$defs"]["write"]["properties"]),
    }  # fmt: skip
    assert {member.name for member in fields(kind)} <= described[kind]
