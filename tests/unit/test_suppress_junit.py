"""Suppressions and JUnit: what is accepted is listed and does not fail, and a CI can read the rest."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.findings import check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.junit import write_junit
from kvscope.inspector.suppress import parse, suppress
from kvscope.traces import MemoryRecorder, PoolFacts, Recorder, open_trace
from kvscope.traces.schema import Kind


def faulty() -> HandTrace:
    """Block 0 written while shared (KV006), block 1 never released (KV005)."""
    trace = HandTrace().event(Kind.ADMIT, seq_id=1).at("engine/pool.py", 7, "write")
    trace.alloc(0, seq_id=1).share(0, seq_id=2).write(0, 0, 1, seq_id=1).alloc(1, seq_id=1, lblock=1)
    trace.event(Kind.FINISH, seq_id=1).release(0, seq_id=1).release(0, seq_id=2).free(0)
    return trace


@pytest.mark.parametrize(
    ("rule", "left"),
    [("KV006", {"KV005"}), ("KV006:b0", {"KV005"}), ("KV006:b1", {"KV005", "KV006"}),
     ("KV006:engine/pool.py", {"KV005"}), ("KV006:write", {"KV005"}), ("KV006:free", {"KV005", "KV006"})],
)  # fmt: skip
def test_a_rule_takes_what_it_names(rule: str, left: set[str]) -> None:
    trace = faulty()
    result, taken = suppress(check(trace), trace, parse([rule]))
    assert {f.code for f in result.findings} == left
    assert len(taken[0].findings) == 2 - len(left)


def test_a_file_gives_reasons(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    file.write_text("# what we know\nKV006:b0   # fixed in the next release\n\nKV003\n")
    trace = faulty()
    result, taken = suppress(check(trace), trace, parse([str(file)]))
    assert [f.code for f in result.findings] == ["KV005"]
    assert [str(t) for t in taken] == [
        f"suppressed by KV006:b0 (fixed in the next release; {file}:2): 1 finding",
        f"suppression KV003 matches no finding ({file}:4)",
    ]
    assert taken[0].to_json()["where"] == f"{file}:2"
    assert [line.split(", seq")[0] for line in taken[0].lines(trace)] == ["    KV006 write-while-shared"]


@pytest.mark.parametrize("bad", ["KV6", "KV999", "nothing.txt", ""])
def test_nonsense_is_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="suppression"):
        parse([bad])


def test_junit_fails_by_code_and_skips_what_is_accepted(tmp_path: Path) -> None:
    trace = faulty()
    trace.request(0, "bell\x07 & <co>", [1])
    result, taken = suppress(check(trace), trace, parse(["KV005"]))
    write_junit(tmp_path / "r.xml", result, trace, name="a.kvtrace", suppressed=taken)
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    cases = {case.get("name", "")[:5]: case for case in suite.iter("testcase")}
    skipped = [case for case in cases.values() if case.find("skipped") is not None]
    told = tuple(suite.get(name) for name in ("failures", "errors", "skipped", "tests"))
    assert told == ("1", "0", str(len(skipped)), str(len(cases)))
    for code in ("KV023", "KV024"):  # nobody looked at prefixes or contents beside this run
        why = cases[code].find("skipped")
        assert why is not None
        assert "nothing to look at" in why.get("message", "")
    failure = cases["KV006"].find("failure")
    assert failure is not None
    assert "write-while-shared on block b0#1" in (failure.text or "")
    assert cases["KV005"].find("skipped") is not None
    assert len(cases["KV001"]) == 0


@pytest.mark.parametrize("kind", ["missing", "empty folder", "no trace"])
def test_junit_of_a_trace_that_cannot_be_read_is_an_error(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, told = tmp_path / "x.kvtrace", tmp_path / "out" / "j.xml"
    if kind == "empty folder":
        trace.mkdir()
    elif kind == "no trace":
        trace.write_bytes(b"no trace")
    assert cli.run(["check", str(trace), "--junit", str(told)]) == 2
    said = capsys.readouterr().err
    suite = ElementTree.parse(told).getroot()
    assert (suite.tag, suite.get("tests"), suite.get("errors"), suite.get("failures")) == ("testsuite", "1", "1", "0")
    error = suite.find("testcase/error")
    assert error is not None
    assert error.get("message", "?") in " ".join(said.split())


def test_junit_of_a_check_that_looked_at_nothing_is_an_error(tmp_path: Path) -> None:
    trace = MemoryRecorder(num_blocks=4, block_size=2)
    write_junit(tmp_path / "r.xml", check(trace), trace, name="empty.kvtrace")
    suite = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert suite.get("errors") == "1"
    assert [case.get("name") for case in suite.iter("testcase") if case.find("error") is not None] == [
        "something to check"
    ]


def test_a_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "known.bin"
    file.write_bytes(b"KV006\n\x00\xff\n")
    with pytest.raises(UsageError, match="no text in UTF-8"):
        parse([str(file)])


def test_command(toy_traces: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(toy_traces["missing-copy"])
    assert cli.run(["check", trace, "--junit", str(tmp_path / "r.xml")]) == 1
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("failures") == "1"
    capsys.readouterr()
    assert cli.run(["check", trace, "--suppress", "KV006", "--json"]) == 0
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert told["findings"] == []
    assert len(told["suppressed"][0]["findings"]) == 42
    assert "suppressed by KV006: 42 findings" in captured.err
    for arguments, lines, last in (([], 5, "... and 37 more; --show-suppressed lists all"),
                                   (["--show-suppressed"], 42, "")):  # fmt: skip
        assert cli.run(["check", trace, "--suppress", "KV006", *arguments]) == 0
        told = capsys.readouterr().err
        assert told.count("    KV006 write-while-shared, seq ") == lines
        assert last in told
    assert cli.run(["check", trace, "--suppress", "KV1"]) == 2


def test_findings_that_are_all_suppressed_are_not_called_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = kept(tmp_path)
    assert cli.run(["check", made]) == 1
    capsys.readouterr()
    every = [word for code in {f.code for f in check(open_trace(made)).findings} for word in ("--suppress", code)]
    assert cli.run(["check", made, *every]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("none open, 2 findings suppressed: checked ")
    assert "clean" not in shown
    assert cli.run(["check", made, *every, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["clean"], told["suppressed_findings"], told["findings"]) == (True, 2, [])


def kept(folder: Path, name: str = "a", *, faulty: bool = True, blocks: bool = True) -> str:
    """A trace on the disk: with two findings, with none, or with nothing to check."""
    with Recorder(folder / f"{name}.kvtrace", pool=PoolFacts(4, 4, 64)) as sink:
        sink.begin()
        sink.emit(Kind.ADMIT, seq_id=1)
        for block in range(2 * blocks):
            sink.emit(Kind.ALLOC, block=block, gen=1, ref_before=0, ref_after=1, fill=0, seq_id=1, lblock=block)
        for block in range(2 * blocks * (not faulty)):
            sink.emit(Kind.RELEASE, block=block, gen=1, ref_before=1, ref_after=0, fill=0, seq_id=1, lblock=block)
            sink.emit(Kind.FREE, block=block, gen=1, ref_before=0, ref_after=0, fill=0)
        sink.emit(Kind.FINISH, seq_id=1)
    return str(folder / f"{name}.kvtrace")


def test_exit_codes_of_several_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = kept(tmp_path, "bad"), kept(tmp_path, "good", faulty=False)
    idle, gone = kept(tmp_path, "idle", blocks=False), str(tmp_path / "gone.kvtrace")
    expected = {(good,): 0, (bad,): 1, (idle,): 2, (gone,): 2, (good, bad): 1, (good, gone): 2, (bad, gone): 1,
                (gone, bad): 1, (good, idle): 2, (bad, idle): 1}  # fmt: skip
    assert {traces: cli.run(["check", *traces]) for traces in expected} == expected
    assert "gone.kvtrace" in capsys.readouterr().err
    assert cli.run(["check", bad, gone, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], len(told["traces"]), len(told["unreadable"])) == ("kvsan-several/1", 1, 1)
    assert gone in told["unreadable"][0]
    assert cli.run(["check", bad, gone, "--junit", str(tmp_path / "j.xml")]) == 2
    assert not (tmp_path / "j.xml").exists()
