"""What is read from keyframes, in runs, or decimated, is exactly what all rows say."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks, UsageError
from kvscope.inspector.measures import Series, series
from kvscope.inspector.overview import COUNTS, Overview, overview
from kvscope.inspector.state import PoolState, holders, sequence_blocks, state_at, tables_at
from kvscope.traces import Kind, MemoryRecorder, PoolFacts, Recorder, TraceReader, keyframes, open_trace, reader
from kvscope.traces.fold import BLOCK_KINDS, INDEX_EFFECT, PLACE_EFFECT

BLOCKS = 5
# Folders make shrinking slow.
QUICK: dict[str, Any] = {
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    "phases": (Phase.explicit, Phase.generate),
}
kinds = st.sampled_from([*sorted(BLOCK_KINDS), Kind.STEP_END, Kind.GROW, Kind.SHRINK])
row = st.fixed_dictionaries(
    {
        "kind": kinds,
        "block": st.integers(-1, BLOCKS + 1),
        "gen": st.integers(-1, 4),
        "ref_before": st.integers(-1, 3),
        "ref_after": st.integers(-1, 3),
        "fill": st.integers(-1, 4),
        "aux": st.integers(2, BLOCKS),
    }
)


def one_by_one(rows: list[dict[str, Any]], seqs: range) -> list[dict[str, Any]]:
    """Every block after the rows, in a plain loop: the meaning of a fold, written down a second time."""
    blocks = [{"gen": 0, "ref": 0, "leases": 0, "fill": 0, "published": 0, "quarantined": 0, "writing": 0, "last": -1}
              for _ in range(BLOCKS)]  # fmt: skip
    for seq, r in zip(seqs, rows, strict=False):
        if r["kind"] not in BLOCK_KINDS or not 0 <= r["block"] < BLOCKS:
            continue
        block = blocks[r["block"]]
        block["last"] = seq
        if r["gen"] > block["gen"]:
            block.update(gen=r["gen"], ref=0, leases=0, fill=0, published=0, quarantined=0, writing=0)
        if r["gen"] < block["gen"]:
            continue
        if r["ref_after"] >= 0:
            block["ref"] = r["ref_after"]
        if r["ref_before"] == 0:
            block["leases"] = 0
        block["leases"] += (r["kind"] == Kind.LEASE) - (r["kind"] == Kind.UNLEASE)
        if r["kind"] == Kind.ALLOC:
            block["fill"] = 0
        elif r["fill"] >= 0 and r["kind"] != Kind.COPY_DONE:
            block["fill"] = r["fill"]
        for name, effects in (("published", INDEX_EFFECT), ("quarantined", PLACE_EFFECT)):
            if effects[r["kind"]] >= 0:
                block[name] = int(effects[r["kind"]])
        if r["kind"] in (Kind.WRITE, Kind.COMMIT):
            block["writing"] = int(r["kind"] == Kind.WRITE)
    return blocks


def same_state(one: PoolState, other: PoolState) -> None:
    for name in PoolState.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def emit_into(sinks: tuple[Any, ...], rows: list[dict[str, Any]]) -> None:
    """A GROW or SHRINK says what the size was before."""
    size = BLOCKS
    for r in rows:
        if r["kind"] in (Kind.GROW, Kind.SHRINK):
            r = r | {"lblock": size}
            size = r["aux"]
        for sink in sinks:
            sink.emit(**r)


def short_keyframes(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(reader, "SETTLED_ROWS", 0)  # every trace is a long one
    monkeypatch.setattr(keyframes.Keyframes.__init__, "__defaults__", (rows,))


@settings(max_examples=25, **QUICK)
@given(rows=st.lists(row, max_size=70), between=st.integers(1, 9), cut=st.integers(1, 9))
def test_a_state_by_keyframes_is_that_of_all_rows(
    rows: list[dict[str, Any]], between: int, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_keyframes(monkeypatch, between)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.kvtrace")
        memory = MemoryRecorder(num_blocks=BLOCKS, block_size=4)
        with Recorder(path, pool=PoolFacts(BLOCKS, 4), sealing="inline", hot_rows=32, seal_rows=cut) as sink:
            emit_into((sink, memory), rows)
            live = open_trace(path)
            for seq in range(-1, len(rows) + 1, 3):
                same_state(state_at(live, seq), state_at(memory, seq))
        for seq in sorted({-1, 0, len(rows) // 3, len(rows) - 1, len(rows)}):
            trace = open_trace(path)  # the first one makes the file of keyframes, the others read it
            same_state(state_at(trace, seq), state_at(memory, seq))
            fold = trace.fold_at(seq)
            for block, told in enumerate(one_by_one(rows[: seq + 1], range(seq + 1))):
                names = ("gen", "ref", "leases", "fill", "published", "quarantined", "writing")
                assert told == {name: int(getattr(fold, name)[block]) for name in names} | {
                    "last": fold.last_seq[block]
                }


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryRecorder]:
    """A run of the real block manager: shared prefixes, forks, copies, truncation, eviction, a tight pool."""
    path = tmp_path_factory.mktemp("run") / "a.kvtrace"
    memory = MemoryRecorder(num_blocks=24, block_size=4)
    with Recorder(path, pool=PoolFacts(24, 4), sealing="inline", hot_rows=256, seal_rows=60) as folder:
        for sink in (memory, folder):
            drive(BlockManager(24, 4, sink=sink), random.Random(1))
    assert len(memory.events) > 1500
    return path, memory


def drive(manager: BlockManager, rng: random.Random) -> None:
    done: dict[int, int] = {}  # positions issued, by sequence
    known: dict[int, int] = {}  # tokens
    for number in range(250):
        try:
            if len(done) < 4:
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
                done[number] = manager.admit(number, tokens)
                known[number] = len(tokens)
            elif rng.random() < 0.3:
                parent = rng.choice(list(done))
                if done[parent] == known[parent]:
                    manager.fork(parent, number)
                    done[number], known[number] = done[parent], known[parent]
        except OutOfBlocks:
            manager.free(next(iter(done)))
            del done[next(iter(done))]
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
        if rng.random() < 0.3 and done:
            manager.free(done.popitem()[0])


def same_curves(view: Overview, every: Series, width: int) -> None:
    rows = len(every)
    edges = [-(-i * rows // width) for i in range(width + 1)]
    for name in (*COUNTS, "sharing_factor", "filled_slots", "utilization", "tail_waste"):
        if name in view.curves:
            curve, values = view.curves[name], np.asarray(getattr(every, name), np.float64)
            runs = [values[lo:hi] for lo, hi in itertools.pairwise(edges)]
            kept = [run[~np.isnan(run)] if np.isnan(run).any() else run for run in runs]
            low = [run.min() if len(run) else np.nan for run in kept]
            high = [run.max() if len(run) else np.nan for run in kept]
            np.testing.assert_array_equal(curve.low, low, err_msg=name)
            np.testing.assert_array_equal(curve.high, high, err_msg=name)
            np.testing.assert_array_equal(curve.last, [run[-1] for run in runs], err_msg=name)
    np.testing.assert_array_equal(view.seq, every.seq[np.asarray(edges[1:]) - 1])
    np.testing.assert_array_equal(view.t_ns, every.t_ns[np.asarray(edges[1:]) - 1])
    assert (view.refcounts.sum(axis=0) == every.blocks[np.asarray(edges[1:]) - 1]).all()


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("width", [1, 40, 1000])
@pytest.mark.parametrize("run", [64, 1 << 20])
def test_an_overview_loses_no_extreme(
    recorded: tuple[Path, MemoryRecorder], slots: bool, width: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.inspector.overview._RUN", run)
    path, memory = recorded
    same_curves(overview(memory, width, slots=slots), series(memory), width)
    trace = open_trace(path)
    same_curves(overview(trace, width, slots=slots), series(trace), width)


@settings(max_examples=80, **QUICK)
@given(rows=st.lists(row, min_size=1, max_size=60), width=st.integers(1, 9), run=st.integers(1, 20))
def test_an_overview_of_any_rows(
    rows: list[dict[str, Any]], width: int, run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvscope.inspector.overview._RUN", run)
    memory = MemoryRecorder(num_blocks=BLOCKS, block_size=4)
    for r in rows:
        if r["kind"] not in (Kind.GROW, Kind.SHRINK):
            memory.emit(**r)
    if len(memory.events):
        same_curves(
            overview(memory, min(width, len(memory.events)), slots=True), series(memory), min(width, len(memory.events))
        )


def test_an_empty_trace_has_an_empty_overview() -> None:
    view = overview(MemoryRecorder(num_blocks=3, block_size=4))
    assert view.rows == len(view.seq) == len(view.curves["free"].low) == view.refcounts.shape[1] == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "gone", "link"])
def test_lost_or_damaged_keyframes_are_made_again(
    recorded: tuple[Path, MemoryRecorder], tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_keyframes(monkeypatch, 50)
    path, memory = recorded
    target = tmp_path / "t.kvtrace"
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("keyframes.bin"))
    file = target / "keyframes.bin"
    state_at(open_trace(target), 3)
    good = file.read_bytes()
    calls: list[int] = []
    monkeypatch.setattr("kvscope.traces.seek.dump_keyframes", lambda *a: calls.append(1) or b"")
    same_state(state_at(open_trace(target), 900), state_at(memory, 900))
    assert calls == []  # read, not made
    if damage == "cut":
        file.write_bytes(good[:-40])
    elif damage == "flip":
        file.write_bytes(good[:900] + bytes([good[900] ^ 4]) + good[901:])
    elif damage == "other":
        file.write_bytes(good[:16] + b"\1\2\3\4" + good[20:])
    elif damage == "gone":
        file.unlink()
    else:
        file.unlink()
        file.symlink_to("/dev/zero")
    same_state(state_at(open_trace(target), 900), state_at(memory, 900))
    assert calls == [1]


def test_seek_by_time_and_step(recorded: tuple[Path, MemoryRecorder], monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = recorded
    trace: TraceReader = open_trace(path)
    events = trace.events
    for row in range(0, len(events), 37):
        assert trace.row_at_time(int(events["t_ns"][row])) == np.searchsorted(
            events["t_ns"], events["t_ns"][row], "right"
        )
        assert trace.row_of(row) == row + 1
    assert trace.row_at_time(-1) == trace.row_of(-1) == 0
    parts = list(trace.chunks(("kind", "seq", "block"), 5, 1200, rows=100))
    np.testing.assert_array_equal(np.concatenate([part["kind"] for part in parts]), events["kind"][5:1200])
    np.testing.assert_array_equal(np.concatenate([part["seq"] for part in parts]), np.arange(5, 1200))


@pytest.mark.parametrize("settled", [0, 1 << 20])
def test_holders_and_tables_by_column_are_those_of_all_rows(
    recorded: tuple[Path, MemoryRecorder], settled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SETTLED_ROWS", settled)
    path, memory = recorded
    trace = open_trace(path)
    for seq in range(40, len(memory.events), 977):
        tables = tables_at(memory, seq)
        for block in range(0, 24, 5):
            assert [replace(h, slot_lo=0, slot_hi=0) for h in holders(trace, block, seq)] == [
                replace(h, slot_lo=0, slot_hi=0) for h in holders(memory, block, seq)
            ]
        for seq_id in [*list(tables)[:4], 0, 10**6]:
            assert sequence_blocks(trace, seq_id, seq) == tables.get(seq_id, []) == sequence_blocks(memory, seq_id, seq)
    seqs, rows = trace.history(3)
    np.testing.assert_array_equal(seqs, np.flatnonzero(memory.events["block"] == 3))
    np.testing.assert_array_equal(rows, trace.events[seqs])
    for block in (-1, 24):
        with pytest.raises(UsageError, match="does not exist"):
            holders(trace, block, 900)
    with pytest.raises(UsageError, match="has no column 'colour'"):
        trace.columns(("colour",))
    with pytest.raises(UsageError, match="polars or of pandas"):
        trace.frame(library="excel")
    assert len(trace.frame(("kind",), 3, 9, library="pandas")) == 6
