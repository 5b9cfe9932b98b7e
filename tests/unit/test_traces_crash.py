"""A writer killed at any moment, a disk that fills up, a reader that follows a living writer."""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.traces import Kind, PoolFacts, Recorder, TraceReader, open_trace
from kvscope.traces.hot import HEADER_BYTES, HotWriter
from kvscope.traces.hot_tail import read_hot
from kvscope.traces.row_layout import ROW_DTYPE
from kvscope.traces.segment import MAX_BATCH_ROWS

POOL = PoolFacts(num_blocks=64, block_size=16)

# Writes rows whose values follow from their seq, and after each call puts the number of acknowledged rows in a file. It
# ends after so many rows, but not before byte 16 of that file says that it has been looked at often enough.
CHILD = """
import mmap, os, struct, sys
from kvscope.traces import Kind, PoolFacts, Recorder
folder, acked, sealing, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
fd = os.open(acked, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4096)
ack = mmap.mmap(fd, 4096)
recorder = Recorder(folder, pool=PoolFacts(64, 16), sealing=sealing, hot_rows=512, seal_rows=128, seal_after_s=0.01)
n = facts = 0
while n < most or not ack[16]:
    recorder.step = n
    recorder.begin()
    assert recorder.emit(Kind.FREE, block=n % 64, lblock=n, aux=n * 7) == n
    if n % 3 == 0:
        recorder.detail(n, [n, -n])
    n += 1
    ack[:16] = struct.pack("<2q", n, facts)  # one store: `pack_into` would clear first
    if n % 10 == 0:
        numbers = list(range(n, n + 25))
        recorder.emit_many(Kind.FREE, block=[i % 64 for i in numbers], lblock=numbers, aux=[i * 7 for i in numbers])
        n += 25
        ack[:16] = struct.pack("<2q", n, facts)
    if n % 50 == 0:
        recorder.fact({"n": n})
        facts += 1
        ack[:16] = struct.pack("<2q", n, facts)
recorder.close()
"""


def start_child(tmp_path: Path, sealing: str, most: int = 1 << 40) -> tuple[subprocess.Popen[bytes], Path, Path]:
    folder, acked = tmp_path / "a.kvtrace", tmp_path / "acked"
    acked.write_bytes(bytes(4096))
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder), str(acked), sealing, str(most)])
    return child, folder, acked


def acknowledged(acked: Path) -> tuple[int, int]:
    events, facts = struct.unpack_from("<2q", acked.read_bytes())
    return events, facts


def wait_for(acked: Path, events: int, child: subprocess.Popen[bytes]) -> None:
    while acknowledged(acked)[0] < events:
        assert child.poll() is None
        time.sleep(0.001)


def check_rows(trace: TraceReader) -> None:
    events, seqs = trace.events, trace.seqs
    assert (events["lblock"] == seqs).all()
    assert (events["aux"] == seqs * 7).all()
    assert (events["block"] == seqs % 64).all()


