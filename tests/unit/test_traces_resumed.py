"""A second writer goes on where a killed one, or one that closed, has stopped."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks, TraceError
from kvscope.inspector.findings import check
from kvscope.inspector.following import Follower
from kvscope.inspector.measures import series
from kvscope.inspector.overview import overview
from kvscope.inspector.state import holders, sequence_blocks, state_at, tables_at
from kvscope.traces import EventSink, Kind, MemoryRecorder, PoolFacts, Recorder, open_trace, reader
from kvscope.traces.reader import SETTLED_ROWS

POOL = PoolFacts(num_blocks=64, block_size=16)
SIZES = {"hot_rows": 256, "seal_rows": 64}


def write(sink: Recorder, first: int, count: int) -> None:
    for i in range(first, first + count):
        sink.begin()
        seq = sink.emit(Kind.ALLOC, block=i % 64, gen=i // 64 + 1, ref_before=0, ref_after=1, seq_id=i, lblock=0, aux=i)
        if i % 3 == 0:
            sink.detail(seq, [i, -i])
    sink.fact({"from": first})


def killed_writer(path: Path, resume: bool, first: int, count: int) -> None:
    child = os.fork()
    if not child:
        try:
            write(Recorder(path, pool=POOL, sealing="inline", resume=resume, **SIZES), first, count)
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("counts", [(10, 0, 5), (300, 70, 1), (64, 64, 64), (1, 500, 200)])
def test_killed_writers_one_after_the_other(tmp_path: Path, counts: tuple[int, ...]) -> None:
    path, first = tmp_path / "a.kvtrace", 0
    for number, count in enumerate(counts):
        killed_writer(path, number > 0, first, count)
        first += count
    before = {file.name: file.read_bytes() for file in path.glob("events-*.arrows")}
    with Recorder(path, pool=POOL, sealing="inline", resume=True, **SIZES) as sink:
        write(sink, first, 30)
    for name, content in before.items():
        assert (path / name).read_bytes() == content  # a new segment; what was there stays
    trace = open_trace(path)
    own = trace.events["kind"] == Kind.ALLOC
    assert trace.events["aux"][own].tolist() == list(range(first + 30))
    assert trace.seqs.tolist() == list(range(first + 30 + len(counts)))
    assert trace.clean
    assert trace.warnings == []
    assert trace.missing == 0
    assert np.count_nonzero(trace.events["kind"] == Kind.GAP) == len(counts)
    assert (np.diff(trace.events["t_ns"]) >= 0).all()
    assert [fact["from"] for fact in trace.facts if "from" in fact][-1] == first
    for seq, i in zip(trace.seqs[own].tolist(), trace.events["aux"][own].tolist(), strict=True):
        assert trace.detail(seq) == ((i, -i) if i % 3 == 0 else None)
    for event in trace.events[own]:
        assert trace.sites[event["site"]].function == "write"
        assert trace.actors[event["actor"]] == "MainThread"


def test_after_a_clean_close(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    for first in (0, 100):
        with Recorder(path, pool=POOL, sealing="inline", resume=True, meta={"run": first}, **SIZES) as sink:
            write(sink, first, 64)
    trace = open_trace(path)
    assert trace.manifest["meta"] == {"run": 0}
    assert trace.events["aux"].tolist() == [*range(64), -POOL.num_blocks, *range(100, 164)]
    result = check(trace)
    # The second writer's pool begins anew: its hand-outs of blocks that the first one held are no faults.
    assert [finding for finding in result.findings if finding.seq > 64] == []


def test_what_cannot_be_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    with Recorder(path, pool=POOL) as first:
        first.emit(Kind.FREE)
        with pytest.raises(TraceError, match="being written right now"):
            Recorder(path, pool=POOL, resume=True)
    with pytest.raises(TraceError, match="it is of another pool"):
        Recorder(path, pool=PoolFacts(65, 16), resume=True)
    with pytest.raises(TraceError, match="there is one already"):
        Recorder(path, pool=POOL)
    assert len(open_trace(path).events) == 1


def improvised(sink: EventSink, seed: int, rounds: int = 200, resized: int = 0) -> None:
    """A run that ends while sequences hold some, on a pool of 24 blocks; half way it changes its size by so many."""
    manager, rng, lengths = BlockManager(24, 4, sink=sink, hash_key=b"resumed"), random.Random(seed), dict[int, int]()
    for number in range(rounds):
        if number == rounds // 2 and resized:
            manager.grow(resized) if resized > 0 else manager.shrink(-resized)
        if len(lengths) < 4:
            with contextlib.suppress(OutOfBlocks):
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
                lo = manager.admit(number, tokens)
                manager.write(number, lo, len(tokens))
                manager.begin_step([Scheduled(number, lo, len(tokens))])
                manager.copies_done(manager.drain_copies())
                manager.end_step()
                lengths[number] = len(tokens)
        elif rng.random() < 0.6:
            manager.free(lengths.popitem()[0])


@pytest.fixture(scope="module", params=[(0, 0, 0), (9, 0, -6), (-8, -5, 0), (40, 3, 40)], ids=str)
def lives(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[MemoryRecorder]]:
    """A trace with three writers, and the run of each by itself; some change the size of their pool."""
    path, alone = tmp_path_factory.mktemp("lives") / "a.kvtrace", []
    for seed, resized in enumerate(request.param):
        memory = MemoryRecorder(num_blocks=24, block_size=4)
        improvised(memory, seed, resized=resized)
        alone.append(memory)
        with Recorder(path, pool=PoolFacts(24, 4), sealing="inline", resume=seed > 0) as sink:
            improvised(sink, seed, resized=resized)
    return path, alone


@pytest.mark.parametrize("limit", [SETTLED_ROWS, 100])
def test_every_writer_begins_with_a_pool_of_its_own(
    lives: tuple[Path, list[MemoryRecorder]], monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    path, alone = lives
    monkeypatch.setattr(reader, "SETTLED_ROWS", limit)
    trace = open_trace(path)
    assert trace.long == (limit == 100)
    starts = np.flatnonzero(trace.events["kind"] == Kind.GAP).tolist()
    drawn = overview(trace, 10**6, slots=True)
    curves = drawn.curves
    for number, (memory, first) in enumerate(zip(alone, [0, *(row + 1 for row in starts)], strict=True)):
        count, mine = len(memory.events), series(memory)
        for name in ("free", "cached", "held_blocks", "table_entries", "filled_slots", "lost_blocks"):
            np.testing.assert_array_equal(curves[name].last[first : first + count], getattr(mine, name), err_msg=name)
        np.testing.assert_array_equal(drawn.refcounts[:, first : first + count].sum(axis=0), mine.blocks)
        assert curves["free"].last[first - 1] == 24 or not number
        for seq in {0, count // 2, count - 1}:
            mine_then, then = state_at(memory, seq), state_at(trace, first + seq)
            for name in ("state", "gen", "entries", "leases", "fill", "published", "writing"):
                np.testing.assert_array_equal(getattr(then, name), getattr(mine_then, name), err_msg=name)
            assert tables_at(trace, first + seq) == tables_at(memory, seq)
            for block in range(int(mine.blocks[seq])):
                found = [(h.seq_id, h.lblock, h.gen, h.since_seq - first) for h in holders(trace, block, first + seq)]
                assert found == [(h.seq_id, h.lblock, h.gen, h.since_seq) for h in holders(memory, block, seq)]
            for seq_id in tables_at(memory, seq):
                assert sequence_blocks(trace, seq_id, first + seq) == sequence_blocks(memory, seq_id, seq)
    if not trace.long:
        whole = series(trace)
        np.testing.assert_array_equal(whole.free, curves["free"].last)
        np.testing.assert_array_equal(whole.blocks, drawn.refcounts.sum(axis=0))
    moment = Follower(trace).look()
    assert moment.now("free") == series(alone[-1]).free[-1]
    np.testing.assert_array_equal(moment.pool.state, state_at(alone[-1], 10**9).state)


def test_a_correct_engine_is_clean_whoever_went_on(lives: tuple[Path, list[MemoryRecorder]]) -> None:
    path, alone = lives
    found = check(open_trace(path))
    assert found.findings == ()
    replayed = check(open_trace(path), replay=True)
    assert (replayed.findings, replayed.notes) == ((), found.notes)
    assert [check(memory).findings for memory in alone] == [(), (), ()]


def test_limits_count_what_writers_before_have_left(tmp_path: Path) -> None:
    path, rows = tmp_path / "a.kvtrace", 0
    pool = PoolFacts(24, 4)
    for seed in range(12):
        with Recorder(path, pool=pool, sealing="inline", resume=seed > 0, max_bytes=1 << 16, seal_rows=250) as sink:
            improvised(sink, seed, 800)
        if seed == 5:  # killed while it replaced the base
            (path / "base.bin.new").write_bytes(b"half")
        trace = open_trace(path)
        assert sum(file.stat().st_size for file in path.glob("events-*.arrows")) <= 3 << 15
        assert trace.gaps in ([], [(0, trace.let_go)]), "whole segments go, the oldest first"
        rows = max(rows, trace.let_go)
    assert rows > 0
    assert check(open_trace(path)).findings == ()


@pytest.mark.parametrize("resized", [(9, 0), (-6, 0), (0, 9), (9, -6)])
@pytest.mark.parametrize("rounds", [100, 700, 1500])
def test_what_was_let_go_of_a_pool_that_had_another_size(tmp_path: Path, resized: tuple[int, ...], rounds: int) -> None:
    """What is left begins within the first writer's events, or within the second's, or just between them."""
    path, alone = tmp_path / "a.kvtrace", []
    options = {"sealing": "inline", "max_bytes": 1 << 16, "seal_rows": 250}
    for seed, (by, count) in enumerate(zip(resized, (1500, rounds), strict=True)):
        alone.append(MemoryRecorder(num_blocks=24, block_size=4))
        improvised(alone[-1], seed, count, by)
        with Recorder(path, pool=PoolFacts(24, 4), resume=seed > 0, **options) as sink:
            improvised(sink, seed, count, by)
    trace = open_trace(path)
    cut = len(alone[0].events) + 1  # the GAP row is one of the trace's
    blocks = np.concatenate([series(alone[0]).blocks, [24], series(alone[1]).blocks])
    free = np.concatenate([series(alone[0]).free, [24], series(alone[1]).free])
    assert trace.let_go > 0
    told = series(trace)
    np.testing.assert_array_equal(told.blocks, blocks[trace.let_go :])
    np.testing.assert_array_equal(told.free, free[trace.let_go :])
    for seq in {max(trace.let_go, at) for at in (cut - 2, cut - 1, cut, len(blocks) - 1)}:
        assert len(state_at(trace, seq).state) == blocks[seq]
    moment = Follower(trace).look()
    assert (len(moment.pool.state), moment.now("free")) == (blocks[-1], free[-1])
    assert check(trace).findings == ()
    assert check(trace).notes == check(trace, replay=True).notes


def test_rows_whose_index_was_let_go_already_go_too(tmp_path: Path) -> None:
    path, pool = tmp_path / "a.kvtrace", PoolFacts(24, 4)
    options = {"sealing": "inline", "max_bytes": 1 << 16, "seal_rows": 250}
    with Recorder(path, pool=pool, **options) as sink:
        for seed in range(40):
            improvised(sink, seed)
    left = min(path.glob("events-*.arrows"))
    stale = path / "events-00000.arrows"
    assert not stale.exists()
    stale.write_bytes(left.read_bytes())  # the index went, then the writer was killed
    with Recorder(path, pool=pool, resume=True, **options) as sink:
        improvised(sink, 99)
    assert not stale.exists()
    assert [line for line in open_trace(path).warnings if "let go" not in line] == []


def test_the_notes_say_that_another_writer_went_on(lives: tuple[Path, list[MemoryRecorder]]) -> None:
    (note,) = check(open_trace(lives[0])).notes
    assert note.startswith("another writer went on 2 times: ")
    assert "missing" not in note


@pytest.mark.parametrize("lost", [".arrows", ".index"])
def test_a_damaged_segment_stops_no_writer_and_is_not_taken_for_one_that_was_let_go(tmp_path: Path, lost: str) -> None:
    path, pool = tmp_path / "a.kvtrace", PoolFacts(24, 4)
    options = {"sealing": "inline", "max_bytes": 1 << 16, "seal_rows": 250}
    with Recorder(path, pool=pool, **options) as sink:
        for seed in range(40):
            improvised(sink, seed)
    oldest = min(path.glob("events-*.arrows"))
    damaged = oldest.with_suffix(lost)
    damaged.unlink() if lost == ".arrows" else damaged.write_bytes(b"no index")
    with Recorder(path, pool=pool, resume=True, **options) as sink:
        sink.emit(Kind.NOTE)
    assert oldest.exists() == (lost == ".index")
    assert int(open_trace(path).events["kind"][-1]) == Kind.NOTE


def rivals(path: Path, count: int, **options: Any) -> list[str]:
    """So many writers that begin in the same moment, each with 100 rows of its own; what became of each."""
    ready, said = os.pipe(), [path.with_name(f"rival-{number}") for number in range(count)]
    for number in range(count):
        if not os.fork():
            try:
                os.close(ready[1])
                os.read(ready[0], 1)  # until all are there
                with Recorder(path, pool=POOL, hot_rows=256, seal_rows=64, **options) as sink:
                    for i in range(100):
                        sink.emit(Kind.NOTE, aux=1000 * (number + 1) + i)
                    time.sleep(0.05)
                said[number].write_text("wrote")
            except TraceError as error:
                said[number].write_text(str(error))
            finally:
                os._exit(0)
    os.close(ready[0])
    os.close(ready[1])
    for _ in range(count):
        os.wait()
    return [file.read_text() for file in said]


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}, {}], ids=str)
@pytest.mark.parametrize("there", [True, False])
def test_of_writers_that_begin_in_the_same_moment_one_goes_on(
    tmp_path: Path, there: bool, options: dict[str, Any]
) -> None:
    for attempt in range(8):
        path = tmp_path / f"{attempt}.kvtrace"
        if there:
            killed_writer(path, resume=False, first=0, count=300)
        said = rivals(path, 3, **options)
        wrote = [number for number, what in enumerate(said) if what == "wrote"]
        if there and not options:
            assert not wrote
            assert all("there is one already" in what for what in said)
            continue
        assert len(wrote) == 1, said
        refused = ("being written right now", "there is one already")
        assert all(what == "wrote" or any(why in what for why in refused) for what in said), said
        trace = open_trace(path)
        mine = trace.events["aux"][trace.events["kind"] == Kind.NOTE].tolist()
        assert mine == [1000 * (wrote[0] + 1) + i for i in range(100)]
        assert trace.rows == 100 + 301 * (there and "resume" in options)
        assert trace.clean


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}, {}], ids=str)
def test_a_writer_that_was_killed_before_its_first_file_stops_nobody(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "a.kvtrace"
    path.mkdir()
    (path / "manifest.json.new").write_text("{")
    with Recorder(path, pool=POOL, **options) as sink:
        sink.emit(Kind.NOTE)
    assert open_trace(path).rows == 1
