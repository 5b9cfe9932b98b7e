"""Where the files of a trace lie: a folder, or one packed file; readers ask a `Place` and need not know which."""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from kvscope.errors import TraceError
from kvscope.traces.folder import HOT, is_trace_file, open_regular
from kvscope.traces.hot_tail import NO_TAIL, HotTail, hot_of, read_hot

MAX_DIRECTORY_BYTES = 4 << 20  # of a packed trace: some 30,000 names
_END = struct.Struct("<4s4HIIH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_BYTES = 20
_LOCAL = struct.Struct("<4s22x2H")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class Place(Protocol):
    """The files of one trace."""

    path: Path

    def names(self) -> list[str]:
        """Names of its files; those that no trace has are left out."""
        ...

    def has(self, name: str) -> bool:
        """Whether there is something of that name."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from `offset` on, to the end that the file has now, `length` of them at most.

        Raises:
            FileNotFoundError: there is none. OSError: it cannot be read, or is no regular file.
        """
        ...

    def size(self, name: str) -> int:
        """Bytes of a file; raises as `read` does."""
        ...

    def keep(self, name: str) -> None:
        """Hold a file that may be taken away: from now on it is read as it is, until `leave`."""
        ...

    def leave(self, name: str) -> None:
        """Let go of a file that is held, if it is."""
        ...

    def hot(self) -> tuple[HotTail, list[str]]:
        """The committed rows of the hot tail, and what is wrong with it.

        Raises:
            OSError: it is there and cannot be read.
        """
        ...

    def __enter__(self) -> Place: ...
    def __exit__(self, *_: object) -> None: ...


def place_of(path: str | Path) -> Place:
    """The place that a path names.

    Raises:
        TraceError: it is neither a folder nor a packed trace.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return FolderPlace(path)
        if not path.exists():
            raise TraceError(f"{path} is missing: no trace there")
        return PackedPlace(path)
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}") from error


class FolderPlace:
    """A trace folder; it may be growing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, int] = {}  # file descriptors of the files that are held

    def names(self) -> list[str]:
        """Names of the trace's files that are there now."""
        return [name for name in os.listdir(self.path) if is_trace_file(name)]

    def has(self, name: str) -> bool:
        """Whether there is something of that name."""
        return os.path.lexists(self.path / name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from `offset` on, `length` of them at most."""
        with self._opened(name) as fd:
            there = os.fstat(fd).st_size - offset
            if there <= 0:
                return b""
            return os.pread(fd, there if length is None else min(length, there), offset)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        with self._opened(name) as fd:
            return os.fstat(fd).st_size

    def keep(self, name: str) -> None:
        """Hold a file open: its bytes stay until `leave`, whoever removes it. What cannot be opened is not held."""
        if name not in self._kept:
            with suppress(OSError):
                self._kept[name] = open_regular(self.path / name)

    def leave(self, name: str) -> None:
        """Close a file that is held."""
        if name in self._kept:
            os.close(self._kept.pop(name))

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        kept = self._kept.get(name)
        fd = open_regular(self.path / name) if kept is None else kept
        try:
            yield fd
        finally:
            if kept is None:
                os.close(fd)

    def hot(self) -> tuple[HotTail, list[str]]:
        """The hot tail as it is now."""
        return read_hot(self.path / HOT)

    def __enter__(self) -> FolderPlace:
        return self

    def __exit__(self, *_: object) -> None:
        self.__del__()

    def __del__(self) -> None:
        for name in list(self._kept):
            self.leave(name)


class _Member(NamedTuple):
    offset: int
    size: int


class PackedPlace:
    """A packed trace: a zip file of stored (not compressed) members, read in place.

    Its directory is believed only as far as it agrees with the file: every member is one of a trace's names, plain,
    within the file and apart from the others. So a packed trace costs what its bytes cost, whatever it claims.

    Raises:
        TraceError: it is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1
        self._fd = open_regular(path.resolve())
        try:
            self._members = self._directory()
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Names of the trace's files."""
        return [name for name in self._members if is_trace_file(name)]

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return name in self._members

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from `offset` on, `length` of them at most."""
        member = self._member(name)
        there = member.size - offset
        if there <= 0:
            return b""
        return os.pread(self._fd, there if length is None else min(length, there), member.offset + offset)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        return self._member(name).size

    def keep(self, name: str) -> None:
        """Nothing to do: nobody takes a part of a packed trace away."""

    def leave(self, name: str) -> None:
        """Nothing to do."""

    def hot(self) -> tuple[HotTail, list[str]]:
        """The hot tail that was packed."""
        return hot_of(self.read(HOT), live=False) if self.has(HOT) else (NO_TAIL, [])

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> PackedPlace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _member(self, name: str) -> _Member:
        try:
            return self._members[name]
        except KeyError:
            raise FileNotFoundError(2, "it is not in the packed trace", name) from None

    def _directory(self) -> dict[str, _Member]:
        size = os.fstat(self._fd).st_size
        self._check_end(size)
        try:
            with open(os.dup(self._fd), "rb") as file, zipfile.ZipFile(file) as archive:
                infos, limit = archive.infolist(), archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError, OverflowError, EOFError) as error:
            raise self._refused(f"its directory is damaged: {error}") from error
        members: dict[str, _Member] = {}
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            name = info.filename
            if name in members:
                raise self._refused(f"it holds {name[:60]!r} twice")
            if not _PLAIN_NAME.fullmatch(name) or stat.S_ISLNK(info.external_attr >> 16):
                raise self._refused(f"it holds {name[:60]!r}, which no trace does")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
                raise self._refused(f"{name[:60]} in it is compressed or encrypted; a packed trace stores plain bytes")
            header = os.pread(self._fd, _LOCAL.size, max(info.header_offset, 0))
            if len(header) < _LOCAL.size or info.header_offset < end:
                raise self._refused(f"{name[:60]} in it lies outside of the file or over another member")
            magic, name_bytes, extra_bytes = _LOCAL.unpack(header)
            start = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
            end = start + info.file_size
            if magic != b"PK\x03\x04" or end > limit:
                raise self._refused(f"{name[:60]} in it lies outside of the file or over another member")
            members[name] = _Member(start, info.file_size)
        return members

    def _check_end(self, size: int) -> None:
        """The end record stands at the very end, and the directory that it announces is small."""
        tail = os.pread(self._fd, _END.size + _LOCATOR_BYTES + _END64.size, max(0, size - 98))
        if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":
            if os.pread(self._fd, 4, 0) == b"PK\x03\x04":
                raise TraceError(f"{self.path} is a packed trace that was cut short: its end is missing; copy it again")
            raise TraceError(f"{self.path} is not a trace folder, nor a packed trace")
        claimed = _END.unpack(tail[-_END.size :])[5]
        if len(tail) == 98 and tail[56:60] == b"PK\x06\x07":
            claimed = max(claimed, _END64.unpack(tail[:56])[8])
        if claimed > MAX_DIRECTORY_BYTES:
            raise self._refused(f"its directory claims {claimed} bytes, a trace has at most {MAX_DIRECTORY_BYTES}")

    def _refused(self, why: str) -> TraceError:
        return TraceError(f"{self.path} is not a packed trace: {why}")
