"""A trace as Arrow tables: what Parquet files hold and what SQL asks; each table is made batch by batch.

    events     one row per event: seq, time, names of kind, reason and actor, all columns, and the raw numbers
    details    one row per value: seq, position, field, value
    sites      one row per frame of a call site: site, depth (0 innermost), file, line, function
    facts      one row per fact of the run: n, type, fact (JSON)

A value that does not apply is -1, as in the trace.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.export.events_csv import detail_names
from kvscope.inspector.export.parts import Part, Progress, kind_names, no_progress, parts, reason_names
from kvscope.inspector.source import TraceLike
from kvscope.traces.schema import EVENT_DTYPE

NUMBERS = ("step", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux", "site", "tier")
Batches = Callable[[TraceLike, range, Progress], Iterator[Any]]


@functools.cache
def schemas() -> dict[str, Any]:
    """The Arrow schema of each table."""
    import pyarrow as pa

    name = pa.dictionary(pa.int32(), pa.string())
    numbers = [(column, pa.from_numpy_dtype(EVENT_DTYPE[column])) for column in NUMBERS]
    raw = [(f"{column}_id", pa.uint8()) for column in ("kind", "reason", "actor")]
    return {
        "events": pa.schema([("seq", pa.int64()), ("t_ns", pa.int64()), ("kind", name), ("reason", name),
                             *numbers, ("actor", name), *raw]),
        "details": pa.schema([("seq", pa.int64()), ("position", pa.int32()), ("field", name), ("value", pa.int64())]),
        "sites": pa.schema([("site", pa.int32()), ("depth", pa.int32()), ("file", pa.string()), ("line", pa.int64()),
                            ("function", pa.string())]),
        "facts": pa.schema([("n", pa.int64()), ("type", pa.string()), ("fact", pa.string())]),
    }  # fmt: skip


def batches(table: str, trace: TraceLike, rows: range, progress: Progress = no_progress) -> Iterator[Any]:
    """The record batches of a table, one at a time."""
    return _MAKERS[table](trace, rows, progress)


def _events(trace: TraceLike, rows: range, progress: Progress) -> Iterator[Any]:
    import pyarrow as pa

    schema = schemas()["events"]
    actors = [clean_text(name) for name in trace.actors]
    actors += [f"actor {i}" for i in range(len(actors), 256)]
    lists = {"kind": kind_names(), "reason": reason_names(), "actor": actors}
    dictionaries = {column: _text(values) for column, values in lists.items()}

    def column(part: Part, field: Any) -> Any:
        if field.name == "seq":
            return _numbers(part.seqs, field.type)
        if field.name in dictionaries:
            indices = _numbers(part.events[field.name].astype(np.int32), pa.int32())
            return pa.DictionaryArray.from_arrays(indices, dictionaries[field.name])
        return _numbers(part.events[field.name.removesuffix("_id") if field.name != "seq_id" else "seq_id"], field.type)

    for part in parts(trace, rows, progress):
        yield pa.RecordBatch.from_arrays([column(part, field) for field in schema], schema=schema)


@functools.cache
def _field_table() -> tuple[npt.NDArray[np.int32], list[str]]:
    """(number of the field name by kind and position, the names)"""
    most = 64
    names = sorted({name for kind in range(256) for name in detail_names(kind, most)})
    number = {name: i for i, name in enumerate(names)}
    table = np.array([[number[n] for n in detail_names(kind, most)] for kind in range(256)], np.int32)
    return table, names


def _details(trace: TraceLike, rows: range, progress: Progress) -> Iterator[Any]:
    import pyarrow as pa

    schema, (fields, names) = schemas()["details"], _field_table()
    dictionary = _text([*names, "more"])
    for part in parts(trace, rows, progress):
        lengths = np.diff(part.offsets)
        at = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(part.values)) - part.offsets[at]
        kind = part.events["kind"][np.searchsorted(part.seqs, part.detail_seqs)][at]
        width = fields.shape[1]
        field = np.where(position < width, fields[kind, np.minimum(position, width - 1)], len(names)).astype(np.int32)
        yield pa.RecordBatch.from_arrays(
            [
                _numbers(part.detail_seqs[at], pa.int64()),
                _numbers(position.astype(np.int32), pa.int32()),
                pa.DictionaryArray.from_arrays(_numbers(field, pa.int32()), dictionary),
                _numbers(part.values, pa.int64()),
            ],
            schema=schema,
        )


def _sites(trace: TraceLike, rows: range, progress: Progress) -> Iterator[Any]:
    found = [
        (i, depth, clean_text(frame[0]), int(frame[1]), clean_text(frame[2]))
        for i, site in enumerate(trace.sites)
        for depth, frame in enumerate(site.frames or [(site.file, site.line, site.function)])
    ]
    yield table_batch("sites", found)


def _facts(trace: TraceLike, rows: range, progress: Progress) -> Iterator[Any]:
    lines = [
        (n, clean_text(str(fact.get("type", ""))), json.dumps(fact, separators=(",", ":")))
        for n, fact in enumerate(trace.facts)
    ]
    for lo in range(0, len(lines), 10_000):
        yield table_batch("facts", lines[lo : lo + 10_000])


def table_batch(table: str, rows: list[tuple[Any, ...]], schema: Any = None) -> Any:
    """A batch of a table from rows of plain values."""
    import pyarrow as pa

    schema = schema or schemas()[table]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(values), type=field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def clean_text(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def _text(values: list[str]) -> Any:
    import pyarrow as pa

    return pa.array(values, type=pa.string())


def _numbers(values: npt.NDArray[Any], kind: Any) -> Any:
    """A column straight from its buffer (`pa.array` would look for pandas, and import it)."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


_MAKERS: dict[str, Batches] = {"events": _events, "details": _details, "sites": _sites, "facts": _facts}
