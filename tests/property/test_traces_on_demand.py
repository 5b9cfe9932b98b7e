"""A long trace that is decoded where it is looked at says what the same trace says when all of it is in memory."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks, TraceError
from kvscope.inspector.findings import check
from kvscope.inspector.longrun import longrun
from kvscope.inspector.measures import MEASURES, Series, series, series_of, summary
from kvscope.inspector.report import report
from kvscope.inspector.source import frozen
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Recorder, open_trace, reader

BLOCKS, SIZE = 24, 4


def drive(manager: BlockManager, sink: Any, rng: random.Random, rounds: int) -> None:
    done: dict[int, int] = {}
    known: dict[int, int] = {}
    for number in range(rounds):
        with contextlib.suppress(OutOfBlocks):
            if len(done) < 4:
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
                sink.begin()
                sink.emit(Kind.SUBMIT, seq_id=number, aux=len(tokens))
                done[number] = manager.admit(number, tokens)
                known[number] = len(tokens)
            elif rng.random() < 0.3:
                parent = rng.choice(list(done))
                if done[parent] == known[parent]:
                    manager.fork(parent, number)
                    done[number], known[number] = done[parent], known[parent]
        scheduled = []
        for seq_id, lo in done.items():
            with contextlib.suppress(OutOfBlocks):
                if lo == known[seq_id]:
                    manager.append(seq_id, rng.randint(0, 1))
                    known[seq_id] += 1
                else:
                    manager.write(seq_id, lo, known[seq_id])
                done[seq_id] = known[seq_id]
                scheduled.append(Scheduled(seq_id, lo, done[seq_id]))
        if scheduled:
            manager.begin_step(scheduled)
            manager.copies_done(manager.drain_copies())
            manager.end_step()
        if rng.random() < 0.4 and done:
            manager.free(done.popitem()[0])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryRecorder]:
    path = tmp_path_factory.mktemp("run") / "a.kvtrace"
    memory = MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    with Recorder(path, pool=PoolFacts(BLOCKS, SIZE, 64), sealing="inline", hot_rows=256, seal_rows=60) as folder:
        for sink in (memory, folder):
            drive(BlockManager(BLOCKS, SIZE, sink=sink), sink, random.Random(1), 110)
    assert len(memory.events) > 1500
    return path, memory


@pytest.fixture
def long_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "SETTLED_ROWS", 0)
    monkeypatch.setattr("kvscope.traces.ondemand.SHORT_ROWS", 100)


def spoiled(tmp_path: Path, memory: MemoryRecorder) -> Path:
    """The same run with counts and lives of some rows changed: the detectors have something to say."""
    path = tmp_path / "bad.kvtrace"
    rng = random.Random(7)
    with Recorder(path, pool=PoolFacts(BLOCKS, SIZE, 64), sealing="inline", hot_rows=256, seal_rows=60) as sink:
        names = ("block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")
        for seq, event in zip(memory.seqs.tolist(), memory.events, strict=True):
            columns = {name: int(event[name]) for name in names}
            if event["kind"] == Kind.RELEASE and rng.random() < 0.01:
                columns["ref_after"] += 1
            sink.step = int(event["step"])
            number = sink.emit(int(event["kind"]), int(event["reason"]), **columns)
            if (detail := memory.detail(seq)) is not None:
                sink.detail(number, detail)
    return path


def whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(reader, "SETTLED_ROWS", 1 << 20)
        trace = open_trace(path)
        assert len(trace.events)
    return trace


def equal(a: Any, b: Any, where: str = "") -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            equal(a[key], b[key], f"{where}/{key}")
    else:
        assert a == (pytest.approx(b, rel=1e-12) if isinstance(b, float) else b), where


@pytest.mark.usefixtures("long_traces")
def test_rows_and_columns_are_those_of_the_array(recorded: tuple[Path, MemoryRecorder]) -> None:
    path, memory = recorded
    events, rng = open_trace(path).rows_on_demand, np.random.default_rng(3)
    assert not isinstance(events, np.ndarray)
    rows = len(memory.events)
    assert len(events) == events.size == events.shape[0] == rows
    same = np.delete(np.asarray(memory.events.dtype.names), [])
    for name in same.tolist():
        if name not in ("t_ns", "site", "actor"):  # two recorders: their own clocks and tables
            np.testing.assert_array_equal(events[name], memory.events[name])
            np.testing.assert_array_equal(events[70:90][name], memory.events[70:90][name])
            np.testing.assert_array_equal(events[70:900][name], memory.events[70:900][name])
    every = np.asarray(events)
    for key in (5, -1, rows - 1, slice(0, 0), slice(3, 70), slice(59, 61), slice(0, rows, 7), rng.integers(0, rows, 90),
                rng.integers(-rows, rows, 90), every["kind"] == Kind.ALLOC, np.empty(0, np.int64)):  # fmt: skip
        np.testing.assert_array_equal(events[key], every[key])
    np.testing.assert_array_equal(np.asarray(events[50:900])[3:700], every[53:750])
    assert list(events[10:300]) == list(every[10:300])
    for bad in (rows, -rows - 1, np.asarray([0, rows])):
        with pytest.raises(IndexError):
            events[bad]
    with pytest.raises(ValueError, match="read-only"):
        events["kind"][0] = 1


@pytest.mark.usefixtures("long_traces")
def test_details_by_batch_are_those_of_all(
    recorded: tuple[Path, MemoryRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = recorded
    trace, every = open_trace(path), whole(path, monkeypatch)
    for seq in range(0, trace.rows + 3, 7):
        assert trace.detail(seq) == every.detail(seq)
    for lo, hi in ((0, 10**6), (55, 65), (100, 100), (0, 1), (777, 1300)):
        for one, other in zip(trace.details_between(lo, hi), every.details_between(lo, hi), strict=True):
            np.testing.assert_array_equal(one, other)
    for kind in (Kind.SCHED, Kind.WITNESS, Kind.COW, Kind.LEASE, Kind.SWAP_IN):
        for one, other in zip(trace.detail_arrays(kind), every.detail_arrays(kind), strict=True):
            np.testing.assert_array_equal(one, other)
    assert not trace._loaded.rows  # nothing made it decode the whole


@pytest.mark.usefixtures("long_traces")
@pytest.mark.parametrize("run", [64, 1 << 18])
def test_a_long_summary_is_the_summary(
    recorded: tuple[Path, MemoryRecorder], run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.inspector.longrun._RUN", run)
    path, _ = recorded
    equal(summary(open_trace(path)), summary(whole(path, monkeypatch)))


@pytest.mark.usefixtures("long_traces")
@pytest.mark.parametrize("run", [64, 1 << 18])
@pytest.mark.parametrize("points", [30, 700, 10**6])
def test_picked_events_hold_every_extreme(
    recorded: tuple[Path, MemoryRecorder], run: int, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.inspector.longrun._RUN", run)
    path, _ = recorded
    trace, every = open_trace(path), series(whole(path, monkeypatch))
    some = series_of(longrun(trace, points), trace)
    rows = np.searchsorted(every.seq, some.seq)
    assert len(some) <= len(every)
    assert rows[0] == 0
    assert rows[-1] == len(every) - 1
    for name in (*Series.__dataclass_fields__, *MEASURES):
        value, other = getattr(some, name), getattr(every, name)
        np.testing.assert_array_equal(value, other[rows] if isinstance(other, np.ndarray) else other, err_msg=name)
    for name in MEASURES[:-1]:
        value, other = getattr(some, name), getattr(every, name)
        assert (np.nanmin(value), np.nanmax(value)) == (np.nanmin(other), np.nanmax(other)), name


@pytest.mark.usefixtures("long_traces")
@pytest.mark.parametrize("chunk", [50, 1 << 15])
def test_a_long_check_finds_the_same(
    recorded: tuple[Path, MemoryRecorder], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.inspector.screen.screen.CHUNK", chunk)
    monkeypatch.setattr("kvscope.inspector.detectors.passing._PIECE", 77)
    path, memory = recorded
    for some, findings in ((path, False), (spoiled(tmp_path, memory), True)):
        trace, every = frozen(open_trace(some)), whole(some, monkeypatch)
        assert trace.on_demand
        for replay in (False, True):
            one, other = check(trace, replay=replay), check(every, replay=replay)
            assert bool(other.findings) is findings
            for name in ("findings", "events", "blocks", "slots", "detectors", "idle", "notes"):
                assert getattr(one, name) == getattr(other, name), name
            assert report(one, trace, name="x").replace(f"{one.elapsed_s:.2f}", "") == report(
                other, every, name="x"
            ).replace(f"{other.elapsed_s:.2f}", "")
        assert not trace.source._loaded.rows


@pytest.mark.usefixtures("long_traces")
def test_a_part_that_vanishes_is_said(recorded: tuple[Path, MemoryRecorder], tmp_path: Path) -> None:
    path, memory = recorded
    copy = spoiled(tmp_path, memory)
    assert copy != path
    events = open_trace(copy).rows_on_demand
    for file in copy.glob("*.arrows"):
        file.unlink()
    with pytest.raises(TraceError, match="cannot be read any more"):
        events[1700]
