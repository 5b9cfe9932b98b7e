"""Any history of calls, in any mode and with any sizes, reads back equal from memory and from a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.traces import EVENT_DTYPE, MemoryRecorder, PoolFacts, Recorder, open_trace

POOL = PoolFacts(num_blocks=8, block_size=4)
COLUMNS = ("block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")


def column(name: str) -> st.SearchStrategy[int]:
    info = np.iinfo(EVENT_DTYPE[name])
    return st.integers(int(info.min), int(info.max))


values = st.fixed_dictionaries({name: column(name) for name in COLUMNS})
single = st.tuples(st.just("emit"), st.integers(0, 255), st.integers(0, 255), values)
bulk = st.tuples(st.just("many"), st.integers(0, 255), st.lists(values, max_size=70), st.sampled_from(COLUMNS))
detail = st.tuples(st.just("detail"), st.integers(-2, 200), st.lists(column("aux"), max_size=12))
fact = st.tuples(
    st.just("fact"),
    st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists)),
)
step = st.tuples(st.just("step"), column("step"))
begin = st.tuples(st.just("begin"), st.integers(0, 2**62), st.text(min_size=1), st.integers(0, 255))
other = st.tuples(st.sampled_from(["seal", "look"]))
history = st.lists(single | bulk | detail | fact | step | begin | other, max_size=40)


def play(sink: Any, call: tuple[Any, ...]) -> Any:
    match call:
        case ("emit", kind, reason, row):
            return sink.emit(kind, reason, **row)
        case ("many", kind, rows, scalar):
            arrays = {name: [row[name] for row in rows] for name in COLUMNS if name != scalar}
            return sink.emit_many(kind, **arrays, **{scalar: rows[0][scalar] if rows else -1})
        case ("detail", seq, numbers):
            return sink.detail(seq, numbers)
        case ("fact", record):
            return sink.fact(record)
        case ("step", number):
            sink.step = number
        case ("begin", t_ns, name, tier):
            sink.begin_at(t_ns, sink.intern_site([(name, 1, "f")]), sink.intern_actor(name), tier)
    return None


def check(memory: MemoryRecorder, path: Path) -> None:
    trace = open_trace(path)
    assert trace.gaps == []
    np.testing.assert_array_equal(trace.events, memory.events)
    assert trace.facts == list(memory.facts)
    used = set(memory.events["site"].tolist())
    assert all(trace.sites[i] == memory.sites[i] for i in used)
    assert trace.actors == list(memory.actors)
    for seq in range(len(memory.events)):
        assert trace.detail(seq) == memory.detail(seq)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=history, sealing=st.sampled_from(["inline", "thread"]), sizes=st.sampled_from([(2, 1), (8, 3), (64, 32)]))
def test_any_history_reads_back_equal(calls: list[tuple[Any, ...]], sealing: Any, sizes: tuple[int, int]) -> None:
    memory = MemoryRecorder(POOL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.kvtrace"
        options: dict[str, Any] = {"hot_rows": sizes[0], "seal_rows": sizes[1], "max_batches": 3}
        with Recorder(path, pool=POOL, sealing=sealing, **options) as recorder:
            for call in calls:
                if call[0] == "seal":
                    recorder.seal()
                elif call[0] == "look":
                    check(memory, path)
                else:
                    assert play(memory, call) == play(recorder, call)
        check(memory, path)
        assert open_trace(path).warnings == []
        assert open_trace(path).clean
