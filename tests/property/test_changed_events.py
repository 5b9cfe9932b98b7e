"""Events of right runs, changed at random: whatever a trace says, check and explain answer it, in little memory.

What a changed run is called is not asked here: a number that is another one may be as good as the one before.
"""

from __future__ import annotations

import functools
import json
import random
import resource
from collections.abc import Iterator

import numpy as np
import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.errors import KVScopeError
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_json, explanation_text
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.faults.stage import Stage, perform
from kvscope.inspector.findings import check
from kvscope.inspector.report import report, to_json
from kvscope.traces import MemoryRecorder
from kvscope.traces.schema import EVENT_DTYPE

RUNS = 25  # of each play
MORE_BYTES = 4 << 30  # that all of this may take
COLUMNS = [name for name in EVENT_DTYPE.names or () if name not in ("t_ns", "site", "actor")]
VALUES = (-1, 0, 1, 2, 5, 2**31 - 1)


@functools.cache
def right_run(play: str) -> MemoryRecorder:
    stage = Stage(BlockManager, **PLAYS[play].options)
    return perform(PLAYS[play].act, stage)


class Changed:
    """A recorded run with other events; what it says beside them is the same."""

    def __init__(self, run: MemoryRecorder, rng: random.Random) -> None:
        self._run, rows = run, np.arange(len(run.events))
        self.events = run.events.copy()
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(self.events))
            how = rng.choice(("drop", "double", "swap", "column", "block"))
            if how == "drop":
                self.events, rows = np.delete(self.events, at), np.delete(rows, at)
            elif how == "double":
                self.events, rows = np.insert(self.events, at, self.events[at]), np.insert(rows, at, rows[at])
            elif how == "swap" and at:
                self.events[[at - 1, at]] = self.events[[at, at - 1]]
            elif how == "block":
                self.events["block"][at] = rng.randrange(-1, run.num_blocks + 1)
            else:
                column = rng.choice(COLUMNS)
                most = np.iinfo(self.events.dtype[column]).max
                self.events[column][at] = min(rng.choice(VALUES), most) if most > 255 else rng.randrange(int(most))
        self.seqs = np.arange(len(self.events))
        self._from = run.seqs[rows]

    def __getattr__(self, name: str) -> object:
        return getattr(self._run, name)

    def detail(self, seq: int) -> tuple[int, ...] | None:
        return self._run.detail(int(self._from[seq]))

    def details_of(self, kind: int) -> object:
        found = [seq for seq in np.flatnonzero(self.events["kind"] == kind).tolist() if self.detail(seq) is not None]
        return np.asarray(found, dtype=np.int64), [self.detail(seq) for seq in found]


@pytest.fixture
def bounded() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as told:
        taken = int(told.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MORE_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("play", PLAYS)
@pytest.mark.usefixtures("bounded")
def test_whatever_the_events_say_is_answered(play: str) -> None:
    rng = random.Random(play)
    for _ in range(RUNS):
        trace = Changed(right_run(play), rng)
        result = check(trace)
        report(result, trace)
        json.dumps(to_json(result, trace))
        known = sorted({seq_id for seq_id in trace.events["seq_id"].tolist() if seq_id >= 0})
        for seq_id in rng.sample(known, min(2, len(known))):
            try:
                told = explain(trace, f"s{seq_id}", result=result)
            except KVScopeError:
                continue  # it is of no sequence by the other events
            explanation_text(told, trace)
            json.dumps(explanation_json(told, trace))
