"""Behind lost events the screen in C says of a trace what the replay says of it, and how much could be judged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.benchmarks import long_trace
from kvscope.engine.block_manager import BlockManager
from kvscope.errors import OutOfBlocks
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import CheckResult, check
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.runs import runs_of
from kvscope.inspector.screen import screen as screens
from kvscope.inspector.screen import whole
from kvscope.inspector.screen.screen import screen, unfit_for
from kvscope.inspector.source import frozen, gap_rows, size_after
from kvscope.traces import compiled, open_trace, reader
from kvscope.traces.fold import BlockFold, events_columns
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import EVENT_DTYPE, Kind

_COLUMNS = ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "aux", "kind", "step")
_ABSENT = {"block": -1, "gen": -1, "seq_id": -1, "lblock": -1, "ref_before": -1, "ref_after": -1, "fill": -1}


class Torn:
    """Rows of recorded traces, one after the other, with their details; some are lost, with or without a GAP row."""

    def __init__(self, trace: Any) -> None:
        self.num_blocks, self.block_size, self.block_bytes = trace.num_blocks, trace.block_size, 0
        self.sites, self.actors, self.facts, self.warnings = trace.sites, trace.actors, trace.facts, ()
        self.clean, self.dropped = True, 0
        self.events, self.seqs = np.zeros(0, EVENT_DTYPE), np.zeros(0, np.int64)
        self._details: dict[int, tuple[int, ...]] = {}
        self._next = 0

    def add(self, trace: Any, rows: list[int]) -> Torn:
        """These rows of a trace follow."""
        for seq, row in enumerate(rows, self._next):
            detail = trace.detail(int(trace.seqs[row]))
            if detail is not None:
                self._details[seq] = detail
        return self._append(trace.events[rows])

    def let_go(self, trace: Any, rows: list[int]) -> Torn:
        """A recorder with a limit has let these rows go, and has kept what they made of every block."""
        events, self._next = trace.events[rows], len(rows)
        fold = BlockFold(self.num_blocks)
        fold.apply(events_columns(events, np.arange(len(rows))))
        self.fold_before = lambda: fold
        return self

    def lose(self, count: int, how: str) -> Torn:
        """So many events are lost: their numbers are, or a GAP row says so, or both, in either order."""
        mark = np.zeros(1, EVENT_DTYPE)
        for name, value in {**_ABSENT, "kind": int(Kind.GAP), "aux": count}.items():
            mark[name] = value
        for part in how.split():
            if part == "numbers":
                self._next += count
            else:
                self._append(mark)
        return self

    def _append(self, events: Any) -> Torn:
        self.events = np.concatenate([self.events, events])
        self.seqs = np.append(self.seqs, np.arange(self._next, self._next + len(events)))
        self._next += len(events)
        return self

    def detail(self, seq: int) -> tuple[int, ...] | None:
        return self._details.get(seq)

    def details_of(self, kind: int) -> Any:
        seqs = [seq for seq in self.seqs[self.events["kind"] == kind].tolist() if seq in self._details]
        return np.asarray(seqs, np.int64), [self._details[seq] for seq in seqs]


WAYS = ("numbers", "row", "row numbers", "numbers row")


def torn(trace: Any, rng: random.Random, rows: list[int] | None = None) -> Torn:
    """The trace (or these rows of it) without some pieces; every third lacks its beginning, as if it had a limit."""
    rows = list(range(len(trace.events))) if rows is None else rows
    places = [rng.randrange(len(rows) + 1) for _ in range(rng.choice((1, 1, 1, 2, 3, 5)))]
    places[0] *= rng.random() > 0.3
    out, at = Torn(trace), 0
    for place in sorted(places):
        if place == 0 and not len(out.events) and rng.random() < 0.5:
            at = rng.randrange(len(rows))
            out.let_go(trace, rows[:at])
        elif place >= at:
            out.add(trace, rows[at:place])
            count = min(
                rng.choice((0, 1, 1, 2, 3, rng.randrange(30), rng.randrange(1 + len(rows) // 2))), len(rows) - place
            )
            out.lose(max(count, 1), rng.choice(WAYS))
            at = place + count
    return out.add(trace, rows[at:])


def run(seed: int, *, fault: str | None = None, length: int = 60) -> MemoryRecorder:
    """One random program over the block manager with a device behind it, or over a broken one."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.randint(2, 8), rng.choice((1, 2, 3, 4, 4, 70))
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(length)]
    options = {} if fault is None else {"manager": FAULTS[fault].manager(), "checked": False}
    try:
        DeviceRun(num_blocks, block_size, sink=sink, **options).play(operations)
    except Exception:
        if fault is None:
            raise
    return sink


def report(result: CheckResult) -> tuple[Any, ...]:
    """All that a check says, but how long it took."""
    return (
        result.findings, result.notes, result.events, result.blocks, result.slots, result.detectors, result.idle,
    )  # fmt: skip


def agree(trace: Any) -> str:
    """Hold all ways of checking to each other; what the screen in C says is `clean`, `doubtful` or `faulty`."""
    full = check(trace, replay=True)
    with compiled.using(False):  # over columns nothing is followed behind lost events: they are replayed
        assert report(check(trace)) == report(full)
    found = frozen(trace)
    assert not gap_rows(found) or "lost events" in screen(found).suspects
    if not compiled.built():
        return "faulty" if full.findings else "clean"
    with compiled.using(True):
        assert report(check(trace)) == report(full)
    if unfit_for(found, gaps=True):  # a kind that is not known here
        return "faulty" if full.findings else "doubtful"
    clean = all(whole.by_rows(part).clean for part in runs_of(found))
    assert not (clean and full.findings), full.findings[0]
    return "faulty" if full.findings else "clean" if clean else "doubtful"


