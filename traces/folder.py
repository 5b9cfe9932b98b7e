"""The trace folder: which names belong to it, and how one is claimed for writing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvscope.errors import TraceError

MANIFEST, HOT, SITES, ACTORS, FACTS, LATE, KEYFRAMES, BASE = (
    "manifest.json",
    "hot.bin",
    "sites.jsonl",
    "actors.jsonl",
    "facts.jsonl",
    "late.bin",
    "keyframes.bin",
    "base.bin",
)
_NAMES = frozenset((MANIFEST, MANIFEST + ".new", HOT, SITES, ACTORS, FACTS, LATE, KEYFRAMES, BASE))
SUFFIXES = (".kvtrace", ".kvpack")
_PATIENCE_S = 2.0
_SEGMENT = re.compile(r"events-\d{5,12}\.(arrows|index)")


def is_trace_file(name: str) -> bool:
    """Whether a file of this name in a trace folder belongs to the trace."""
    return name in _NAMES or _SEGMENT.fullmatch(name) is not None


def traces_in(folder: Path) -> list[Path]:
    """The traces that lie directly in a folder, by name.

    Raises:
        OSError: it cannot be read.
    """
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES or (path / MANIFEST).is_file())


def segments_in(names: Iterable[str]) -> list[str]:
    """The segments among the files of a trace, `events-00000` and so on in order (either file may be missing)."""
    return sorted(
        {name.rpartition(".")[0] for name in names if _SEGMENT.fullmatch(name)}, key=lambda name: int(name[7:])
    )


def open_regular(path: Path) -> int:
    """A file descriptor of a regular file, for reading; never waits, as opening a pipe would.

    Raises:
        OSError: it cannot be opened, or is a link, a pipe, a device or a folder.
    """
    refused = OSError(errno.EINVAL, "it is not a regular file", str(path))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise refused if error.errno in (errno.ELOOP, errno.ENXIO) else error from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise refused
    return fd


def is_locked(fd: int) -> bool:
    """Whether the writer of an open hot tail is alive: it holds an flock, which ends with its process."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def is_written(path: Path) -> bool:
    """Whether somebody is recording into this trace folder at this moment."""
    try:
        fd = open_regular(path / HOT)
    except OSError:
        return False
    try:
        return is_locked(fd)
    finally:
        os.close(fd)


@contextmanager
def claim_folder(path: Path, overwrite: bool) -> Iterator[None]:
    """Make the folder of a new trace; the body fills it, and what it made is taken away again if it fails.

    Nobody else claims it or goes on with it meanwhile.

    Raises:
        TraceError: the path is taken, or it cannot be written.
    """
    try:
        with _alone(path) as made:
            _empty(path, overwrite)
            try:
                yield
            except OSError:
                _remove(path)
                if made:
                    path.rmdir()
                raise
    except OSError as error:
        raise TraceError(f"cannot write a trace to {path}: {error.strerror or error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the folder, made if it is not there (then True), against others that take it; waits for them a moment.

    Raises:
        OSError: it cannot be made or opened, or is held for longer.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        made = not path.is_dir()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise OSError(errno.EEXIST, "a file is in the way; choose another path") from None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # whoever made it has taken it away again
            continue
        try:
            if _locked(fd, until) and _is_there(path, fd):
                yield made
                return
        finally:
            os.close(fd)


def _locked(fd: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(errno.EBUSY, "another writer is just taking it") from None
            time.sleep(0.002)
        else:
            return True


def _is_there(path: Path, fd: int) -> bool:
    """Whether the folder that is held is still the one of that name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(fd))
    return False


def check_claim(path: Path, overwrite: bool) -> None:
    """Whether a trace may be made here, asked before any work is done for it; nothing is changed.

    Raises:
        TraceError: as `claim_folder` would.
    """
    try:
        if path.is_dir():
            _check_empty(path, overwrite)
        elif path.exists() or path.is_symlink():
            raise TraceError(f"cannot write a trace to {path}: a file is in the way; choose another path")
        at = next(each for each in (path, *path.absolute().parents) if each.exists())
    except OSError as error:
        raise TraceError(f"cannot write a trace to {path}: {error.strerror or error}") from error
    if not at.is_dir():
        raise TraceError(f"cannot write a trace to {path}: {at} is no folder; choose another path")
    if not os.access(at, os.W_OK | os.X_OK):
        raise TraceError(f"cannot write a trace to {path}: nothing may be written in {at}; choose another path")


def discard(path: Path) -> None:
    """Take away a trace that its writer has closed, and its folder where nothing else is in it."""
    _remove(path)
    with suppress(OSError):
        path.rmdir()


@contextmanager
def kept_folder(path: Path) -> Iterator[None]:
    """The folder of a trace that is gone on with; the body adds to it, and nobody else claims it meanwhile.

    Raises:
        TraceError: it cannot be written.
    """
    try:
        with _alone(path):
            yield
    except OSError as error:
        raise TraceError(f"cannot go on with {path}: {error.strerror or error}") from error


def _empty(path: Path, overwrite: bool) -> None:
    _check_empty(path, overwrite)
    _remove(path)


def _check_empty(path: Path, overwrite: bool) -> None:
    names = os.listdir(path)
    if not names or names == [MANIFEST + ".new"]:  # (a writer was killed before it had made its first file)
        return
    if not any(name in (MANIFEST, HOT) for name in names):
        raise TraceError(f"cannot write a trace to {path}: the folder is not empty and holds no trace")
    if not overwrite:
        raise TraceError(
            f"cannot write a trace to {path}: there is one already; choose another path, or overwrite it (--overwrite)"
        )
    if HOT in names:
        fd = open_regular(path / HOT)
        try:
            if is_locked(fd):
                raise TraceError(f"cannot overwrite {path}: it is being written right now")
        finally:
            os.close(fd)


def _remove(path: Path) -> None:
    # The manifest goes last: whoever is killed meanwhile leaves a trace behind, which can be overwritten.
    for name in sorted(os.listdir(path), key=lambda name: name == MANIFEST):
        if is_trace_file(name):
            (path / name).unlink()
