"""A trace that grows long while the dashboard follows it is never decoded whole, and says what a short one says."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvscope.dashboard.tail import Tail
from kvscope.dashboard.view import LongView
from kvscope.errors import TraceError
from kvscope.inspector.findings import check
from kvscope.inspector.measures import summary
from kvscope.inspector.state import state_at, tables_at
from kvscope.traces import PoolFacts, Recorder, open_trace, reader
from kvscope.traces.pack import pack
from kvscope.traces.schema import Kind

SHORT = 300
SAMPLES = Path(__file__).parents[2] / "traces" / "samples"


def test_a_long_trace_is_followed_without_being_loaded(
    toy_engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SETTLED_ROWS", SHORT)
    path = tmp_path / "live.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES), sealing="inline", seal_rows=64) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        tail = Tail("live", path)
        assert not isinstance(tail.look(), LongView)
        while engine.scheduler.has_work:
            engine.step()
            now = tail.follow().moment
        view = tail.look(now.seq)
        assert isinstance(view, LongView)
        assert view.live
        assert view.last_seq == now.seq
        assert not view.reader.decoded
        whole = open_trace(path)
        assert np.array_equal(np.asarray(view.events), whole.events)
        for seq in (5, now.seq // 2, now.seq):
            assert np.array_equal(state_at(view, seq).state, state_at(whole, seq).state)
            assert tables_at(view, seq) == tables_at(whole, seq)
        ours, theirs = summary(view), summary(whole)
        assert ours["blocks"] == theirs["blocks"]
        assert check(view).findings == check(whole).findings
        assert not view.reader.decoded


def test_an_old_view_of_a_long_trace_stays_true_while_it_grows(
    toy_engine: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SETTLED_ROWS", SHORT)
    path = tmp_path / "live.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES), sealing="inline", seal_rows=64) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        while open_trace(path).rows < 2 * SHORT:
            engine.step()
        tail = Tail("live", path)
        old = tail.look()
        rows, last = len(old.events), old.last_seq
        before = np.asarray(old.events).copy()
        for _ in range(5):
            engine.step()
            tail.follow()
        assert tail.look() is old  # held: what was measured of it need not be measured again
        assert len(next(old.chunks(("kind",), rows=64))["kind"]) == 64  # type: ignore[attr-defined]
        assert sum(len(part["kind"]) for part in old.chunks(("kind",), rows=64)) == rows  # type: ignore[attr-defined]
        assert np.array_equal(np.asarray(old.events), before)
        newer = tail.look(last + 1)
        assert newer is not old
        assert newer.last_seq > last


def test_findings_come_up_while_the_engine_runs(toy_engine: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "live.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16, faulty=True)
        toy_engine.workload(engine)
        for _ in range(12):
            engine.step()
        tail = Tail("live", path)
        end = time.monotonic() + 60
        while (found := tail.findings()) is None or not found.result.findings:
            assert time.monotonic() < end, "nothing was found"
            time.sleep(0.05)
        assert found.result.findings[0] == check(open_trace(path)).findings[0]


def test_a_run_is_over_as_soon_as_its_manifest_says_so(toy_engine: ModuleType, tmp_path: Path) -> None:
    """Its writer still holds the lock then: who looked in that moment took the trace for live for ever."""
    path = tmp_path / "live.kvtrace"
    with Recorder(path, pool=PoolFacts(64, 16, toy_engine.BLOCK_BYTES)) as sink:
        engine = toy_engine.ToyEngine(sink, num_blocks=64, block_size=16)
        toy_engine.workload(engine)
        engine.step()
        tail = Tail("live", path)
        assert tail.follow().status == "live"
        manifest = json.loads((path / "manifest.json").read_text())
        (path / "manifest.json").write_text(json.dumps(manifest | {"clean": True}))
        assert tail.follow().status == "closed"
        assert not tail.look().live


def test_a_trace_that_nobody_closed_is_read_again_when_a_part_of_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "killed.kvtrace"
    shutil.copytree(SAMPLES / "v1.0-killed.kvtrace", path)
    tail = Tail("killed", path)
    whole = tail.look()
    assert not whole.clean
    assert not whole.damage
    (segment,) = path.glob("*.arrows")
    os.truncate(segment, segment.stat().st_size // 2)
    cut = tail.look()
    assert cut.opened != whole.opened
    lost = len(whole.events) - len(cut.events)
    assert lost
    assert f"{lost} of {len(whole.events)} events are missing" in cut.damage


def test_another_run_that_was_first_seen_by_a_refresh_is_what_is_looked_at(tmp_path: Path) -> None:
    path, facts = tmp_path / "live.kvtrace", PoolFacts(8, 4)
    with Recorder(path, pool=facts, sealing="inline") as sink:
        for block in range(6):
            sink.emit(Kind.ALLOC, block=block, gen=1, ref_before=0, ref_after=1)
        tail = Tail("live", path)
        assert (len(tail.look().events), tail.follow().moment.seq) == (6, 5)
    with Recorder(path, pool=facts, sealing="inline", overwrite=True) as sink:
        sink.emit(Kind.ALLOC, block=0, gen=1, ref_before=0, ref_after=1)  # fewer events than the run before
        now = tail.follow()
        view = tail.look()
        assert (view.opened, len(view.events)) == (now.opened, 1)


@pytest.mark.parametrize("clean", [True, False])
def test_what_was_over_and_goes_on_or_is_written_anew_is_outdated(tmp_path: Path, clean: bool) -> None:
    path, facts = tmp_path / "run.kvtrace", PoolFacts(8, 4)
    first = Recorder(path, pool=facts, sealing="inline")
    first.emit(Kind.ALLOC, block=0, gen=1, ref_before=0, ref_after=1)
    if clean:
        first.close()
    else:  # as a killed writer leaves it
        left = tmp_path / "left.kvtrace"
        shutil.copytree(path, left)
        first.close()
        path = left
    tail = Tail("run", path)
    assert (len(tail.look().events), tail.outdated()) == (1, False)
    run = tail.run
    with Recorder(path, pool=facts, sealing="inline", overwrite=True) as sink:
        sink.emit(Kind.ALLOC, block=0, gen=1, ref_before=0, ref_after=1)
        sink.emit(Kind.ALLOC, block=1, gen=1, ref_before=0, ref_after=1)
        assert tail.outdated()
        assert len(tail.look().events) == 2
        assert tail.run != run
    assert len(tail.look().events) == 2
    assert not tail.outdated()


def test_a_packed_trace_that_is_replaced_is_outdated(tmp_path: Path) -> None:
    for count in (1, 2):
        raw = tmp_path / f"{count}.kvtrace"
        with Recorder(raw, pool=PoolFacts(8, 4), sealing="inline") as sink:
            for block in range(count):
                sink.emit(Kind.ALLOC, block=block, gen=1, ref_before=0, ref_after=1)
        pack(raw, tmp_path / f"{count}.kvpack")
    shown = tmp_path / "1.kvpack"
    tail = Tail("run", shown)
    run = tail.run
    assert not tail.outdated()
    os.replace(tmp_path / "2.kvpack", shown)
    assert tail.outdated()
    assert len(tail.look().events) == 2
    assert (tail.run != run, tail.outdated()) == (True, False)
    shown.unlink()
    assert not tail.outdated()


@pytest.mark.parametrize("part", ["", "manifest.json"])
def test_what_can_no_longer_be_read_is_an_error_until_it_can_be(
    toy_engine: ModuleType, tmp_path: Path, part: str
) -> None:
    path = tmp_path / ("run.kvtrace" if part else "run.kvpack")
    raw = tmp_path / "run.kvtrace"
    with Recorder(raw, pool=PoolFacts(8, 4), sealing="inline") as sink:
        for block in range(6):
            sink.emit(Kind.ALLOC, block=block, gen=1, ref_before=0, ref_after=1)
    broken = path / part
    if not part:
        pack(raw, path)
    tail, whole = Tail("run", path), broken.read_bytes()
    assert len(tail.look().events) == 6
    os.truncate(broken, len(whole) // 2)
    if part:
        tail.look()  # the manifest may just be being written
    for _ in range(3):
        with pytest.raises(TraceError):
            tail.look()
    broken.write_bytes(whole)
    assert len(tail.look().events) == 6
    assert tail.follow().status == "closed"
    shutil.rmtree(path) if part else path.unlink()
    for _ in range(3):
        assert len(tail.look().events) == 6  # of what is gone the pages say so, and show what was read of it
    assert tail.follow().status == "closed"
