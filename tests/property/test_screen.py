"""The screen and the replay are two implementations of the same rules: what the screen passes, no detector reports."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.screen import plain, whole
from kvscope.inspector.screen.live import ByRows
from kvscope.inspector.screen.screen import Screened, screen, unfit_for
from kvscope.inspector.source import frozen, gap_rows, size_after
from kvscope.traces import compiled
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason, pack_range

_COLUMNS = ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "aux", "kind", "step")


class Altered:
    """A recorded trace with other rows; details stay with the rows that they were given to."""

    def __init__(self, trace: MemoryRecorder, keep: list[int]) -> None:
        self.num_blocks, self.block_size, self.block_bytes = trace.num_blocks, trace.block_size, 0
        self.events = trace.events[keep].copy()
        self.seqs = np.arange(len(keep), dtype=np.int64)
        self.sites, self.actors, self.facts, self.warnings = trace.sites, trace.actors, trace.facts, ()
        self.clean, self.dropped = True, 0
        self._details = {i: detail for i, row in enumerate(keep) if (detail := trace.detail(row)) is not None}

    def detail(self, seq: int) -> tuple[int, ...] | None:
        return self._details.get(seq)

    def details_of(self, kind: int) -> Any:
        seqs = [seq for seq in sorted(self._details) if self.events["kind"][seq] == kind]
        return np.asarray(seqs, np.int64), [self._details[seq] for seq in seqs]


def screened(trace: Any) -> Screened:
    """What the screen says, alike whether it looks for plain rows or judges each in full."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plain, "FEW", 0)
        looked = screen(frozen(trace))
        patched.setattr(plain, "FEW", 1 << 30)
        full = screen(frozen(trace))
    assert looked.clean == full.clean, (looked, full)
    assert not looked.clean or (looked.blocks, looked.slots) == (full.blocks, full.slots)
    return looked


def by_rows(trace: Any, ends: list[int]) -> tuple[bool, int, int]:
    """What the rules row by row say, look by look: (clean, blocks, slots). `ends`: rows that end a look."""
    found = frozen(trace)
    live = ByRows(
        size_after(found, 0), found.block_size, ordered=bool(found.present[Kind.COMMIT] | found.present[Kind.SCHED])
    )
    live.learn(found.facts, found.block_bytes)
    seqs = range(len(found.events))
    details = {seq: detail for seq in seqs if (detail := found.detail(seq)) is not None}
    for first, end in pairwise([0, *ends]):
        part = {seq: detail for seq, detail in details.items() if first <= seq < end}
        pieces = np.array_split(found.events[first:end], 1 + end % 4)  # as they lie in a ring, and some are empty
        assert live.look(pieces, first, part, []) == end - first
        if live.suspects:
            break
    else:
        live.finish(len(seqs))
    return not live.suspects, *live.seen()


def agree_row_by_row(trace: Any, looked: Screened) -> None:
    """The same rules in C, in one look and in one for each step, pass what the columns pass, and nothing else."""
    found = frozen(trace)
    if not compiled.built() or gap_rows(found):
        return
    rows = len(found.events)
    assert by_rows(trace, [rows])[0] == looked.clean
    clean, *seen = by_rows(trace, [*(found.kinds == Kind.STEP_END).nonzero()[0].tolist(), rows])
    assert looked.clean or not clean
    assert not clean or tuple(seen) == (looked.blocks, looked.slots)
    if not unfit_for(found):
        at_once = whole.by_rows(found)
        assert at_once.clean == looked.clean
        assert not clean or (at_once.blocks, at_once.slots) == (looked.blocks, looked.slots)


def agree(trace: Any) -> bool:
    """Whether the screen passes the trace; if it does, the replay must find nothing and have looked at as much."""
    looked = screened(trace)
    agree_row_by_row(trace, looked)
    if gap_rows(frozen(trace)):  # what is found behind them, more of it in test_screen_gaps.py
        quick, full = check(trace), check(trace, replay=True)
        assert (quick.findings, quick.notes, quick.slots) == (full.findings, full.notes, full.slots)
    if looked.clean:
        full = check(trace, replay=True)
        assert full.findings == (), full.findings[0]
        assert (looked.blocks, looked.slots) == (full.blocks, full.slots)
        quick = check(trace)
        assert (quick.findings, quick.detectors, quick.idle) == (full.findings, full.detectors, full.idle)
        assert quick.notes == full.notes
    return looked.clean


