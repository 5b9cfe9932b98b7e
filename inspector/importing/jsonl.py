"""Our own JSON lines (inspector/export/jsonl.py) back into a trace folder: the same events, details, names and facts.

Nothing in the file is believed: a line is refused with its number and the reason, memory is bounded by the longest
line that is allowed, and the folder appears only when the last line was good.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kvscope.errors import KVScopeError, TraceError, UsageError
from kvscope.inspector.export.base_lines import base_of, take_block
from kvscope.inspector.export.jsonl import COLUMNS, FORMAT, VERSION
from kvscope.inspector.export.parts import Progress, no_progress
from kvscope.inspector.source import IntArray
from kvscope.traces.bulk import BulkWriter, empty_events
from kvscope.traces.fold import BlockFold
from kvscope.traces.folder import MANIFEST, claim_folder, open_regular
from kvscope.traces.losses import Losses
from kvscope.traces.origins import MAX_ACTORS, MAX_SITES
from kvscope.traces.schema import EVENT_DTYPE, Kind, Reason
from kvscope.traces.segment import MAX_BATCH_ROWS
from kvscope.traces.sink import Frame, PoolFacts

MAX_LINE_BYTES = 8 << 20
_MEMBERS = frozenset({"seq", "kind", "reason", "detail", *COLUMNS})
_NUMBER = {"kind": {kind.name: int(kind) for kind in Kind}, "reason": {reason.name: int(reason) for reason in Reason}}
_COUNTS = ("events", "dropped", "clipped")


class _Limits(NamedTuple):
    min: int
    max: int


_INT64 = _Limits(-(2**63), 2**63 - 1)
_SEQS = _Limits(0, 2**62)


@dataclass(frozen=True, slots=True)
class Imported:
    """What came in."""

    path: Path
    events: int
    facts: int
    warnings: tuple[str, ...]


class _BadLine(Exception):
    """What is wrong with the line at hand."""


def import_jsonl(source: Path, target: Path, *, overwrite: bool = False, progress: Progress = no_progress) -> Imported:
    """Make the trace folder `target` of a JSON lines file.

    Args:
        progress: called with (bytes read, bytes in all).

    Raises:
        TraceError: the file cannot be read or holds a bad line; the target cannot be written. Nothing was written.
    """
    _refuse_taken(target, overwrite)
    # Named before it is made, so that an interrupt at any moment finds what to take away.
    workshop = target.parent / f".{target.name}.partial-{os.getpid()}"
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            workshop.mkdir()
        except OSError as error:
            raise TraceError(f"cannot write a trace to {target}: {error.strerror or error}") from error
        with open(open_regular(source), "rb") as file:
            reader = _Reader(source, file, progress)
            imported = reader.into(workshop / "trace")
        with claim_folder(target, overwrite):
            names = sorted(os.listdir(workshop / "trace"), key=lambda name: name == MANIFEST)  # the manifest last
            for name in names:
                os.replace(workshop / "trace" / name, target / name)
    except OSError as error:
        where = error.filename or target
        raise TraceError(f"cannot import {source}: {where}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(workshop, ignore_errors=True)
    return Imported(target, imported.events, imported.facts, tuple(imported.warnings))


def _refuse_taken(target: Path, overwrite: bool) -> None:
    """Say at once, not after a long import, that the target is taken."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise TraceError(f"cannot write a trace to {target}: a file is in the way; choose another path")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise TraceError(f"cannot write a trace to {target}: it is there already; choose another path or --overwrite")


