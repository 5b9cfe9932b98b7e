"""`kvscope inspect` and `kvscope check`: what they print, as JSON and as text, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.inspector import cli
from kvscope.inspector.units import number, percent, size, span
from kvscope.traces import Kind, PoolFacts, Reason, Recorder, compiled, pack_range
from kvscope.traces.manifest import manifest_crc

Result = tuple[int, str, str]


def kvscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    status = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def record(path: Path, *, faulty: bool, closed: bool = True) -> Path:
    """Two sequences over one block; with `faulty`, the second writes it without a copy."""
    recorder = Recorder(path, pool=PoolFacts(4, 4, 64))
    recorder.fact({"type": "request", "request": 0, "name": "haiku", "seq_ids": [1, 2], "prompt_tokens": 3})
    recorder.begin()
    recorder.emit(Kind.ADMIT, seq_id=1)
    recorder.emit(Kind.ALLOC, Reason.PREFILL, 0, 1, 0, 1, 0, 1, 0)
    recorder.emit(Kind.WRITE, Reason.PREFILL, 0, 1, 1, 1, 3, 1, 0, pack_range(0, 3))
    recorder.emit(Kind.SHARE, Reason.FORK, 0, 1, 1, 2, 3, 2, 0)
    if faulty:
        recorder.emit(Kind.WRITE, Reason.DECODE, 0, 1, 2, 2, 4, 2, 0, pack_range(3, 4))
    if closed:
        recorder.close()
    return path


def record_nothing(path: Path) -> Path:
    with Recorder(path, pool=PoolFacts(4, 4, 64)) as recorder:
        recorder.emit(Kind.SUBMIT, seq_id=1, aux=3)
    return path


def test_check_says_how_much_it_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = kvscope(capsys, "check", record(tmp_path / "a.kvtrace", faulty=False))
    assert (status, err) == (0, "")
    assert out.startswith("clean: checked 4 events, 1 block, 3 slots in ")
    assert "nothing to look at for" in out


def test_check_reports_and_exits_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = record(tmp_path / "a.kvtrace", faulty=True)
    status, out, _ = kvscope(capsys, "check", path)
    assert status == 1
    assert "[KV006]" in out
    assert f"kvscope dashboard {path} --seq 4 --block 0" in out
    status, out, _ = kvscope(capsys, "check", path, "--json")
    data = json.loads(out)
    assert (status, data["schema"], data["findings"][0]["code"]) == (1, "kvsan/1", "KV006")


def test_nothing_to_check_is_not_clean(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = record_nothing(tmp_path / "a.kvtrace")
    status, out, _ = kvscope(capsys, "check", path)
    assert (status, out.startswith("nothing to check")) == (2, True)
    status, out, _ = kvscope(capsys, "check", path, "--json")
    assert (status, json.loads(out)["clean"]) == (2, False)


@pytest.mark.parametrize("lost", ["at the end", "dropped", "both"])
def test_a_trace_with_known_loss_is_not_called_clean(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lost: str
) -> None:
    path = record(tmp_path / "a.kvtrace", faulty=False)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {"events": 4 + 5 * (lost != "dropped"), "dropped": 3 * (lost != "at the end")}
    (path / "manifest.json").write_text(json.dumps(manifest | {"crc": manifest_crc(manifest)}))
    missing = {"at the end": 5, "dropped": 3, "both": 8}[lost]
    status, out, err = kvscope(capsys, "check", path)
    assert status == 0
    assert out.startswith(f"clean as far as recorded: {missing} events are missing; checked 4 events, ")
    assert "kvscope: note: " in err
    status, out, _ = kvscope(capsys, "check", path, "--json")
    assert (status, json.loads(out)["missing_events"]) == (0, missing)


def test_drops_of_a_writer_that_did_not_close_are_counted_by_their_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "a.kvtrace", pool=PoolFacts(4, 4, 64))
    recorder.emit(Kind.ALLOC, Reason.PREFILL, 0, 1, 0, 1, 0, 1, 0)
    recorder.emit(Kind.GAP, aux=1)
    status, out, _ = kvscope(capsys, "check", tmp_path / "a.kvtrace")
    assert (status, out.split(";")[0]) == (0, "clean as far as recorded: 1 event is missing")


def test_notes_of_an_unfinished_trace_go_to_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = kvscope(capsys, "check", record(tmp_path / "a.kvtrace", faulty=False, closed=False))
    assert (status, out.startswith("clean: ")) == (0, True)
    assert "kvscope: note: " in err


def test_inspect_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = kvscope(capsys, "inspect", record(tmp_path / "a.kvtrace", faulty=False))
    assert status == 0
    for words in ("4 blocks of 4 slots", "tail waste", "sharing factor", "prefix hit rate", "closed cleanly"):
        assert words in out


def test_inspect_json_has_the_measures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, _ = kvscope(capsys, "inspect", record(tmp_path / "a.kvtrace", faulty=False), "--json")
    data = json.loads(out)
    assert status == 0
    assert data["tail_waste"]["last"] == 0.25
    assert data["sharing_factor"]["peak"] == 2.0
    assert data["prefix_hit_rate"] is None


def test_bad_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments in (
        ["check"],
        ["bogus"],
        ["check", tmp_path / "missing"],
        ["check", tmp_path],
        ["check", "x", "--max", 0],
    ):
        status, out, err = kvscope(capsys, *arguments)
        assert (status, out) == (2, "")
        assert err.startswith("kvscope: error: ")
        assert err.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    for on in (False, compiled.built()):
        with compiled.using(on):
            expected = f"kvscope 0.1.0, recording in {'C' if on else 'Python'}\n"
            assert kvscope(capsys, "--version")[:2] == (0, expected)


def test_interrupted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvscope.inspector.findings.check", interrupt)
    status, _, err = kvscope(capsys, "check", record(tmp_path / "a.kvtrace", faulty=False))
    assert (status, err) == (130, "kvscope: interrupted\n")


def test_help_has_an_example_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("check", "inspect"):
        status, out, _ = kvscope(capsys, name, "--help")
        assert (status, f"Example: kvscope {name} run.kvtrace" in out) == (0, True)


def test_help_and_offline_modules_are_light() -> None:
    script = (
        "import sys\n"
        "from kvscope.inspector import cli\n"
        "assert cli.run(['--help']) == 0\n"
        "from kvscope import inspector\n"
        "[getattr(inspector, name) for name in inspector.__all__]\n"
        "import kvscope.inspector.report, kvscope.inspector.lanes, kvscope.inspector.biography\n"
        "heavy = {'torch', 'streamlit', 'fastapi', 'pyarrow', 'plotly', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_units() -> None:
    assert [span(v) for v in (None, 2.5, 0.0021, 3e-6, 5e-9)] == ["-", "2.5 s", "2.1 ms", "3.0 us", "5 ns"]
    assert [size(v) for v in (None, 0, 12, 2048, 3 * 2**30, 2**41)] == [
        "-", "0 B", "12 B", "2.0 KiB", "3.0 GiB", "2.0 TiB",
    ]  # fmt: skip
    assert (percent(0.1234), percent(None), number(1234.5, 1), number(None)) == ("12.3 %", "-", "1,234.5", "-")
