"""Watch points: "tell me who next writes block b37". An event sink in front of another one.

    sink = WatchPoints(recorder, print_it)
    sink.add("b37")             # or "b37#12": only in that life
    engine = Engine(loaded, config, sink=sink)

A watched block is reported at every write, copy into it, swap into it and hand-out: who, in which step, as which event,
and from where it was called.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import kvscope.traces
from kvscope.errors import UsageError
from kvscope.inspector.source import life
from kvscope.traces.schema import Kind, unpack_range
from kvscope.traces.sheet import Sheet
from kvscope.traces.sink import EventSink, Frame, Ints, SpelledOut

_WATCHED = {Kind.WRITE: "writes", Kind.COW: "is copied into", Kind.SWAP_IN: "is swapped into", Kind.ALLOC: "is given"}
_KINDS = frozenset(int(kind) for kind in _WATCHED)
_NAME = re.compile(r"b?(\d+)(?:#(\d+))?")
_HERE = os.path.dirname(__file__)
_OURS = (os.path.dirname(kvscope.traces.__file__) + os.sep,
         *(os.path.join(_HERE, name) for name in ("watch.py", "online.py", "given.py")))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hit:
    """Somebody touched a watched block. `frames`: who called, outermost last."""

    kind: Kind
    block: int
    gen: int
    seq_id: int
    seq: int
    step: int
    slots: tuple[int, int] | None
    frames: tuple[Frame, ...]

    def __str__(self) -> str:
        slots = f"[{self.slots[0]}:{self.slots[1]}]" if self.slots is not None else ""
        at = self.frames[0] if self.frames else None
        where = f", from {at.file}:{at.line} in {at.function}" if at is not None else ""
        name = f"{life(self.block, self.gen)}{slots}"
        return f"sequence {self.seq_id} {_WATCHED[self.kind]} {name}: seq {self.seq}, step {self.step}{where}"


def watched(block: str, num_blocks: int | None = None) -> tuple[int, int]:
    """(block, its life or -1 for any) of `b37`, `37` or `b37#12`.

    Raises:
        UsageError: that is no name of a block, or a pool of `num_blocks` has none of that name.
    """
    found = _NAME.fullmatch(block.strip())
    if found is None:
        raise UsageError(f"watch {block!r}: name a block as b37, or one of its lives as b37#12")
    number = int(found[1])
    if num_blocks is not None and number >= num_blocks:
        raise UsageError(f"watch {block!r}: the pool has {num_blocks:,} blocks, b0 to b{num_blocks - 1}")
    return number, int(found[2]) if found[2] is not None else -1


class WatchPoints(SpelledOut):
    """An `EventSink` that reports what touches some blocks, and passes everything on.

    Args:
        sink: where the events go; it numbers them.
        on_hit: called inside the critical section of the pool, so it must be quick and call nothing of it.
        blocks: what to watch from the start, as for `add`.
        num_blocks: of the pool; None: not known.
    """

    def __init__(
        self, sink: EventSink, on_hit: Callable[[Hit], None], blocks: Iterable[str] = (), *,
        num_blocks: int | None = None,
    ) -> None:  # fmt: skip
        self._sink, self._on_hit, self._num_blocks = sink, on_hit, num_blocks
        self.begin, self.fact, self.detail = sink.begin, sink.fact, sink.detail
        self._skipped: set[str] = set()  # files of the pool: no call site of an operation
        self._watched: dict[int, int] = {}  # block -> its life, -1 = any
        self.hits = 0
        self._touched: set[int] = set()
        for block in blocks:
            self.add(block)

    def add(self, block: str) -> None:
        """Watch a block: `b37`, `37`, or one of its lives `b37#12`.

        Raises:
            UsageError: that is no name of a block, or the pool has none of that name.
        """
        number, gen = watched(block, self._num_blocks)
        self._watched[number] = gen

    def remove(self, block: str) -> None:
        """Watch it no longer."""
        found = _NAME.fullmatch(block.strip())
        if found is not None:
            self._watched.pop(int(found[1]), None)

    @property
    def untouched(self) -> list[str]:
        """The watched blocks that nothing has touched so far."""
        return [life(block, gen) for block, gen in sorted(self._watched.items()) if block not in self._touched]

    @property
    def step(self) -> int:
        """The step that the next rows belong to."""
        return self._sink.step

    @step.setter
    def step(self, value: int) -> None:
        self._sink.step = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def skip_frames(self, files: Iterable[str]) -> None:
        """Never name these files (a pool's own modules) as the call site of an operation."""
        files = list(files)
        self._skipped.update(files)
        self._sink.skip_frames(files)

    def emit(
        self, kind: int, reason: int = 0, block: int = -1, gen: int = -1, ref_before: int = -1, ref_after: int = -1,
        fill: int = -1, seq_id: int = -1, lblock: int = -1, aux: int = 0,
    ) -> int:  # fmt: skip
        """Pass one row on."""
        seq = self._sink.emit(kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)
        if kind in _KINDS and block in self._watched:
            self._hit(kind, block, gen, seq_id, aux, seq)
        return seq

    def emit_many(
        self, kind: int, reason: int = 0, *, block: Ints = -1, gen: Ints = -1, ref_before: Ints = -1,
        ref_after: Ints = -1, fill: Ints = -1, seq_id: Ints = -1, lblock: Ints = -1, aux: Ints = 0,
        details: npt.NDArray[np.int64] | None = None,
    ) -> int:  # fmt: skip
        """Pass many rows on."""
        seq = self._sink.emit_many(
            kind, reason, block=block, gen=gen, ref_before=ref_before, ref_after=ref_after, fill=fill, seq_id=seq_id,
            lblock=lblock, aux=aux, details=details,
        )  # fmt: skip
        if kind in _KINDS and self._watched:
            columns = np.broadcast_arrays(*(np.asarray(c, dtype=np.int64) for c in (block, gen, seq_id, aux)))
            for i, (held, life_of, writer, value) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
                if held in self._watched:
                    self._hit(kind, held, life_of, writer, value, seq + i if seq >= 0 else seq)
        return seq

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """Pass the rows of a sheet on."""
        seq = self._sink.emit_sheet(sheet, details)
        rows = sheet.rows
        if self._watched and len(rows):
            seen = np.isin(rows["block"], list(self._watched)) & np.isin(rows["kind"], list(_KINDS))
            for i in np.flatnonzero(seen).tolist():
                block, gen, seq_id, aux = (int(rows[name][i]) for name in ("block", "gen", "seq_id", "aux"))
                self._hit(int(rows["kind"][i]), block, gen, seq_id, aux, seq + i if seq >= 0 else seq)
        return seq

    def _hit(self, kind: int, block: int, gen: int, seq_id: int, aux: int, seq: int) -> None:
        if self._watched[block] not in (-1, gen):
            return
        self.hits += 1
        self._touched.add(block)
        frames = tuple(
            Frame(_short(frame.filename), frame.lineno or 0, frame.name)
            for frame in reversed(traceback.extract_stack(limit=24))
            if frame.filename not in self._skipped and not frame.filename.startswith(_OURS)
        )
        slots = unpack_range(aux) if kind == Kind.WRITE else None
        self._on_hit(Hit(Kind(kind), block, gen, seq_id, seq, self._sink.step, slots, frames))


def _short(path: str) -> str:
    """The last two parts of a path."""
    return "/".join(path.split("/")[-2:])
