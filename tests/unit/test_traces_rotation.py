"""A recorder that keeps the newest part of its trace: bounded, still judged right, killed or not."""

from __future__ import annotations

import io
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from kvscope.dashboard import opened
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.steps import Scheduled
from kvscope.errors import OutOfBlocks, TraceError, UsageError
from kvscope.inspector.cli import top
from kvscope.inspector.export import export
from kvscope.inspector.findings import check
from kvscope.inspector.following import Follower
from kvscope.inspector.glance import History
from kvscope.inspector.importing import import_jsonl
from kvscope.inspector.lanes import lanes
from kvscope.inspector.lineup import Lineup
from kvscope.inspector.measures import series, summary
from kvscope.inspector.overview import overview
from kvscope.inspector.query import ask
from kvscope.inspector.source import frozen
from kvscope.inspector.state import PoolState, state_at
from kvscope.inspector.top import FolderSource
from kvscope.traces import EventSink, Kind, MemoryRecorder, PoolFacts, Recorder, open_trace, pack, reader
from kvscope.traces.fold import BlockFold
from kvscope.traces.place import place_of
from kvscope.traces.reader import SETTLED_ROWS
from kvscope.traces.retention import dump_base, load_base
from kvscope.traces.schema import EVENT_DTYPE

BLOCKS, SIZE = 24, 4


def drive(manager: BlockManager, rng: random.Random, rounds: int) -> None:
    done: dict[int, int] = {}
    for number in range(rounds):
        if len(done) < 4:
            try:
                tokens = [rng.randint(0, 1) for _ in range(rng.randint(1, 20))]
                lo = manager.admit(number, tokens)
                manager.write(number, lo, len(tokens))
                manager.begin_step([Scheduled(number, lo, len(tokens))])
                manager.copies_done(manager.drain_copies())
                manager.end_step()
                done[number] = len(tokens)
            except OutOfBlocks:
                pass
        elif rng.random() < 0.2:
            manager.fork(rng.choice(list(done)), number)
            done[number] = 0
        if rng.random() < 0.3 and done:
            manager.free(done.popitem()[0])


def record(path: Path, rounds: int = 4000, resized: int = 0, **options: Any) -> MemoryRecorder:
    """A run into a folder with limits and, whole, into memory; its pool is resized by so many blocks at the start."""

    def run(sink: EventSink) -> None:
        manager = BlockManager(BLOCKS, SIZE, sink=sink)
        if resized > 0:
            manager.grow(resized)
        elif resized < 0:
            manager.shrink(-resized)
        drive(manager, random.Random(5), rounds)

    memory = MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    run(memory)
    with Recorder(path, pool=PoolFacts(BLOCKS, SIZE), sealing="inline", hot_rows=512, seal_rows=250, **options) as sink:
        run(sink)
    return memory


