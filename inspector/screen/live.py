"""The screen beside a run that goes on: look by look, of one step or of several.

Row by row in C (`live.c`), where a look costs what its rows cost; or, where that was not built, by the passes over
columns, whose look costs a millisecond however few its rows are. Both say the same (`tests/property/test_screen.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.inspector.limits import Limits, limits_of
from kvscope.inspector.progress import watermark_of, window_of
from kvscope.inspector.screen.columns import Chunk
from kvscope.inspector.screen.details import GivenDetails, Kept, KeptDetails
from kvscope.inspector.screen.screen import Screen, counted, understood
from kvscope.inspector.screen.transfers import Steps, Transfers
from kvscope.inspector.source import IntArray
from kvscope.traces import compiled
from kvscope.traces.fold import BlockFold
from kvscope.traces.row_layout import ROW_DTYPE
from kvscope.traces.row_ring import gil_enabled
from kvscope.traces.schema import Kind

_compiled = compiled.load("inspector._screen", edition=4)
_MOST_BLOCKS = 1 << 21
_MOST_WATERMARK = 1e6

Rows = npt.NDArray[np.void]
Singles = dict[int, Sequence[int]]  # details by the number of their event
Bulk = list[tuple[int, npt.NDArray[np.int64]]]  # (number of the first, values) of events side by side


class ByColumns:
    """The passes over columns. `suspects`: rule -> number of the first event that breaks it."""

    least = 4096  # events that a look should have, if it need not be at once

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._screen = Screen(num_blocks, block_size)
        self.suspects = self._screen.suspects

    def learn(self, facts: Iterable[Mapping[str, Any]], block_bytes: int) -> None:
        """What the facts say of the model, the scheduler and the pool."""
        self._screen.learn(facts, block_bytes)

    def look(self, parts: list[Rows], first: int, singles: Singles, bulk: Bulk, marks: Any = None) -> int:
        """Look at the next rows, of which `first` is the number of the first; returns how many of them are complete.

        Args:
            parts: EVENT_DTYPE, ROW_DTYPE or that as bytes. marks: the recorder whose ring they lie in; None: all are
                complete.
        """
        rows = _together(parts)
        if marks is not None:
            rows = marks.complete(rows, first)
        kinds = np.ascontiguousarray(rows["kind"])
        details = GivenDetails(singles, bulk, kinds, first)
        present = np.bincount(kinds, minlength=256)
        if details.ragged or not understood(present):
            self.suspects.setdefault("details" if details.ragged else "unknown kind", first)
        elif len(rows):
            self._screen.detail = details.get
            self._screen.look(rows, first, details, kinds, present)
        return len(rows)

    def finish(self, end: int) -> None:
        """The run is over after `end` events: what is left behind."""
        self._screen.finish(end)

    def seen(self) -> tuple[int, int]:
        """Blocks that had an event, slots that were written."""
        result = self._screen.result()
        return result.blocks, result.slots


class Known(NamedTuple):
    """How much of a trace could be judged."""

    unjudged: int  # events
    unknown: int  # blocks, at the end
    compared: int  # witnesses
    least_told: int  # blocks that these count in all; 0: none counts any
    most_told: int


class ByRows:
    """Row by row, in C; used as `ByColumns` is."""

    least = 256  # rows that have just been written are still in the processor's cache: a look at more costs more

    def __init__(self, num_blocks: int, block_size: int, *, ordered: bool = True) -> None:
        self._live = _compiled.Live(num_blocks, block_size, ordered)
        self._block_size = block_size
        self._limits, self._window, self._watermark = Limits(), 0, -1.0
        self._transfers: Transfers | None = None
        self._lost = False
        self.suspects: dict[str, int] = {}

    def learn(self, facts: Iterable[Mapping[str, Any]], block_bytes: int) -> None:
        """What the facts say of the model, the scheduler and the pool."""
        facts = list(facts)
        limits = self._limits = limits_of(facts, self._limits)
        self._window = window_of(facts) or self._window
        watermark = watermark_of(facts)
        if watermark is not None:
            self._watermark = watermark
            if not 0 <= watermark <= _MOST_WATERMARK:
                self.suspects.setdefault("watermark", 0)
        if limits.disagreement(self._live.num_blocks, self._block_size, block_bytes):
            self.suspects.setdefault("capacity", 0)
        self._live.learn(
            self._window, self._watermark, limits.max_seqs, limits.max_batched_tokens, limits.max_model_len,
            limits.max_blocks, tuple(limits.reserved),
        )  # fmt: skip

    def look(self, parts: list[Rows], first: int, singles: Singles, bulk: Bulk, marks: Any = None) -> int:
        """See `ByColumns.look`."""
        live = self._live

        def beside(count: int) -> bool:
            rows = _together(parts)[:count]
            kinds = np.ascontiguousarray(rows["kind"])
            return self._transferred(Chunk(rows, first, GivenDetails(singles, bulk, kinds, first), kinds))

        looked: int = live.look(parts, first, singles, bulk, marks, beside)
        self._suspected()
        return looked

    def finish(self, end: int) -> None:
        """See `ByColumns.finish`."""
        left = self._live.left()
        if self._transfers is not None and not self._lost:
            left["lease left"] = bool(self._transfers.held)
        self.suspects |= {rule: end for rule, suspicious in left.items() if suspicious}

    def seen(self) -> tuple[int, int]:
        """See `ByColumns.seen`."""
        found: tuple[int, int] = self._live.seen()
        return found

    def begin(self, before: BlockFold) -> None:
        """The first events were let go, and left the blocks so; `lose` follows."""
        self._live.begin(*(np.ascontiguousarray(c, dtype=np.int32) for c in (before.gen, before.ref, before.leases)))

    def lose(self) -> None:
        """Events were lost before the next look: what was known of blocks, sequences and steps is not relied on."""
        self._lost = True
        self._live.lose()

    def known(self) -> Known:
        """How much could be judged."""
        return Known(*self._live.known())

    def look_back(self, rows: Rows, first: int, kept: Kept, *, breaks_off: bool = False) -> bool:
        """Look at the next rows of a trace, with what it keeps of their details; returns whether any is suspicious.

        Args:
            breaks_off: the events just behind these rows are lost.
        """

        def beside(count: int) -> bool:
            kinds = np.ascontiguousarray(rows["kind"])
            return self._transferred(Chunk(rows, first, KeptDetails(kinds, first, *kept), kinds))

        self._live.look([rows], first, {}, kept, None, beside, breaks_off)
        self._suspected()
        return bool(self.suspects)

    def _suspected(self) -> None:
        broken = self._live.suspect()
        if broken is not None:
            self.suspects.setdefault(*broken)

    def _transferred(self, chunk: Chunk) -> bool:
        """Whether what these rows say of leases and the host tier is suspicious; asked from the first swap on."""
        live = self._live
        if self._transfers is None:
            self._transfers = Transfers()
            self._transfers.held = live.leases()
        begun = counted(chunk, chunk.rows(Kind.STEP_BEGIN), live.begun)
        ended = counted(chunk, chunk.rows(Kind.STEP_END), live.ended)
        suspects: dict[str, IntArray] = {}
        self._transfers.check(chunk, suspects, Steps(begun, ended, _LastSteps(live)))
        return bool(suspects)


class _LastSteps:
    """By sequence, the last step that it was in."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def __getitem__(self, seq_id: int) -> int:
        return int(self._live.last_step_of(seq_id))


def _together(parts: list[Rows]) -> Rows:
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return rows.view(ROW_DTYPE) if rows.dtype.names is None else rows


def in_c(num_blocks: int) -> bool:
    """Whether the rows of a pool of this size can be looked at in C."""
    return _compiled is not None and compiled.used() and num_blocks < _MOST_BLOCKS


def live_screen(num_blocks: int, block_size: int) -> ByRows | ByColumns:
    """The one that costs less, of those that there are."""
    # Without a GIL another thread may write rows and details while they are read where they lie.
    fast = in_c(num_blocks) and gil_enabled()
    return ByRows(num_blocks, block_size) if fast else ByColumns(num_blocks, block_size)


__all__ = ["ByColumns", "ByRows", "Known", "in_c", "live_screen"]
