"""Rows of a trace, and blocks of a pool, as Arrow streams that travel: zstd, one batch per run of rows."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kvscope.traces.codec import arrow_schema, batch_of

if TYPE_CHECKING:
    from kvscope.inspector.telemetry.gauges import PoolNow
    from kvscope.traces.follow import Part

ARROW = "application/vnd.apache.arrow.stream"


def event_schema() -> Any:
    """`seq`, the columns of EVENT_DTYPE, and `detail`: a list of int64, or null."""
    import pyarrow as pa

    return pa.schema([pa.field("seq", pa.int64()), *arrow_schema()])


def encode_events(parts: Iterable[Part]) -> tuple[bytes, int, int]:
    """(Arrow stream, rows, seq after the last one); -1 where there is no row."""
    import pyarrow as pa

    schema, out, rows, after = event_schema(), io.BytesIO(), 0, -1
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
    with pa.ipc.new_stream(out, schema, options=options) as writer:
        for part in parts:
            count = len(part.seqs)
            seqs = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.ascontiguousarray(part.seqs))])
            batch = batch_of(part.events, part.details)
            writer.write_batch(pa.RecordBatch.from_arrays([seqs, *batch.columns], schema=schema))
            rows, after = rows + count, int(part.seqs[-1]) + 1
    return out.getvalue(), rows, after


def encode_pool(now: PoolNow) -> bytes:
    """One row per block: `state` (as `inspector.state.BlockState`), `gen`, `entries`, `leases`, `lost`, `fill`,
    `published` and `writing`.
    """
    import pyarrow as pa

    columns = {name: values.astype(np.uint8) if values.dtype == bool else values for name, values in
               now.columns.items()}  # fmt: skip
    arrays = [pa.Array.from_buffers(pa.from_numpy_dtype(v.dtype), len(v), [None, pa.py_buffer(np.ascontiguousarray(v))])
              for v in columns.values()]  # fmt: skip
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
    with pa.ipc.new_stream(out, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return out.getvalue()