def same(one: PoolState, other: PoolState) -> None:
    for name in ("state", "gen", "entries", "leases", "fill", "published", "writing", "last_seq"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_the_newest_part_is_kept_and_judged_right(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    memory = record(path, max_bytes=1 << 16)
    segments = list(path.glob("events-*.arrows"))
    assert 2 < len(segments) < 12
    assert sum(segment.stat().st_size for segment in segments) <= 1 << 16
    trace = open_trace(path)
    first = int(trace.seqs[0])
    assert 0 < first < len(memory.events) - 2000
    assert trace.seqs.tolist() == list(range(first, len(memory.events)))
    for name in ("kind", "block", "gen", "ref_before", "ref_after", "seq_id", "aux"):
        np.testing.assert_array_equal(trace.events[name], memory.events[name][first:])
    assert trace.gaps == [(0, first)]
    assert trace.missing == first
    assert trace.warnings == [f"events 0 to {first - 1} were let go: the recorder keeps the newest ({first})"]
    assert trace.clean
    for seq in (first, first + 1, first + 777, len(memory.events) - 1):
        same(state_at(trace, seq), state_at(memory, seq))
    result = check(trace)
    assert result.findings == ()
    assert check(memory).findings == ()
    same(state_at(open_trace(pack(path, tmp_path / "a.kvpack")), first), state_at(memory, first))


MEASURED = (
    "private",
    "shared",
    "in_transit",
    "cached",
    "quarantined",
    "free",
    "table_entries",
    "filled_slots",
    "blocks",
)


@pytest.mark.parametrize("resized", [0, 9, -7])
def test_the_measures_begin_with_what_was_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resized: int) -> None:
    path = tmp_path / "a.kvtrace"
    memory = record(path, max_bytes=1 << 16, resized=resized)
    first = int(open_trace(path).seqs[0])
    whole = series(memory)
    for limit in (SETTLED_ROWS, 100):  # decoded whole; read bit by bit
        monkeypatch.setattr(reader, "SETTLED_ROWS", limit)
        trace = open_trace(path)
        assert trace.long == (limit == 100)
        if not trace.long:
            rest = series(trace)
            for name in MEASURED:
                np.testing.assert_array_equal(getattr(rest, name), getattr(whole, name)[first:], err_msg=name)
        told = summary(trace)
        told |= told["blocks"]
        for name in ("held_blocks", "free", "cached", "table_entries"):
            values = getattr(whole, name)[first:]
            assert told[name]["peak"] == int(values.max()), name
            assert told[name]["last"] == int(values[-1]), name
        curves = overview(trace, 10_000, slots=True).curves
        for name in ("held_blocks", "free", "filled_slots", "table_entries"):
            np.testing.assert_array_equal(curves[name].last, getattr(whole, name)[first:], err_msg=name)
        np.testing.assert_array_equal(overview(trace, 10_000, slots=True).refcounts.sum(axis=0), whole.blocks[first:])
        moment = Follower(trace).look()
        same(moment.pool, state_at(memory, len(memory.events) - 1))
        assert moment.past["free"].max() <= whole.free[first:].max()
        assert moment.now("free") == whole.free[-1]


def flipped(base: Path) -> None:
    base.write_bytes(base.read_bytes()[:-1] + bytes([base.read_bytes()[-1] ^ 4]))


def cut(base: Path) -> None:
    base.write_bytes(base.read_bytes()[:-3])


def from_the_future(base: Path) -> None:
    base.write_bytes(dump_base(1 << 62, BlockFold(BLOCKS)))


@pytest.mark.parametrize("harm", [cut, flipped, from_the_future, Path.unlink])
def test_a_lost_base_costs_the_state_before_and_nothing_else(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    path = tmp_path / "a.kvtrace"
    memory = record(path, max_bytes=1 << 16)
    harm(path / "base.bin")
    trace, first = open_trace(path), memory.events.shape[0]
    first -= trace.rows
    told, went = trace.warnings
    assert told.startswith("base.bin is missing" if harm is Path.unlink else "base.bin is damaged")
    assert told.endswith("the state of blocks before their first event here is not known")
    how = "are missing" if harm is Path.unlink else "were let go: the recorder keeps the newest"
    assert went == f"events 0 to {first - 1} {how} ({first})"
    assert trace.seqs.tolist() == list(range(first, len(memory.events)))
    assert check(trace).findings == ()
    last = len(memory.events) - 1
    late = state_at(trace, last)
    known = late.last_seq >= 0
    assert known.any()
    np.testing.assert_array_equal(late.gen[known], state_at(memory, last).gen[known])


def test_old_segments_go(tmp_path: Path) -> None:
    now = 0

    def clock() -> int:
        return now

    pool = PoolFacts(BLOCKS, SIZE)
    with Recorder(
        tmp_path / "a", pool=pool, sealing="inline", hot_rows=64, seal_rows=10, clock=clock, max_age_s=1
    ) as r:
        for i in range(2000):
            now += 10_000_000
            r.begin()
            r.emit(3, block=i % BLOCKS, aux=i)
    trace = open_trace(tmp_path / "a")
    t = trace.events["t_ns"]
    assert 100 <= len(t) < 160  # a second, and at most an eighth of one and two batches more
    assert trace.events["aux"].tolist() == list(range(2000 - len(t), 2000))


def test_a_reader_follows_while_segments_go(tmp_path: Path) -> None:
    pool = PoolFacts(BLOCKS, SIZE)
    rng = random.Random(0)
    with Recorder(tmp_path / "a", pool=pool, hot_rows=512, seal_rows=128, max_bytes=1 << 16) as sink:
        trace, last = open_trace(tmp_path / "a"), -1
        for i in range(120_000):
            sink.emit(3, block=i % BLOCKS, lblock=rng.getrandbits(30), aux=i)
            if i % 3000 == 0:
                trace.refresh()
                events, seqs = trace.events, trace.seqs
                assert events["aux"].tolist() == seqs.tolist()
                assert sum(hi - lo for lo, hi in trace.gaps) == int(seqs[-1]) + 1 - len(seqs)
                assert int(seqs[-1]) > last
                last = int(seqs[-1])
                late = open_trace(tmp_path / "a")
                assert (late.events["aux"] == late.seqs).all()
                time.sleep(0)
    assert int(open_trace(tmp_path / "a").seqs[0]) > 0


@pytest.mark.parametrize(("every", "long"), [(97, True), (1700, False)])
def test_what_goes_while_a_reader_follows_changes_no_state(
    tmp_path: Path, every: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:
        monkeypatch.setattr(reader, "SETTLED_ROWS", 300)
    path, memory = tmp_path / "a.kvtrace", MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    drive(BlockManager(BLOCKS, SIZE, sink=memory), random.Random(5), 4000)
    sink = Recorder(path, pool=PoolFacts(BLOCKS, SIZE), sealing="inline", hot_rows=512, seal_rows=250,
                    max_bytes=1 << 16)  # fmt: skip
    trace, follower = open_trace(path), None
    for seq, row in enumerate(memory.events.tolist()):
        told = dict(zip(EVENT_DTYPE.names, row, strict=True))
        assert sink.emit(**{name: told[name] for name in _EMITTED}) == seq
        if seq % every == every - 1:
            trace.refresh()
            last = int(trace.seqs[-1])
            same(state_at(trace, last), state_at(memory, last))
            first = int(trace.seqs[0])
            same(state_at(trace, first), state_at(memory, first))
            assert len(trace.gaps) == (first > 0)
            assert all("were let go" in line for line in trace.warnings)
            follower = follower or Follower(trace)
            now = follower.look()
            assert now.seq == last
            if every < 250:  # it has missed nothing
                assert now.rows == last + 1
                same(now.pool, state_at(memory, last))
    sink.close()
    assert first > 4000


@pytest.mark.parametrize("long", [False, True])
def test_what_goes_while_a_command_works_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    if long:
        monkeypatch.setattr(reader, "SETTLED_ROWS", 300)
    path, memory = tmp_path / "a.kvtrace", MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    drive(BlockManager(BLOCKS, SIZE, sink=memory), random.Random(5), 4000)
    rows = [dict(zip(EVENT_DTYPE.names, row, strict=True)) for row in memory.events.tolist()]
    sink = Recorder(path, pool=PoolFacts(BLOCKS, SIZE), sealing="inline", hot_rows=512, seal_rows=250,
                    max_bytes=1 << 16)  # fmt: skip
    opened, half = None, len(rows) * 2 // 3
    for seq, told in enumerate(rows):
        sink.emit(**{name: told[name] for name in _EMITTED})
        if seq == half:
            opened, before = open_trace(path), set(path.glob("events-*.arrows"))
    sink.close()
    assert not before & set(path.glob("events-*.arrows"))  # every segment that was there has gone
    first, last = opened.let_go, half
    assert opened.seqs.tolist() == list(range(first, last + 1))
    np.testing.assert_array_equal(opened.columns(["aux"])["aux"], memory.events["aux"][first : last + 1])
    for seq in (first, first + 500, last):
        same(state_at(opened, seq), state_at(memory, seq))
    assert check(opened).findings == ()
    assert opened.missing == first > 0
    assert opened.warnings == [f"events 0 to {first - 1} were let go: the recorder keeps the newest ({first})"]
    opened.refresh()
    assert int(opened.seqs[-1]) == len(rows) - 1
    assert opened.missing == opened.let_go > last


@pytest.mark.parametrize("resized", [0, 9, -7])
def test_json_lines_carry_what_was_let_go(tmp_path: Path, resized: int) -> None:
    memory = record(tmp_path / "a.kvtrace", max_bytes=1 << 16, resized=resized)
    before = open_trace(tmp_path / "a.kvtrace")
    first = before.let_go
    export(before, "jsonl", tmp_path / "a.jsonl")
    import_jsonl(tmp_path / "a.jsonl", tmp_path / "b.kvtrace")
    after = open_trace(tmp_path / "b.kvtrace")
    assert (after.let_go, after.warnings, after.missing) == (first, before.warnings, before.missing)
    assert load_base(place_of(after.path))[1].to_bytes() == load_base(place_of(before.path))[1].to_bytes()
    for seq in (first, first + 777, len(memory.events) - 1):
        same(state_at(after, seq), state_at(memory, seq))
    export(after, "jsonl", tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    export(before, "jsonl", tmp_path / "part.jsonl", seqs=(first + 10, first + 20))
    assert b'"record":"base"' not in (tmp_path / "part.jsonl").read_bytes()


@pytest.mark.parametrize(("lines", "told"), [
    (['{"record":"block","i":0}'], "after the base record"),
    (['{"record":"base","before":9,"num_blocks":4,"blocks":4}'] * 2, "one base record"),
    (['{"record":"base","before":0,"num_blocks":4,"blocks":4}'], "above 0, got 0"),
    (['{"record":"base","before":9,"num_blocks":4,"blocks":99999999999}'], "got 4 and 99999999999"),
    (['{"record":"base","before":9,"num_blocks":4,"blocks":4}', '{"record":"block","i":4}'], "0 to 3, got 4"),
    (['{"record":"base","before":9,"num_blocks":4,"blocks":4}', '{"record":"block","i":1,"ref":1e9}'], "ref is a"),
    (['{"record":"base","before":9,"num_blocks":4,"blocks":4}', '{"record":"block","i":1,"reff":1}'], "member 'reff'"),
    (['{"record":"base","before":9,"num_blocks":4,"blocks":4}', '{"seq":8,"kind":"NOTE"}'], "seq 8 does not"),
])  # fmt: skip
def test_a_bad_base_line_is_refused(tmp_path: Path, lines: list[str], told: str) -> None:
    head = '{"record":"trace","format":"kvscope-jsonl","version":1,"manifest":{"pool":{"num_blocks":4,"block_size":4}}}'
    (tmp_path / "a.jsonl").write_text("\n".join([head, *lines]) + "\n")
    with pytest.raises(TraceError, match=told):
        import_jsonl(tmp_path / "a.jsonl", tmp_path / "a.kvtrace")
    assert not (tmp_path / "a.kvtrace").exists()


def test_a_trace_that_rotates_while_it_is_packed_is_packed_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, memory = tmp_path / "a.kvtrace", MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    drive(BlockManager(BLOCKS, SIZE, sink=memory), random.Random(5), 4000)
    rows = [dict(zip(EVENT_DTYPE.names, row, strict=True)) for row in memory.events.tolist()]
    sink = Recorder(path, pool=PoolFacts(BLOCKS, SIZE), sealing="inline", hot_rows=512, seal_rows=250,
                    max_bytes=1 << 16)  # fmt: skip
    half = len(rows) * 2 // 3
    for told in rows[:half]:
        sink.emit(**{name: told[name] for name in _EMITTED})
    first = open_trace(path).let_go
    copy = sys.modules["kvscope.traces.pack"]._copy

    def later(*given: Any) -> None:
        for told in rows[sink._next :]:
            sink.emit(**{name: told[name] for name in _EMITTED})
        copy(*given)

    monkeypatch.setattr(sys.modules["kvscope.traces.pack"], "_copy", later)
    packed = open_trace(pack(path, tmp_path / "a.kvpack"))
    sink.close()
    end = int(packed.seqs[-1]) + 1  # the newest segment may have grown meanwhile
    assert packed.seqs.tolist() == list(range(first, end))
    assert end >= half
    assert packed.let_go == packed.missing == first
    for seq in (first, half - 1, end - 1):
        same(state_at(packed, seq), state_at(memory, seq))
    assert not [line for line in packed.warnings if "cannot" in line or "damaged" in line]


def test_a_base_that_is_ahead_of_its_segments_is_of_one_moment_with_them(tmp_path: Path) -> None:
    """As between the two steps of a recorder: the base is written, and its segment has not gone yet."""
    path, twin = tmp_path / "a.kvtrace", tmp_path / "b.kvtrace"
    memory = record(path, max_bytes=1 << 16)
    record(twin, rounds=3800, max_bytes=1 << 16)
    shutil.copy(path / "base.bin", twin / "base.bin")
    older, newer = open_trace(twin), open_trace(path)
    assert older.let_go == newer.let_go == int(older.seqs[0])
    for seq in (older.let_go, older.let_go + 9):
        same(state_at(older, seq), state_at(memory, seq))


def test_a_state_that_is_not_known_is_refused_and_what_is_frozen_knows_the_base(tmp_path: Path) -> None:
    memory = record(tmp_path / "a.kvtrace", max_bytes=1 << 16)
    trace = open_trace(tmp_path / "a.kvtrace")
    first = trace.let_go
    for source in (trace, frozen(trace)):
        for seq in (first - 1, first, first + 500):
            same(state_at(source, seq), state_at(memory, seq))
            part = state_at(source, seq, range(5, 9))
            assert part.state.tolist() == state_at(memory, seq).state[5:9].tolist()
        assert state_at(source, -1).counts == state_at(memory, first - 1).counts
        for seq in (0, first - 2):
            with pytest.raises(TraceError, match=f"after event {seq} is not known: the events below {first} were let"):
                state_at(source, seq)


def test_sequences_that_began_before_what_is_left_end_as_they_did(tmp_path: Path) -> None:
    memory = record(tmp_path / "a.kvtrace", max_bytes=1 << 16)
    trace = open_trace(tmp_path / "a.kvtrace")
    first, whole = trace.let_go, {lane.seq_id: lane for lane in lanes(memory)}
    cut = 0
    for lane in lanes(trace):
        of = whole[lane.seq_id]
        assert lane.cut == (of.bars[0].seq_lo < first)
        assert (lane.outcome, lane.output_tokens, lane.bars[-1].seq_hi) == (
            of.outcome,
            of.output_tokens,
            of.bars[-1].seq_hi,
        )
        if lane.outcome != "running":
            assert lane.held.tolist() == of.held[of.held_seq >= first].tolist()
        cut += lane.cut
    assert cut
    with ask(
        trace, "SELECT count(*) FILTER (begin_ns IS NULL), count(*) FILTER (end_ns IS NULL) FROM sequences"
    ) as told:
        assert list(told.rows) == [(cut, 0)]


def test_top_begins_with_what_was_let_go(tmp_path: Path) -> None:
    now = 0

    def clock() -> int:
        nonlocal now
        now += 1_000_000
        return now

    path = tmp_path / "a.kvtrace"
    memory = record(path, max_bytes=1 << 16, clock=clock)
    trace, source, history = open_trace(path), FolderSource(path), History()
    glance = source.look()
    history.add(glance)
    assert glance.pool["blocks"] == state_at(memory, len(memory.events)).counts
    assert (glance.missing, glance.let_go) == (0, trace.missing)
    told = glance.to_json(history.rates())
    assert told["missing_events"] == told["let_go_events"] == trace.missing
    t_ns = trace.columns(["t_ns"])["t_ns"]
    assert told["rates"]["events_per_s"] == pytest.approx(trace.rows / (int(t_ns[-1] - t_ns[0]) / 1e9))
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(top.screen(history, 80, 4))
    assert f"{trace.missing:,} events were let go: counts and rates are of the rest" in console.export_text()


def test_top_that_looks_too_rarely_goes_on_with_what_was_let_go_meanwhile(tmp_path: Path) -> None:
    path, memory = tmp_path / "a.kvtrace", MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    drive(BlockManager(BLOCKS, SIZE, sink=memory), random.Random(5), 4000)
    rows = [dict(zip(EVENT_DTYPE.names, row, strict=True)) for row in memory.events.tolist()]
    with Recorder(path, pool=PoolFacts(BLOCKS, SIZE), sealing="inline", hot_rows=512, seal_rows=250,
                  max_bytes=1 << 16) as sink:  # fmt: skip
        source = FolderSource(path)
        for seq, told in enumerate(rows):
            sink.emit(**{name: told[name] for name in _EMITTED})
            if seq in (100, len(rows) * 2 // 3, len(rows) - 1):
                glance = source.look()
                assert glance.pool["blocks"] == state_at(memory, seq).counts
                assert glance.missing == 0
    assert glance.let_go > 100


def shown(history: History) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(top.screen(history, 160, 4))
    return console.export_text()


@pytest.mark.parametrize("looks", [1, 2, 5, 400])
def test_whoever_follows_knows_what_a_fresh_look_knows_or_all(tmp_path: Path, looks: int) -> None:
    """Where rows went unseen between two looks, no figure stays of what was seen before; where none did, all do."""
    path, memory = tmp_path / "a.kvtrace", MemoryRecorder(num_blocks=BLOCKS, block_size=SIZE)
    drive(BlockManager(BLOCKS, SIZE, sink=memory), random.Random(5), 4000)
    rows = [dict(zip(EVENT_DTYPE.names, row, strict=True)) for row in memory.events.tolist()]
    truth, history = Lineup(), History()
    with Recorder(path, pool=PoolFacts(BLOCKS, SIZE), sealing="inline", hot_rows=512, seal_rows=250,
                  max_bytes=1 << 16) as sink:  # fmt: skip
        source, follower = FolderSource(path), Follower(trace := open_trace(path))
        for seq, told in enumerate(rows):
            sink.emit(**{name: told[name] for name in _EMITTED})
            if seq == 300 or (seq and seq % (len(rows) // looks) == 0):
                glance = source.look()
                trace.refresh()
                moment = follower.look()
                history.add(glance)
        glance, fresh = source.look(), FolderSource(path).look()
        trace.refresh()
        moment = follower.look()
        history.add(glance)
    truth.add(memory.events)
    every = (len(truth.running), len(truth.waiting))
    assert (moment.running, moment.waiting) == (glance.pool["running"], glance.pool["waiting"])
    assert moment.lineup_known == glance.pool["lineup_known"] == (not glance.unseen)
    assert bool(glance.unseen) == {1: True, 2: True, 400: False}.get(looks, bool(glance.unseen))
    assert all(rate is None or rate >= 0 for rate in history.rates().values())
    assert 0 < fresh.unseen == fresh.let_go
    if not glance.unseen:
        assert (glance.pool["running"], glance.pool["waiting"]) == every
        assert glance.totals["events"] == len(rows)
        assert "were let go: counts and rates have them too" in shown(history)
        return
    assert glance.totals["events"] == len(rows) - glance.unseen
    assert glance.pool["running"] <= every[0]
    assert glance.pool["waiting"] <= every[1]
    assert f"≥ {glance.pool['running']}" in shown(history)
    assert "some before they were looked at: counts and rates began anew" in shown(history)
    if glance.unseen == fresh.unseen:
        assert (glance.pool, glance.totals) == (fresh.pool, fresh.totals)


_EMITTED = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")


def test_what_is_too_old_goes_while_nothing_is_recorded(tmp_path: Path) -> None:
    now = [0]
    path = tmp_path / "a.kvtrace"
    with Recorder(path, pool=PoolFacts(4, 4), hot_rows=512, seal_rows=100, seal_after_s=0.01, max_age_s=8,
                  clock=lambda: now[0]) as sink:  # fmt: skip
        for _ in range(6):
            for _ in range(100):
                now[0] += 20_000_000
                sink.begin()
                sink.emit(Kind.NOTE)
            sink.seal()
        assert open_trace(path).rows >= 400
        now[0] += 3_600_000_000_000
        until = time.monotonic() + 20
        while open_trace(path).let_go < 400 and time.monotonic() < until:
            time.sleep(0.01)
        trace = open_trace(path)
        assert 0 < trace.rows <= 200
        assert (trace.rows + trace.let_go, trace.missing - trace.let_go) == (600, 0)


def test_limits_that_keep_nothing_are_refused(tmp_path: Path) -> None:
    for options in ({"max_bytes": 100}, {"max_age_s": 0}):
        with pytest.raises(UsageError, match="max_"):
            Recorder(tmp_path / "a", pool=PoolFacts(4, 4), **options)
    assert not (tmp_path / "a").exists()


def test_a_view_of_a_trace_with_limits_has_the_pool_of_the_reader(tmp_path: Path) -> None:
    """What the pages of the dashboard read: the map and the curves are of one pool."""
    path = tmp_path / "a.kvtrace"
    memory = record(path, max_bytes=1 << 16)
    trace = open_trace(path)
    first, last = int(trace.seqs[0]), len(memory.events) - 1
    view = opened.open_view("a", path)
    assert view.gaps == [(0, first)]
    for seq in (first, first + 100, last):
        same(state_at(view, seq), state_at(memory, seq))
        few = state_at(view, seq, range(5, 9))
        np.testing.assert_array_equal(few.state, state_at(memory, seq).state[5:9])
        assert series(view).free[seq - first] == state_at(view, seq).num_free
