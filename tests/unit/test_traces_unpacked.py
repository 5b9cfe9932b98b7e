"""The look at an Arrow message before it is unpacked: right about what pyarrow writes, safe about anything else."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pyarrow as pa
import pytest

from kvscope.traces import EVENT_DTYPE
from kvscope.traces.bulk import empty_events
from kvscope.traces.codec import NO_DETAILS, encode_batch
from kvscope.traces.unpacked import unpacked_bytes


def test_what_a_segment_holds() -> None:
    message = encode_batch(empty_events(16_384), NO_DETAILS)
    rows = 16_384 * EVENT_DTYPE.itemsize
    assert len(message) < rows / 10
    assert rows <= unpacked_bytes(message) <= rows + 16_384 * 4 + 16_384 // 8 + 4096


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_agrees_with_what_comes_out(codec: str | None) -> None:
    batch = pa.record_batch({"a": pa.array(np.zeros(100_000)), "b": pa.array(["x" * 100] * 1000 + [None] * 99_000)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    message = sink.getvalue().to_pybytes()[len(bytes(batch.schema.serialize())) : -8]
    told = unpacked_bytes(message)
    assert abs(told - batch.get_total_buffer_size()) < 1024
    flipper = random.Random(5)
    for _ in range(3000):  # a damaged message gives a number or a ValueError, nothing else
        broken = bytearray(message[: flipper.choice([len(message), 600, 40])])
        for _ in range(flipper.randrange(1, 6)):
            broken[flipper.randrange(min(len(broken), 600))] = flipper.randrange(256)
        with contextlib.suppress(ValueError):
            assert unpacked_bytes(bytes(broken)) >= 0
