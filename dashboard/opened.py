"""Which traces and servers may be shown, and what is known of the one that is."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import streamlit as st

from kvscope.dashboard import listing
from kvscope.dashboard.tail import Followed, Tail
from kvscope.dashboard.view import LongView, TraceView
from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.livecheck import Checked
from kvscope.inspector.mirror import Contact, Mirror
from kvscope.inspector.remote import Server, read_token
from kvscope.inspector.results import SUFFIXES, Results, read_results
from kvscope.traces.manifest import load_manifest
from kvscope.traces.place import place_of


@dataclass(frozen=True)
class Start:
    """What the launcher said: the traces that may be shown, by name, and where to open."""

    traces: dict[str, Path]
    seq: int | None
    block: int | None
    results: tuple[Path, ...] = ()  # files and folders of property runs and measured overhead
    servers: dict[Path, str] = field(default_factory=dict)  # where a server's events are kept -> its URL
    folders: tuple[Path, ...] = ()  # that are watched: a trace that appears in one may be shown
    order: str = ""  # how the traces are sorted, where that can be said


def start() -> Start:
    """Parse the script's arguments; they are the launcher's, never a visitor's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--server", action="append", default=[])
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--results", type=Path, action="append", default=[])
    parser.add_argument("--seq", type=int)
    parser.add_argument("--block", type=int)
    given, _ = parser.parse_known_args(sys.argv[1:])
    servers = {_mirror(url, given.token_file).folder: url for url in given.server}
    named = {urlsplit(url).netloc: folder for folder, url in servers.items()}
    traces = named | listing.named(listing.listed(given.trace))
    folders = tuple(path for path in given.trace if listing.is_watched(path))
    order = "" if servers else listing.order(given.trace)
    return Start(traces, given.seq, given.block, _results_in(given), servers, folders, order)


def _results_in(given: argparse.Namespace) -> tuple[Path, ...]:
    """What was named, and the plain folders that hold the traces."""
    folders = [path for path in given.trace if listing.is_watched(path)]
    return tuple(path for path in (*given.results, *folders) if path.exists() and not (path / "manifest.json").exists())


def results() -> Results:
    """The property runs and measurements beside the traces, as they are now."""
    paths = start().results
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    marks = tuple((str(file), file.stat().st_mtime_ns) for file in files if file.suffix in SUFFIXES and file.exists())
    return _results(marks, paths)


@st.cache_resource(max_entries=4, show_spinner=False)
def _results(marks: tuple[tuple[str, int], ...], _paths: tuple[Path, ...]) -> Results:
    return read_results(_paths)


def whole(path: Path) -> bool:
    """Whether there is something to open: a folder that is only just being made is not yet a trace."""
    return path.is_file() or (path / "manifest.json").exists()


def find(name: str | None, traces: dict[str, Path]) -> tuple[str, Path]:
    """The allowed trace of that name, the first one for None.

    Raises:
        UsageError: there is none, or the name is not among the allowed ones.
    """
    if not traces:
        raise UsageError("no trace to show: start with `kvscope dashboard TRACE`, or in a folder that holds traces")
    if name is None:
        name = next(iter(traces))
    if name not in traces:
        raise UsageError(f"trace {name!r} is not shown here: this dashboard was started with {', '.join(traces)}")
    return name, traces[name]


def waiting_for(path: Path) -> Contact | None:
    """How it goes with the server whose trace this is, while nothing of it has come yet; None for any other trace."""
    mirror = _MIRRORS.get(path)
    contact = None if mirror is None else mirror.contact
    return contact if contact is not None and not contact.run else None


def contact_of(path: Path) -> Contact | None:
    """How it goes with the server whose trace this is; None for any other trace."""
    mirror = _MIRRORS.get(path)
    return None if mirror is None else mirror.contact


def closed(path: Path) -> bool:
    """Whether the writer of a trace folder has said that there is no more."""
    with contextlib.suppress(KVScopeError, OSError):
        return bool(load_manifest(place_of(path))[0].get("clean"))
    return False


def open_view(name: str, path: Path, at_least: int | None = None) -> TraceView:
    """The trace as it is now, or a little earlier but with event `at_least`.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        return _tail(name, str(path)).look(-1 if at_least is None else at_least)
    except KVScopeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error


def followed(name: str, path: Path) -> Followed:
    """What the trace shows now, for a page that is refreshed several times a second."""
    return _tail(name, str(path)).follow()


def run_of(view: TraceView) -> tuple[str, int]:
    """Which run a trace shows: where another one was written over it, events of one number are others."""
    return _tail(view.name, str(view.path)).run


def outdated(view: TraceView) -> bool:
    """Whether a trace that nobody was writing has become another one since, or goes on."""
    return _tail(view.name, str(view.path)).outdated()


def runs_before(view: TraceView) -> int:
    """How many runs the live page shows before this one: they were in the same place, and are no more on the disk."""
    return _tail(view.name, str(view.path)).runs_before


def findings_while_live(view: TraceView) -> Checked | None:
    """What has been found so far in a trace that is being written; None before its first check."""
    return _tail(view.name, str(view.path)).findings()


@st.cache_resource(max_entries=8, show_spinner="opening the trace")
def _tail(name: str, path: str) -> Tail:
    return Tail(name, Path(path), _MIRRORS.get(Path(path)))


def follow_servers() -> None:
    """Begin to follow the servers that the launcher named: what they have is here when the first page is opened."""
    start()


_MIRRORS: dict[Path, Mirror] = {}


@st.cache_resource(show_spinner=False)
def _mirror(url: str, token_file: Path | None) -> Mirror:
    """One for all sessions, until the program ends; its folder goes with it."""
    home = Path(tempfile.mkdtemp(prefix=f"kvscope-{os.getpid()}-"))
    mirror = Mirror(Server(url, read_token(token_file), timeout_s=5.0), home / "server.kvtrace").start()
    weakref.finalize(mirror, shutil.rmtree, home, True)
    _MIRRORS[mirror.folder] = mirror
    return mirror


def row_at(view: TraceView, seq: int) -> int:
    """The row of event `seq`, or of the last one before it; -1 in an empty trace."""
    return max(int(np.searchsorted(view.seqs, seq, side="right")) - 1, 0 if len(view.seqs) else -1)


__all__ = ["Followed", "LongView", "Start", "TraceView"]