def run(seed: int, *, fault: str | None = None, length: int = 60) -> MemoryRecorder:
    """One random program over the block manager with a device behind it, or over a broken one."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.randint(2, 8), rng.randint(1, 4)
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(length)]
    options = {} if fault is None else {"manager": FAULTS[fault].manager(), "checked": False}
    try:
        DeviceRun(num_blocks, block_size, sink=sink, **options).play(operations)
    except Exception:
        if fault is None:
            raise
    return sink


def test_runs_without_faults_pass() -> None:
    passed = Counter(agree(run(seed)) for seed in range(80))
    assert passed[True] >= 76, passed  # what it suspects wrongly costs a replay, so it should be rare


def test_swaps_and_resizes_pass() -> None:
    """They are judged by columns as well: nothing is replayed for them."""
    for play in PLAYS.values():
        assert agree(play.run(BlockManager)), play.name
    passed = Counter(agree(improvise(seed).sink) for seed in range(40))
    assert passed[True] >= 37, passed


@pytest.mark.parametrize("name", ["swaps", "sizes"])
def test_altered_swaps_and_resizes_do_not_pass(name: str) -> None:
    trace = PLAYS[name].run(BlockManager)
    rows, rng = list(range(len(trace.events))), random.Random(name)
    for at in rows[::5]:
        agree(Altered(trace, rows[:at] + rows[at + 1 :]))
        agree(Altered(trace, [*rows[:at], at, *rows[at:]]))
        changed = Altered(trace, rows)
        column = rng.choice(_COLUMNS[:-2])
        changed.events[column][at] += rng.choice((-1, 1))
        agree(changed)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_do_not_pass(name: str) -> None:
    for seed in range(2):
        agree(run(seed, fault=name))
    for play in list(PLAYS.values())[list(FAULTS).index(name) % 4 :: 4]:
        agree(play.run(FAULTS[name].manager()))


@given(st.integers(0, 30), st.randoms(use_true_random=False), st.integers(1, 3))
def test_altered_traces_do_not_pass(seed: int, rng: random.Random, changes: int) -> None:
    """Rows dropped, doubled, swapped or changed in one column: whatever the replay reports, the screen suspects."""
    trace = run(seed)
    keep = list(range(len(trace.events)))
    for _ in range(changes):
        at = rng.randrange(len(keep))
        how = rng.randrange(3)
        if how == 0:
            del keep[at]
        elif how == 1:
            keep.insert(rng.randrange(len(keep)), keep[at])
        else:
            other = min(at + 1, len(keep) - 1)
            keep[at], keep[other] = keep[other], keep[at]
        if not keep:
            return
    altered = Altered(trace, keep)
    for _ in range(rng.randrange(3)):
        row, name = rng.randrange(len(keep)), rng.choice(_COLUMNS)
        value = int(altered.events[name][row]) + rng.choice((-1, 1, 1 << 32 if name == "aux" else 2))
        altered.events[name][row] = max(value, 0) if name == "kind" else value
    agree(altered)


def test_every_single_dropped_or_doubled_row() -> None:
    for seed in range(3):
        trace = run(seed, length=40)
        rows = list(range(len(trace.events)))
        for at in rows:
            agree(Altered(trace, rows[:at] + rows[at + 1 :]))
            agree(Altered(trace, [*rows[:at], at, *rows[at:]]))


@st.composite
def histories(draw: st.DrawFn) -> HandTrace:
    """Any verbs in any order: mostly nonsense, as a broken allocator would record it."""
    trace = HandTrace(num_blocks=3, block_size=2)
    small = st.integers(0, 2)
    for _ in range(draw(st.integers(1, 14))):
        block, seq_id, lblock = draw(small), draw(small), draw(st.integers(0, 1))
        lo = draw(st.integers(0, 1))
        verb = draw(st.sampled_from(("alloc", "share", "hit", "release", "write", "commit", "publish", "free",
                                     "quarantine", "settle", "evict", "lease", "unlease", "copy", "done", "step",
                                     "end", "witness", "begin", "over", "truncate", "lost")))  # fmt: skip
        place = {"seq_id": seq_id, "lblock": lblock}
        if verb in ("alloc", "share", "hit", "release"):
            getattr(trace, verb)(block, **place)
        elif verb == "write":
            trace.write(block, lo, draw(st.integers(lo, 2)), **place)
        elif verb in ("commit", "publish", "free", "quarantine", "settle", "evict"):
            getattr(trace, verb)(block)
        elif verb == "lease":
            trace.lease(block, draw(small), 0, 2)
        elif verb == "unlease":
            trace.unlease(block, draw(small))
        elif verb == "copy":
            trace.copy_on_write(block, draw(small), lo, **place)
        elif verb == "done":
            trace.copy_done(block, draw(small))
        elif verb == "step":
            trace.event(Kind.STEP_BEGIN).event(Kind.SCHED, seq_id=seq_id, aux=pack_range(0, draw(st.integers(0, 4))))
        elif verb == "end":
            trace.end()
        elif verb == "witness":
            trace.witness(draw(small), draw(small), draw(small), 0, 0, 0, draw(small))
        elif verb == "begin":
            trace.event(draw(st.sampled_from((Kind.ADMIT, Kind.RESUME))), seq_id=seq_id)
        elif verb == "over":
            trace.event(draw(st.sampled_from((Kind.FINISH, Kind.PREEMPT))), seq_id=seq_id, reason=Reason.STOP)
        elif verb == "lost":
            trace.lose(1)
        else:
            trace.event(Kind.TRUNCATE, seq_id=seq_id, aux=draw(st.integers(0, 4)))
    return trace


@given(histories())
def test_any_history(trace: HandTrace) -> None:
    agree(trace)


def test_chunks_know_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into pieces of a few rows, the answers stay the same."""
    from kvscope.inspector.screen import screen as module

    traces = [run(seed, length=120) for seed in range(15)]
    whole = [screen(frozen(trace)) for trace in traces]
    monkeypatch.setattr(module, "CHUNK", 40)
    monkeypatch.setattr(plain, "FEW", 0)
    for before, trace in zip(whole, traces, strict=True):
        again = screen(frozen(trace))
        assert again.clean == before.clean
        if before.clean:
            assert again == before
    for name in FAULTS:
        for seed in range(4):
            agree(run(seed, fault=name))