def test_runs_without_faults_pass() -> None:
    said: Counter[str] = Counter()
    for seed in range(40):
        rng, trace = random.Random(seed), run(seed, length=120)
        said.update(agree(torn(trace, rng)) for _ in range(4))
    assert said["clean"] >= 150, said  # what is doubted wrongly costs a replay, so it should be rare
    assert said["doubtful"] <= 3, said


def test_the_first_look_behind_every_row() -> None:
    """One event is lost, or none, wherever that may be: in the middle of a copy, an admission, a release."""
    said: Counter[str] = Counter()
    for seed in range(4):
        trace = run(seed, length=50)
        rows = list(range(len(trace.events)))
        for at in range(len(rows) + 1):
            for lost in (0, 1):
                cut = Torn(trace).add(trace, rows[:at]).lose(1, "row").add(trace, rows[at + lost :])
                said[agree(cut)] += 1
    assert said["doubtful"] <= 0.02 * said.total(), said


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name: str) -> None:
    rng = random.Random(name)
    for seed in range(3):
        trace = run(seed, fault=name)
        for _ in range(2 if len(trace.events) else 0):
            agree(torn(trace, rng))
    for play in list(PLAYS.values())[list(FAULTS).index(name) % 4 :: 4]:
        agree(torn(play.run(FAULTS[name].manager()), rng))


def test_swaps_resizes_and_other_programs_pass() -> None:
    for name, play in PLAYS.items():
        rng, trace = random.Random(name), play.run(BlockManager)
        for _ in range(4):
            agree(torn(trace, rng))
    said: Counter[str] = Counter()
    for seed in range(30):
        said[agree(torn(improvise(seed).sink, random.Random(seed)))] += 1
    assert said["clean"] >= 25, said  # where a change of the pool's size is lost, it is replayed


def test_a_second_writer_goes_on_with_a_pool_that_begins_anew() -> None:
    said: Counter[str] = Counter()
    for seed in range(20):
        first, second = (run(n, length=length) for n, length in ((seed, 20 + seed), (seed, 60)))
        both = Torn(first).lose(1, "numbers")
        for trace in (first, second):
            both.add(trace, list(range(len(trace.events)))).lose(0, "row")
        assert check(both, replay=True).findings == ()
        said[agree(both)] += 1
    assert said["clean"] >= 19, said


def test_a_second_writer_has_a_pool_of_the_first_size_whatever_the_writer_before_made_of_it() -> None:
    said: Counter[str] = Counter()
    for seed in range(20):
        first, second = resizing(seed), resizing(seed + 100)
        both = Torn(first)
        for trace in (first, second):
            both.add(trace, list(range(len(trace.events)))).lose(-first.num_blocks, "row")
        assert size_after(both, len(both.events)) == first.num_blocks
        assert check(both, replay=True).findings == ()
        said[agree(both)] += 1
    assert said["clean"] >= 19, said


def resizing(seed: int) -> MemoryRecorder:
    """A run over 8 blocks at first, that grows and shrinks the pool."""
    rng, sink = random.Random(seed), MemoryRecorder(num_blocks=8, block_size=2)
    manager = BlockManager(8, 2, sink=sink)
    for number in range(40):
        if rng.random() < 0.3:
            manager.grow(rng.randint(1, 9))
        elif rng.random() < 0.3 and manager.num_free() > 1:
            manager.shrink(rng.randint(1, manager.num_free() - 1))
        with suppress(OutOfBlocks):
            manager.admit(number, [number] * rng.randint(1, 6))
            manager.free(number)
    return sink


@given(st.integers(0, 30), st.randoms(use_true_random=False), st.integers(1, 3))
def test_altered_traces(seed: int, rng: random.Random, changes: int) -> None:
    """Rows dropped, doubled, swapped or changed in one column, and others lost."""
    trace = run(seed)
    keep = list(range(len(trace.events)))
    for _ in range(changes):
        at, how = rng.randrange(len(keep)), rng.randrange(3)
        if how == 0 and len(keep) > 1:
            del keep[at]
        elif how == 1:
            keep.insert(rng.randrange(len(keep)), keep[at])
        else:
            other = min(at + 1, len(keep) - 1)
            keep[at], keep[other] = keep[other], keep[at]
    altered = torn(trace, rng, keep)
    for _ in range(rng.randrange(3) if len(altered.events) else 0):
        row, name = rng.randrange(len(altered.events)), rng.choice(_COLUMNS)
        value = int(altered.events[name][row]) + rng.choice((-1, 1, 1 << 32 if name == "aux" else 2))
        altered.events[name][row] = max(value, 0) if name == "kind" else value
    agree(altered)


@contextmanager
def short_looks(rows: int) -> Iterator[None]:
    """Looks of so many rows, where no step begins soon."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(screens, "CHUNK", rows)
        yield


def test_looks_end_between_gaps_as_well() -> None:
    for seed in range(12):
        cut = torn(run(seed, length=120), random.Random(seed))
        with short_looks(40):
            assert agree(cut) in ("clean", "doubtful", "faulty")


@pytest.mark.parametrize("decoded_whole", [1 << 20, 0])
def test_a_trace_with_a_limit_is_not_replayed(
    decoded_whole: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a recorder with a limit has kept is clean by the screen alone, with the numbers of the replay."""
    monkeypatch.setattr(reader, "SETTLED_ROWS", decoded_whole)
    path = tmp_path / "long.kvtrace"
    long_trace.make(path, 60_000, num_blocks=512, rows=16, max_bytes=100_000, hot_rows=4096, seal_rows=2048)
    trace = open_trace(path)
    assert frozen(trace).on_demand == (not decoded_whole)
    assert gap_rows(frozen(trace))[0][0] == 0
    assert agree(trace) == "clean"
