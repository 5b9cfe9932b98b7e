"""A folder of Parquet files, one for each table; zstd, names as dictionaries, written a batch at a time.

`manifest` and the number of the export's version are in each file's key-value metadata, under `kvscope`.
"""

from __future__ import annotations

import json
from pathlib import Path

from kvscope.inspector.export.jsonl import manifest_of
from kvscope.inspector.export.parts import Progress, no_progress
from kvscope.inspector.export.tables import batches, schemas
from kvscope.inspector.source import TraceLike

TABLES = ("events", "details", "sites", "facts")
FILES = frozenset(f"{table}.parquet" for table in TABLES)


def write_parquet(trace: TraceLike, rows: range, folder: Path, progress: Progress = no_progress) -> int:
    """Write the tables into an empty folder; returns the number of rows in all of them."""
    import pyarrow.parquet as pq

    note = {"kvscope": json.dumps({"version": 1, "manifest": manifest_of(trace)})}
    total = 0
    for table in TABLES:
        schema = schemas()[table].with_metadata(note)
        with pq.ParquetWriter(folder / f"{table}.parquet", schema, compression="zstd") as writer:
            for batch in batches(table, trace, rows, progress):
                writer.write_batch(batch.cast(schema) if batch.schema.metadata != schema.metadata else batch)
                total += batch.num_rows
    return total
