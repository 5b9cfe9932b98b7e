"""SQL over a trace, answered by DuckDB: tables are made batch by batch as a query reads them, and nothing is written.

    events details sites facts     see inspector/export/tables.py
    blocks       every block at the end of the trace: block, gen, state, entries, leases, fill, published, writing
    sequences    one row per sequence: name, request, parent, outcome, tokens, times by phase, most blocks held
    findings     what `kvscope check` finds

The SQL may be a stranger's: it reads these tables and nothing else. No files, no network, no extensions, no settings,
no Python variables; memory is bounded, what is larger goes to a temporary folder that is removed afterwards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from kvscope.errors import KVScopeError, MissingDependency, UsageError
from kvscope.inspector.export.tables import batches, schemas, table_batch
from kvscope.inspector.lanes import DECODE, PREEMPTED, PREFILL, QUEUED, lanes
from kvscope.inspector.source import TraceLike, frozen, size_after
from kvscope.inspector.state import STATE_NAMES, check_shown, state_at

MEMORY, SPILL = "1GB", "8GB"
_FETCH = 1000
_BATCH = 16_384  # rows of a made table that are Python objects at once
_EAGER = 100_000  # rows that may be held at once
_LOCKED = (
    "enable_external_access=false",
    "python_enable_replacements=false",
    "autoinstall_known_extensions=false",
    "autoload_known_extensions=false",
    "enable_progress_bar=false",
    "lock_configuration=true",
)


class QueryError(KVScopeError):
    """The SQL is wrong, or its answer does not fit."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Names and types of the columns, and the rows, which can be read once."""

    columns: tuple[tuple[str, str], ...]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def ask(trace: TraceLike, sql: str, *, most: int | None = None) -> Iterator[Answer]:
    """The answer to one SELECT (or EXPLAIN) over a trace; its rows are there until the block ends.

    Args:
        most: no more rows than these, and no work for others where that can be.

    Raises:
        QueryError: the SQL is wrong, does more than read, or needs too much memory.
        MissingDependency: DuckDB is not installed.
    """
    duckdb = _duckdb()
    found = tables(trace)
    with tempfile.TemporaryDirectory(prefix="kvscope-query-") as spill, duckdb.connect(":memory:") as connection:
        try:
            for name, table in found.items():
                connection.register(name, table)
            connection.execute(f"SET memory_limit='{MEMORY}'")
            connection.execute(f"SET temp_directory='{spill.replace(chr(39), chr(39) * 2)}'")
            connection.execute(f"SET max_temp_directory_size='{SPILL}'")
            for setting in _LOCKED:
                connection.execute(f"SET {setting}")
            statement = _only_read(duckdb, sql)
            if most is not None and most <= _EAGER and statement.type == duckdb.StatementType.SELECT:
                answer = connection.sql(statement.query).limit(most)  # so that no other row is worked for
                rows = iter(answer.fetchall())
            else:
                answer = connection.execute(statement)
                rows = islice(_rows(connection), most)
            columns = tuple((str(name), str(kind)) for name, kind, *_ in answer.description)
            yield Answer(columns, rows)
        except RuntimeError as error:  # Ctrl-C, as DuckDB tells it
            if "interrupted" in str(error):
                raise KeyboardInterrupt from None
            raise
        except duckdb.Error as error:
            for table in found.values():
                if isinstance(table.failure, KVScopeError):
                    raise table.failure from None
            told = _one_line(str(error))
            raise QueryError(f"{told} There are {', '.join(found)}." if "Table with name" in told else told) from error


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependency(
            "kvscope query needs DuckDB, which is not installed: pip install 'kvscope[query]'"
        ) from error
    return duckdb


def _only_read(duckdb: Any, sql: str) -> Any:
    """The one statement in `sql`, if all it does is read."""
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"a query is one SELECT, got {len(statements)} statements")
    kind = statements[0].type
    if kind not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        raise UsageError(f"a query only reads: give one SELECT, got a statement of type {kind.name}")
    return statements[0]


def _rows(connection: Any) -> Iterator[tuple[Any, ...]]:
    while rows := connection.fetchmany(_FETCH):
        yield from rows


