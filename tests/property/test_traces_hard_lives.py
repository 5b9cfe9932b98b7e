"""Writers one after the other over one folder, killed or closed, with limits, on a disk that is full now and then.

What is left of their events is what they were told that they have written: none changed, none twice, none in another
place, and what is missing is counted.
"""

from __future__ import annotations

import errno
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.inspector.state import state_at
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace
from kvscope.traces.fold import BlockFold, events_columns
from kvscope.traces.reader import TraceReader
from kvscope.traces.schema import EVENT_DTYPE

POOL = PoolFacts(num_blocks=16, block_size=4)


class Disk:
    """An `os.pwrite` for a disk that is full for a while, again and again."""

    def __init__(self, rng: random.Random, share: float) -> None:
        self._rng, self._share, self._left, self.full = rng, share, 0, False

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if self._left <= 0:
            self.full, self._left = self._rng.random() < self._share, self._rng.randint(1, 12)
        self._left -= 1
        if self.full:
            written = os.pwrite(fd, data[: len(data) // 2], offset)  # a write that does not fit is cut short
            if written < len(data) and self._rng.random() < 0.5:
                return written
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data, offset)


def live(path: Path, seed: int, told: Path) -> None:
    """One writer's life; what it was told that is written goes to `told`, number by number."""
    rng = random.Random(seed)
    now = [0]

    def clock() -> int:
        now[0] += rng.randrange(1_000_000)
        return now[0]

    limits: dict[str, Any] = rng.choice(({}, {"max_bytes": 1 << 16}, {"max_age_s": 0.05}, {"max_age_s": 0.5}))
    disk = Disk(rng, rng.choice((0.0, 0.0, 0.3, 0.7)))
    recorder = Recorder(
        path, pool=POOL, resume=True, sealing=rng.choice(("inline", "thread")), hot_rows=256, seal_rows=64,
        seal_after_s=rng.choice((0.0, 0.0005)), max_batches=8, clock=clock,
        wall_clock=lambda: now[0], pwrite=disk.pwrite, **limits,
    )  # fmt: skip
    acknowledged, behind_drops, dropped = {}, [], False
    size = POOL.num_blocks
    for i in range(rng.choice((0, 3, 300, 900, 2000))):
        recorder.begin()
        if rng.random() < 0.01:
            after = rng.randint(1, 40)
            row = {"kind": Kind.GROW if after >= size else Kind.SHRINK, "aux": after, "lblock": size}
            size = after
        else:
            row = {"kind": Kind.ALLOC, "block": rng.randrange(16), "gen": i + 1, "ref_before": 0, "ref_after": 1,
                   "seq_id": seed, "aux": i}  # fmt: skip
        number = recorder.emit(**row)
        if number >= 0:
            acknowledged[number] = {name: int(value) for name, value in row.items()}
            if dropped:
                behind_drops.append(number)
        elif rng.random() < 0.5:
            time.sleep(0.001)
        dropped = number < 0
    told.write_text(json.dumps([list(acknowledged.items()), behind_drops, recorder.dropped]))
    if rng.random() < 0.5:
        recorder.close()


def a_life(path: Path, seed: int, told: Path) -> bool:
    """In a process of its own, that ends as one that is killed; False where it could not even begin."""
    child = os.fork()
    if not child:
        try:
            live(path, seed, told)
        finally:
            os._exit(0 if told.exists() else 1)  # no exit handler, no close
    os.waitpid(child, 0)
    return told.exists()


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_is_what_was_written(tmp_path: Path, seed: int) -> None:
    path, rng, every, end, dropped = tmp_path / "a.kvtrace", random.Random(seed), dict[int, dict[str, int]](), 0, 0
    for number in range(rng.randint(2, 6)):
        told = tmp_path / f"{number}.json"
        if not a_life(path, seed * 100 + number, told):
            continue  # its disk was full when it tried to go on: the trace is as it was
        if end:
            every[end] = {"kind": Kind.GAP, "aux": -POOL.num_blocks}
        rows, behind_drops, lost = json.loads(told.read_text())
        assert not every.keys() & {at for at, _ in rows}, "a number was given twice"
        every |= dict(rows)
        trace = open_trace(path)
        assert trace.dropped == lost
        assert lost >= dropped
        dropped, end = lost, as_written(trace, every)
        kinds = dict(zip(trace.seqs.tolist(), trace.events["kind"].tolist(), strict=True))
        assert {kinds[at - 1] for at in behind_drops if at > trace.let_go} <= {Kind.GAP}


def as_written(trace: TraceReader, every: dict[int, dict[str, int]]) -> int:
    """Hold a trace to the rows that its writers were told of; returns the number behind its last one."""
    seqs, rows = trace.seqs.tolist(), dict(zip(trace.seqs.tolist(), trace.events, strict=True))
    assert seqs == sorted(rows)
    for at, event in rows.items():
        wanted = every.get(at, {"kind": Kind.GAP})  # (those that stand for dropped events, nobody is told of)
        assert {name: int(event[name]) for name in wanted} == wanted
    assert all(at < trace.let_go for at in every.keys() - rows.keys()), "what was acknowledged is there, or was let go"
    if not seqs:
        return 0
    fold, known = BlockFold(POOL.num_blocks), np.zeros(seqs[-1] + 1, EVENT_DTYPE)
    known["kind"] = Kind.NOTE
    for at, row in every.items():
        known[["ref_before", "ref_after", "fill", "block"]][at] = -1
        for name, value in row.items():
            known[name][at] = value
    fold.apply(events_columns(known, np.arange(len(known))))
    state = state_at(trace, seqs[-1])
    assert len(state.gen) == fold.size
    np.testing.assert_array_equal(state.gen, fold.gen[: fold.size])
    np.testing.assert_array_equal(state.ref, fold.ref[: fold.size])
    return seqs[-1] + 1
