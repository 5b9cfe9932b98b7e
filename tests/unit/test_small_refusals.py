"""What used to be passed over in silence is said: options without effect, folders made, columns there twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.cli import run
from kvscope.inspector.cli._engine import recorder
from kvscope.inspector.workloads.opening import open_workload


@pytest.mark.parametrize("command", ["check", "inspect"])
@pytest.mark.parametrize("as_json", [False, True])
def test_one_bad_file_among_traces(
    toy_traces: dict[str, Path], tmp_path: Path, command: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.kvpack").write_bytes(b"no zip file")
    (tmp_path / "b.kvtrace").symlink_to(toy_traces["clean"])
    assert run([command, str(tmp_path), *(["--json"] if as_json else [])]) == 2
    out, err = capsys.readouterr()
    assert err.count("a.kvpack") == 1
    assert "the others are looked at" in err
    assert json.loads(out)["schema"] if as_json else "b.kvtrace" in out or "clean" in out
    (tmp_path / "b.kvtrace").unlink()
    assert run([command, str(tmp_path)]) == 2
    assert "a.kvpack" in capsys.readouterr().err


def test_a_folder_of_traces_is_not_one_trace(
    toy_traces: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for name in ("rank0.kvtrace", "rank1.kvtrace"):
        (folder / name).symlink_to(toy_traces["clean"])
    for words in (["top", folder, "--once"], ["query", folder, "SELECT 1"], ["pack", folder],
                  ["export", folder, "--to", "csv"]):  # fmt: skip
        assert run([str(word) for word in words]) == 2
        told = capsys.readouterr().err
        assert f"{folder} is not a trace but a folder of 2 traces: give one, like {folder / 'rank0.kvtrace'}" in told


def test_every_command_says_the_same_of_a_folder_without_a_trace(
    toy_traces: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    for words in (["check", folder], ["inspect", folder], ["top", folder, "--once"], ["query", folder, "SELECT 1"],
                  ["compare", folder, folder], ["compare", toy_traces["clean"], folder], ["pack", folder],
                  ["doctor", folder], ["simulate", folder], ["export", folder, "--to", "csv"],
                  ["explain", folder, "--request", "0"]):  # fmt: skip
        assert run([str(word) for word in words]) == 2
        told = capsys.readouterr().err
        assert told == f"kvscope: error: {folder} is not a trace, and holds none (NAME.kvtrace or NAME.kvpack)\n"


def test_places_that_a_trace_cannot_be_packed_or_unpacked_to(
    toy_traces: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace, packed = str(toy_traces["clean"]), str(tmp_path / "a.kvpack")
    assert run(["pack", trace, packed]) == 0
    before = sorted(toy_traces["clean"].iterdir())
    for words, told in (
        (["pack", trace, "-"], "cannot go to standard output: give a name, like run.kvpack"),
        (["unpack", packed, "-"], "cannot go to standard output: give a name, like run.kvtrace"),
        (["unpack", packed, "/dev/full"], "cannot unpack to /dev/full: it is there already and is no folder"),
        (["unpack", packed, "/dev/null/x"], "cannot write /dev/null/x: /dev/null is no folder"),
        (["pack", trace, f"{trace}/in.kvpack"], "it lies in the trace itself; choose a place outside"),
    ):
        capsys.readouterr()
        assert run(words) == 2
        err = capsys.readouterr().err
        assert told in err
        assert err.count("\n") == 1
    assert sorted(toy_traces["clean"].iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.kvpack"]


def test_findings_count_more_than_a_file_that_cannot_be_read(toy_traces: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a.kvpack").write_bytes(b"no zip file")
    (tmp_path / "b.kvtrace").symlink_to(toy_traces["missing-copy"])
    assert run(["check", str(tmp_path)]) == 1


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_an_export_makes_its_folders(toy_traces: dict[str, Path], tmp_path: Path, to: str) -> None:
    """As every command does that writes."""
    out = tmp_path / "not" / "there" / "x"
    assert run(["export", str(toy_traces["clean"]), "--to", to, "--out", str(out)]) == 0
    assert [path.name for path in out.parent.iterdir()] == ["x"]


@pytest.mark.parametrize("length", [-3, 0, 10**12])
def test_a_mooncake_length_is_named(tmp_path: Path, length: int) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(json.dumps({"timestamp": 0, "input_length": length, "output_length": 5, "hash_ids": [1, 2]}) + "\n")
    with pytest.raises(UsageError, match=f"w.jsonl:1: input_length is {length:,}: must be 1"):
        open_workload(str(file))


def test_a_column_twice_and_a_number_with_underscores(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens,contexttokens\n2024-01-01 00:00:00,5,6,7\n")
    with pytest.raises(UsageError, match="there are 2 columns 'contexttokens'"):
        open_workload(str(file))
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,1_000,6\n")
    with pytest.raises(UsageError, match="'1_000': must be a whole number"):
        open_workload(str(file))


def test_raising_needs_the_sanitizer(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="--on-finding raise needs --record sanitize: with trace nothing is checked"),
        recorder(tmp_path / "a.kvtrace", "trace", None, None, on_finding="raise"),  # type: ignore[arg-type]
    ):
        pass
    assert not (tmp_path / "a.kvtrace").exists()


def test_doctor_of_a_trace_takes_no_options_of_a_workload(
    toy_traces: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(toy_traces["clean"])
    assert run(["doctor", trace, "--block-size", "16"]) == 2
    assert "--block-size is for a workload" in capsys.readouterr().err
    assert run(["doctor", trace]) in (0, 1)
