"""A second writer goes on where a killed one, or one that closed, has stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from kvscope.errors import TraceError
from kvscope.inspector.findings import check
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace

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
    assert [fact["from"] for fact in trace.facts][-1] == first
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
    assert trace.events["aux"].tolist() == [*range(64), 0, *range(100, 164)]
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
