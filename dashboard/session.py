"""What a page works on: the allowed traces, the opened one, the place in it, and cached answers of the inspector.

The URL is the state: `/blocks?trace=..&seq=..&block=..` (or `/?page=blocks&..`). A value in the URL that this session
has not written itself is taken over; what the session holds is written back at the end of every run. A link can only
name traces that the launcher was given.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from kvscope.errors import KVScopeError, UsageError
from kvscope.inspector.findings import CheckResult, check
from kvscope.inspector.lanes import Lane, lanes
from kvscope.inspector.measures import Series, series, summary
from kvscope.inspector.source import Names
from kvscope.inspector.state import PoolState, state_at, tables_at
from kvscope.traces import open_trace
from kvscope.traces.schema import EventArray

MAX_LISTED = 200


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
    reader: Any = field(repr=False, compare=False)

    @property
    def id(self) -> tuple[str, int, int, bool]:
        """Equal for equal content: the key of everything cached about it."""
        return (str(self.path), id(self.reader), len(self.events), self.clean or self.live)

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


class Tail:
    """One opened trace, shared by all sessions: reads what is new, hands out views. Thread-safe."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._lock = threading.Lock()
        self._mark = _fingerprint(path)
        self._reader = open_trace(path)
        self._view = self._snapshot()

    def look(self) -> TraceView:
        """The trace as it is now."""
        with self._lock:
            reader, view = self._reader, self._view
            if view.clean:
                mark = _fingerprint(self._path)
                if mark != self._mark:  # closed once and yet changed: another run has been written over it
                    self._mark = mark
                    self._reader = open_trace(self._path)
                    self._view = self._snapshot()
            elif reader.refresh() or (reader.clean, reader.live) != (view.clean, view.live):
                # (the files' times say nothing while a trace grows: its tail is written through a memory map)
                self._mark = _fingerprint(self._path)
                self._view = self._snapshot()
            return self._view

    def _snapshot(self) -> TraceView:
        r = self._reader
        return TraceView(
            self._name, self._path, r.events, r.seqs, r.num_blocks, r.block_size, r.block_bytes, list(r.sites),
            list(r.actors), list(r.facts), list(r.warnings), bool(r.clean), bool(r.live), int(r.dropped), r,
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


@st.cache_resource(max_entries=8, show_spinner="opening the trace")
def _tail(name: str, path: str) -> Tail:
    return Tail(name, Path(path))


# Cached answers. Arrays are shared, not copied: read-only for all pages.


@st.cache_resource(max_entries=8, show_spinner="measuring")
def _series(key: tuple[Any, ...], _view: TraceView) -> Series:
    return series(_view)


@st.cache_resource(max_entries=8, show_spinner=False)
def _summary(key: tuple[Any, ...], _view: TraceView) -> dict[str, Any]:
    return summary(_view, _series(key, _view))


@st.cache_resource(max_entries=8, show_spinner="checking every rule")
def _check(key: tuple[Any, ...], _view: TraceView) -> CheckResult:
    return check(_view)


@st.cache_resource(max_entries=64, show_spinner=False)
def _state(key: tuple[Any, ...], seq: int, _view: TraceView) -> PoolState:
    return state_at(_view, seq)


@st.cache_resource(max_entries=64, show_spinner=False)
def _tables(key: tuple[Any, ...], seq: int, _view: TraceView) -> dict[int, list[tuple[int, int]]]:
    return tables_at(_view, seq)


@st.cache_resource(max_entries=8, show_spinner=False)
def _lanes(key: tuple[Any, ...], _view: TraceView) -> list[Lane]:
    return lanes(_view)


def measured(view: TraceView) -> Series:
    """`inspector.series` of the view."""
    return _series(view.id, view)


def summarised(view: TraceView) -> dict[str, Any]:
    """`inspector.summary` of the view."""
    return _summary(view.id, view)


def checked(view: TraceView) -> CheckResult:
    """`inspector.check` of the view."""
    return _check(view.id, view)


def pool_at(view: TraceView, seq: int) -> PoolState:
    """`inspector.state_at` of the view."""
    return _state(view.id, seq, view)


def tables_of(view: TraceView, seq: int) -> dict[int, list[tuple[int, int]]]:
    """`inspector.tables_at` of the view."""
    return _tables(view.id, seq, view)


def lanes_of(view: TraceView) -> list[Lane]:
    """`inspector.lanes` of the view."""
    return _lanes(view.id, view)


def names_of(view: TraceView) -> Names:
    """The names of the view's sequences."""
    return Names(view.facts)


def owners_of(tables: dict[int, list[tuple[int, int]]]) -> dict[int, list[int]]:
    """The block tables the other way round: block -> the sequences whose tables hold it."""
    owners: dict[int, list[int]] = {}
    for seq_id, row in tables.items():
        for block, _ in row:
            owners.setdefault(block, []).append(seq_id)
    return owners


# The place: session state and URL.


@dataclass
class Place:
    """Where in the trace the pages stand."""

    seq: int
    block: int  # -1: none chosen


def adopt_url() -> None:
    """Take over what the URL says and this session has not written itself: an opened link, or Back."""
    written: dict[str, str] = st.session_state.setdefault("written", {})
    for name in ("trace", "seq", "block"):
        value = st.query_params.get(name)
        if value is not None and value != written.get(name):
            st.session_state[name] = value if name == "trace" else _number(value)
            written[name] = value


def publish_url(view: TraceView, place: Place, traces: dict[str, Path]) -> None:
    """Make the URL say where this session is (the page is in its path); what is not chosen is left out."""
    wanted = {"seq": str(place.seq)}
    if len(traces) > 1:
        wanted["trace"] = view.name
    if place.block >= 0:
        wanted["block"] = str(place.block)
    st.session_state["written"] = wanted
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(wanted)


def place_in(view: TraceView, begun: Start) -> Place:
    """The current place, inside the trace's limits; where none was chosen the launcher's, then the last event."""
    state = st.session_state
    if state.get("place_of") not in (None, view.name):  # another trace: its numbers mean something else
        state["seq"] = state["block"] = None
    elif state.get("place_of") is None:
        state["seq"] = begun.seq if state.get("seq") is None else state["seq"]
        state["block"] = begun.block if state.get("block") is None else state["block"]
    state["place_of"] = view.name
    seq = view.last_seq if state.get("seq") is None else int(state["seq"])
    block = -1 if state.get("block") is None else int(state["block"])
    state["seq"] = max(min(seq, view.last_seq), min(view.first_seq, view.last_seq))
    state["block"] = block if 0 <= block < view.num_blocks else -1
    return Place(state["seq"], state["block"])


def go(page: str | None = None, *, seq: int | None = None, block: int | None = None) -> None:
    """Move to another place and, where named, to another page; ends the run."""
    if seq is not None:
        st.session_state["seq"] = int(seq)
    if block is not None:
        st.session_state["block"] = int(block)
    if page is not None:
        st.switch_page(st.session_state["pages"][page])
    st.rerun()


def row_at(view: TraceView, seq: int) -> int:
    """The row of event `seq`, or of the last one before it; -1 in an empty trace."""
    return max(int(np.searchsorted(view.seqs, seq, side="right")) - 1, 0 if len(view.seqs) else -1)


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


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
