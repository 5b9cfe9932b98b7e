"""The sanitizer beside a running engine reports what a check of the trace reports, and stops it when told to."""

from __future__ import annotations

import contextlib
import inspect
import logging
import random
from pathlib import Path
from types import ModuleType

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import Sanitized
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.online import OnlineSanitizer
from kvscope.inspector.watch import WatchPoints
from kvscope.traces import EventSink, Kind, PoolFacts, Recorder, compiled, open_trace
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.sink import SpelledOut


def watched(seed: int, fault: str | None = None, reaction: str = "log") -> tuple[MemoryRecorder, OnlineSanitizer]:
    """A random program with the sanitizer in front of its recorder."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.randint(2, 8), rng.randint(1, 4)
    memory = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    with compiled.using(seed % 2 == 0):  # row by row, or by columns
        online = OnlineSanitizer(
            memory,
            num_blocks=num_blocks,
            block_size=block_size,
            reaction=reaction,
            every=(1, 30, None)[seed % 3],  # type: ignore[arg-type]
        )
    operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
    options = {} if fault is None else {"manager": FAULTS[fault].manager(), "checked": False}
    try:
        DeviceRun(num_blocks, block_size, sink=online, **options).play(operations)  # type: ignore[arg-type]
    except Sanitized:
        raise
    except Exception:
        if fault is None:
            raise
    online.close()
    return memory, online


def test_runs_without_faults_have_no_findings() -> None:
    for seed in range(15):
        memory, online = watched(seed)
        assert online.findings == []
        assert online.checked == len(memory.events)


class _Unclosed:
    """A trace as it is before its writer has closed it."""

    def __init__(self, trace: MemoryRecorder) -> None:
        self._trace, self.clean = trace, False

    def __getattr__(self, name: str) -> object:
        return getattr(self._trace, name)


@pytest.mark.parametrize("name", FAULTS)
def test_the_same_findings_as_a_check_of_the_trace(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "kvscope.sanitizer")
    for seed in range(5):
        caplog.clear()
        memory, online = watched(seed, name)
        expected = check(_Unclosed(memory), replay=True).findings  # type: ignore[arg-type]
        assert sorted((f.code, f.seq, f.block) for f in online.findings) == [
            (f.code, f.seq, f.block) for f in sorted(expected, key=lambda f: (f.code, f.seq, f.block))
        ]
        assert len(caplog.records) == len(online.findings)


def test_raise_stops_the_engine_in_the_step_of_the_fault(toy_engine: ModuleType, tmp_path: Path) -> None:
    facts = PoolFacts(32, 16)
    with Recorder(tmp_path / "t.kvtrace", pool=facts) as recorder:
        online = OnlineSanitizer(
            recorder, num_blocks=32, block_size=16, reaction="raise", trace=lambda: open_trace(recorder.path)
        )
        assert isinstance(online, EventSink)
        engine = toy_engine.ToyEngine(online, num_blocks=32, block_size=16, faulty=True)
        toy_engine.workload(engine)
        with pytest.raises(Sanitized, match="KV006 write-while-shared on block b"):
            engine.run()
    trace = open_trace(tmp_path / "t.kvtrace")
    assert {f.code for f in check(trace).findings} == {"KV006"}
    faults = [f.step for f in check(trace).findings]
    assert set(faults) == {int(trace.events["step"][trace.events["kind"] == Kind.STEP_END][-1])}


class Plain(SpelledOut):
    """A sink with the calls of `EventSink` and no more: it cannot be asked for its last rows."""

    def __init__(self, inner: MemoryRecorder) -> None:
        self.inner = inner
        for name in ("begin", "skip_frames", "emit", "emit_many", "emit_sheet", "detail", "fact"):
            setattr(self, name, getattr(inner, name))

    @property
    def step(self) -> int:
        return self.inner.step

    @step.setter
    def step(self, value: int) -> None:
        self.inner.step = value

    @property
    def next_seq(self) -> int:
        return self.inner.next_seq


@pytest.mark.parametrize("every", [1, 30, None])
def test_rows_of_any_sink_are_looked_at(every: int | None) -> None:
    """Whatever call brings them: all are kept, where the sink itself cannot tell its last rows."""
    for seed in range(6):
        memory = MemoryRecorder(num_blocks=6, block_size=2)
        online = OnlineSanitizer(Plain(memory), num_blocks=6, block_size=2, every=every, trace=lambda m=memory: m)  # type: ignore[misc]
        rng = random.Random(seed)
        operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
        DeviceRun(6, 2, sink=online).play(operations)  # type: ignore[arg-type]
        online.close()
        assert online.checked == len(memory.events)
        assert online.findings == []


@pytest.mark.parametrize("in_c", [True, False])
def test_more_rows_at_once_than_a_recorder_has_in_memory(tmp_path: Path, in_c: bool) -> None:
    """They are read back from what was sealed; the others where they lie, also round the end of the ring."""
    facts = PoolFacts(256, 2)
    with Recorder(tmp_path / "t.kvtrace", pool=facts, hot_rows=64, seal_rows=16, sealing="inline") as recorder:
        seen = WatchPoints(recorder, lambda hit: None)
        with compiled.using(in_c):
            online = OnlineSanitizer(
                seen, num_blocks=256, block_size=2, every=1, trace=lambda: open_trace(recorder.path)
            )
        manager = BlockManager(256, 2, sink=online)  # type: ignore[arg-type]
        for number, tokens in enumerate((5, 400, 3, 6, 300, 4)):
            cached = manager.admit(number, list(range(number, tokens + number)))
            manager.write(number, cached, tokens)
            manager.begin_step([Scheduled(number, cached, tokens)])
            manager.end_step()
            manager.free(number)
        online.close()
        assert online.checked == recorder.next_seq > 1000
        assert online.findings == []


def test_blocks_that_end_together_are_looked_at() -> None:
    """A call that stands for many rows passes through what keeps them."""
    memory = MemoryRecorder(num_blocks=64, block_size=2)
    online = OnlineSanitizer(Plain(memory), num_blocks=64, block_size=2, trace=lambda: memory)
    manager = BlockManager(64, 2, sink=online)  # type: ignore[arg-type]
    manager.admit(0, list(range(80)))
    manager.free(0)
    online.close()
    assert int((memory.events["kind"] == Kind.FREE).sum()) == 40
    assert online.checked == len(memory.events)


def test_lost_events_end_the_checking_and_are_not_called_clean() -> None:
    class Full(MemoryRecorder):
        def emit(self, *values: int, **named: int) -> int:
            return -1

    online = OnlineSanitizer(Full(num_blocks=2, block_size=2), num_blocks=2, block_size=2)
    online.emit(Kind.WRITE, 0, 0, 1)
    online.close()
    assert online.checked == 0


class Foreign(SpelledOut):
    """A sink of somebody else's: it cannot be asked for its last rows."""

    step = 0

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.memory = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
        for name in ("begin", "skip_frames", "emit", "emit_many", "emit_sheet", "detail", "fact"):
            setattr(self, name, getattr(self.memory, name))

    @property
    def next_seq(self) -> int:
        return self.memory.next_seq


