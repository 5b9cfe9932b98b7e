"""`kvscope generate`: what the sanitizer looked at, as JSON; and a word where an option changed nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector import cli
from kvscope.inspector.faults.sharing import MissingCopy
from kvscope.inspector.watch import WatchPoints
from kvscope.traces import Kind, MemoryRecorder

RUN = ["the cat", "--raw", "--max-tokens", "3"]


def test_json_holds_what_the_sanitizer_looked_at(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", str(tiny_folder), *RUN, "--record", "sanitize", "--content", "--json"]
    assert cli.run(command) == 0
    told = json.loads(capsys.readouterr().out)["sanitizer"]
    assert (told["clean"], told["findings"]) == (True, [])
    assert told["checked_events"] > 0
    assert told["provenance"]["wrong"] == told["content"]["changed"] == 0
    assert told["provenance"]["slots"] > 0
    assert told["content"]["blocks"] > 0


def test_json_holds_the_findings(
    tiny_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockManager, "_needs_copy", MissingCopy._needs_copy)
    samples = ["-n", "2", "--temperature", "1"]
    command = ["generate", str(tiny_folder), *RUN, *samples, "--record", "sanitize", "--no-provenance", "--json"]
    assert cli.run(command) == 1
    told = json.loads(capsys.readouterr().out)["sanitizer"]
    assert told["clean"] is False
    assert "KV006" in {finding["code"] for finding in told["findings"]}
    assert told["provenance"] is None


@pytest.mark.parametrize("keep", [False, True])
def test_json_is_printed_where_the_first_finding_stops_the_run(
    keep: bool, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockManager, "_needs_copy", MissingCopy._needs_copy)
    command = ["generate", str(tiny_folder), *RUN, "-n", "2", "--temperature", "1", "--record", "sanitize", "--json",
               "--on-finding", "raise", *(["--trace", str(tmp_path / "r.kvtrace")] if keep else [])]  # fmt: skip
    assert cli.run(command) == 1
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert (told["sanitizer"]["clean"], told["sanitizer"]["stopped"]) == (False, True)
    assert told["sanitizer"]["findings"][0]["code"] == "KV006"
    assert [sample["finish_reason"] for sample in told["samples"]] == [None, None]
    assert "stopped before the tokens of this step were used" in captured.err


def test_a_run_without_the_sanitizer_says_so(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["generate", str(tiny_folder), *RUN, "--json", "--no-provenance", "--watch", "b9"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["sanitizer"] is None
    assert "note: --no-provenance changes nothing: with --record trace provenance is not checked" in captured.err
    assert "note: watch: nobody wrote b9, nor was it given to anybody" in captured.err


def test_a_block_that_was_touched_in_another_life_only_is_untouched() -> None:
    points = WatchPoints(MemoryRecorder(num_blocks=8, block_size=4), lambda hit: None, ["b1", "b2#3", "b4"])
    points.begin()
    points.emit(Kind.ALLOC, block=1, gen=1, seq_id=1)
    points.emit(Kind.ALLOC, block=2, gen=1, seq_id=1)
    assert points.untouched == ["b2#3", "b4"]