def _one_line(message: str) -> str:
    """What DuckDB says, without its picture of the place."""
    lines = [line.strip() for line in message.partition("Detail: Python exception")[0].splitlines()]
    told = " ".join(line for line in lines if line and not line.startswith(("LINE ", "^", "Did you mean")))
    return told if len(told) <= 400 else told[:400] + " ..."


class Lazy:
    """A table that is made anew, batch by batch, each time something reads it (Arrow's C stream interface).

    Args:
        schema: of all batches.
        make: called once for each reading.
    """

    def __init__(self, schema: Any, make: Callable[[], Iterator[Any]]) -> None:
        self._schema, self._make = schema, make
        self.failure: Exception | None = None  # what ended the last reading; DuckDB passes on its text only

    def __arrow_c_schema__(self) -> Any:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self._schema, self._guarded())
        return reader.__arrow_c_stream__(requested_schema)

    def _guarded(self) -> Iterator[Any]:
        try:
            yield from self._make()
        except Exception as error:
            self.failure = error
            raise


def tables(trace: TraceLike) -> dict[str, Lazy]:
    """Every table of a trace, by name; nothing is computed before it is read."""
    import pyarrow as pa

    def stored(name: str) -> Lazy:
        return Lazy(schemas()[name], lambda: batches(name, trace, range(len(trace.events))))

    def made(columns: str, rows: Callable[[TraceLike], Iterator[tuple[Any, ...]]]) -> Lazy:
        pairs = [word.split(":") for word in columns.split()]
        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in pairs])

        def in_batches() -> Iterator[Any]:
            left = rows(trace)
            while batch := list(islice(left, _BATCH)):
                yield table_batch("", batch, schema)

        return Lazy(schema, in_batches)

    return {
        **{name: stored(name) for name in schemas()},
        "blocks": made(
            "block:int64 gen:int64 state:string entries:int64 leases:int64 fill:int64 published:bool writing:bool "
            "last_seq:int64", _blocks,
        ),
        "sequences": made(
            "seq_id:int64 name:string request:int64 parent:int64 outcome:string prompt_tokens:int64 "
            "cached_tokens:int64 output_tokens:int64 preemptions:int64 begin_ns:int64 end_ns:int64 queued_ns:int64 "
            "prefill_ns:int64 decode_ns:int64 preempted_ns:int64 max_held:int64", _sequences,
        ),
        "findings": made(
            "code:string name:string severity:string seq:int64 step:int64 block:int64 gen:int64 slot_lo:int64 "
            "slot_hi:int64 seq_id:int64 why:string", _findings,
        ),
    }  # fmt: skip


def _blocks(trace: TraceLike) -> Iterator[tuple[Any, ...]]:
    check_shown(size_after(trace, len(trace.events)), "the table of blocks")
    end = int(np.asarray(trace.seqs)[-1]) if len(trace.events) else -1
    state = state_at(trace, end)
    columns = (state.gen, state.state, state.entries, state.leases, state.fill, state.published, state.writing,
               state.last_seq)  # fmt: skip
    for lo in range(0, state.num_blocks, _BATCH):
        values = zip(*(column[lo : lo + _BATCH].tolist() for column in columns), strict=True)
        for block, (gen, which, *rest) in enumerate(values, lo + state.first):
            yield block, gen, STATE_NAMES[which], *rest


def _sequences(trace: TraceLike) -> Iterator[tuple[Any, ...]]:
    for lane in lanes(frozen(trace)):
        spent = dict.fromkeys((QUEUED, PREFILL, DECODE, PREEMPTED), 0)
        for bar in lane.bars:
            spent[bar.phase] += bar.t1_ns - bar.t0_ns
        begin, end = (lane.bars[0].t0_ns, lane.bars[-1].t1_ns) if lane.bars else (None, None)
        begin = None if lane.cut else begin
        yield (lane.seq_id, lane.name, lane.request, lane.parent, lane.outcome, lane.prompt_tokens,
               lane.cached_tokens, lane.output_tokens, lane.preemptions, begin, end, *spent.values(),
               lane.max_held)  # fmt: skip


def _findings(trace: TraceLike) -> Iterator[tuple[Any, ...]]:
    from kvscope.inspector.findings import check

    for f in check(trace).findings:
        yield (f.code, f.name, f.severity, f.seq, f.step, f.block, f.gen, f.slot_lo, f.slot_hi, f.seq_id, f.why)