def test_a_foreign_sink_is_watched_as_ours_is() -> None:
    for fault in (None, "double-free"):
        for size in (1, 3):  # whole tables given and taken as arrays, and freed as such
            sink = Foreign(40, size)
            online = OnlineSanitizer(sink, num_blocks=40, block_size=size, every=1, trace=lambda s=sink: s.memory)
            manager = (BlockManager if fault is None else FAULTS[fault].manager())(40, size, sink=online)
            manager.admit(0, [*range(15 * size)])
            manager.fork(0, 1)
            for seq_id in (0, 1):
                with contextlib.suppress(*(() if fault is None else (Exception,))):
                    manager.free(seq_id)
            online.close()
            assert online.checked == len(sink.memory.events)
            unclosed = check(_Unclosed(sink.memory)).findings  # type: ignore[arg-type]
            assert [f.code for f in online.findings] == [f.code for f in unclosed]
            assert bool(unclosed) == (fault is not None)


def test_no_call_of_a_sink_is_left_to_chance() -> None:
    with compiled.using(False):  # a method in C tells no signature; it takes what the one in Python does
        online = OnlineSanitizer(Foreign(4, 2), num_blocks=4, block_size=2, trace=MemoryRecorder)
        ours = OnlineSanitizer(MemoryRecorder(num_blocks=4, block_size=2), num_blocks=4, block_size=2)
        for name in dir(EventSink):
            if not name.startswith("_"):
                inspect.getattr_static(online, name)  # what `__getattr__` finds goes past the sanitizer
                promised = getattr(EventSink, name)
                for sink in (online, ours) if callable(promised) else ():
                    taken = inspect.signature(getattr(sink, name)).parameters
                    for argument, promise in inspect.signature(promised).parameters.items():
                        if argument != "self":
                            assert (
                                taken[argument].default is promise.default or taken[argument].default == promise.default
                            )
                            assert type(taken[argument].default) is type(promise.default)