class _Reader:
    """One pass over the lines."""

    def __init__(self, source: Path, file: BinaryIO, progress: Progress) -> None:
        self.source, self.file, self.progress = source, file, progress
        self.line = 0
        self.events = self.facts = 0
        self.warnings: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._row_lines = 0  # the line of the first of them
        self._last_seq = -1
        self._base: tuple[int, BlockFold] | None = None
        self._names: set[tuple[str, int]] = set()
        self._ended = False

    def into(self, folder: Path) -> _Reader:
        """Read everything into a new trace folder."""
        lines = self._lines()
        try:
            pool, manifest = self._head(next(lines, None))
            with BulkWriter(folder, pool=pool, manifest=manifest) as writer:
                for record in lines:
                    self._take(record, writer)
                self._flush(writer)
                if self._base is not None:
                    writer.base(*self._base)
        except (_BadLine, RecursionError) as error:
            what = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
            raise TraceError(f"{self.source}, line {max(self.line, 1)}: {what}") from error
        except KVScopeError as error:
            raise TraceError(f"{self.source}: {error}") from error
        if not self._ended:
            self.warnings.append(f"{self.source} has no end record: it was cut short; what it holds was imported")
        return self

    def _lines(self) -> Iterator[dict[str, Any]]:
        total = os.fstat(self.file.fileno()).st_size
        while line := self.file.readline(MAX_LINE_BYTES + 1):
            self.line += 1
            if len(line) > MAX_LINE_BYTES:
                raise _BadLine(f"it is longer than {MAX_LINE_BYTES:,} bytes")
            if self._ended:
                raise _BadLine("it comes after the end record")
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                where = f" ({error.msg} at column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
                raise _BadLine(f"it is not JSON{where}") from error
            if type(record) is not dict:
                raise _BadLine("it is no JSON object")
            if not self.line % 20_000:
                self.progress(self.file.tell(), total)
            yield record

    def _head(self, record: dict[str, Any] | None) -> tuple[PoolFacts, dict[str, Any]]:
        if record is None or record.get("record") != "trace" or record.get("format") != FORMAT:
            raise _BadLine(f'a {FORMAT} file begins with {{"record":"trace","format":"{FORMAT}",...}}')
        if record.get("version") != VERSION:
            raise _BadLine(
                f"its version is {record.get('version')!r:.40}, this KVScope reads {VERSION}: update KVScope"
            )
        manifest = record.get("manifest")
        pool = manifest.get("pool") if isinstance(manifest, dict) else None
        if not isinstance(manifest, dict) or not isinstance(pool, dict):
            raise _BadLine("it gives no pool geometry: manifest.pool is missing")
        try:
            facts = PoolFacts(**{name: pool[name] for name in PoolFacts.__dataclass_fields__ if name in pool})
        except (UsageError, TypeError) as error:
            raise _BadLine(f"it gives no usable pool geometry: {error}") from error
        return facts, _manifest(manifest)

    def _take(self, record: dict[str, Any], writer: BulkWriter) -> None:
        if "seq" in record:
            if not self._rows:
                self._row_lines = self.line
            elif self.line != self._row_lines + len(self._rows):  # something else came in between
                self._flush(writer)
                self._row_lines = self.line
            self._rows.append(record)
            if len(self._rows) == MAX_BATCH_ROWS:
                self._flush(writer)
            return
        kind = record.get("record")
        if kind == "site":
            writer.site(self._number(record, "site", MAX_SITES), _frames(record.get("frames")))
        elif kind == "actor":
            name = record.get("name")
            if not isinstance(name, str):
                raise _BadLine(f"the name of an actor is text, got {name!r:.40}")
            writer.actor(self._number(record, "actor", MAX_ACTORS), name)
        elif kind == "fact":
            fact = record.get("fact")
            if not isinstance(fact, dict):
                raise _BadLine("a fact is a JSON object")
            writer.fact(fact)
            self.facts += 1
        elif kind in ("base", "block"):
            self._flush(writer)
            self._take_base(record)
        elif kind == "end":
            self._flush(writer)
            self._end(record)
        else:
            raise _BadLine(
                "a line is an event (with seq), or a trace, site, actor, base, block, fact or end record; "
                f"got {kind!r:.40}"
            )

    def _take_base(self, record: dict[str, Any]) -> None:
        try:
            if record["record"] == "block":
                if self._base is None:
                    raise _BadLine("a block record comes after the base record")
                take_block(record, self._base[1])
                return
            if self._base is not None or self.events:
                raise _BadLine("there is one base record, and it comes before the events")
            self._base = base_of(record, os.fstat(self.file.fileno()).st_size)
        except ValueError as error:
            raise _BadLine(str(error)) from error
        self._last_seq = self._base[0] - 1

    def _number(self, record: dict[str, Any], what: str, limit: int) -> int:
        number = record.get("i")
        if type(number) is not int or not 0 < number < limit:
            raise _BadLine(f"the number of a {what} is 1 to {limit - 1}, got {number!r:.40}")
        if (what, number) in self._names:
            raise _BadLine(f"{what} {number} was there before")
        self._names.add((what, number))
        return number

    def _end(self, record: dict[str, Any]) -> None:
        self._ended = True
        for what, count in (("events", self.events), ("facts", self.facts)):
            if record.get(what) != count:
                raise _BadLine(f"{count} {what} came before, the end record says {record.get(what)!r:.40}")

    def _flush(self, writer: BulkWriter) -> None:
        """Write the rows that wait, all columns at once."""
        rows, self._rows = self._rows, []
        if not rows:
            return
        line, self.line = self.line, self._row_lines
        for row in rows:
            if not row.keys() <= _MEMBERS:
                raise _BadLine(f"an event has no member {min(row.keys() - _MEMBERS)!r:.60}")
            self.line += 1
        self.line = self._row_lines
        seqs = self._column(rows, "seq", None, _SEQS)
        seqs_before = np.append(self._last_seq, seqs[:-1])
        if (seqs <= seqs_before).any():
            at = int(np.argmax(seqs <= seqs_before))
            self.line += at
            raise _BadLine(f"seq {seqs[at]} does not come after {seqs_before[at]}")
        events = empty_events(len(rows))
        for name, absent in COLUMNS.items():
            events[name] = self._column(rows, name, absent, np.iinfo(EVENT_DTYPE[name]))
        for name, names in _NUMBER.items():
            events[name] = self._named(rows, name, names)
        writer.rows(seqs, events, self._details(rows))
        self.events += len(rows)
        self._last_seq = int(seqs[-1])
        self.line = line

    def _column(self, rows: list[dict[str, Any]], name: str, absent: int | None, limits: Any) -> IntArray:
        values: list[Any] = [row.get(name, absent) for row in rows]
        if set(map(type, values)) == {int} and limits.min <= min(values) and max(values) <= limits.max:
            return np.array(values, np.int64)
        for value in values:
            if type(value) is not int or not limits.min <= value <= limits.max:
                raise _BadLine(f"{name} is a whole number from {limits.min} to {limits.max}, got {value!r:.40}")
            self.line += 1
        raise AssertionError("a value that is wrong in no place")

    def _named(self, rows: list[dict[str, Any]], name: str, numbers: Mapping[str, int]) -> list[int]:
        found = []
        for row in rows:
            value = row.get(name, 0 if name == "reason" else None)
            number = numbers.get(value) if isinstance(value, str) else value
            if type(number) is not int or not 0 <= number <= 255:
                raise _BadLine(f"{name} is a name of the schema or a number from 0 to 255, got {value!r:.40}")
            found.append(number)
            self.line += 1
        self.line -= len(rows)
        return found

    def _details(self, rows: list[dict[str, Any]]) -> tuple[IntArray, IntArray, IntArray]:
        positions: list[int] = []
        lengths, flat = [0], []
        for i, row in enumerate(rows):
            if "detail" in row:
                values = row["detail"]
                if not isinstance(values, list) or any(
                    type(value) is not int or not _INT64.min <= value <= _INT64.max for value in values
                ):
                    self.line += i
                    raise _BadLine(f"detail is a list of 64-bit whole numbers, got {values!r:.40}")
                positions.append(i)
                lengths.append(len(values))
                flat += values
        return np.asarray(positions, np.int64), np.cumsum(lengths, dtype=np.int64), np.asarray(flat, np.int64)


