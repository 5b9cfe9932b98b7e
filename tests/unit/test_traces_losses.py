"""Facts, long details and names on a full disk: they wait, they come when there is room, and what is lost is said."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.inspector.measures import summary
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace, pack
from kvscope.traces.files import MAX_PENDING_BYTES, AppendFile
from kvscope.traces.losses import Losses

POOL = PoolFacts(64, 16)
VALUES = list(range(20))


class Disk:
    """An `os.pwrite` for a disk with so many bytes left; a write that does not fit is cut short, as a real one is."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.pwrite(fd, data[: self.room], offset)
        self.room -= written
        return written


def recorder_on(disk: Disk, path: Path, **options: Any) -> Recorder:
    return Recorder(path, pool=POOL, pwrite=disk.pwrite, sealing="inline", hot_rows=256, seal_rows=64, **options)


def fill(recorder: Recorder, facts: int, details: int, size: int = 1) -> None:
    for number in range(facts):
        recorder.fact({"number": number, "text": "x" * size})
    for number in range(details):
        recorder.detail(recorder.emit(Kind.FREE, block=number % 64), VALUES)


def said(trace: Any) -> str:
    return "\n".join(trace.warnings)


def test_a_record_that_is_being_written_is_not_missing(tmp_path: Path) -> None:
    """Whoever looks, or counts, in the middle of a write to a healthy disk."""
    recorders: list[Recorder] = []
    looks: list[Losses] = []
    warnings: list[str] = []

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        for recorder in recorders:
            looks.append(recorder.losses)
            recorder._publish()  # as the thread does that seals
            warnings.extend(open_trace(recorder.path).warnings)
            packed = open_trace(pack(recorder.path, tmp_path / "a.kvpack", overwrite=True))
            looks.extend([packed.losses, open_trace(recorder.path).losses])
        return os.pwrite(fd, data, offset)

    with Recorder(tmp_path / "a.kvtrace", pool=POOL, pwrite=pwrite, sealing="inline") as made:
        recorders.append(made)
        fill(made, 3, 2)
    assert len(looks) > 12
    assert set(looks) == {Losses()}
    assert not [line for line in warnings if "disk" in line]


@pytest.mark.parametrize("room", [0, 1, 100, 1000, 5000])
def test_what_a_full_disk_did_not_take_comes_when_there_is_room(tmp_path: Path, room: int) -> None:
    disk = Disk(room)
    recorder = recorder_on(disk, tmp_path / "a.kvtrace")
    fill(recorder, 100, 40)
    live = open_trace(recorder.path)
    waiting = Losses(100 - len(live.facts), 40 - sum(live.detail(seq) is not None for seq in range(40)))
    assert recorder.losses == live.losses == waiting
    assert f"{waiting} are not on the disk yet" in said(live)
    disk.room = 1 << 30
    recorder.fact({"number": 100})
    assert recorder.losses.facts == 0
    recorder.close()
    trace = open_trace(recorder.path)
    assert (trace.clean, trace.warnings, trace.losses) == (True, [], Losses())
    assert [fact["number"] for fact in trace.facts] == list(range(101))
    assert [trace.detail(seq) for seq in range(40)] == [tuple(VALUES)] * 40
    assert "lost" not in trace.manifest


@pytest.mark.parametrize("room", [0, 1, 777, 3000])
def test_what_a_full_disk_never_takes_is_counted_and_said(tmp_path: Path, room: int) -> None:
    recorder = recorder_on(Disk(room), tmp_path / "a.kvtrace")
    recorder.begin()
    fill(recorder, 1000, 100)
    recorder.close()
    for trace in (open_trace(recorder.path), open_trace(pack(recorder.path, tmp_path / "a.kvpack"))):
        held = sum(trace.detail(seq) is not None for seq in range(100))
        losses = Losses(1000 - len(trace.facts), 100 - held, recorder.losses.names)
        assert recorder.losses == trace.losses == losses
        assert losses.facts > 900
        assert f"{losses} are lost" in said(trace)
        assert "all that it acknowledged is here" not in said(trace)
        assert "torn" not in said(trace)
        assert summary(trace)["health"]["lost_records"] == losses._asdict()
        assert not trace.clean
        assert len(trace.events) == 100


