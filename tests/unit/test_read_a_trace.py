"""The Python example of reading a trace in docs/trace-format.md runs, and what it imports is exported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvscope.inspector
from kvscope.inspector import state
from kvscope.traces import unpack

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/trace-format.md").read_text(), flags=re.DOTALL)
    unpack(ROOT / "traces/samples/prefix-sharing.kvpack", tmp_path / "run.kvtrace")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "trace-format.md", "exec"), {})
    said = capsys.readouterr().out
    assert "table entries" in said
    assert "has it as its logical block" in said
    assert "of the table [(" in said
    assert "seq_id" in said


@pytest.mark.parametrize("name", kvscope.inspector.__all__)
def test_every_name_of_the_room_leads_somewhere(name: str) -> None:
    assert getattr(kvscope.inspector, name).__module__.startswith("kvscope.inspector.")
    assert kvscope.inspector.sequence_blocks is state.sequence_blocks
