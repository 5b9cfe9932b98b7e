"""Our own pool at hook level: its lock under control, and a switch point in front of every event that it writes.

    def make() -> BlockManager:
        return pool(4, 2)

The events lie inside the critical section, between the changes that they speak of, so a pool whose lock does not hold
is torn at its seams. What was recorded is judged by the sanitizer, once per different stream of events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.findings import check as check_trace
from kvscope.inspector.races.control import current, enter, leave
from kvscope.inspector.races.locks import ControlledLock
from kvscope.inspector.races.worker import Failure
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind
from kvscope.traces.sheet import Sheet, SheetWriter
from kvscope.traces.sink import EventSink, Ints, SpelledOut

_KINDS = {int(kind): kind.name for kind in Kind}


class Switching(SpelledOut, SheetWriter):
    """Makes every row of a recorder a switch point, just before it is written. quick: leave out call sites."""

    quick = True

    def begin(self, above: int = 1) -> None:
        """Where a call came from is looked up only in a run that is to be shown."""
        control = current()
        if control is not None and control.detail is None and self.quick:
            self.begin_at(self._next)
        else:
            super().begin(above + 1)

    def emit(
        self, kind: int, reason: int = 0, block: int = -1, gen: int = -1, ref_before: int = -1, ref_after: int = -1,
        fill: int = -1, seq_id: int = -1, lblock: int = -1, aux: int = 0,
    ) -> int:  # fmt: skip
        """A point, then the row."""
        if (control := current()) is not None:
            control.point(_label(kind, block, gen, seq_id))
        if self._next >= self._limit:
            self._make_room(1)  # here: the recorder would call this method once more
        return super().emit(kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)

    def emit_many(self, kind: int, reason: int = 0, *, block: Ints = -1, gen: Ints = -1, **columns: Any) -> int:
        """A point, then the rows."""
        if (control := current()) is not None:
            control.point(("event", _KINDS.get(int(kind), str(kind)), "of several blocks"))
        return super().emit_many(kind, reason, block=block, gen=gen, **columns)

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """A point, then the rows."""
        if (control := current()) is not None:
            control.point(("event", "a batch", "of several blocks"))
        return super().emit_sheet(sheet, details)


class SwitchingSink(Switching, MemoryRecorder):
    """A recorder in memory whose rows are switch points."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        control = current()
        if control is not None:
            leave(control)  # its own locks are real ones: they are no part of what is explored
        try:
            super().__init__(num_blocks=num_blocks, block_size=block_size)
        finally:
            if control is not None:
                enter(control)


def _label(kind: int, block: int, gen: int, seq_id: int) -> tuple[str, ...]:
    where = () if block < 0 else (f"b{block}#{gen}",)
    who = () if seq_id < 0 else (f"sequence {seq_id}",)
    return ("event", _KINDS.get(int(kind), str(kind)), *where, *who)


def pool(
    num_blocks: int,
    block_size: int,
    *,
    manager: Callable[..., BlockManager] = BlockManager,
    lock: bool = True,
    sink: EventSink | None = None,
    **options: Any,
) -> BlockManager:
    """A block manager for a race at hook level; call it in `make`.

    Args:
        manager: builds it; a planted fault is a subclass given here.
        lock: False takes the lock away, as a control.
        sink: where events go, and switch points come from; a `SwitchingSink` of its own if None.
        options: of the manager.
    """
    sink = sink or SwitchingSink(num_blocks, block_size)
    sink.skip_frames([__file__])
    factory: Callable[[], Any] = ControlledLock if lock else contextlib.nullcontext
    return manager(num_blocks, block_size, sink=sink, lock_factory=factory, hash_key=b"kvscope.races", **options)


class PoolJudge:
    """Checks a manager when its threads have ended: its own integrity, then its events under the sanitizer.

    The sanitizer looks at every different stream of events once.
    """

    def __init__(self, *, sanitize: bool = True) -> None:
        self.sanitize = sanitize
        self.streams = 0  # different streams of events
        self._known: dict[bytes, Failure | None] = {}

    def __call__(self, manager: BlockManager) -> Failure | None:
        """What is wrong with it, if anything."""
        sink = manager._sink
        if self.sanitize and isinstance(sink, SwitchingSink):
            failure = self._sanitized(sink)
            if failure is not None:
                return failure
        manager.check_integrity()
        return None

    def _sanitized(self, sink: SwitchingSink) -> Failure | None:
        events = sink.events.copy()
        for name in ("t_ns", "site", "actor"):
            events[name] = 0
        key = events.tobytes()
        if key not in self._known:
            self.streams += 1
            findings = check_trace(_Unclosed(sink)).findings
            first = findings[0] if findings else None
            self._known[key] = None if first is None else Failure("finding", f"{first.title}: {first.why}", first.code)
        return self._known[key]


class _Unclosed:
    """A trace whose sequences may live on: what they hold is no leak."""

    def __init__(self, sink: SwitchingSink) -> None:
        self._sink, self.clean = sink, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def calls(*programs: Sequence[tuple[Any, ...]]) -> list[list[Callable[[Any], object]]]:
    """Threads from calls written as tuples: `calls([("fork", 0, 1), ("free", 1)], [("append", 0, 7)])`."""

    def action(name: str, *args: Any) -> Callable[[Any], object]:
        return lambda target: getattr(target, name)(*args)

    return [[action(*call) for call in program] for program in programs]
