"""What is recorded is what is read: every column, details, names, facts; in memory and through a folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.errors import UsageError
from kvscope.traces import (
    EVENT_DTYPE,
    EventSink,
    Kind,
    MemoryRecorder,
    PoolFacts,
    Reason,
    Recorder,
    open_trace,
)
from kvscope.traces.sink import SpelledOut

POOL = PoolFacts(num_blocks=64, block_size=16, block_bytes=4096)


class Both:
    """The two recorders side by side: a call goes to both, and both must answer alike."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.memory = MemoryRecorder(POOL, clock=lambda: 7)
        self.path = path
        self.recorder = Recorder(path, pool=POOL, clock=lambda: 7, **options)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            first = getattr(self.memory, name)(*args, **kwargs)
            assert getattr(self.recorder, name)(*args, **kwargs) == first
            return first

        return call

    def step_to(self, step: int) -> None:
        self.memory.step = self.recorder.step = step


@pytest.fixture(params=["inline", "thread"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    pair = Both(tmp_path / "a.kvtrace", sealing=request.param, hot_rows=256, seal_rows=64)
    yield pair
    pair.recorder.close()


def same(memory: MemoryRecorder, path: Path) -> None:
    trace = open_trace(path)
    assert trace.warnings == []
    assert trace.clean
    assert trace.gaps == []
    np.testing.assert_array_equal(trace.events, memory.events)
    np.testing.assert_array_equal(trace.seqs, memory.seqs)
    assert list(trace.facts) == list(memory.facts)
    assert list(trace.sites) == list(memory.sites)
    assert list(trace.actors) == list(memory.actors)
    for seq in range(len(memory.events)):
        assert trace.detail(seq) == memory.detail(seq)
    for kind in Kind:
        seqs, values = trace.details_of(kind)
        expected_seqs, expected = memory.details_of(kind)
        assert seqs.tolist() == expected_seqs.tolist()
        assert values == expected


def test_both_recorders_are_sinks(tmp_path: Path) -> None:
    assert isinstance(MemoryRecorder(), EventSink)
    with Recorder(tmp_path / "a.kvtrace", pool=POOL) as recorder:
        assert isinstance(recorder, EventSink)


def test_each_argument_lands_in_its_column(both: Both) -> None:
    both.step_to(11)
    both.begin_at(1234, both.intern_site([("pool.py", 5, "alloc")]), both.intern_actor("stream 2"), 1)
    assert both.emit(Kind.WRITE, Reason.DECODE, 3, 4, 5, 6, 7, 8, 9, 1 << 40) == 0
    assert both.emit(Kind.STEP_END) == 1
    both.recorder.close()
    same(both.memory, both.path)
    first, second = both.memory.events
    assert first.tolist() == (1234, 1 << 40, 11, 3, 4, 8, 9, 5, 6, 7, 1, Kind.WRITE, Reason.DECODE, 1, 1)
    assert second.tolist() == (1234, 0, 11, -1, -1, -1, -1, -1, -1, -1, 1, Kind.STEP_END, 0, 1, 1)


def test_a_row_takes_the_step_set_after_begin(both: Both) -> None:
    both.begin()
    both.step_to(5)
    both.emit(Kind.STEP_BEGIN)
    assert both.memory.events["step"].tolist() == [5]


def test_bulk_rows_equal_single_rows(both: Both) -> None:
    numbers = np.arange(1000)
    assert (
        both.emit_many(Kind.SHARE, Reason.FORK, block=numbers, gen=numbers.astype(np.int32) % 7, seq_id=3, aux=-9) == 0
    )
    singles = MemoryRecorder(POOL, clock=lambda: 7)
    for i in range(1000):
        singles.emit(Kind.SHARE, Reason.FORK, i, i % 7, seq_id=3, aux=-9)
    both.recorder.close()
    same(both.memory, both.path)
    np.testing.assert_array_equal(both.memory.events, singles.events)


def test_short_calls_write_the_rows_of_the_long_ones(both: Both) -> None:
    spelled = SpelledMemory(POOL, clock=lambda: 7)
    both.step_to(4)
    spelled.step = 4
    both.begin_at(99, 0, 0, 1)
    spelled.begin_at(99, 0, 0, 1)
    lives = np.arange(90) | np.arange(90) % 5 << 32
    many = np.arange(90, dtype=np.int32)
    for sink in (both, spelled):
        for i in range(150):  # across the ends of ring and batches
            sink.emit_alloc(Reason.DECODE, i, 3, 5, i + 1)
            sink.emit_end(Reason.STOP, i, 3, i % 9, 5, i + 1)
        for _ in range(5):
            sink.emit_lives(Kind.SHARE, Reason.FORK, lives, 1, 2, 16, 7, many)
            sink.emit_lives(Kind.RELEASE, 0, lives, many, many + 32_720, many % 17, many[::-1], -1)
            sink.emit_lives(Kind.FREE, Reason.STOP, lives[:3], 0, 0, 0)
            sink.emit_ends(Reason.STOP, lives[:20], many[:20] % 5, 8, many[:20])
            sink.emit_ends(Reason.STOP, lives[50:70], 16, many[:20], 3)
        sink.emit_lives(Kind.SHARE, Reason.FORK, lives, 40_000, 40_001, 16)
        sink.emit_alloc(Reason.DECODE, 2**40, -1, 5, 1)
        sink.emit_end(Reason.STOP, 1, 2**31, 2**16, 5, None)
    both.recorder.close()
    trace = open_trace(both.path)
    np.testing.assert_array_equal(trace.events, both.memory.events)
    np.testing.assert_array_equal(trace.events, spelled.events)
    assert both.recorder.clipped == both.memory.clipped == spelled.clipped > 0


class SpelledMemory(SpelledOut, MemoryRecorder):
    """A sink that sees every row in its longest form."""


def test_a_step_beyond_its_column_is_cut(both: Both) -> None:
    both.step_to(2**40)
    both.emit(Kind.STEP_BEGIN)
    assert both.memory.events["step"].tolist() == [2**31 - 1]


def test_bulk_takes_lists_scalars_and_nothing(both: Both) -> None:
    assert both.emit_many(Kind.FREE, block=[1, 2]) == 0
    assert both.emit_many(Kind.FREE, block=[]) == 2
    assert both.emit_many(Kind.FREE, block=np.int64(5), gen=2) == 2
    assert both.emit_many(Kind.FREE, block=range(3)) == 3
    assert both.memory.events["block"].tolist() == [1, 2, 5, 0, 1, 2]


def test_bulk_of_uneven_lengths_is_refused_and_writes_nothing(both: Both) -> None:
    for sink in (both.memory, both.recorder):
        with pytest.raises(UsageError, match="gen has 1 values where block has 2"):
            sink.emit_many(Kind.FREE, block=[1, 2], gen=[1])
        with pytest.raises(UsageError, match="block has 2 dimensions"):
            sink.emit_many(Kind.FREE, block=[[1, 2]])
        assert sink.emit(Kind.FREE) == 0


@pytest.mark.parametrize(
    "values", [(), (1,), tuple(range(8)), tuple(range(9)), tuple(range(100)), (-(2**63), 2**63 - 1)]
)
def test_details_of_any_length(both: Both, values: tuple[int, ...]) -> None:
    for i in range(300):
        seq = both.emit(Kind.HIT if i % 2 else Kind.SCHED)
        if i % 3 == 0:
            both.detail(seq, values)
    both.recorder.close()
    same(both.memory, both.path)
    assert open_trace(both.path).detail(3) == values
    assert open_trace(both.path).detail(4) is None


def test_late_and_repeated_details(both: Both) -> None:
    for _ in range(200):
        both.emit(Kind.SCHED)
    both.recorder.seal()
    both.detail(10, [1, 2])  # its row is sealed
    both.detail(10, [3])
    seq = both.emit(Kind.SCHED)
    both.detail(seq, [1, 2, 3])
    both.detail(seq, [4])
    both.detail(10_000, [1])  # no such row
    both.detail(-1, [1])  # a dropped row
    both.recorder.close()
    same(both.memory, both.path)
    assert open_trace(both.path).detail(10) == (3,)
    assert open_trace(both.path).detail(seq) == (4,)


def test_unsigned_digests_become_signed(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=POOL) as recorder:
        recorder.detail(recorder.emit(Kind.PUBLISH), [2**64 - 1, np.uint64(2**63), 5])  # type: ignore[list-item]
    assert open_trace(recorder.path).detail(0) == (-1, -(2**63), 5)


def test_values_out_of_range_are_cut_counted_and_never_raise(both: Both) -> None:
    both.emit(Kind.SHARE, 0, 2**40, -(2**40), ref_before=40_000, fill=None)
    both.emit_many(Kind.SHARE, block=[1, 2], ref_before=[32_767, 40_000], ref_after=np.array([1, 90_000], np.int32))
    both.recorder.close()
    trace = open_trace(both.path)
    np.testing.assert_array_equal(trace.events, both.memory.events)
    assert trace.events[0].tolist()[3:10] == (2**31 - 1, -(2**31), -1, -1, 2**15 - 1, -1, -1)
    assert trace.events["ref_after"].tolist() == [-1, 1, 2**15 - 1]
    assert trace.warnings == both.memory.warnings == ["1 event holds a value cut to its column's range"]


def test_several_segments(tmp_path: Path) -> None:
    with Recorder(
        tmp_path / "a.kvtrace", pool=POOL, sealing="inline", hot_rows=64, seal_rows=16, max_batches=3
    ) as sink:
        for i in range(500):
            sink.emit(Kind.FREE, block=i)
    files = sorted(path.name for path in sink.path.glob("*.arrows"))
    assert files == [f"events-{i:05d}.arrows" for i in range(11)]
    trace = open_trace(sink.path)
    assert trace.events["block"].tolist() == list(range(500))
    assert not (sink.path / "hot.bin").exists()


def test_segments_are_plain_arrow(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    with Recorder(tmp_path / "a.kvtrace", pool=POOL) as sink:
        sink.detail(sink.emit(Kind.COW, block=4), [1, 2])
        sink.emit(Kind.FREE, block=5)
    table = pa.ipc.open_stream(sink.path / "events-00000.arrows").read_all()
    assert table.column_names == [*(EVENT_DTYPE.names or ()), "detail"]
    assert table.column("block").to_pylist() == [4, 5]
    assert table.column("detail").to_pylist() == [[1, 2], None]


def test_unknown_kinds_are_kept(both: Both) -> None:
    both.emit(250, 251)
    both.recorder.close()
    assert open_trace(both.path).events[0]["kind"] == 250


def operation(sink: EventSink) -> None:
    sink.begin()
    sink.emit(Kind.ALLOC)


def caller(sink: EventSink) -> None:
    operation(sink)


def test_a_site_is_the_caller(tmp_path: Path) -> None:
    memory = MemoryRecorder()
    for _ in range(3):
        operation(memory)
    assert set(memory.events["site"].tolist()) == {1}
    site = memory.sites[1]
    assert (Path(site.file).name, site.function) == (Path(__file__).name, "operation")
    assert len(site.frames) == 1
    assert memory.sites[0].function == "unknown"


def deep(sink: MemoryRecorder, above: int) -> None:
    def inner() -> None:
        sink.begin(above)
        sink.emit(Kind.ALLOC)

    inner()


@pytest.mark.parametrize("record", ["trace", "sanitize"])
def test_a_hint_of_the_caller_changes_no_site_that_is_looked_for(record: Any) -> None:
    sink = MemoryRecorder(record=record)
    sink.skip_frames([__file__])
    for above in (1, 2, 1, 3, 999):  # what is named lies above all of these, but for the last, which is no frame at all
        deep(sink, above)
    assert len(set(sink.events["site"].tolist())) == 1
    assert sink.sites[sink.events[0]["site"]].file != __file__


def test_a_hint_is_followed_where_it_is_right() -> None:
    sink = MemoryRecorder()
    sink.skip_frames(["nowhere.py"])
    sources = []
    for function in ("first", "second", "first"):
        code = compile(f"def {function}(sink):\n    sink.begin(1)\n    return sink.emit(3)\n", f"{function}.py", "exec")
        names: dict[str, Any] = {}
        exec(code, names)
        for _ in range(2):
            seq = names[function](sink)
            sources.append(sink.sites[sink.events[seq]["site"]].function)
    assert sources == ["first", "first", "second", "second", "first", "first"]


def test_skipped_files_are_no_sites() -> None:
    memory = MemoryRecorder()
    memory.skip_frames([operation.__code__.co_filename])
    operation(memory)
    assert memory.sites[memory.events[0]["site"]].file != __file__
    everything = MemoryRecorder()
    frame, files = sys._getframe(), set()
    while frame is not None:
        files.add(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    everything.skip_frames(files)
    operation(everything)
    assert everything.events[0]["site"] == 0


def test_sanitize_keeps_stacks(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=POOL, record="sanitize") as recorder:
        for _ in range(2):
            caller(recorder)
        operation(recorder)
    trace = open_trace(recorder.path)
    first, second, third = (trace.sites[i] for i in trace.events["site"])
    assert first == second != third
    assert [frame.function for frame in first.frames[:3]] == ["operation", "caller", "test_sanitize_keeps_stacks"]
    assert len(first.frames) <= 8
    assert first.line == first.frames[0].line


def test_actors_are_threads_even_when_idents_are_used_again() -> None:
    memory = MemoryRecorder()
    for i in range(20):
        thread = threading.Thread(target=operation, args=(memory,), name=f"worker {i}")
        thread.start()
        thread.join()
    assert [memory.actors[i] for i in memory.events["actor"]] == [f"worker {i}" for i in range(20)]


def test_too_many_actors_and_sites_are_unknown(tmp_path: Path) -> None:
    with Recorder(tmp_path / "a.kvtrace", pool=POOL) as recorder:
        assert [recorder.intern_actor(f"a{i}") for i in range(300)][-45:] == [0] * 45
        assert recorder.intern_actor("a0") == 1
        recorder.begin_at(0, site=70, actor=255)
        recorder.emit(Kind.FREE)
    trace = open_trace(recorder.path)
    assert trace.actors[255] == "a254"
    assert trace.sites[70].function == "unknown"  # never interned, yet it can be looked up


@pytest.mark.parametrize("make", ["memory", "inline", "thread"])
def test_threads_lose_double_and_tear_nothing(tmp_path: Path, make: str) -> None:
    path = tmp_path / "a.kvtrace"
    options: dict[str, Any] = {"pool": POOL, "hot_rows": 1024, "seal_rows": 256}
    sink = MemoryRecorder(POOL) if make == "memory" else Recorder(path, sealing=make, **options)  # type: ignore[arg-type]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(k: int) -> None:
        for i in range(3000):
            sink.begin()
            seq = sink.emit(Kind.FREE, block=k, gen=k, lblock=i, aux=i)
            if i % 10 == 0:
                sink.detail(seq, [k, i])
                sink.emit_many(Kind.SHARE, block=[k] * 3, gen=k, aux=[i, i, i])
                sink.emit_alloc(1, k, k, i, i)
                sink.emit_end(2, k, k, 3, i, i)
                sink.emit_lives(Kind.HIT, 1, np.full(9, k | k << 32), 1, 2, 3, i, np.full(9, i))
                sink.emit_ends(2, np.full(8, k | k << 32), 3, i, np.full(8, i))

    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    sink.close()
    trace = sink if isinstance(sink, MemoryRecorder) else open_trace(path)
    assert trace.warnings == []
    events = trace.events
    assert len(events) == 4 * (3000 + 900 + 300 * (1 + 2 + 9 + 16))
    assert (events["block"] == events["gen"]).all()
    for k in range(4):
        mine = events["block"] == k
        single = mine & (events["kind"] == Kind.FREE) & (events["reason"] == 0)
        assert events["aux"][single].tolist() == list(range(3000))
        for kind, count in ((Kind.ALLOC, 1), (Kind.RELEASE, 9), (Kind.HIT, 9)):
            rows = events[mine & (events["kind"] == kind)]
            written = [i for i in range(0, 3000, 10) for _ in range(count)]
            assert rows["seq_id"].tolist() == rows["lblock"].tolist() == written
        bulk = events["aux"][mine & (events["kind"] == Kind.SHARE)]
        assert bulk.tolist() == [i for i in range(0, 3000, 10) for _ in range(3)]
    seqs, values = trace.details_of(Kind.FREE)
    assert len(seqs) == 1200
    assert [(events[seq]["block"], events[seq]["aux"]) for seq in seqs] == values


def test_facts_hold_what_json_holds(tmp_path: Path) -> None:
    facts = [{}, {"type": "request", "name": 'ä\n"x"'}, {"n": [1, 2.5, None, True], "m": {"a": "crc"}}]
    with Recorder(tmp_path / "a.kvtrace", pool=POOL) as recorder:
        for fact in facts:
            recorder.fact(fact)
        recorder.fact({"n": np.int64(3), "a": np.arange(2), "p": Path("x")})
        circle: dict[str, Any] = {}
        circle["self"] = circle
        recorder.fact(circle)  # logged and left out
    assert open_trace(recorder.path).facts == [*facts, {"n": 3, "a": [0, 1], "p": "x"}]


def test_after_close_nothing_is_written_and_nothing_raises(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "a.kvtrace", pool=POOL)
    recorder.emit(Kind.FREE)
    recorder.close()
    recorder.close()
    assert recorder.emit(Kind.FREE) == -1
    assert recorder.emit_many(Kind.FREE, block=[1, 2]) == -1
    recorder.begin()
    recorder.detail(0, [1])
    recorder.fact({})
    trace = open_trace(recorder.path)
    assert (len(trace.events), trace.facts, trace.detail(0)) == (1, [], None)


def test_an_empty_trace(tmp_path: Path) -> None:
    Recorder(tmp_path / "a.kvtrace", pool=POOL).close()
    trace = open_trace(tmp_path / "a.kvtrace")
    assert (len(trace.events), len(trace.seqs), trace.warnings, trace.clean) == (0, 0, [], True)
    assert trace.details_of(Kind.HIT)[1] == []
    assert (trace.num_blocks, trace.block_size, trace.block_bytes) == (64, 16, 4096)


def test_importing_the_room_is_light() -> None:
    heavy = ("pyarrow", "torch", "pandas", "streamlit")
    code = f"import sys, kvscope.traces; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("facts", [(0, 16), (1, 0), (1, 2**15), (2**31, 16), (1, 16, -1)])
def test_impossible_geometry_is_refused(facts: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        PoolFacts(*facts)


@pytest.mark.parametrize("make", ["memory", "folder"])
def test_without_a_gil_a_lock_guards_the_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str) -> None:
    monkeypatch.setattr("kvscope.traces.row_ring.gil_enabled", lambda: False)
    path = tmp_path / "a.kvtrace"
    sink = MemoryRecorder(POOL) if make == "memory" else Recorder(path, pool=POOL)
    operation(sink)
    sink.detail(sink.emit(Kind.COW), [1])
    assert sink.emit_many(Kind.FREE, block=[1, 2]) == 2
    sink.close()
    trace = sink if isinstance(sink, MemoryRecorder) else open_trace(path)
    assert len(trace.events) == 4
    assert trace.detail(1) == (1,)
    assert trace.sites[trace.events[0]["site"]].function == "operation"


def test_an_interrupted_bulk_call_holds_nothing_up(tmp_path: Path) -> None:
    class Interrupt(BaseException):
        pass

    class Columns(list[Any]):
        def __getitem__(self, column: Any) -> Any:
            if column == 1:  # the second one: gen
                raise Interrupt
            return super().__getitem__(column)

    path = tmp_path / "a.kvtrace"
    with Recorder(path, pool=POOL, sealing="inline", hot_rows=64, seal_rows=16) as recorder:
        columns = recorder._bulk
        recorder._bulk = Columns(columns)
        with pytest.raises(Interrupt):
            recorder.emit_many(Kind.FREE, block=[1, 2], gen=[3, 4])
        recorder._bulk = columns
        for i in range(100):
            recorder.emit(Kind.FREE, block=i)
    trace = open_trace(path)
    assert trace.warnings == []
    assert len(trace.events) == 102
    assert trace.events["gen"][:2].tolist() == [-1, -1]


def test_memory_reads_like_a_trace() -> None:
    with MemoryRecorder(num_blocks=3, block_size=4, block_bytes=5) as memory:
        assert (memory.num_blocks, memory.block_size, memory.block_bytes) == (3, 4, 5)
        assert not memory.refresh()
        operation(memory)
        assert memory.refresh()
        events = memory.events
        assert not memory.refresh()
        assert (memory.clean, memory.dropped, memory.warnings, memory.manifest["pool"]["num_blocks"]) == (
            True,
            0,
            [],
            3,
        )
        with pytest.raises(ValueError, match="read-only"):
            events["block"] = 1
        assert "operation" in str(memory.sites[1])
        assert str(memory.sites[0]) == "unknown"
