"""New files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kvscope.errors import KVScopeError, UsageError


class ExportError(KVScopeError):
    """An export cannot be written."""


@contextmanager
def new_file(path: Path, overwrite: bool = False) -> Iterator[BinaryIO]:
    """A file that takes its place when the block ends well, and leaves nothing behind when it does not.

    Folders that it would lie in are made.

    Raises:
        UsageError: something is there already.
        ExportError: it cannot be written.
    """
    _check_free(path, overwrite, folder=False)
    partial = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, path)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path, names: frozenset[str], overwrite: bool = False) -> Iterator[Path]:
    """A folder that takes its place when the block ends well, and leaves nothing behind when it does not.

    Folders that it would lie in are made.

    Args:
        names: the files that will be in it; a folder that holds others is never replaced.

    Raises:
        UsageError: something is there already.
        ExportError: it cannot be written.
    """
    _check_free(path, overwrite, folder=True)
    if path.is_dir() and not set(os.listdir(path)) <= names:
        raise UsageError(f"cannot replace {path}: it holds more than an export; choose another --out")
    partial = _partial(path)
    try:
        partial.mkdir(parents=True)
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(partial, path)
    except OSError as error:
        raise ExportError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_free(path: Path, overwrite: bool, *, folder: bool) -> None:
    if not path.name:
        raise UsageError(f"cannot write to {path}: give a name")
    if path.is_symlink() or path.exists():
        if path.is_symlink() or not (path.is_dir() if folder else path.is_file()):  # a pipe and a device are neither
            raise UsageError(f"cannot write to {path}: something else is in the way; choose another --out")
        if not overwrite:
            raise UsageError(f"{path} exists: choose another --out, or --overwrite")


def _partial(path: Path) -> Path:
    return path.parent / f".{path.name}.partial-{os.getpid()}"
