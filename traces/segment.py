"""Sealed segments: `events-NNNNN.arrows`, an Arrow IPC stream that any Arrow tool reads, and its sidecar `.index`.

Columns are those of EVENT_DTYPE and `detail`, a list of int64 (null where the event has none). Arrow has no checksum,
and one flipped length would lose everything behind it: the sidecar holds, for each framed message, where it lies and
the crc32 over its bytes, in entries of 56 bytes with a crc32 of their own.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.traces.codec import (
    DetailColumn,
    arrow_schema,
    decode_batch,
    decode_columns,
    decode_details,
    schema_bytes,
)
from kvscope.traces.files import AppendFile, PWrite
from kvscope.traces.place import Place
from kvscope.traces.schema import EventArray

MAX_BATCH_ROWS = 16_384
MAX_SEGMENT_BATCHES = 256
SCHEMA_ENTRY, BATCH_ENTRY = 0, 1

INDEX_DTYPE = np.dtype(
    [
        ("offset", "<u8"),
        ("length", "<u8"),
        ("first_seq", "<i8"),
        ("t_first", "<i8"),
        ("t_last", "<i8"),
        ("rows", "<u4"),
        ("crc", "<u4"),  # of the message
        ("kind", "<u4"),  # SCHEMA_ENTRY or BATCH_ENTRY; others are passed over
        ("check", "<u4"),  # crc32 of the 52 bytes before
    ]
)
ENTRY_BYTES = INDEX_DTYPE.itemsize
_CHECKED_BYTES = ENTRY_BYTES - 4
assert ENTRY_BYTES == 56


def segment_path(folder: Path, number: int) -> Path:
    """Where segment `number` of a trace lies; its sidecar has the suffix `.index`."""
    return folder / f"events-{number:05d}.arrows"


class SegmentWriter:
    """Appends sealed batches, starting a new file every `max_batches` (256) of them, or after some bytes or time."""

    def __init__(
        self,
        folder: Path,
        pwrite: PWrite = os.pwrite,
        max_batches: int = MAX_SEGMENT_BATCHES,
        max_bytes: int | None = None,
        max_ns: int | None = None,
        first: int = 0,
    ) -> None:
        self._folder = folder
        self._pwrite = pwrite
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._max_ns = max_ns
        self._number = first
        self._batches = 0
        self._t_first = self._t_last = 0
        self.finished: list[tuple[str, int, int]] = []  # (name, bytes, t_ns of the last row) since they were taken
        self._data: AppendFile | None = None
        self._index: AppendFile | None = None

    def append(self, message: bytes, first_seq: int, rows: npt.NDArray[np.void]) -> None:
        """Write a batch and then its index entry: the batch counts from then on.

        Raises:
            OSError: not written; call again with the same batch, later.
        """
        if self._data is not None and self._full(int(rows["t_ns"][0])):
            done = (segment_path(self._folder, self._number).stem, self._data.offset, self._t_last)
            self._finish()
            self._number += 1
            self.finished.append(done)
        if self._data is None or self._index is None:
            self._start()
        self._put(BATCH_ENTRY, message, first_seq, len(rows), int(rows["t_ns"][0]), int(rows["t_ns"][-1]))
        if not self._batches:
            self._t_first = int(rows["t_ns"][0])
        self._t_last = int(rows["t_ns"][-1])
        self._batches += 1

    def _full(self, t_ns: int) -> bool:
        assert self._data is not None
        return (
            self._batches >= self._max_batches
            or (self._max_bytes is not None and self._data.offset >= self._max_bytes)
            or (self._max_ns is not None and self._batches > 0 and t_ns - self._t_first >= self._max_ns)
        )

    def close(self) -> None:
        """End the last stream properly.

        Raises:
            OSError: the end mark could not be written; the batches are safe.
        """
        if self._data is not None:
            self._finish()

    def leave(self) -> None:
        """Close the files and write no end: what was appended is there."""
        for file in (self._data, self._index):
            if file is not None:
                file.close()
        self._data = self._index = None

    def _start(self) -> None:
        path = segment_path(self._folder, self._number)
        if self._data is None:
            self._data = AppendFile(path, self._pwrite)
        if self._index is None:
            self._index = AppendFile(path.with_suffix(".index"), self._pwrite)
        if self._data.offset == 0:
            self._put(SCHEMA_ENTRY, schema_bytes(arrow_schema()), 0, 0, 0, 0)

    def _put(self, kind: int, message: bytes, first_seq: int, rows: int, t_first: int, t_last: int) -> None:
        assert self._data is not None
        assert self._index is not None
        offset = self._data.offset
        self._data.write(message)
        entry = IndexEntry(first_seq, rows, offset, len(message), zlib.crc32(message), t_first, t_last)
        try:
            self._index.write(entry.to_bytes(kind))
        except OSError:
            self._data.offset = offset
            raise

    def _finish(self) -> None:
        assert self._data is not None
        assert self._index is not None
        data, index = self._data, self._index
        data.write(b"\xff\xff\xff\xff\x00\x00\x00\x00")  # Arrow's end of stream
        for file in (data, index):
            file.cut()
            file.close()
        self._data = self._index = None
        self._batches = 0


class IndexEntry(NamedTuple):
    """One batch as the sidecar names it."""

    first_seq: int
    rows: int
    offset: int
    length: int
    crc: int
    t_first: int
    t_last: int

    def to_bytes(self, kind: int) -> bytes:
        """The 56 bytes of the entry; `kind` is SCHEMA_ENTRY or BATCH_ENTRY."""
        entry = np.zeros(1, INDEX_DTYPE)
        entry[0] = (self.offset, self.length, self.first_seq, self.t_first, self.t_last, self.rows, self.crc, kind, 0)
        entry["check"] = zlib.crc32(entry.tobytes()[:_CHECKED_BYTES])
        return entry.tobytes()


MOST_LINES = 3  # of the same kind of damage; where there is more of it, one line tells how much


class SegmentReader:
    """Reads one segment, also while it grows. Nothing is believed that its checksum does not vouch for.

    Args:
        place: where the trace lies.
        name: of the segment, `events-00000`; its two files are NAME.arrows and NAME.index.
    """

    def __init__(self, place: Place, name: str) -> None:
        self._place = place
        self.name = name
        self.file = name + ".arrows"
        self._wrong: list[str] = []  # one line for each thing found wrong
        self._entries: list[int] = []  # the numbers of index entries that are damaged
        self._skipped: list[tuple[int, str]] = []  # of each message that is left out: where it begins, and why
        self.torn = False  # the sidecar ends within an entry
        self.known: list[tuple[IndexEntry, bytes]] = []  # every intact entry, of whatever kind, and its bytes
        self.rebuilt = ""  # what to say of entries that were made from the stream itself (traces/rebuild.py)
        self._schema: Any = None
        self._index_used = 0
        self._end = 0

    def poll(self) -> list[IndexEntry]:
        """What the sidecar says of each batch that it has gained since the last call."""
        try:
            data = self._place.read(self.name + ".index", self._index_used)
        except FileNotFoundError:
            data = b""
        except OSError as error:
            data = b""
            self._unread(self.name + ".index", error)
        whole = len(data) - len(data) % ENTRY_BYTES
        self.torn = whole < len(data)
        batches = []
        for at in range(0, whole, ENTRY_BYTES):
            raw = data[at : at + ENTRY_BYTES]
            entry = np.frombuffer(raw, INDEX_DTYPE)[0]
            offset, length, first_seq, t_first, t_last, rows, crc, kind, check = entry.tolist()
            # Messages follow one another: an entry that claims bytes of another one is as wrong as a damaged one.
            if (
                check != zlib.crc32(raw[:_CHECKED_BYTES])
                or offset < self._end
                or rows > MAX_BATCH_ROWS
                or first_seq < 0
            ):
                self._entries.append((self._index_used + at) // ENTRY_BYTES)
                continue
            self._end = offset + length
            batch = IndexEntry(first_seq, rows if kind == BATCH_ENTRY else 0, offset, length, crc, t_first, t_last)
            self.known.append((batch, raw))
            if kind == SCHEMA_ENTRY:
                self._schema = self._read_schema(offset, length, crc)
            elif batch.rows:
                batches.append(batch)
        self._index_used += whole
        return batches

    def read(self, offset: int, length: int, crc: int) -> bytes | None:
        """The bytes of a message; None, and a line in `damage`, when they are torn or not what was written."""
        try:
            message = self._place.read(self.file, offset, length)
            if len(message) < length:
                size = self._place.size(self.file)
                self._skip(offset, f"{self.file}: torn at byte {size}, a batch at {offset} is lost")
                return None
        except OSError as error:
            self._unread(self.file, error)
            return None
        if zlib.crc32(message) != crc:
            self._skip(offset, f"{self.file}: the {length} bytes at {offset} fail their checksum and are skipped")
            return None
        return message

    def bytes_at(self, offset: int, length: int) -> bytes:
        """The bytes of a message that no checksum vouches for; raises OSError."""
        return self._place.read(self.file, offset, length)

    def decode(self, message: bytes, offset: int, into: EventArray) -> DetailColumn | None:
        """Fill `into` with a batch; returns its details, or None, and a line in `damage`, when it is unreadable."""
        try:
            return decode_batch(message, self._schema or arrow_schema(), into)
        except ValueError as error:
            self._skip(offset, f"{self.file}: the batch at {offset} is skipped: {error}")
            return None

    def decode_some(
        self, message: bytes, offset: int, names: Sequence[str], rows: int
    ) -> dict[str, npt.NDArray[Any]] | None:
        """Some columns of a batch; None, and a line in `damage`, when it is unreadable."""
        try:
            return decode_columns(message, self._schema or arrow_schema(), names, rows)
        except ValueError as error:
            self._skip(offset, f"{self.file}: the batch at {offset} is skipped: {error}")
            return None

    def decode_details(self, message: bytes, offset: int, rows: int) -> DetailColumn | None:
        """The details of a batch; None, and a line in `damage`, when it is unreadable."""
        try:
            return decode_details(message, self._schema or arrow_schema(), rows)
        except ValueError as error:
            self._skip(offset, f"{self.file}: the batch at {offset} is skipped: {error}")
            return None

    def adopt_schema(self, message: bytes) -> None:
        """Use a schema that no entry vouches for, if it has every column of this version; else this version's own."""
        import pyarrow as pa

        with contextlib.suppress(pa.ArrowException, EOFError, OSError, ValueError):
            found = pa.ipc.read_schema(pa.py_buffer(message))
            if all(found.get_field_index(f.name) >= 0 and found.field(f.name).type == f.type for f in arrow_schema()):
                self._schema = found

    @property
    def has_schema(self) -> bool:
        """Whether the schema of the segment is known."""
        return self._schema is not None

    def _unread(self, name: str, error: OSError) -> None:
        """Say once that a file cannot be read."""
        line = f"{name}: cannot be read: {error.strerror}"
        if line not in self._wrong:
            self._wrong.append(line)

    def _skip(self, offset: int, line: str) -> None:
        self._skipped.append((offset, line))

    @property
    def damage(self) -> list[str]:
        """One line for each thing found wrong; one for all entries, or messages, that are left out where it is many."""
        index, bad = f"{self.name}.index", self._entries
        entries = [f"{index}: entry {number} is damaged" for number in bad]
        if len(bad) > MOST_LINES:
            entries = [f"{index}: {len(bad)} entries from {bad[0]} to {bad[-1]} are damaged"]
        wrong = [*self._wrong, *entries, *([self.rebuilt] if self.rebuilt else [])]
        if len(self._skipped) <= MOST_LINES:
            return [*wrong, *(line for _, line in self._skipped)]
        offsets = sorted(offset for offset, _ in self._skipped)
        first = min(self._skipped)[1].removeprefix(f"{self.file}: ")
        return [*wrong, f"{self.file}: {len(offsets)} batches between bytes {offsets[0]} and {offsets[-1]} are "
                              f"skipped; of the first: {first}"]  # fmt: skip

    def _read_schema(self, offset: int, length: int, crc: int) -> Any:
        import pyarrow as pa

        message = self.read(offset, length, crc)
        if message is None:
            return None
        try:
            return pa.ipc.read_schema(pa.py_buffer(message))
        except (pa.ArrowException, EOFError, OSError) as error:
            self._wrong.append(f"{self.file}: unreadable schema: {error}")
            return None
