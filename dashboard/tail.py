"""One opened trace, shared by all sessions: read once, followed while it grows, seen as it was at one moment.

A trace is a file, a folder that an engine records into, or a folder that a mirror keeps up with a server.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvscope.dashboard.view import LongView, TraceView
from kvscope.errors import TraceError
from kvscope.inspector.following import Follower, Moment
from kvscope.inspector.livecheck import Checked, LiveCheck
from kvscope.inspector.mirror import Contact, Mirror
from kvscope.inspector.source import most_blocks
from kvscope.traces import TraceReader
from kvscope.traces.fold import BlockFold
from kvscope.traces.sealed import Columns, holes

HOLD_S = 20.0  # how old a view of a long trace that grows may be: what was measured of it stays true of it
_OPENED = itertools.count()


class SharedReader(TraceReader):
    """A reader that many threads use while one refreshes it."""

    def __init__(self, path: Path) -> None:
        self._one = threading.RLock()
        super().__init__(path)

    @property
    def decoded(self) -> bool:
        """Whether all rows have been decoded and are kept, as those of a short trace are."""
        return self._loaded.rows > 0

    def refresh(self) -> bool:
        """See `TraceReader`."""
        with self._one:
            return super().refresh()

    def columns(self, names: Sequence[str], lo: int = 0, hi: int | None = None) -> Columns:
        """See `TraceReader`."""
        with self._one:
            return super().columns(names, lo, hi)

    def fold_at(self, seq: int) -> BlockFold:
        """See `TraceReader`."""
        with self._one:
            return super().fold_at(seq)

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """See `TraceReader`."""
        with self._one:
            return super().detail(seq)

    def detail_arrays(self, kind: int) -> Any:
        """See `TraceReader`."""
        with self._one:
            return super().detail_arrays(kind)

    def details_between(self, lo: int, hi: int) -> Any:
        """See `TraceReader`."""
        with self._one:
            return super().details_between(lo, hi)


class Run(NamedTuple):
    """Which run a trace folder holds."""

    begun_ns: int  # on the wall clock
    folder: Path  # that a link leads to: what is left of a run may begin anew in another one


@dataclass(frozen=True)
class Followed:
    """What a trace shows at one look while it is being written."""

    moment: Moment
    status: str  # `live`, `closed`, or `gone`: its writer ended without closing it, or it cannot be read now
    num_blocks: int
    block_bytes: int
    dropped: int
    opened: int
    contact: Contact | None = None  # of a server's trace


class Tail:
    """One opened trace: reads what is new, hands out views. Thread-safe.

    A trace that another run has been written over is opened anew: its folder is the same, its clock is not.

    Args:
        name: as the pages say it. path: the trace. mirror: what writes it, where a server's events are fetched.
    """

    def __init__(self, name: str, path: Path, mirror: Mirror | None = None) -> None:
        self._name, self._path, self._mirror = name, path, mirror
        self._lock = threading.Lock()
        self._mark = _fingerprint(path)
        self._run = _run_of(path)
        self._reader, self._opened = self._open(), next(_OPENED)
        self._follower: Follower | None = None
        self._checks = LiveCheck(path)
        self._lost = False  # it could not be read at the last look
        self._failed: tuple[tuple[str, int, int], ...] | None = None  # the files that could not be opened then
        self._looked_at = 0.0
        self._view = self._snapshot()

    def look(self, at_least: int = -1) -> TraceView:
        """The trace as it is now; one that is long and grows, as it was a while ago, but with event `at_least`."""
        with self._lock:
            grown, view = self._refresh(), self._view
            # (another run may have been opened by `follow`, and need not be longer than the one before it)
            now = (self._opened, self._reader.clean, self._live)
            changed = grown or now != (view.opened, view.clean, view.live)
            if changed and not self._held(at_least):
                self._view = self._snapshot()
            return self._view

    def follow(self) -> Followed:
        """The pool and its measures as they are now, at a cost that only new events have."""
        with self._lock:
            if self._follower is None:
                self._follower = Follower(self._reader, self._run.begun_ns if self._run else 0)
            with contextlib.suppress(TraceError):  # it is lost, and is shown as it was
                self._refresh()
            reader, contact = self._reader, None if self._mirror is None else self._mirror.contact
            status = "live" if self._live and not self._lost else "closed" if reader.clean else "gone"
            if contact is not None and not contact.connected:
                status = "gone"
            moment = self._follower.look()
            return Followed(moment, status, max(reader.num_blocks, moment.pool.num_blocks), reader.block_bytes,
                            int(reader.dropped), self._opened, contact)  # fmt: skip

    @property
    def runs_before(self) -> int:
        """How many runs that took turns in this folder were followed before the one that is there now."""
        return 0 if self._follower is None else self._follower.restarts

    @property
    def run(self) -> tuple[str, int]:
        """What tells one run from another: event numbers mean something within one alone."""
        return ("begun", self._run.begun_ns) if self._run is not None else ("opened", self._opened)

    def outdated(self) -> bool:
        """Whether what was over has been written anew, or goes on: the next look will see it."""
        run, mark = _run_of(self._path), _fingerprint(self._path)
        there = run is not None or (self._path.is_file() and self._run is None)
        return there and mark != self._failed and (run != self._run or (not self._live and mark != self._mark))

    def findings(self) -> Checked | None:
        """What has been found so far in a trace that grows; None before the first check, which this begins."""
        return self._checks.look(self._opened, self._reader.rows)

    @property
    def _live(self) -> bool:
        """Whether more is to be expected: a server's trace may always go on."""
        return self._mirror is not None or bool(self._reader.live)

    def _held(self, at_least: int) -> bool:
        """Whether the view will do although there are newer events."""
        view = self._view
        young = time.monotonic() - self._looked_at < HOLD_S
        return view.on_demand and view.live and self._live and view.opened == self._opened and young and (
            at_least <= view.last_seq
        )  # fmt: skip

    def _refresh(self) -> bool:
        """Read what is new; True where the view is no longer what the reader says.

        Raises:
            TraceError: it has become something that cannot be read; said at every look, until it can be.
        """
        known, run = self._reader.clean or self._cut(), _run_of(self._path)
        absent = run is None and self._run is not None
        mark = _fingerprint(self._path) if known or absent or run != self._run else self._mark
        if known and mark == self._mark:
            self._lost, self._failed = False, None
            return False
        # (what has no manifest is about to be written anew; what goes on having none is broken)
        self._lost = not self._path.exists() or (absent and mark != self._failed)
        if self._lost:
            self._failed = mark
            return False
        if run != self._run or known:
            return self._reopen(run, mark)
        # (the files' times say nothing while a trace grows: its tail is written through a memory map)
        try:
            grown = self._reader.refresh() or len(self._view.events) < self._reader.rows
        except TraceError:  # it was there a moment ago: another run is about to be written over it
            self._lost = True
            return False
        if self._reader.long and self._reader.decoded:
            # It has grown long: from now on it is read where it is looked at.
            self._reader = self._open()
            if self._follower is not None:
                self._follower.read_from(self._reader)
            grown = True
        self._mark = _fingerprint(self._path) if not self._live else self._mark
        return grown

    def _cut(self) -> bool:
        """Whether a file of a trace that nobody writes any more has become shorter, or is gone."""
        if self._live:
            return False
        sizes = {name: size for name, size, _ in _fingerprint(self._path)}
        return any(sizes.get(name, -1) < size for name, size, _ in self._mark)

    def _open(self) -> SharedReader:
        """A reader of the run that is there now (of a mirror's link: of what it names now, and will go on to)."""
        return SharedReader(self._path if self._mirror is None else self._path.resolve())

    def _reopen(self, run: Run | None, mark: tuple[tuple[str, int, int], ...]) -> bool:
        """Read it anew; `mark` is what its files were just before, and is kept only where that succeeds."""
        try:
            self._reader = self._open()
        except TraceError:
            again, self._failed, self._lost = mark == self._failed, mark, True
            if again or self._follower is None:
                raise
            return False  # half of it is there: the new run is only just beginning
        same = self._mirror is not None and run is not None and self._run is not None and (
            run.begun_ns == self._run.begun_ns
        )  # fmt: skip
        self._run, self._opened, self._mark, self._failed = run, next(_OPENED), mark, None
        if self._follower is not None:
            begun_ns = run.begun_ns if run else 0
            self._follower = Follower(self._reader, begun_ns, before=self._follower, same_run=same)
        return True

    def _snapshot(self) -> TraceView:
        r, events = self._reader, self._reader.rows_on_demand
        self._looked_at = time.monotonic()
        # (what a mirror writes is never closed, and is being written while it is read: that is no damage)
        warnings = holes(r.gaps, r.let_go) if self._mirror is not None and not r.dropped else list(r.warnings)
        absent = [(max(lo, r.let_go), hi) for lo, hi in r.gaps if hi > r.let_go]
        return (TraceView if isinstance(events, np.ndarray) else LongView)(
            self._name, self._path, events, r.seqs, most_blocks(r.num_blocks, events), r.block_size, r.block_bytes,
            list(r.sites), list(r.actors), list(r.facts), warnings, bool(r.clean), self._live, int(r.dropped),
            self._opened, tuple(absent), r.let_go,
            () if self._mirror is not None else tuple(r.damaged_records), r,
        )  # fmt: skip


def _run_of(path: Path) -> Run | None:
    """Which run a trace folder holds; None for a packed one, or none at all."""
    try:
        clock = json.loads((path / "manifest.json").read_bytes())["clock"]
        return Run(int(clock["wall_ns"]), path.resolve())
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