def test_more_than_waits_is_lost_and_the_trace_can_still_be_closed(tmp_path: Path) -> None:
    disk = Disk(0)
    recorder = recorder_on(disk, tmp_path / "a.kvtrace")
    fill(recorder, 1200, 0, size=1000)
    kept = MAX_PENDING_BYTES // 1000
    disk.room = 1 << 30
    recorder.close()
    trace = open_trace(recorder.path)
    assert trace.clean
    assert 0.9 * kept < len(trace.facts) < kept
    assert trace.losses == Losses(facts=1200 - len(trace.facts)) == recorder.losses
    assert trace.manifest["lost"] == trace.losses._asdict()
    assert trace.warnings == [f"{trace.losses} are lost: the writer could not write to its disk"]
    resumed = Recorder(recorder.path, pool=POOL, resume=True, sealing="inline")
    assert open_trace(recorder.path).losses == trace.losses
    resumed.close()
    assert open_trace(recorder.path).losses == trace.losses  # of the writer before


def test_room_is_looked_for_before_a_record_is_given_up(tmp_path: Path) -> None:
    disk = Disk(0)
    file = AppendFile(tmp_path / "f", disk.pwrite)
    assert not file.append(b"a" * MAX_PENDING_BYTES)
    assert not file.append(b"b")
    disk.room = 1 << 30
    assert file.append(b"c")
    assert (file.lost, file.missing) == (1, 1)
    file.close()
    assert (tmp_path / "f").read_bytes() == b"a" * MAX_PENDING_BYTES + b"c"


def test_half_a_record_does_not_stay(tmp_path: Path) -> None:
    disk = Disk(25)
    counted: list[int] = []
    file = AppendFile(tmp_path / "f", disk.pwrite, counted=lambda: counted.append(file.missing))
    assert [file.append(b"%09d\n" % i) for i in range(5)] == [True, True, False, False, False]
    assert counted == [1, 2, 3]
    disk.room = 12
    assert not file.flush()
    file.close()
    assert (tmp_path / "f").read_bytes() == b"000000000\n000000001\n000000002\n"
    assert (file.missing, counted[-1]) == (2, 2)


def test_after_kill_9_on_a_full_disk_the_count_is_there(tmp_path: Path) -> None:
    code = """
import os, resource, signal, sys
from kvscope.traces import *
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
r = Recorder(sys.argv[1], pool=PoolFacts(64, 16), hot_rows=256, seal_rows=64, seal_after_s=3600)
for i in range(1000):
    r.fact({"number": i, "text": "x" * 100})
for i in range(100):
    r.detail(r.emit(Kind.FREE, block=i % 64), list(range(1, 101)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "a.kvtrace"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    trace = open_trace(path)
    held = sum(trace.detail(seq) is not None for seq in range(100))
    assert trace.losses == Losses(1000 - len(trace.facts), 100 - held)
    assert (trace.losses.facts > 0, trace.losses.details > 0) == (True, True)
    assert f"{trace.losses} are lost" in said(trace)


@pytest.mark.parametrize(("facts", "told"), [(1, "1 fact was not written"), (2, "2 facts were not written")])
def test_check_says_in_its_line_what_was_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: int, told: str
) -> None:
    from kvscope.inspector.cli import run

    full = tmp_path / "facts"

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("facts.jsonl"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(full))
        return os.pwrite(fd, data, offset)

    with Recorder(tmp_path / "a.kvtrace", pool=POOL, pwrite=pwrite, sealing="inline") as recorder:
        recorder.emit(Kind.ALLOC, block=1, gen=1, ref_before=0, ref_after=1, seq_id=1, lblock=0)
        fill(recorder, facts, 0)
    run(["check", str(recorder.path)])
    assert f"clean as far as recorded: {told}; " in capsys.readouterr().out


def test_every_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvscope.inspector.cli import run

    recorder = recorder_on(Disk(0), tmp_path / "a.kvtrace")
    fill(recorder, 7, 1)
    recorder.close()
    lost = {"facts": 7, "details": 1, "names": 0}

    def told(*words: str) -> tuple[str, str]:
        run([*words, str(recorder.path)])
        return capsys.readouterr()

    assert "7 facts and 1 detail not written" in " ".join(told("inspect")[0].split())
    assert json.loads(told("inspect", "--json")[0])["health"]["lost_records"] == lost
    assert "7 facts and 1 detail are lost" in told("check")[1]
    assert json.loads(told("check", "--json")[0])["lost_records"] == lost


@pytest.mark.parametrize("noted", [None, 3, [], {"facts": -1}, {"facts": True, "details": "7"}, {"facts": 2**70}])
def test_a_manifest_that_says_nonsense_is_not_believed(tmp_path: Path, noted: object) -> None:
    path = tmp_path / "a.kvtrace"
    Recorder(path, pool=POOL).close()
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"lost": noted}))
    assert open_trace(path).losses == Losses()