@pytest.mark.parametrize("sealing", ["thread", "inline"])
@pytest.mark.parametrize("attempt", range(4))
def test_after_sigkill_no_acknowledged_row_is_lost_or_doubled(tmp_path: Path, sealing: str, attempt: int) -> None:
    rng = random.Random(attempt)
    child, folder, acked = start_child(tmp_path, sealing)
    wait_for(acked, rng.randrange(1, 20_000), child)
    time.sleep(rng.random() * 0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    events, facts = acknowledged(acked)
    trace = open_trace(folder)
    assert trace.seqs.tolist() == list(range(len(trace.events)))
    assert len(trace.events) >= events
    assert len(trace.events) <= events + 25
    check_rows(trace)
    assert all(trace.detail(seq) == (seq, -seq) for seq in range(events) if trace.detail(seq) is not None)
    with_detail = trace.details_of(Kind.FREE)[0].tolist()
    singles = np.flatnonzero(np.diff(trace.events["step"], prepend=-1) != 0)
    assert with_detail[: len(with_detail) - 1] == [n for n in singles.tolist() if n % 3 == 0][: len(with_detail) - 1]
    assert len(with_detail) >= len([n for n in singles.tolist() if n % 3 == 0 and n < events])
    assert len(trace.facts) >= facts
    assert trace.sites[int(trace.events["site"].max())].function == "<module>"
    assert not trace.clean
    assert not trace.live
    assert trace.gaps == []
    assert trace.warnings == ["the trace was not closed: its writer was stopped; all that it acknowledged is here"]


@pytest.mark.parametrize("sealing", ["thread", "inline"])
def test_a_reader_follows_a_living_writer(tmp_path: Path, sealing: str) -> None:
    child, folder, acked = start_child(tmp_path, sealing, most=30_000)
    wait_for(acked, 1, child)
    trace = open_trace(folder)
    looks = 0
    first = trace.events
    seen = len(first)
    kept = first.copy()
    while not trace.clean:
        running = child.poll() is None
        before = acknowledged(acked)[0]
        grew = trace.refresh()
        looks += 1
        if looks == 4:
            with open(acked, "r+b") as file:
                file.seek(16)
                file.write(b"\1")
        assert len(trace.events) >= before
        assert grew == (len(trace.events) > seen)
        seen = len(trace.events)
        assert trace.gaps == []
        assert trace.warnings == [] or not running
        assert trace.seqs.tolist() == list(range(seen))
        check_rows(trace)
        for seq in range(max(0, before - 40), before):
            assert trace.detail(seq) in ((seq, -seq), None)
    assert child.wait() == 0
    assert looks > 3
    assert seen >= 30_000
    np.testing.assert_array_equal(first, kept)  # what was handed out does not change
    assert trace.warnings == []
    assert trace.refresh() is False  # and sees that the writer, which may have been about to end, is gone
    assert not trace.live


def test_a_living_writer_is_seen_and_protected(tmp_path: Path) -> None:
    from kvscope.errors import TraceError

    with Recorder(tmp_path / "a.kvtrace", pool=POOL) as recorder:
        recorder.emit(Kind.FREE)
        trace = open_trace(recorder.path)
        assert trace.live
        assert trace.warnings == []
        with pytest.raises(TraceError, match="being written right now"):
            Recorder(recorder.path, pool=POOL, overwrite=True)
    trace.refresh()
    assert not trace.live


def test_rows_are_sealed_when_they_get_old(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=POOL, seal_after_s=0.01) as recorder:
        recorder.emit(Kind.FREE)
        deadline = time.monotonic() + 30
        while not (recorder.path / "events-00000.index").exists() or recorder._sealed < 1:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    code = """
import os, sys
from kvscope.traces import *
r = Recorder(sys.argv[1], pool=PoolFacts(64, 16))
r.emit(Kind.FREE, block=1)
pid = os.fork()
if pid == 0:
    assert r.emit(Kind.FREE, block=2) == -1
    r.fact({"child": 1})
    r.close()
    sys.exit(0)  # with its atexit handlers
assert os.waitpid(pid, 0)[1] == 0
r.emit(Kind.FREE, block=3)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.kvtrace")], check=True)
    trace = open_trace(tmp_path / "a.kvtrace")
    assert trace.clean  # closed at exit
    assert trace.events["block"].tolist() == [1, 3]
    assert trace.facts == []


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


def full_disk(tmp_path: Path, room: int, **options: Any) -> tuple[Recorder, Disk]:
    disk = Disk(room)
    options = {"hot_rows": 256, "seal_rows": 64, "seal_after_s": 0.002, "sealing": "inline"} | options
    return Recorder(tmp_path / "a.kvtrace", pool=POOL, pwrite=disk.pwrite, **options), disk


@pytest.mark.parametrize("room", [0, 1, 600, 1500, 3000, 3100, 3200])
def test_a_full_disk_costs_events_that_are_counted(tmp_path: Path, room: int) -> None:
    recorder, disk = full_disk(tmp_path, room)
    numbers = [recorder.emit(Kind.FREE, block=i % 64, aux=i) for i in range(2000)]
    assert recorder.emit_many(Kind.FREE, block=[1] * 50) == -1
    written = [i for i, seq in enumerate(numbers) if seq >= 0]
    assert 256 <= len(written) < 2000
    live = open_trace(recorder.path)
    assert live.events["aux"].tolist() == written
    assert live.dropped == 2050 - len(written)
    assert "dropped by the writer" in live.warnings[-1]
    disk.room = 1 << 30
    time.sleep(0.003)  # the pause after a failed write
    assert recorder.emit(Kind.STEP_END, aux=-1) == len(written) + 1
    recorder.fact({"late": 1})
    recorder.close()
    trace = open_trace(recorder.path)
    assert trace.clean
    assert trace.gaps == []
    assert trace.seqs.tolist() == list(range(len(written) + 2))
    assert trace.events["aux"][:-2].tolist() == written
    gap = trace.events[-2]
    assert (gap["kind"], gap["aux"]) == (Kind.GAP, 2050 - len(written))
    assert trace.dropped == 2050 - len(written)
    assert len(trace.warnings) == 1
    assert trace.actors[trace.events[0]["actor"]] == "unknown"  # no begin()
    assert trace.facts == [{"late": 1}]
    assert recorder._segments._data is None


def test_a_disk_that_stays_full_keeps_what_the_hot_tail_holds(tmp_path: Path) -> None:
    recorder, _ = full_disk(tmp_path, 2000)
    written = [i for i in range(1000) if recorder.emit(Kind.FREE, aux=i) >= 0]
    recorder.begin()
    recorder.fact({"a": 1})
    recorder.close()
    trace = open_trace(recorder.path)
    assert not trace.clean
    assert trace.events["aux"].tolist() == written
    assert trace.dropped == 1000 - len(written)


def test_drops_at_the_very_end_get_their_gap_row(tmp_path: Path) -> None:
    recorder, disk = full_disk(tmp_path, 0)
    for i in range(300):
        recorder.emit(Kind.FREE, aux=i)
    disk.room = 1 << 30
    recorder.close()
    trace = open_trace(recorder.path)
    assert trace.clean
    assert trace.events[-1]["kind"] == Kind.GAP
    assert trace.events[-1]["aux"] == trace.dropped == 300 - 256


def test_a_background_sealer_recovers_too(tmp_path: Path) -> None:
    recorder, disk = full_disk(tmp_path, 0, sealing="thread", seal_after_s=0.01)
    recorder.begin()
    for i in range(300):
        recorder.emit(Kind.FREE, aux=i)
    disk.room = 1 << 30
    deadline = time.monotonic() + 30
    while recorder._sealed < 256:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    recorder.close()
    trace = open_trace(recorder.path)
    assert trace.clean
    assert trace.sites[1].function == "test_a_background_sealer_recovers_too"  # the names were written later


def test_a_real_file_size_limit(tmp_path: Path) -> None:
    code = """
import resource, sys
from kvscope.traces import *
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
options = {"hot_rows": 256, "seal_rows": 64, "seal_after_s": 0.002, "sealing": sys.argv[2]}
with Recorder(sys.argv[1], pool=PoolFacts(64, 16), **options) as r:
    for i in range(5000):
        r.begin()
        r.emit(Kind.FREE, block=i * 7919 % 64, aux=(i * 0x9E3779B97F4A7C15) % 2**62)
"""
    for sealing in ("inline", "thread"):
        path = tmp_path / f"{sealing}.kvtrace"
        subprocess.run([sys.executable, "-c", code, str(path), sealing], check=True)
        trace = open_trace(path)
        assert trace.dropped > 0
        assert len(trace.events) > 256
        assert trace.seqs.tolist() == list(range(len(trace.events)))
        kept = trace.events["kind"] == Kind.FREE
        lost = trace.events["aux"][~kept].sum()
        assert kept.sum() + trace.dropped == 5000
        assert lost <= trace.dropped


def test_no_room_for_the_hot_tail_is_one_clear_line(tmp_path: Path) -> None:
    code = """
import resource, sys
from kvscope.errors import TraceError
from kvscope.traces import *
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
try:
    Recorder(sys.argv[1], pool=PoolFacts(64, 16))
except TraceError as error:
    print(error)
"""
    path = tmp_path / "a.kvtrace"
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout == f"cannot write a trace to {path}: File too large\n"
    assert not path.exists()


def test_a_hot_tail_left_behind_after_sealing_is_not_read_twice(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.kvtrace", pool=POOL, sealing="inline", hot_rows=64, seal_rows=16)
    for i in range(40):
        recorder.detail(recorder.emit(Kind.FREE, aux=i), [i])
    hot = recorder.path / "hot.bin"
    shutil.copy(hot, tmp_path / "hot.bin")
    recorder.close()
    shutil.copy(tmp_path / "hot.bin", hot)  # as if killed after sealing, before clearing
    trace = open_trace(recorder.path)
    assert trace.events["aux"].tolist() == list(range(40))
    assert [trace.detail(i) for i in range(40)] == [(i,) for i in range(40)]


def test_a_row_without_its_mark_is_no_row(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.kvtrace", pool=POOL, sealing="inline", hot_rows=64, seal_rows=16)
    for i in range(5):
        recorder.emit(Kind.FREE, aux=i)
    assert isinstance(recorder._hot.map, mmap.mmap)
    recorder._marks[4] = 0
    assert open_trace(recorder.path).events["aux"].tolist() == [0, 1, 2, 3]
    recorder._marks[4] = 5
    recorder._marks[2] = 0
    trace = open_trace(recorder.path)
    assert trace.events["aux"].tolist() == [0, 1, 3, 4]
    assert trace.gaps == [(2, 3)]
    recorder._marks[2] = 3
    recorder.close()


def test_rows_behind_a_batch_that_is_sealed_just_now_are_seen(tmp_path: Path) -> None:
    """Its rows are cleared, and the header does not say yet that they are in a segment."""
    writer = HotWriter(tmp_path / "hot.bin", 1 << 16)
    rows = np.frombuffer(writer.map, ROW_DTYPE, 1 << 16, HEADER_BYTES)
    rows["mark"][MAX_BATCH_ROWS : MAX_BATCH_ROWS + 9] = np.arange(MAX_BATCH_ROWS, MAX_BATCH_ROWS + 9) + 1
    tail, _ = read_hot(writer.path)
    assert tail.live
    assert tail.seqs.tolist() == list(range(MAX_BATCH_ROWS, MAX_BATCH_ROWS + 9))
    del rows
    writer.close(remove=True)
