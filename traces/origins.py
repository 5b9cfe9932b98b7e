"""Who acts, and from where: actors (threads) and call sites, interned to small numbers.

Site 0 and actor 0 mean "unknown"; what no longer fits (65,536 sites, 256 actors) is counted as unknown.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Literal

from kvscope.errors import UsageError
from kvscope.traces.sink import UNKNOWN_SITE, Frame, Site

Level = Literal["trace", "sanitize"]
STACK_DEPTH: dict[str, int] = {"trace": 1, "sanitize": 8}
MAX_SITES = 1 << 16
MAX_ACTORS = 1 << 8

# The part of a row that changes with the operation, packed once for all its rows: step, site, actor, tier.
ORIGIN = struct.Struct("<iHBB")
_STEP, _PLACE = struct.Struct("<i"), struct.Struct("<HBB")


class Origins:
    """Gives each operation its time, call site and actor; the base of both recorders.

    Args:
        record: "trace" keeps the innermost frame outside the skipped files, "sanitize" up to 8 frames from there.
        clock: nanoseconds, monotonic.
    """

    # What each row reads lies in slots: an instance with more than 30 attributes loses CPython's fast path to them.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_clock",
        "_clock_start",
        "_lead",
        "_local",
        "_origin",
        "_shallow",
        "_skipped",
        "_t",
    )

    def __init__(self, record: Level = "trace", clock: Callable[[], int] = time.monotonic_ns) -> None:
        if record not in STACK_DEPTH:
            raise UsageError(f"record is 'trace' or 'sanitize', got {record!r}")
        self.record = record
        self._depth = STACK_DEPTH[record]
        self._shallow = self._depth == 1
        self._clock = clock
        self._clock_start = clock()
        self._step = -1
        self._t = 0
        self._origin = ORIGIN.pack(-1, 0, 0, 0)
        self._site_list: list[Site] = [UNKNOWN_SITE]
        self._actor_list: list[str] = ["unknown"]
        self._site_numbers: dict[tuple[Frame, ...], int] = {}
        self._actor_numbers: dict[str, int] = {}
        # Call sites by address: a code object holds its bytecode (CPython 3.11 and later), so `id(code) + f_lasti` is
        # a place within it, unlike any other. `_pinned` keeps these objects alive: no address is used twice.
        self._site_cache: dict[Any, int] = {}
        self._pinned: dict[int, Any] = {}
        self._lead = _STEP.pack(-1)  # the step, as it stands in front of an origin
        # Per thread, `known`: call site -> the rest of the packed origin, behind the step.
        # (Not keyed by thread ident: idents are used again when a thread has ended.)
        self._local = threading.local()
        self._skipped: set[str] = set()
        self._intern_lock = threading.Lock()

    @property
    def step(self) -> int:
        """The engine step stamped on the rows; set by the engine."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        if value == self._step:
            return
        self._step = value
        self._lead = _STEP.pack(value)
        self._origin = self._lead + self._origin[_STEP.size :]

    def skip_frames(self, files: Iterable[str]) -> None:
        """Never name these files (a pool's own modules) as the call site of an operation."""
        self._skipped.update(files)
        self._local = threading.local()
        self._site_cache = {}

    def begin(self) -> None:
        """Start an operation: its rows share this moment, the calling thread and the call site."""
        self._t = self._clock() - self._clock_start
        frame: FrameType | None = sys._getframe(1)
        skipped = self._skipped
        while frame is not None and frame.f_code.co_filename in skipped:
            frame = frame.f_back
        if self._shallow and frame is not None:
            try:
                self._origin = self._lead + self._local.known[id(frame.f_code) + frame.f_lasti]
                return
            except (AttributeError, KeyError):
                pass
        self._origin = self._lead + self._locate(frame)

    def begin_at(self, t_ns: int, site: int = 0, actor: int = 0, tier: int = 0) -> None:
        """Start an operation whose moment and origin are known (an import, a replay, a device stream).

        Args:
            t_ns: since the trace began.
            site: from `intern_site`; actor: from `intern_actor`.
        """
        self._t = t_ns
        self._origin = ORIGIN.pack(self._step, site, actor, tier)

    def intern_site(self, frames: Iterable[Frame]) -> int:
        """The number of a call site, given its frames, innermost first; 0 when there are too many."""
        key = tuple(frames)
        with self._intern_lock:
            number = self._site_numbers.get(key)
            if number is None:
                number = len(self._site_list)
                if number >= MAX_SITES or not key:
                    return 0
                site = Site(*key[0], frames=key)
                self._store_site(number, site)
                self._site_list.append(site)
                self._site_numbers[key] = number
        return number

    def intern_actor(self, name: str) -> int:
        """The number of a named actor (a thread or stream); 0 when there are too many."""
        with self._intern_lock:
            number = self._actor_numbers.get(name)
            if number is None:
                number = len(self._actor_list)
                if number >= MAX_ACTORS:
                    return 0
                self._store_actor(number, name)
                self._actor_list.append(name)
                self._actor_numbers[name] = number
        return number

    def _locate(self, frame: FrameType | None) -> bytes:
        """Site, actor and tier of a call from `frame` in this thread, packed, the long way; fills the cache."""
        stack: list[FrameType] = []
        while frame is not None and len(stack) < self._depth:
            stack.append(frame)
            frame = frame.f_back
        places = tuple(id(f.f_code) + f.f_lasti for f in stack)
        key: Any = places[0] if self._shallow and stack else places
        known: dict[Any, bytes] = self._local.__dict__.setdefault("known", {})
        origin = known.get(key)
        if origin is None:
            site = self._site_cache.get(key)
            if site is None:
                site = self.intern_site(Frame(f.f_code.co_filename, f.f_lineno, f.f_code.co_qualname) for f in stack)
                if len(self._site_cache) < 4 * MAX_SITES:
                    self._pinned.update((id(f.f_code), f.f_code) for f in stack)
                    self._site_cache[key] = site
            origin = _PLACE.pack(site, self.intern_actor(threading.current_thread().name), 0)
            if key in self._site_cache:
                known[key] = origin
        return origin

    def _store_site(self, number: int, site: Site) -> None:
        """Called once per new site, before any row refers to it."""

    def _store_actor(self, number: int, name: str) -> None:
        """Called once per new actor, before any row refers to it."""
