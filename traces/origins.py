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

_frame = sys._getframe
_PLACE = struct.Struct("<HBB")  # the part of a row that says who and from where: site, actor, tier


class Origins:
    """Gives each operation its time, call site and actor; the base of both recorders.

    Args:
        record: "trace" keeps the innermost frame outside the skipped files, "sanitize" up to 8 frames from there.
        clock: nanoseconds, monotonic.
    """

    # In slots, so that a subclass has few attributes of its own: with more than 30 of them CPython looks up an
    # instance's methods, too, the slow way.
    __slots__ = (
        "_actor_list", "_actor_numbers", "_clock", "_clock_start", "_depth", "_intern_lock", "_local", "_pinned",
        "_place", "_shallow", "_site_cache", "_site_list", "_site_numbers", "_skipped", "_t", "record", "step",
    )  # fmt: skip

    def __init__(self, record: Level = "trace", clock: Callable[[], int] = time.monotonic_ns) -> None:
        if record not in STACK_DEPTH:
            raise UsageError(f"record is 'trace' or 'sanitize', got {record!r}")
        self.record = record
        self._depth = STACK_DEPTH[record]
        self._shallow = self._depth == 1
        self._clock = clock
        self._clock_start = clock()
        self.step = -1  # the engine step stamped on the rows; set by the engine
        self._t = 0
        self._place = _PLACE.pack(0, 0, 0)  # site, actor and tier of the operation, as they lie in a row
        self._site_list: list[Site] = [UNKNOWN_SITE]
        self._actor_list: list[str] = ["unknown"]
        self._site_numbers: dict[tuple[Frame, ...], int] = {}
        self._actor_numbers: dict[str, int] = {}
        # Call sites by address: a code object holds its bytecode (CPython 3.11 and later), so `id(code) + f_lasti` is
        # a place within it, unlike any other. `_pinned` keeps these objects alive: no address is used twice.
        self._site_cache: dict[Any, int] = {}
        self._pinned: dict[int, Any] = {}
        # Per thread, `known`: the places of a function's calls by their place in its bytecode, by the function's code
        # (its id, and itself); and `last`, the function whose call came last.
        # (Not keyed by thread ident: idents are used again when a thread has ended.)
        self._local = threading.local()
        self._skipped: set[str] = set()
        self._intern_lock = threading.Lock()

    def skip_frames(self, files: Iterable[str]) -> None:
        """Never name these files (a pool's own modules) as the call site of an operation."""
        self._skipped.update(files)
        self._local = threading.local()
        self._site_cache = {}

    def begin(self, above: int = 1) -> None:
        """Start an operation: its rows share this moment, the calling thread and the call site.

        Args:
            above: how many frames above this one the operation was called, as far as the caller knows: looked at first.
        """
        clock = self._clock  # (called as an attribute it would be looked up as a method)
        self._t = clock() - self._clock_start
        if self._shallow:
            try:
                frame = _frame(above)
                code, places = self._local.last
                if frame.f_code is not code:  # never one that is to be skipped: none of those is known
                    code, places = self._local.last = self._local.known[id(frame.f_code)]
                self._place = places[frame.f_lasti]
                return
            except (AttributeError, KeyError, ValueError):
                pass
        self._place = self._locate(_frame(1))

    def begin_at(self, t_ns: int, site: int = 0, actor: int = 0, tier: int = 0) -> None:
        """Start an operation whose moment and origin are known (an import, a replay, a device stream).

        Args:
            t_ns: since the trace began.
            site: from `intern_site`; actor: from `intern_actor`.
        """
        self._t = t_ns
        self._place = _PLACE.pack(site, actor, tier)

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
        """Site, actor and tier of an operation begun in `frame` by this thread, packed, the long way; fills the caches.

        If it is to be skipped, the frame above it counts, and so on.
        """
        while frame is not None and frame.f_code.co_filename in self._skipped:
            frame = frame.f_back
        known: dict[Any, Any] = self._local.__dict__.setdefault("known", {})
        stack: list[FrameType] = []
        while frame is not None and len(stack) < self._depth:
            stack.append(frame)
            frame = frame.f_back
        key = tuple(id(f.f_code) + f.f_lasti for f in stack)
        places: dict[Any, bytes] = known
        at: Any = key
        code = stack[0].f_code if self._shallow and stack else None
        if code is not None:
            self._local.last = known.get(id(code)) or (code, {})
            places, at = self._local.last[1], stack[0].f_lasti
        place: bytes | None = places.get(at)
        if place is not None:
            return place
        site = self._site_cache.get(key)
        if site is None:
            site = self.intern_site(Frame(f.f_code.co_filename, f.f_lineno, f.f_code.co_qualname) for f in stack)
            if len(self._site_cache) < 4 * MAX_SITES:
                self._pinned.update((id(f.f_code), f.f_code) for f in stack)
                self._site_cache[key] = site
        place = _PLACE.pack(site, self.intern_actor(threading.current_thread().name), 0)
        if key in self._site_cache:
            places[at] = place
            if code is not None:
                known[id(code)] = self._local.last
        return place

    def _store_site(self, number: int, site: Site) -> None:
        """Called once per new site, before any row refers to it."""

    def _store_actor(self, number: int, name: str) -> None:
        """Called once per new actor, before any row refers to it."""
