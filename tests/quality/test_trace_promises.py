"""What the trace promises, tried often: kills at any moment, any flipped bit, a reader close behind a fast writer."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from kvscope.benchmarks.follow import follow
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace
from kvscope.traces.segment import BATCH_ENTRY, INDEX_DTYPE

POOL = PoolFacts(num_blocks=64, block_size=16)
KILLS, FLIPS = 50, 1_000


def record_until_killed(path: Path, ack: mmap.mmap, sealing: str) -> None:
    """Rows that follow from their seq; after each call the number of acknowledged rows and facts."""
    sizes = {"hot_rows": 512, "seal_rows": 128, "seal_after_s": 0.005}
    sink = Recorder(path, pool=POOL, sealing=sealing, **sizes)  # type: ignore[arg-type]
    n = facts = 0
    while True:
        sink.step = n
        sink.begin()
        sink.emit(Kind.FREE, block=n % 64, lblock=n, aux=n * 7)
        if n % 3 == 0:
            sink.detail(n, [n, -n])
        n += 1
        ack[:16] = struct.pack("<2q", n, facts)  # one store: `pack_into` would clear first
        if n % 10 == 0:
            numbers = np.arange(n, n + 25)
            sink.emit_many(Kind.FREE, block=numbers % 64, lblock=numbers, aux=numbers * 7)
            n += 25
            ack[:16] = struct.pack("<2q", n, facts)
        if n % 50 == 0:
            sink.fact({"n": n})
            facts += 1
            ack[:16] = struct.pack("<2q", n, facts)


def test_fifty_kills_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(7)
    total = 0
    for number in range(KILLS):
        path = tmp_path / f"{number}.kvtrace"
        ack = mmap.mmap(-1, 4096)
        child = os.fork()
        if not child:
            try:
                record_until_killed(path, ack, ("thread", "inline")[number % 2])
            finally:
                os._exit(1)
        while not struct.unpack_from("<q", ack)[0]:
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            time.sleep(0.0005)
        time.sleep(rng.random() * 0.06)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        events, facts = struct.unpack_from("<2q", ack)
        trace = open_trace(path)
        rows, seqs = trace.events, trace.seqs
        assert events <= len(rows) <= events + 25  # what was acknowledged, and at most the call that was under way
        np.testing.assert_array_equal(seqs, np.arange(len(rows)))
        np.testing.assert_array_equal(rows["aux"], seqs * 7)
        np.testing.assert_array_equal(rows["lblock"], seqs)
        assert len(trace.facts) >= facts
        assert trace.gaps == []
        assert len(trace.warnings) == 1
        assert not trace.live
        total += events
    assert total > KILLS  # some were in full flight


def test_a_thousand_flipped_bits_are_found_and_cost_one_batch(tmp_path: Path) -> None:
    path = tmp_path / "a.kvtrace"
    with Recorder(path, pool=POOL, sealing="inline", hot_rows=1024, seal_rows=100) as sink:
        for i in range(600):
            sink.begin()
            sink.emit(Kind.FREE, block=i * 31 % 64, aux=i * 7)
    index = np.fromfile(path / "events-00000.index", INDEX_DTYPE)
    batches = index[index["kind"] == BATCH_ENTRY]
    assert len(batches) == 6
    rng = random.Random(3)
    with open(path / "events-00000.arrows", "r+b") as file:
        for _ in range(FLIPS):
            batch = batches[rng.randrange(len(batches))]
            at, bit = int(batch["offset"]) + rng.randrange(int(batch["length"])), 1 << rng.randrange(8)
            byte = os.pread(file.fileno(), 1, at)[0]
            os.pwrite(file.fileno(), bytes([byte ^ bit]), at)
            trace = open_trace(path)
            first = int(batch["first_seq"])
            assert trace.gaps == [(first, first + 100)]
            assert trace.seqs.tolist() == [i for i in range(600) if not first <= i < first + 100]
            assert (trace.events["aux"] == trace.seqs * 7).all()
            assert len(trace.warnings) == 2
            os.pwrite(file.fileno(), bytes([byte]), at)
    assert open_trace(path).warnings == []


@pytest.mark.parametrize("seconds", [3.0])
def test_a_reader_follows_a_fast_writer(seconds: float) -> None:
    found = follow(seconds)
    assert found["wrong"] == 0
    assert found["events"] == seconds * 1_000_000
    assert found["looks"] > 3