def _frames(frames: Any) -> list[Frame]:
    """The frames of a call site."""
    good = isinstance(frames, list) and frames and all(
        isinstance(frame, list) and list(map(type, frame)) == [str, int, str] and 0 <= frame[1] < 2**63
        for frame in frames
    )  # fmt: skip
    if not good:
        raise _BadLine(f"frames are [file, line, function] each, got {frames!r:.40}")
    return [Frame(*frame) for frame in frames]


def _manifest(manifest: dict[str, Any]) -> dict[str, Any]:
    """The members that a trace's manifest takes over from a file; everything else of it is its own."""
    kept: dict[str, Any] = {name: manifest[name] for name in ("engine", "record") if type(manifest.get(name)) is str}
    kept |= {name: manifest[name] for name in ("clock", "meta") if type(manifest.get(name)) is dict}
    for name in _COUNTS:
        value = manifest.get(name)
        if value is not None:
            if type(value) is not int or not 0 <= value < 2**63:
                raise _BadLine(f"manifest.{name} is a count, got {value!r:.40}")
            kept[name] = value
    if manifest.get("lost") is not None:
        lost = manifest["lost"]
        if not isinstance(lost, dict) or lost.keys() - set(Losses._fields):
            raise _BadLine(f"manifest.lost counts {', '.join(Losses._fields)}, got {lost!r:.60}")
        for name, value in lost.items():
            if type(value) is not int or not 0 <= value < 2**63:
                raise _BadLine(f"manifest.lost.{name} is a count, got {value!r:.40}")
        kept["lost"] = lost
    clean = manifest.get("clean", True)
    if type(clean) is not bool:
        raise _BadLine(f"manifest.clean is true or false, got {clean!r:.40}")
    return kept | {"clean": clean}
