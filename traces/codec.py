"""Rows to Arrow messages and back: the columns of EVENT_DTYPE, and `detail`, a list of int64 or null."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.unpacked import unpacked_bytes

MAX_UNPACKED_BYTES = 32 << 20  # of a batch; ours have 2 MiB at most

# Details of a run of rows: (row positions, offsets into values, values).
DetailColumn = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]


@functools.cache
def arrow_schema() -> Any:
    """The Arrow schema that this version writes."""
    import pyarrow as pa

    columns = [(name, pa.from_numpy_dtype(EVENT_DTYPE[name])) for name in EVENT_DTYPE.names or ()]
    return pa.schema([*columns, ("detail", pa.list_(pa.int64()))])


def batch_of(rows: npt.NDArray[np.void], details: DetailColumn) -> Any:
    """An Arrow record batch with the event columns of `rows` and their details."""
    import pyarrow as pa

    schema = arrow_schema()
    count = len(rows)
    positions, offsets, values = details
    has = np.zeros(count, bool)
    has[positions] = True
    starts = np.zeros(count + 1, np.int32)
    starts[1:][positions] = np.diff(offsets)
    np.cumsum(starts, out=starts)
    # Arrays straight from buffers: `pa.array` would look for pandas, and import it.
    columns = [
        pa.Array.from_buffers(field.type, count, [None, pa.py_buffer(np.ascontiguousarray(rows[field.name]))])
        for field in schema
        if field.name != "detail"
    ]
    numbers = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
    valid = pa.py_buffer(np.packbits(has, bitorder="little"))
    detail = pa.Array.from_buffers(
        schema.field("detail").type, count, [valid, pa.py_buffer(starts)], children=[numbers]
    )
    return pa.RecordBatch.from_arrays([*columns, detail], schema=schema)


def encode_batch(rows: npt.NDArray[np.void], details: DetailColumn) -> bytes:
    """One framed Arrow message, zstd level 1, with the event columns of `rows` and their details."""
    import pyarrow as pa

    batch, schema = batch_of(rows, details), arrow_schema()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    return bytes(memoryview(sink.getvalue())[len(schema_bytes(schema)) : end])


def decode_batch(message: bytes, schema: Any, into: EventArray) -> DetailColumn:
    """Fill `into` with the batch's events; returns its details.

    Raises:
        ValueError: the message is not a batch of len(into) rows of this schema.
    """
    import pyarrow as pa

    _check_size(message)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), schema)
        batch.validate()
        if batch.num_rows != len(into):
            raise ValueError(f"{batch.num_rows} rows where the index says {len(into)}")
        names = set(batch.schema.names)
        for name in EVENT_DTYPE.names or ():
            if name in names:
                into[name] = _numbers(batch.column(name), EVENT_DTYPE[name])
            else:
                into[name] = 0 if EVENT_DTYPE[name].kind == "u" else -1
        return _details_of(batch)
    except (pa.ArrowException, EOFError, MemoryError, OverflowError, OSError, KeyError, IndexError) as error:
        raise ValueError(f"not a readable Arrow batch: {error}") from error


def decode_details(message: bytes, schema: Any, rows: int) -> DetailColumn:
    """The details of a batch; its events are not decompressed.

    Raises:
        ValueError: the message is not a batch of `rows` rows of this schema.
    """
    import pyarrow as pa

    _check_size(message)
    at = schema.get_field_index("detail")
    if at < 0:
        return NO_DETAILS
    try:
        options = pa.ipc.IpcReadOptions(included_fields=[at], use_threads=False)
        with pa.ipc.open_stream(pa.py_buffer(schema_bytes(schema) + message), options=options) as reader:
            batch = reader.read_next_batch()
        batch.validate()
        if batch.num_rows != rows:
            raise ValueError(f"{batch.num_rows} rows where the index says {rows}")
        return _details_of(batch)
    except (pa.ArrowException, EOFError, MemoryError, OverflowError, OSError, IndexError, StopIteration) as error:
        raise ValueError(f"not a readable Arrow batch: {error}") from error


def _details_of(batch: Any) -> DetailColumn:
    """(row positions, offsets, values) of what a validated batch has in its column `detail`."""
    detail = batch.column("detail") if "detail" in batch.schema.names else None
    if detail is None or detail.null_count == len(detail):
        return NO_DETAILS
    starts = _numbers(detail.offsets, np.dtype("<i4")).astype(np.int64)
    positions = np.flatnonzero(_numbers(detail.is_valid().cast("u1"), np.dtype("u1")))
    offsets = np.append(starts[positions], starts[positions[-1] + 1])
    return positions, offsets, _numbers(detail.values, np.dtype("<i8"))


def _check_size(message: bytes) -> None:
    claimed = unpacked_bytes(message)
    if claimed > MAX_UNPACKED_BYTES:
        raise ValueError(f"it would unpack to {claimed:,} bytes, a batch has at most {MAX_UNPACKED_BYTES:,}")


def decode_columns(message: bytes, schema: Any, names: Sequence[str], rows: int) -> dict[str, npt.NDArray[Any]]:
    """Some of the event columns of a batch; nothing else is decompressed.

    Raises:
        ValueError: the message is not a batch of `rows` rows of this schema.
    """
    import pyarrow as pa

    _check_size(message)
    try:
        known = {name: schema.get_field_index(name) for name in names}
        options = pa.ipc.IpcReadOptions(included_fields=[at for at in known.values() if at >= 0], use_threads=False)
        stream = pa.py_buffer(schema_bytes(schema) + message)
        with pa.ipc.open_stream(stream, options=options) as reader:
            batch = reader.read_next_batch()
        batch.validate()
        if batch.num_rows != rows:
            raise ValueError(f"{batch.num_rows} rows where the index says {rows}")
        return {
            name: _numbers(batch.column(name), EVENT_DTYPE[name])
            if at >= 0
            else np.full(rows, 0 if EVENT_DTYPE[name].kind == "u" else -1, EVENT_DTYPE[name])
            for name, at in known.items()
        }
    except (pa.ArrowException, EOFError, MemoryError, OverflowError, OSError, KeyError, StopIteration) as error:
        raise ValueError(f"not a readable Arrow batch: {error}") from error


@functools.lru_cache(maxsize=8)
def schema_bytes(schema: Any) -> bytes:
    """The framed message of a schema, as it stands at the beginning of a segment."""
    return bytes(schema.serialize())


def _numbers(column: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An Arrow column without nulls as an array, straight from its buffer (`to_numpy` would import pandas)."""
    import pyarrow as pa

    if column.null_count or column.type != pa.from_numpy_dtype(dtype):
        raise ValueError(f"a column of {column.type} with {column.null_count} nulls where {dtype} is expected")
    return np.frombuffer(column.buffers()[1] or b"", dtype, len(column), column.offset * dtype.itemsize)


NO_DETAILS: DetailColumn = (np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))
