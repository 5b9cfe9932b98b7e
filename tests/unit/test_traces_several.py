"""The traces of several ranks or pools, opened together."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvscope.errors import TraceError
from kvscope.inspector.cli import run
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace, open_traces, pack

SECOND = 10**9


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Three ranks that began at different moments; the last one is packed, and one has a faulty free."""
    for rank in range(3):
        now = iter(range(0, 10**6, 1 + rank))
        start = 1_000 + 5 * rank
        with Recorder(
            tmp_path / "run" / f"rank{rank}.kvtrace", pool=PoolFacts(4, 4, name=f"rank {rank}"), sealing="inline",
            clock=lambda now=now: next(now), wall_clock=lambda start=start: start,
        ) as sink:  # fmt: skip
            for i in range(20):
                sink.begin()
                sink.emit(Kind.ALLOC, block=i % 4, gen=i // 4 + 1, ref_before=0, ref_after=1, seq_id=i, lblock=0)
                sink.emit(Kind.RELEASE, block=i % 4, gen=i // 4 + 1, ref_before=1, ref_after=0, seq_id=i, lblock=0)
                sink.emit(Kind.FREE, block=i % 4, gen=i // 4 + 1)
            if rank == 1:
                sink.emit(Kind.FREE, block=0, gen=5)
    run_folder = tmp_path / "run"
    last = run_folder / "rank2.kvtrace"
    pack(last, run_folder / "rank2.kvpack")
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    (run_folder / "notes.txt").write_text("not a trace")
    return run_folder


def test_rows_of_all_come_by_time(ranks: Path) -> None:
    several = open_traces(ranks)
    assert several.names == ["rank0", "rank1", "rank2"]
    assert [r.num_blocks for r in several] == [4, 4, 4]
    trace, row, wall = several.merged()
    assert len(trace) == sum(len(reader.events) for reader in several) == 181
    assert (np.diff(wall) >= 0).all()
    for index, reader in enumerate(several):
        own = row[trace == index]
        np.testing.assert_array_equal(own, np.arange(len(reader.events)))
        np.testing.assert_array_equal(wall[trace == index], reader.events["t_ns"] + 1_000 + 5 * index)
    moment = int(wall[90])
    assert several.rows_at(moment) == [int(((wall <= moment) & (trace == i)).sum()) for i in range(3)]
    assert not several.refresh()
    assert open_traces([ranks / "rank0.kvtrace", ranks / "rank0.kvtrace"]).names == ["rank0"]


def test_places_without_traces(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not a trace, and holds none"):
        open_traces(tmp_path)
    with pytest.raises(TraceError, match="is missing"):
        open_traces([tmp_path / "nowhere"])
    (tmp_path / "a.kvtrace").mkdir()
    with pytest.raises(TraceError, match=r"a\.kvtrace is not a trace"):
        open_traces(tmp_path)


def test_inspect_and_check_take_several(ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", str(ranks)]) == 1
    out = capsys.readouterr().out
    assert "rank0.kvtrace: clean" in out
    assert "KVSAN: ERROR" in out
    assert run(["check", str(ranks / "rank0.kvtrace"), str(ranks / "rank2.kvpack")]) == 0
    capsys.readouterr()
    assert run(["check", "--json", str(ranks)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [len(t["findings"]) > 0 for t in told["traces"]] == [False, True, False]
    assert run(["inspect", "--json", str(ranks)]) == 0
    assert [t["events"] for t in json.loads(capsys.readouterr().out)["traces"]] == [60, 61, 60]
    assert run(["inspect", str(ranks)]) == 0
    assert capsys.readouterr().out.count("kvscope inspect") == 3
    assert len(open_trace(ranks / "rank2.kvpack").events) == 60
