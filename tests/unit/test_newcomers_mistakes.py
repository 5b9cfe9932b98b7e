"""What a newcomer does wrong, and meets damaged: one line that names it, and nothing of theirs is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.sizing import parse_bytes
from kvscope.errors import UsageError
from kvscope.inspector.cli import run
from kvscope.inspector.cli._files import check_replaceable
from kvscope.inspector.compare import compare
from kvscope.inspector.junit_file import ReportError, ready_for_junit, write_suite
from kvscope.inspector.watch import Hit, WatchPoints, watched
from kvscope.inspector.workloads import open_workload
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Recorder, open_trace


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a command refuses these arguments with."""
    assert run(arguments) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    return told.err.removeprefix("kvscope: error: ").rstrip()


def recorded(path: Path, events: int = 100, batch: int = 4, engine: str = "kvscope") -> Path:
    with Recorder(path, pool=PoolFacts(8, 4), engine=engine, sealing="inline", hot_rows=64, seal_rows=batch) as sink:
        sink.fact({"type": "request", "request": 0, "name": "haiku", "prompt_tokens": 3, "seq_ids": [0]})
        for i in range(events):
            sink.emit(Kind.FREE, block=i % 8, gen=0)
    return path


def damage(path: Path, *, every: int) -> Path:
    """Flip a byte in each so-manieth batch."""
    segment = next(path.glob("events-*.arrows"))
    raw = bytearray(segment.read_bytes())
    index = (path / (segment.stem + ".index")).read_bytes()
    import numpy as np

    from kvscope.traces.segment import BATCH_ENTRY, ENTRY_BYTES, INDEX_DTYPE

    entries = np.frombuffer(index[: len(index) // ENTRY_BYTES * ENTRY_BYTES], INDEX_DTYPE)
    for entry in entries[entries["kind"] == BATCH_ENTRY][::every]:
        raw[int(entry["offset"]) + int(entry["length"]) // 2] ^= 0xFF
    segment.write_bytes(raw)
    return path


class TestReports:
    def test_the_place_is_looked_at_before_the_work(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        mine = tmp_path / "notes.txt"
        mine.write_text("mine")
        trace = str(recorded(tmp_path / "t.kvtrace"))
        for place, words in ((mine, "no JUnit report"), (tmp_path, "it is a folder"), (mine / "x.xml", "cannot write")):
            for command in (["check", trace], ["races", "--example", "articles"], ["fuzz", "no.such:target"]):
                told = refused(capsys, *command, "--junit", str(place))
                assert words in told
                assert str(place) in told
                assert "part" not in told.replace(str(tmp_path), "")
        assert mine.read_text() == "mine"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "t.kvtrace"]

    def test_folders_are_made_and_a_report_is_replaced(self, tmp_path: Path) -> None:
        trace, report = str(recorded(tmp_path / "t.kvtrace")), tmp_path / "a" / "b" / "report.xml"
        for _ in range(2):
            run(["check", trace, "--junit", str(report)])
            assert ElementTree.parse(report).getroot().tag == "testsuite"
        assert [path.name for path in report.parent.iterdir()] == ["report.xml"]

    def test_what_cannot_be_written_after_all_names_the_file(self, tmp_path: Path) -> None:
        gone = tmp_path / "gone" / "r.xml"
        ready_for_junit(gone)
        gone.parent.rmdir()
        with pytest.raises(ReportError, match=f"cannot write {gone}: No such file"):
            write_suite(gone, ElementTree.Element("testsuite"))

    def test_a_file_as_database(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "programs"
        file.write_text("")
        assert "is a file" in refused(capsys, "fuzz", "kvscope", "--database", str(file))


def test_only_what_a_command_has_made_is_replaced(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "none.kvtrace", "kvscope demo", overwrite=False)
    check_replaceable(recorded(tmp_path / "mine.kvtrace", engine="kvscope demo"), "kvscope demo", overwrite=False)
    theirs = recorded(tmp_path / "theirs.kvtrace")
    check_replaceable(theirs, "kvscope demo", overwrite=True)
    with pytest.raises(UsageError, match=r"has not made: choose another --out, or --overwrite"):
        check_replaceable(theirs, "kvscope demo", overwrite=False)


def test_the_demo_asks_before_the_model_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "clean.kvtrace")
    told = refused(capsys, "demo", "--no-dashboard", "--out", str(tmp_path), "--model", "no-such-model")
    assert f"{tmp_path / 'clean.kvtrace'} is a trace that `kvscope demo` has not made" in told


class TestDamage:
    def test_many_lost_batches_are_one_line(self, tmp_path: Path) -> None:
        trace = open_trace(damage(recorded(tmp_path / "t.kvtrace", 200), every=2))
        lines = trace.warnings
        assert len(lines) == 2
        assert "25 batches between bytes" in lines[0]
        assert lines[1] == "100 of the events 0 to 195 are missing, in 25 places"

    def test_all_views_say_that_nothing_is_left(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        bad, good = damage(recorded(tmp_path / "bad.kvtrace"), every=1), recorded(tmp_path / "good.kvtrace")
        for command in (["inspect", str(bad)], ["top", str(bad), "--once"], ["compare", str(bad), str(good)]):
            run(command)
            told = " ".join(capsys.readouterr().out.split())
            assert "damaged: all" in told
            assert "100 events are missing" in told
        health = compare(open_trace(bad), open_trace(good)).notes
        assert any(note.startswith("a is damaged: all its 100 events are missing") for note in health)

    def test_a_part_that_is_lost_is_counted(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        bad = damage(recorded(tmp_path / "bad.kvtrace"), every=5)
        for command in (["inspect", str(bad)], ["top", str(bad), "--once"], ["compare", str(bad), str(bad)]):
            run(command)
            told = " ".join(capsys.readouterr().out.split())
            assert "damaged: 20" in told


class TestWatch:
    def test_a_block_that_the_pool_does_not_have(self) -> None:
        assert watched("b7#2", 8) == (7, 2)
        with pytest.raises(UsageError, match=r"watch 'b8': the pool has 8 blocks, b0 to b7"):
            WatchPoints(MemoryRecorder(num_blocks=8, block_size=4), lambda hit: None, ["b8"], num_blocks=8)

    def test_the_site_is_who_called_the_pool(self) -> None:
        hits: list[Hit] = []
        sink = WatchPoints(MemoryRecorder(num_blocks=8, block_size=4), hits.append, [f"b{i}" for i in range(8)])
        manager = BlockManager(8, 4, sink=sink)  # type: ignore[arg-type]
        manager.admit(0, [1, 2, 3, 4, 5])  # an array of blocks, then one
        manager.write(0, 0, 5)
        manager.append(0, 6)
        assert {hit.kind for hit in hits} == {Kind.ALLOC, Kind.WRITE}
        assert {Path(hit.frames[0].file).name for hit in hits} == {Path(__file__).name}

    def test_on_the_command_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        told = refused(capsys, "generate", "no-such-model", "hi", "--watch", "b99999")
        assert told == "watch 'b99999': the pool has 256 blocks, b0 to b255"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["check", ""], "TRACE... is empty"),
        (["inspect", ""], "TRACE... is empty"),
        (["top", ""], "PLACE is empty"),
        (["simulate", ""], "WORKLOAD is empty"),
        (["export", "x", "--to", "csv", "--out", ""], "--out is empty"),
        (["check", "x", "--junit="], "--junit is empty"),
        (["generate", "", "hi"], "MODEL or PROMPTS is empty"),
    ],
)
def test_an_empty_name_is_not_this_folder(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert named in refused(capsys, *arguments)


def test_an_output_that_is_full_or_gone(tmp_path: Path) -> None:
    trace = str(recorded(tmp_path / "t.kvtrace"))
    for command in (["inspect", trace], ["export", trace, "--to", "csv", "--out", "-"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([sys.executable, "-m", "kvscope", *command], stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert done.stderr.decode().splitlines()[-1] == (
            "kvscope: error: cannot write standard output: No space left on device"
        )
        assert done.stderr.count(b"kvscope: error") == 1


class TestWords:
    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("rate=fast", "gen: rate is 'fast': wanted arrivals per second"),
            ("prompt=", "gen: prompt is '': wanted tokens, such as 450 or 6k; or 100-1024"),
            ("prompt=exp:", "gen: prompt is 'exp:': wanted tokens"),
            ("prompt=5-x", "gen: prompt is '5-x': wanted tokens"),
            ("output=ln:6k:wide", "gen: output is ln:6k:wide: its sigma must be a number, 0..5"),
            ("requests=many", "gen: requests is 'many': wanted a whole number, 1..10,000,000"),
            ("samples=2.5", "gen: samples is 2.5: must be a whole number of samples, 1..256"),
            ("prompt=0-9", r"gen: prompt is 0-9 \(0\): must be a whole number of tokens, 1.."),
        ],
    )
    def test_a_workload_names_what_it_wanted(self, spec: str, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            open_workload(f"gen:{spec}")

    def test_a_size_may_be_too_large(self) -> None:
        with pytest.raises(UsageError, match=r"99999999999999999999GiB is too large a size: at most 1,048,576TiB"):
            parse_bytes("99999999999999999999GiB")
        assert parse_bytes("1.5KiB") == 1536

    def test_samples_are_called_so(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert refused(capsys, "generate", "m", "hi", "--samples", "-1") == "--samples is -1: must be 1..256"

    def test_a_prompt_that_is_no_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        bad = b"sch\xf6n".decode("utf-8", "surrogateescape")
        assert refused(capsys, "generate", "m", bad) == "the prompt is not UTF-8 text: byte 3 is wrong"
        assert "the system message is not UTF-8" in refused(capsys, "generate", "m", "hi", "--system", bad)
