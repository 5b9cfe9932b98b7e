"""`kvscope export`, `import`, `pack`, `unpack` as a user meets them: names, one-line refusals, nothing half-written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kvscope.inspector import cli
from kvscope.inspector.export import export
from kvscope.inspector.importing import import_jsonl
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace


def kvscope(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = cli.run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trace(toy_traces: dict[str, Path]) -> Path:
    return toy_traces["clean"]


@pytest.mark.parametrize(
    ("to", "name"),
    [("perfetto", "clean.pftrace"), ("parquet", "clean.parquet"), ("jsonl", "clean.jsonl"), ("csv", "clean.csv"),
     ("ilens", "clean.ilens")],
)  # fmt: skip
def test_export_names_its_file_after_the_trace(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path, to: str, name: str
) -> None:
    status, out, _ = kvscope(capsys, "export", trace, "--to", to, "--json")
    told = json.loads(out)
    assert (status, told["path"], told["events"]) == (0, name, len(open_trace(trace).events))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    status, out, err = kvscope(capsys, "export", trace, "--to", to)
    assert (status, out) == (2, "")
    assert "exists" in err
    assert kvscope(capsys, "export", trace, "--to", to, "--overwrite", "--seq-range", "10:20")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "pdf"], "choose one of perfetto"),
        (["--to", "csv", "--seq-range", "7"], "give A:B"),
        (["--to", "csv", "--seq-range", "9:3"], "give A:B"),
        (["--to", "csv", "--seq-range", "-3:9"], "give A:B"),
        (["--to", "csv", "--seq-range", "0:99999999999999999999999"], "give A:B"),
        (["--to", "csv", "--seq-range", "900000:"], "no event lies in the range"),
        (["--to", "parquet", "--out", "-"], "standard output"),
        (["--to", "csv", "--out", "-", "--json"], "standard output"),
        (["--to", "csv", "--out", "/"], "give a name"),
        (["--to", "csv", "--out", "/proc/nowhere/a.csv"], "cannot write"),
        ([], "--to"),
    ],
)
def test_export_refuses_in_one_line(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    status, out, err = kvscope(capsys, "export", trace, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_standard_output(trace: Path) -> None:
    command = [sys.executable, "-m", "kvscope", "export", str(trace), "--to", "jsonl", "--out", "-"]
    lines = subprocess.run(command, capture_output=True, check=True).stdout.splitlines()
    assert json.loads(lines[-1])["record"] == "end"


def test_import_undoes_export(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    assert kvscope(capsys, "export", trace, "--to", "jsonl")[0] == 0
    status, out, err = kvscope(capsys, "import", "clean.jsonl", "--from", "jsonl", "--json")
    told = json.loads(out)
    assert (status, err, told["path"], told["warnings"]) == (0, "", "clean.kvtrace", [])
    before, after = open_trace(trace), open_trace("clean.kvtrace")
    np.testing.assert_array_equal(after.events, before.events)
    assert (after.facts, after.sites, after.actors) == (before.facts, before.sites, before.actors)
    assert {k: v for k, v in after.manifest.items() if k != "crc"} == {
        k: v for k, v in before.manifest.items() if k != "crc"
    }
    assert kvscope(capsys, "check", "clean.kvtrace")[0] == 0
    status, _, err = kvscope(capsys, "import", "clean.jsonl", "--from", "jsonl")
    assert (status, "is there already" in err) == (2, True)
    assert kvscope(capsys, "import", "clean.jsonl", "--from", "jsonl", "--overwrite")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clean.jsonl", "clean.kvtrace"]


@pytest.mark.parametrize("full", [False, True])
def test_the_lines_of_a_trace_that_was_not_closed_say_so_and_no_more(tmp_path: Path, full: bool) -> None:
    """Its writer was killed, on a disk with room or on a full one: what is imported tells the same."""
    failing = False

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data, offset)

    with Recorder(tmp_path / "live.kvtrace", pool=PoolFacts(4, 4), sealing="inline", hot_rows=512, seal_rows=100,
                  pwrite=pwrite) as sink:  # fmt: skip
        for row in range(1200):
            failing = (full and row == 300) or failing
            sink.emit(Kind.NOTE, aux=row, block=2**40 if row == 7 else -1)
            if not row % 100:
                sink.fact({"type": "note", "row": row})
        shutil.copytree(tmp_path / "live.kvtrace", tmp_path / "killed.kvtrace")
        failing = False
    killed = open_trace(tmp_path / "killed.kvtrace")
    assert (killed.dropped > 0, any(killed.losses)) == (full, full)
    export(killed, "jsonl", tmp_path / "killed.jsonl")
    import_jsonl(tmp_path / "killed.jsonl", tmp_path / "again.kvtrace")
    again = open_trace(tmp_path / "again.kvtrace")
    assert again.warnings == killed.warnings
    assert (again.clean, again.dropped, again.clipped, again.losses) == (False, killed.dropped, 1, killed.losses)
    assert again.manifest["events"] is None
    np.testing.assert_array_equal(again.events, killed.events)
    export(again, "jsonl", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "killed.jsonl").read_bytes()


GOOD = [
    '{"record":"trace","format":"kvscope-jsonl","version":1,"manifest":{"pool":{"num_blocks":4,"block_size":4}}}',
    '{"record":"actor","i":1,"name":"MainThread"}',
    '{"record":"site","i":1,"frames":[["a.py",1,"f"]]}',
    '{"seq":0,"kind":"ALLOC","block":1,"gen":1}',
    '{"seq":1,"kind":"WRITE","block":1,"gen":1,"detail":[1,2]}',
    '{"record":"fact","fact":{"type":"model"}}',
    '{"record":"end","events":2,"facts":1}',
]


@pytest.mark.parametrize(
    ("line", "text", "words"),
    [
        (1, "", "not JSON"),
        (1, '{"record":"trace","format":"other"}', "begins with"),
        (1, GOOD[0].replace('"version":1', '"version":9'), "update KVScope"),
        (1, '{"record":"trace","format":"kvscope-jsonl","version":1}', "pool geometry"),
        (1, GOOD[0].replace('"num_blocks":4', '"num_blocks":-4'), "pool geometry"),
        (1, GOOD[0].replace('"num_blocks":4', '"num_blocks":1e99'), "pool geometry"),
        (1, GOOD[0].replace('{"pool"', '{"clean":3,"pool"'), "manifest.clean"),
        (1, GOOD[0].replace('{"pool"', '{"dropped":-3,"pool"'), "manifest.dropped"),
        (2, '{"record":"actor","i":0,"name":"x"}', "1 to 255"),
        (2, '{"record":"actor","i":1,"name":3}', "is text"),
        (3, '{"record":"site","i":70000,"frames":[["a.py",1,"f"]]}', "1 to 65535"),
        (3, '{"record":"site","i":1,"frames":[]}', "file, line, function"),
        (3, GOOD[2] + "\n" + GOOD[2], "before"),
        (4, "not json", "not JSON"),
        (4, "[1]", "no JSON object"),
        (4, "[" * 100_000, "not JSON"),
        (4, "\x00\xff", "not JSON"),
        (4, '{"seq":%s}' % ("9" * 5000), "not JSON"),
        (4, '{"seq":0}', "kind is a name"),
        (4, '{"seq":0,"kind":"FLY"}', "kind is a name"),
        (4, '{"seq":0,"kind":256}', "kind is a name"),
        (4, '{"seq":0,"kind":true}', "kind is a name"),
        (4, '{"seq":-1,"kind":"ALLOC"}', "seq is a whole number"),
        (4, '{"seq":0.5,"kind":"ALLOC"}', "seq is a whole number"),
        (4, '{"seq":9223372036854775807,"kind":"ALLOC"}', "seq is a whole number"),
        (5, '{"seq":0,"kind":"ALLOC"}', "does not come after 0"),
        (4, '{"seq":0,"kind":"ALLOC","block":4294967296}', "block is a whole number"),
        (4, '{"seq":0,"kind":"ALLOC","block":true}', "block is a whole number"),
        (4, '{"seq":0,"kind":"ALLOC","fill":null}', "fill is a whole number"),
        (5, '{"seq":1,"kind":"ALLOC","colour":1}', "no member 'colour'"),
        (5, '{"seq":1,"kind":"ALLOC","detail":[1.5]}', "detail is a list"),
        (5, '{"seq":1,"kind":"ALLOC","detail":[99999999999999999999]}', "detail is a list"),
        (6, '{"record":"fact","fact":[]}', "a fact is"),
        (6, '{"record":"wish"}', "a line is"),
        (7, '{"record":"end","events":3,"facts":1}', "2 events came before"),
        (8, '{"seq":5,"kind":"ALLOC"}', "after the end record"),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_its_number(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, line: int, text: str, words: str
) -> None:
    lines = [*GOOD[: line - 1], text, *GOOD[line:]]
    Path("bad.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    status, out, err = kvscope(capsys, "import", "bad.jsonl", "--from", "jsonl")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"bad.jsonl, line {line + text.count(chr(10))}: " in err
    assert words in err
    assert len(err) < 400
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_a_line_without_an_end_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open("long.jsonl", "wb") as file:
        file.write(GOOD[0].encode() + b"\n")
        file.truncate(3 << 30)
    status, _, err = kvscope(capsys, "import", "long.jsonl", "--from", "jsonl")
    assert (status, "line 2: it is longer than" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["long.jsonl"]


def test_a_file_that_was_cut_short_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cut.jsonl").write_text("\n".join(GOOD[:5]))
    status, _, err = kvscope(capsys, "import", "cut.jsonl", "--from", "jsonl")
    assert (status, "cut short" in err) == (0, True)
    assert len(open_trace("cut.kvtrace").events) == 2


def test_the_target_of_an_import_is_safe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Path("good.jsonl").write_text("\n".join(GOOD))
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("x")
    Path("link.kvtrace").symlink_to("mine")
    Path("file.kvtrace").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    for target in ("mine", "link.kvtrace", "file.kvtrace"):
        status, _, err = kvscope(capsys, "import", "good.jsonl", "--from", "jsonl", "--out", target, "--overwrite")
        assert (status, err.count("\n")) == (2, 1)
    assert sorted(tmp_path.rglob("*")) == before
    assert kvscope(capsys, "import", "good.jsonl", "--from", "perfetto")[0] == 2
    assert kvscope(capsys, "import", "nowhere.jsonl", "--from", "jsonl")[0] == 2


def test_ctrl_c_in_an_import_leaves_nothing(tmp_path: Path) -> None:
    rows = b"".join(b'{"seq":%d,"kind":"NOTE"}\n' % i for i in range(400_000))
    Path("long.jsonl").write_bytes(GOOD[0].encode() + b"\n" + rows)
    command = [sys.executable, "-m", "kvscope", "import", "long.jsonl", "--from", "jsonl"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:  # the workshop has appeared
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"kvscope: interrupted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["long.jsonl"]


def test_pack_and_unpack(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    assert kvscope(capsys, "pack", trace)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["clean.kvpack"]
    assert kvscope(capsys, "inspect", "clean.kvpack", "--json")[1] == kvscope(capsys, "inspect", trace, "--json")[1]
    assert kvscope(capsys, "pack", trace)[0] == 2
    assert kvscope(capsys, "pack", trace, "--overwrite")[0] == 0
    assert kvscope(capsys, "unpack", "clean.kvpack", "again")[0] == 0
    np.testing.assert_array_equal(open_trace("again").events, open_trace(trace).events)
    assert kvscope(capsys, "unpack", "clean.kvpack", "again")[0] == 2
    assert kvscope(capsys, "unpack", trace, "other")[0] == 2


def test_unpack_says_what_is_damaged(capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path) -> None:
    assert kvscope(capsys, "pack", trace, "a.kvpack", "--json")[0] == 0
    packed = bytearray((tmp_path / "a.kvpack").read_bytes())
    at = packed.index(b"events-00000.arrows") + 4000
    packed[at : at + 3] = bytes(byte ^ 255 for byte in packed[at : at + 3])
    (tmp_path / "b.kvpack").write_bytes(packed)
    status, out, err = kvscope(capsys, "unpack", "b.kvpack", "--json")
    told = json.loads(out)
    assert (status, told["schema"], told["path"]) == (0, "kvscope-unpack/1", "b.kvtrace")
    assert told["notes"]
    assert err.startswith("kvscope: note: ")


def test_a_trace_is_not_packed_into_itself_nor_read_when_cut_short(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    status, _, err = kvscope(capsys, "pack", trace, trace / "in.kvpack")
    assert (status, err.count("\n")) == (2, 1)
    assert not (trace / "in.kvpack").exists()
    assert kvscope(capsys, "pack", trace, "a.kvpack")[0] == 0
    (tmp_path / "cut.kvpack").write_bytes((tmp_path / "a.kvpack").read_bytes()[:-500])
    for command in ("inspect", "check", "unpack", "dashboard"):
        status, _, err = kvscope(capsys, command, "cut.kvpack")
        assert (status, err.count("\n")) == (2, 1)
        assert "cut short" in err


@pytest.mark.parametrize("inside", ["", "manifest.json", "events-00000.arrows", "new.csv"])
def test_an_export_never_replaces_what_it_reads(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path, inside: str
) -> None:
    shutil.copytree(trace, tmp_path / "mine.kvtrace")
    before = {path: path.read_bytes() for path in (tmp_path / "mine.kvtrace").iterdir() if path.is_file()}
    target = Path("mine.kvtrace") / inside
    status, _, err = kvscope(capsys, "export", "mine.kvtrace", "--to", "csv", "--out", target, "--overwrite")
    assert (status, err.count("\n"), "in the trace itself" in err) == (2, 1, True)
    assert {path: path.read_bytes() for path in (tmp_path / "mine.kvtrace").iterdir() if path.is_file()} == before


def test_an_export_replaces_no_pipe(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    os.mkfifo("pipe")
    status, _, err = kvscope(capsys, "export", trace, "--to", "csv", "--out", "pipe", "--overwrite")
    assert (status, err.count("\n"), Path("pipe").is_fifo()) == (2, 1, True)


@pytest.mark.parametrize("keep", [0, 1, 50])
def test_a_trace_whose_only_segment_is_cut_off_is_told_in_one_way(
    capsys: pytest.CaptureFixture[str], toy_traces: dict[str, Path], tmp_path: Path, keep: int
) -> None:
    shutil.copytree(toy_traces["missing-copy"], tmp_path / "cut.kvtrace")
    segment = next((tmp_path / "cut.kvtrace").glob("events-*.arrows"))
    segment.write_bytes(segment.read_bytes()[:keep])
    status, _, err = kvscope(capsys, "check", "cut.kvtrace")
    assert (status, "Traceback" in err) == (2, False)
