"""Which traces may be shown, and a trace opened: read once, shared by all sessions, seen as it was at one moment."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from kvscope.errors import KVScopeError, TraceError, UsageError
from kvscope.inspector.following import Follower, Moment
from kvscope.inspector.source import Frozen, most_blocks
from kvscope.traces import open_trace
from kvscope.traces.schema import EventArray

MAX_LISTED = 200
_OPENED = itertools.count()
_OF_READER = ("columns", "chunks", "row_of", "fold_at", "details_between", "detail_arrays")


@dataclass(frozen=True)
class TraceView:
    """A trace as it stood at one moment: what every offline function of the inspector reads. Never changes."""

    name: str
    path: Path
    events: EventArray
    seqs: Any
    num_blocks: int
    block_size: int
    block_bytes: int
    sites: Sequence[Any]
    actors: Sequence[str]
    facts: Sequence[dict[str, Any]]
    warnings: Sequence[str]
    clean: bool
    live: bool
    dropped: int
    opened: int  # differs for each time a trace is opened anew
    reader: Any = field(repr=False, compare=False)

    @property
    def on_demand(self) -> bool:
        """Whether it is long: rows are decoded where they are looked at."""
        return False

    @property
    def id(self) -> tuple[str, int, int, bool]:
        """Equal for equal content: the key of everything cached about it."""
        return (str(self.path), self.opened, len(self.events), self.clean or self.live)

    @property
    def last_seq(self) -> int:
        """Number of the last event, -1 where there is none."""
        return int(self.seqs[-1]) if len(self.seqs) else -1

    @property
    def first_seq(self) -> int:
        """Number of the first event, 0 where there is none."""
        return int(self.seqs[0]) if len(self.seqs) else 0

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of one event."""
        return self.reader.detail(seq)  # type: ignore[no-any-return]

    def details_of(self, kind: int) -> Any:
        """(seqs, values) of the events of a kind that have details."""
        return self.reader.details_of(kind)


class LongView(TraceView):
    """A long trace that nobody writes any more: the inspector reads it a piece at a time."""

    folded = long = True

    def __getattr__(self, name: str) -> Any:
        if name in _OF_READER:
            return getattr(self.reader, name)
        raise AttributeError(f"a view has no attribute {name!r}")

    @property
    def on_demand(self) -> bool:
        """Yes."""
        return True

    @property
    def rows(self) -> int:
        """How many events."""
        return len(self.seqs)

    @property
    def rows_on_demand(self) -> EventArray:
        """The events."""
        return self.events

    @property
    def frozen(self) -> Frozen:
        """The view as the inspector reads it, made once."""
        if "_frozen" not in self.__dict__:
            object.__setattr__(self, "_frozen", Frozen(self))
        return self.__dict__["_frozen"]  # type: ignore[no-any-return]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """[lo, hi) of the numbers of missing events."""
        return self.reader.gaps  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Followed:
    """What a trace shows at one look while it is being written."""

    moment: Moment
    status: str  # `live`, `closed`, or `gone`: its writer ended without closing it, or it cannot be read now
    num_blocks: int
    block_bytes: int
    dropped: int
    opened: int


