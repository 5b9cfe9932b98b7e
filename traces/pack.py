"""One file of a trace folder, to send around, and the folder again.

A packed trace is a zip file whose members are the trace's own files, stored as they are (the segments are compressed
already), so any unzip opens it and a reader reads it in place (`traces/place.py`). Times and rights are left out:
equal traces make equal files. Of a hot tail only its rows are taken. Both ways write beside the target and rename: it
is there whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvscope.errors import TraceError
from kvscope.traces.folder import BASE, HOT, MANIFEST, is_trace_file, segments_in
from kvscope.traces.hot_tail import hot_image
from kvscope.traces.manifest import load_manifest
from kvscope.traces.place import FolderPlace, PackedPlace, Place, place_of

_CHUNK = 1 << 20
_HELD = 32  # segments, of the oldest
_LOOKS = 8
_NO_TIME = (1980, 1, 1, 0, 0, 0)


def pack(folder: str | Path, file: str | Path, *, overwrite: bool = False) -> Path:
    """Make one file of a trace folder; the trace may be growing: what it holds at that moment is taken.

    Args:
        folder: the trace.
        file: what to make, by custom `NAME.kvpack`.
        overwrite: replace a file that is there.

    Raises:
        TraceError: there is no trace, the file is there already, or it cannot be written.
    """
    target = Path(file)
    place = place_of(folder)
    if isinstance(place, PackedPlace):
        raise TraceError(f"{folder} is packed already")
    load_manifest(place)
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(folder)):
        raise TraceError(f"cannot pack into {target}: it lies in the trace itself; choose a place outside")
    if target.is_dir() or (os.path.lexists(target) and not overwrite):
        raise TraceError(
            f"cannot pack into {target}: it is there already; choose another name, or overwrite it (--overwrite)"
        )
    with _written(target, folder) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _contents(place):
            if isinstance(content, bytes):
                archive.writestr(zipfile.ZipInfo(name, _NO_TIME), content)
            else:
                _copy(place, name, content, archive)
    return target


def unpack(file: str | Path, folder: str | Path) -> Path:
    """Make a trace folder of a packed trace again.

    Only plain files with the names of a trace's own files are written, as large as the packed file holds them. A
    damaged part is unpacked as it is: the reader finds and names it, as in a folder.

    Args:
        file: the packed trace.
        folder: made, with its parents; it may be there if it is empty.

    Raises:
        TraceError: the file is no packed trace, the folder is taken, or it cannot be written.
    """
    target = Path(folder)
    with place_of(file) as place:
        if isinstance(place, FolderPlace):
            raise TraceError(f"{file} is a folder, not a packed trace")
        load_manifest(place)
        try:
            file_there = os.path.lexists(target) and not target.is_dir()
            taken = os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir()))
        except OSError as error:
            raise TraceError(f"cannot unpack to {target}: {error.strerror or error}") from error
        if file_there:
            raise TraceError(f"cannot unpack to {target}: it is there already and is no folder; choose another place")
        if taken:
            raise TraceError(f"cannot unpack to {target}: it is there already and not empty; choose another folder")
        with _written(target, file) as temporary:
            temporary.mkdir()
            for name in place.names():
                with open(temporary / name, "xb") as out:
                    for part in _parts(place, name, place.size(name)):
                        out.write(part)
    return target


def _contents(place: Place) -> Iterator[tuple[str, bytes | int]]:
    """(name, the bytes, or how many bytes to copy): first what may vanish, names last, as a reader reads them."""
    yield MANIFEST, place.read(MANIFEST)
    live = False
    if place.has(HOT):
        tail, notes = place.hot()
        live = tail.live
        yield HOT, place.size(HOT) if notes else hot_image(tail)
    names, base = _held(place)
    if base is not None:
        yield BASE, base
    for segment in segments_in(names):
        index = None
        try:
            if segment + ".index" in names or live:
                index = place.read(segment + ".index")
            size = place.size(segment + ".arrows")
        except FileNotFoundError:
            continue  # dropped as the oldest, or half made
        if index is not None:  # else it is lost: readers do without
            yield segment + ".index", index
        yield segment + ".arrows", size
    done = {MANIFEST, MANIFEST + ".new", HOT, BASE}
    for name in sorted(names):
        if name not in done and not name.startswith("events-"):
            yield name, place.size(name)


def _held(place: Place) -> tuple[list[str], bytes | None]:
    """The names of the files, and `base.bin`, of one moment: a recorder with limits takes nothing away from it."""
    for _ in range(_LOOKS):
        names = place.names()
        segments = segments_in(names)
        for segment in segments[:_HELD]:
            for ending in (".arrows", ".index"):
                place.keep(segment + ending)
        base = place.read(BASE) if place.has(BASE) else None
        if not segments or segments[-1] in segments_in(place.names()):
            break
    return names, base


def _copy(place: Place, name: str, size: int, archive: zipfile.ZipFile) -> None:
    info = zipfile.ZipInfo(name, _NO_TIME)
    info.file_size = size  # whether the member needs 64-bit lengths
    with archive.open(info, "w") as out:
        for part in _parts(place, name, size):
            out.write(part)


def _parts(place: Place, name: str, size: int) -> Iterator[bytes]:
    assert is_trace_file(name)
    for at in range(0, size, _CHUNK):
        yield place.read(name, at, min(_CHUNK, size - at))


@contextmanager
def _written(target: Path, source: str | Path) -> Iterator[Path]:
    """A name beside `target` for the body to fill; renamed to it at the end, taken away when anything fails."""
    try:
        if target.parent.exists() and not target.parent.is_dir():
            raise TraceError(f"cannot write {target}: {target.parent} is no folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise TraceError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        yield beside / "new"
        os.replace(beside / "new", target)
    except OSError as error:
        raise TraceError(f"cannot make {target} of {source}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
