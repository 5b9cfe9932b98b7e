"""The part in C leaves the same bytes as the Python code that it stands in for, whatever it is told."""

from __future__ import annotations

import json
import shutil
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvscope.engine.lane import Lane
from kvscope.errors import UsageError
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Reason, Recorder, TraceReader, compiled
from kvscope.traces.sheet import Sheet, SheetWriter

FACTS = PoolFacts(64, 16)

# What a column can hold, what it cannot, and what is no int at all.
numbers = st.one_of(
    st.integers(-2, 300), st.sampled_from([-(2**63), -(2**31), -(2**15), 2**15, 2**31, 2**63, 2**70]), st.booleans(),
    st.sampled_from([Kind.ALLOC, Reason.PREFILL, np.int64(7), np.int16(-3), 2.5, None, "x"]),
)  # fmt: skip
small = st.integers(0, 100)


def sheet_of(count: int) -> Sheet:
    """`count` different rows."""
    sheet = Sheet.of(Kind.WRITE, Reason.DECODE, count)
    for i, name in enumerate(("block", "gen", "seq_id", "lblock", "fill", "aux")):
        sheet.rows[name] = np.arange(count) + 10 * i
    return sheet


def details_of(rows: int, values: int) -> np.ndarray:
    """Of so many rows so many values each."""
    return np.arange(rows * values, dtype=np.int64).reshape(rows, values) - 5


odd = [details_of(4, 3)[::2], details_of(2, 6)[:, ::2]]
sheets = st.builds(sheet_of, st.integers(5, 13))
details = st.one_of(st.none(), st.builds(details_of, st.integers(0, 5), st.integers(1, 8)), st.sampled_from(odd))
by_name = st.sampled_from(["reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux"])


def column_of(rows: int, kind: int) -> int | np.ndarray:
    """One number for all rows, or an array of one of the kinds that columns come in."""
    array = np.arange(3, 3 + rows) * 7
    return (5, 2**15, array, array[::-1], array.astype(np.int32), array.astype(np.int16), array + 2**15,
            np.repeat(array, 2)[::2], array.astype(np.uint32), array.tolist())[kind]  # fmt: skip


