"""The curves of Live and replay as they are sent: their axis, their gaps, and which of their events there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.dashboard.curves import Tick, encode
from kvscope.inspector.following import Follower
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace


def read(payload: bytes) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """(header, places on the axis, event numbers) as `curves.js` reads them."""
    points, length = np.frombuffer(payload, "<u4", 2)
    meta = json.loads(payload[8 : 8 + length])
    x = np.frombuffer(payload, "<f4", points, 8 + length)
    return meta, x, np.frombuffer(payload[-8 * int(points) :], "<f8")


def run(path: Path, blocks: int, gap: bool = False) -> Path:
    with Recorder(path, pool=PoolFacts(8, 4)) as sink:
        for i in range(blocks):
            sink.begin()
            sink.step = i
            sink.emit(Kind.ALLOC, block=i, gen=1, ref_before=0, ref_after=1, fill=0, seq_id=1, lblock=i)
            sink.emit(Kind.STEP_END, aux=1)
            if gap and i == 1:
                sink.emit(Kind.GAP, aux=5)
    return path


@pytest.fixture
def two_runs(tmp_path: Path) -> Any:
    first = Follower(open_trace(run(tmp_path / "a.kvtrace", 6)), 10**9)
    first.look()
    return Follower(open_trace(run(tmp_path / "b.kvtrace", 4)), 9 * 10**9, before=first).look()


def test_events_of_a_run_that_is_over_cannot_be_picked(two_runs: Any) -> None:
    meta, x, seq = read(encode(two_runs.past, 8))
    (gap,) = np.flatnonzero(np.isnan(x))
    assert meta["gaps"] == ["restart"]
    assert np.isnan(seq[: gap + 1]).all()
    assert seq[gap + 1 :].tolist() == two_runs.past["seq"][gap + 1 :].tolist()
    assert "2 runs" in meta["alt"]


@pytest.mark.parametrize("axis", ["event", "step"])
def test_by_events_and_steps_runs_stand_one_behind_the_other(two_runs: Any, axis: str) -> None:
    meta, x, seq = read(encode(two_runs.past, 8, axis=axis, cursor=3.0, marks=[Tick(2.0, "red")]))
    assert (meta["axis"], meta["gaps"], meta["bases"]) == (axis, ["restart"], [0, 0])
    (gap,) = np.flatnonzero(np.isnan(x))
    before, after = x[:gap], x[gap + 1 :]
    assert (np.diff(before) >= 0).all()
    assert after[0] == before[-1]
    assert meta["cursor"] == after[0] + 3.0
    assert meta["marks"][0]["x"] == after[0] + 2.0
    assert (np.isnan(seq[:gap]).all(), np.isnan(seq[gap + 1 :]).any()) == (True, False)
    if axis == "event":
        assert (after - after[0]).tolist() == seq[gap + 1 :].tolist()
    else:
        assert (before.tolist(), (after - after[0]).tolist()) == ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3])
        assert seq[-1] == two_runs.seq


@pytest.mark.parametrize(("blocks", "height"), [(4, 8), (8, 8), (16, 16)])
def test_a_larger_pool_of_a_run_before_fits_in(two_runs: Any, blocks: int, height: int) -> None:
    """The runs had 8 blocks; what they had free is part of their stacks."""
    meta, _, _ = read(encode(two_runs.past, blocks))
    assert meta["blocks"] == height


def test_missing_events_are_no_restart(tmp_path: Path) -> None:
    past = Follower(open_trace(run(tmp_path / "a.kvtrace", 6, gap=True))).look().past
    meta, _, seq = read(encode(past, 8))
    assert meta["gaps"] == ["events missing"]
    assert np.isnan(seq).sum() == 1
    assert "runs" not in meta["alt"]