class Tail:
    """One opened trace, shared by all sessions: reads what is new, hands out views. Thread-safe.

    A trace that another run has been written over is opened anew: its folder is the same, its clock is not.
    """

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._lock = threading.Lock()
        self._mark = _fingerprint(path)
        self._run = _run_of(path)
        self._reader, self._opened = open_trace(path), next(_OPENED)
        self._follower: Follower | None = None
        self._lost = False  # it could not be read at the last look
        self._view = self._snapshot()

    def look(self) -> TraceView:
        """The trace as it is now."""
        with self._lock:
            view = self._view
            if self._refresh() or (self._reader.clean, self._reader.live) != (view.clean, view.live):
                self._view = self._snapshot()
            return self._view

    def follow(self) -> Followed:
        """The pool and its measures as they are now, at a cost that only new events have."""
        with self._lock:
            if self._follower is None:
                self._follower = Follower(self._reader, self._run or 0)
            self._refresh()
            reader = self._reader
            status = "live" if reader.live and not self._lost else "closed" if reader.clean else "gone"
            moment = self._follower.look()
            return Followed(moment, status, max(reader.num_blocks, moment.pool.num_blocks), reader.block_bytes,
                            int(reader.dropped), self._opened)  # fmt: skip

    def _refresh(self) -> bool:
        """Read what is new; True where the view is no longer what the reader says."""
        known = self._reader.clean
        if known:
            mark = _fingerprint(self._path)
            if mark == self._mark:
                return False
            self._mark = mark
        run = _run_of(self._path)
        self._lost = run is None and self._run is not None
        if self._lost:
            return False
        if run != self._run or known:
            self._reopen(run)
            return True
        # (the files' times say nothing while a trace grows: its tail is written through a memory map)
        grown = self._reader.refresh() or len(self._view.events) < self._reader.rows
        self._mark = _fingerprint(self._path) if self._reader.clean else self._mark
        return grown

    def _reopen(self, run: int | None) -> None:
        try:
            self._reader = open_trace(self._path)
        except TraceError:
            if self._follower is None:
                raise
            self._lost = True  # half of it is there: the new run is only just beginning
            return
        self._run, self._opened = run, next(_OPENED)
        if self._follower is not None:
            self._follower = Follower(self._reader, run or 0, before=self._follower)

    def _snapshot(self) -> TraceView:
        r, events = self._reader, self._reader.rows_on_demand
        return (TraceView if isinstance(events, np.ndarray) else LongView)(
            self._name, self._path, events, r.seqs, most_blocks(r.num_blocks, events), r.block_size, r.block_bytes,
            list(r.sites), list(r.actors), list(r.facts), list(r.warnings), bool(r.clean), bool(r.live), int(r.dropped),
            self._opened, r,
        )  # fmt: skip


@dataclass(frozen=True)
class Start:
    """What the launcher said: the traces that may be shown, by name, and where to open."""

    traces: dict[str, Path]
    seq: int | None
    block: int | None


def start() -> Start:
    """Parse the script's arguments; they are the launcher's, never a visitor's."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--seq", type=int)
    parser.add_argument("--block", type=int)
    given, _ = parser.parse_known_args(sys.argv[1:])
    return Start(_named(_listed(given.trace)), given.seq, given.block)


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


def open_view(name: str, path: Path) -> TraceView:
    """The trace as it is now; raises TraceError in one line if it cannot be read."""
    try:
        return _tail(name, str(path)).look()
    except KVScopeError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error


def followed(name: str, path: Path) -> Followed:
    """What the trace shows now, for a page that is refreshed several times a second."""
    return _tail(name, str(path)).follow()


@st.cache_resource(max_entries=8, show_spinner="opening the trace")
def _tail(name: str, path: str) -> Tail:
    return Tail(name, Path(path))


def row_at(view: TraceView, seq: int) -> int:
    """The row of event `seq`, or of the last one before it; -1 in an empty trace."""
    return max(int(np.searchsorted(view.seqs, seq, side="right")) - 1, 0 if len(view.seqs) else -1)


def _listed(given: Sequence[Path]) -> list[Path]:
    """Traces as they are; of a plain folder, the traces directly in it."""
    found: list[Path] = []
    for path in given:
        if path.is_dir() and path.suffix != ".kvtrace" and not (path / "manifest.json").exists():
            found += sorted(p for p in path.iterdir() if p.suffix in (".kvtrace", ".kvpack"))[:MAX_LISTED]
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Short names that differ: the file's own, with its folder's where two would be the same."""
    own = [path.stem for path in paths]
    return {(p.stem if own.count(p.stem) == 1 else f"{p.parent.name}/{p.stem}"): p for p in paths}


def _run_of(path: Path) -> int | None:
    """Which run a trace folder holds: the wall clock, in ns, when it began. None for a packed one, or none at all."""
    try:
        clock = json.loads((path / "manifest.json").read_bytes())["clock"]
        return int(clock["wall_ns"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _fingerprint(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of a trace; changes whenever something is written."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            stat = file.stat()
        except OSError:
            continue
        found.append((file.name, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