def many_of(rows: int, kinds: list[int], given: int, ends: bool) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call of `emit_lives` or `emit_ends` with so many rows; the last arguments may be left out."""
    lives = column_of(rows, 3) + (np.arange(rows) << 32)  # type: ignore[operator]
    before, after, fill, *holder = (column_of(rows, kind) for kind in kinds)
    if ends:
        return "emit_ends", (Reason.STOP, lives, fill if kinds[2] != 1 else 3, *holder[:given]), {}
    return "emit_lives", (Kind.SHARE, Reason.FORK, lives, before, after, fill, *holder[:given]), {}


def bulk_of(
    rows: int, kinds: dict[str, int], reason: bool, details: int | None, other: tuple[str, int] | None
) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """A call of `emit_many` with columns by name; one of them may be of `other` length, or say that there is none."""
    columns: dict[str, Any] = {name: column_of(rows, kind) for name, kind in kinds.items()}
    if reason:
        columns["reason"] = Reason.FORK
    if details is not None:
        columns["details"] = None if details == 0 else details_of(rows, details)
    if other is not None:
        columns[other[0]] = np.arange(other[1], dtype=np.int64)
    return "emit_many", (Kind.SHARE,) if reason else (Kind.SHARE, Reason.STOP), columns


references, fills = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7]), st.sampled_from([0, 2, 3, 4, 5, 7])
holders = st.sampled_from([0, 1, 2, 3, 4, 5, 7, 8])
kinds_of_columns = st.tuples(references, references, fills, holders, holders).map(list)
many = st.builds(many_of, st.integers(0, 20), kinds_of_columns, st.integers(0, 2), st.booleans())
columns = ["block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux"]
bulk = st.builds(
    bulk_of, st.integers(0, 20),
    st.fixed_dictionaries({}, optional={name: st.integers(0, 9) for name in columns}), st.booleans(),
    st.sampled_from([None, None, None, 0, 3]),
    st.one_of(st.none(), st.none(), st.tuples(st.sampled_from([*columns, "colour"]), st.integers(0, 20))),
)  # fmt: skip
calls = st.one_of(
    many, many, bulk, bulk,
    st.tuples(st.just("emit"), st.lists(small, min_size=1, max_size=10), st.just({})),
    st.tuples(st.just("emit"), st.lists(numbers, min_size=1, max_size=10), st.just({})),
    st.tuples(st.just("emit"), st.tuples(numbers), st.dictionaries(by_name, numbers, max_size=4)),
    st.tuples(st.just("emit"), st.lists(small, max_size=12), st.dictionaries(by_name, small, max_size=2)),
    st.tuples(st.just("emit_alloc"), st.tuples(*[small] * 5), st.just({})),
    st.tuples(st.just("emit_alloc"), st.tuples(*[numbers] * 5), st.just({})),
    st.tuples(st.just("emit_end"), st.tuples(*[small] * 6), st.just({})),
    st.tuples(st.just("emit_end"), st.tuples(*[numbers] * 6), st.just({})),
    st.tuples(st.just("emit_end"), st.lists(small, max_size=7), st.just({})),
    st.tuples(st.just("emit_many"), st.tuples(small), st.just({"block": np.arange(11)})),
    st.tuples(st.just("emit_sheet"), st.tuples(st.builds(sheet_of, st.integers(0, 70))), st.just({})),
    st.tuples(st.just("emit_sheet"), st.tuples(sheets, details), st.just({})),
    st.tuples(st.just("emit_sheet"), st.tuples(sheets), st.fixed_dictionaries({"details": details})),
    st.tuples(st.just("begin_at"), st.tuples(small, small, small), st.just({})),
    st.tuples(st.just("begin"), st.just(()), st.just({})),
    st.tuples(st.just("begin"), st.tuples(st.integers(-1, 200)), st.just({})),
    st.tuples(st.just("step"), st.tuples(st.sampled_from([0, 5, 2**31 - 1, 2**31, -(2**31) - 1])), st.just({})),
)  # fmt: skip


def outcome(sink: Any, name: str, args: Any, named: dict[str, Any]) -> object:
    """What a call returns or raises."""
    if name == "step":
        sink.step = args[0]
        return None
    try:
        return getattr(sink, name)(*args, **named)
    except (TypeError, struct.error, UsageError) as error:
        return type(error), str(error) if isinstance(error, UsageError) else ""


def left(sink: Any) -> tuple[object, ...]:
    """Everything that a recorder has in memory, but the moments."""
    rows = sink._rows.copy()
    rows["t_ns"] = 0
    return rows.tobytes(), sink._next, sink._limit, sink.clipped, sink._place, sink._site_list, sink._actor_list


def play(make: Callable[[], Any], history: list[Any], after: Callable[[Any], object]) -> tuple[object, object]:
    """Outcomes, what is left in memory, and what is left in the end: in Python, and in C."""
    results = []
    for way in (False, True):  # the calls come from the same lines: their sites are equal
        with compiled.using(way):
            sink = make()
            outcomes = [outcome(sink, *call) for call in history]
            memory = left(sink)
            sink.close()
        results.append((outcomes, memory, after(sink)))
    return results[0], results[1]


@settings(max_examples=80, deadline=None)
@given(st.lists(calls, min_size=1, max_size=60))
def test_any_history_leaves_the_same_rows(history: list[Any]) -> None:
    python, c = play(lambda: MemoryRecorder(FACTS), history, lambda sink: None)
    assert python == c


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(calls, min_size=30, max_size=120), st.sampled_from([16, 64]))
def test_any_history_leaves_the_same_trace(tmp_path: Path, history: list[Any], hot_rows: int) -> None:
    """Through a small ring, whose end comes within every kind of call."""

    def make() -> Recorder:
        return Recorder(
            tmp_path / "t", pool=FACTS, hot_rows=hot_rows, seal_rows=hot_rows // 2, sealing="inline", overwrite=True
        )

    def after(sink: Recorder) -> object:
        trace = TraceReader(sink.path)
        events = trace.events.copy()
        events["t_ns"] = 0
        found = [trace.detail(seq) for seq in range(len(events))]
        return sink.dropped, sink.clipped, events.tolist(), trace.sites, trace.actors, found

    python, c = play(make, history, after)
    assert python == c


@pytest.mark.parametrize("way", [False, True])
def test_an_operation_has_its_moment_its_place_and_its_thread(way: bool) -> None:
    with compiled.using(way):
        sink = MemoryRecorder(FACTS)

        def operation() -> int:
            return call_begin(sink)

        lines = []
        for _ in range(3):  # the second time the place is known
            before = time.monotonic_ns()
            lines.append(operation())
            assert before <= sink._t + sink._clock_start <= time.monotonic_ns()
            sink.emit(Kind.WRITE)
        thread = threading.Thread(target=lambda: (operation(), sink.emit(Kind.WRITE)), name="other")
        thread.start()
        thread.join()
    sites = [sink.sites[site] for site in sink.events["site"].tolist()]
    assert [site.line for site in sites] == [*lines, lines[0]]
    assert {site.function for site in sites} == {"call_begin"}
    assert [sink.actors[actor] for actor in sink.events["actor"]] == ["MainThread"] * 3 + ["other"]


def call_begin(sink: MemoryRecorder) -> int:
    """Begins an operation; returns the line where."""
    sink.begin(); return sys._getframe().f_lineno  # fmt: skip  # noqa: E702


def test_the_way_back() -> None:
    before = compiled.used()
    with compiled.using(False):
        assert not compiled.used()
        assert MemoryRecorder.emit is SheetWriter.__dict__["emit_python"]
        with compiled.using(True):
            assert compiled.used() == compiled.built()
        assert not compiled.used()
    assert compiled.used() == before


def test_the_part_in_c_runs_where_it_could_be_built(request: pytest.FixtureRequest) -> None:
    """Else an installation would fall back to Python and nobody would notice: not even these tests, which pass then.

    A tree that was never installed (a checkout on the path of another one's environment) has nothing built.
    """
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    installed = json.loads(distribution("kvscope").read_text("direct_url.json") or "{}").get("url", "")
    tree = Path(__file__).resolve().parents[2].as_uri()
    if compiler and header.exists() and installed == tree:
        assert Lane is not None  # its module asks for the other half
        assert compiled.built(), f"there is a compiler, and yet {compiled._absent} was not built: see pip's output"
    assert compiled.used() == (compiled.built() and not request.config.getoption("--python"))
