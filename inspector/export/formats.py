"""The table of export formats, and `export`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvscope.errors import UsageError
from kvscope.inspector.export.output import new_file, new_folder
from kvscope.inspector.export.parts import Progress, no_progress, row_range
from kvscope.inspector.source import TraceLike

FileWriter = Callable[[TraceLike, range, BinaryIO, Progress], int]


@dataclass(frozen=True, slots=True)
class Format:
    """One format: `writer` is `module:function` of this package, called when it is needed."""

    suffix: str
    writer: str | FileWriter  # or the writer itself
    unit: str  # what its writer counts
    about: str
    folder: bool = False

    def load(self) -> Callable[..., int]:
        """The writer."""
        if not isinstance(self.writer, str):
            return self.writer
        module, function = self.writer.split(":")
        return cast("Callable[..., int]", getattr(import_module(f"kvscope.inspector.export.{module}"), function))


FORMATS: dict[str, Format] = {
    "perfetto": Format(".pftrace", "perfetto:write_perfetto", "packets", "lanes, counters, copies: ui.perfetto.dev"),
    "parquet": Format(".parquet", "parquet:write_parquet", "rows", "events, details, sites, facts as tables", True),
    "jsonl": Format(".jsonl", "jsonl:write_jsonl", "lines", "everything, exact; `kvscope import` reads it back"),
    "csv": Format(".csv", "events_csv:write_csv", "rows", "the events, for a spreadsheet"),
    "ilens": Format(".ilens", "ilens:write_ilens", "records", "steps, requests and prefix-cache events for InferLens"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: `events` rows of the trace as `count` units (`unit`) of the format."""

    format: str
    path: str
    events: int
    count: int
    unit: str
    size_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As one JSON-ready object."""
        return {
            "schema": "kvscope-export/1", "format": self.format, "path": self.path, "events": self.events,
            self.unit: self.count, "size_bytes": self.size_bytes, "seconds": self.seconds,
        }  # fmt: skip


def export(
    trace: TraceLike,
    to: str,
    out: Path | BinaryIO,
    *,
    seqs: tuple[int, int] | None = None,
    overwrite: bool = False,
    progress: Progress = no_progress,
    form: Format | None = None,
) -> Exported:
    """Write a trace, or its events from seq `seqs[0]` to below `seqs[1]`, in another format.

    Args:
        to: a name of `FORMATS`.
        out: where to; or an open binary file, for formats that are one file.
        progress: called with (rows done, rows in all).
        form: a format that is not in the table, which is then called `to`.

    Raises:
        UsageError: no such format, no event in the range, or something is there already.
        ExportError: it cannot be written; nothing is left behind.
    """
    form = form or FORMATS.get(to)
    if form is None:
        raise UsageError(f"cannot export to {to!r:.40}: choose one of {', '.join(FORMATS)}")
    rows = row_range(trace, seqs)
    writer, began = form.load(), time.perf_counter()
    if not isinstance(out, Path):
        if form.folder:
            raise UsageError(f"{to} is a folder of files: it cannot go to standard output; give --out")
        count, size = writer(trace, rows, out, progress), -1
    elif form.folder:
        from kvscope.inspector.export.parquet import FILES

        with new_folder(out, FILES, overwrite) as folder:
            count = writer(trace, rows, folder, progress)
        size = sum(path.stat().st_size for path in out.iterdir())
    else:
        with new_file(out, overwrite) as file:
            count = writer(trace, rows, file, progress)
        size = out.stat().st_size
    return Exported(to, str(out) if isinstance(out, Path) else "-", len(rows), count, form.unit, size,
                    round(time.perf_counter() - began, 3))  # fmt: skip
