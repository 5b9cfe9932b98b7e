"""A trace that is never written: `MemoryRecorder` records like `Recorder` and reads like `TraceReader`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from kvscope.traces.losses import cut_values
from kvscope.traces.origins import Level
from kvscope.traces.row_layout import ROW_BYTES, ROW_DTYPE, events_of
from kvscope.traces.schema import EVENT_DTYPE, EventArray
from kvscope.traces.sheet import SheetWriter
from kvscope.traces.sink import Details, PoolFacts, Site

_FIRST_ROWS = 512
_MOST_ROWS = 1 << 15


class MemoryRecorder(SheetWriter):
    """Holds everything in memory; nothing is ever dropped. For tests, fuzzing and short looks.

    Args:
        pool: the geometry, or `num_blocks`, `block_size` and `block_bytes` in its place.
        record: "trace" or "sanitize" (stacks).
        clock: nanoseconds, monotonic.
    """

    def __init__(
        self,
        pool: PoolFacts | None = None,
        *,
        num_blocks: int = 1,
        block_size: int = 16,
        block_bytes: int = 0,
        record: Level = "trace",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(record, clock)
        self.pool = pool or PoolFacts(num_blocks, block_size, block_bytes)
        self._details: dict[int, tuple[int, ...]] = {}
        self._facts: list[dict[str, Any]] = []
        self._events: EventArray = np.empty(0, EVENT_DTYPE)
        self._chunks: list[npt.NDArray[np.void]] = []
        self._chunk_lock = threading.Lock()
        self._add_chunk()

    @overload
    def detail(self, seq: int) -> tuple[int, ...] | None: ...
    @overload
    def detail(self, seq: int, values: Sequence[int]) -> None: ...
    def detail(self, seq: int, values: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """With values: attach them (int64) to the row `seq`, in place of earlier ones. Without: those of the row."""
        if values is None:
            return self._details.get(seq)
        if 0 <= seq < self._next:
            self._details[seq] = tuple(int(value) for value in values)
        return None

    def _detail_rows(self, seq: int, slot: int, values: npt.NDArray[np.int64]) -> None:
        self._details.update(enumerate(map(tuple, values.tolist()), seq))

    def fact(self, record: Mapping[str, Any]) -> None:
        """Append one JSON object to the facts of the run."""
        self._facts.append(dict(record))

    def close(self) -> None:
        """Nothing to do: here so that both recorders are used alike."""

    def __enter__(self) -> MemoryRecorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading, as TraceReader does.

    @property
    def manifest(self) -> dict[str, Any]:
        """What a trace folder's manifest would say of the pool."""
        return {"pool": self.pool.to_json(), "record": self.record}

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self.pool.num_blocks

    @property
    def block_size(self) -> int:
        """Slots per block."""
        return self.pool.block_size

    @property
    def block_bytes(self) -> int:
        """Bytes per block over all layers."""
        return self.pool.block_bytes

    @property
    def events(self) -> EventArray:
        """All rows so far, in seq order; a copy, made anew only when rows were added."""
        if len(self._events) != self._next:
            self._events = events_of(np.concatenate(self._chunks)[: self._next])
            self._events.setflags(write=False)
        return self._events

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """0 .. len(events) - 1."""
        return np.arange(len(self.events), dtype=np.int64)

    @property
    def sites(self) -> Sequence[Site]:
        """Call sites; the `site` column indexes them."""
        return self._site_list

    @property
    def actors(self) -> Sequence[str]:
        """Threads and streams; the `actor` column indexes them."""
        return self._actor_list

    @property
    def facts(self) -> Sequence[dict[str, Any]]:
        """The facts in the order they came."""
        return self._facts

    @property
    def warnings(self) -> Sequence[str]:
        """One line for each thing that makes this trace less than complete."""
        return cut_values(self.clipped)

    @property
    def clean(self) -> bool:
        """True: nothing can be missing."""
        return True

    @property
    def dropped(self) -> int:
        """0: nothing can be dropped."""
        return 0

    def details_of(self, kind: int) -> Details:
        """(seqs, values) of every row of a kind that has details, in seq order."""
        kinds = self.events["kind"]
        seqs = [seq for seq in sorted(self._details) if kinds[seq] == kind]
        return np.asarray(seqs, np.int64), [self._details[seq] for seq in seqs]

    @property
    def recent_rows(self) -> int:
        """All there will ever be."""
        return 2**62

    def recent(self, first: int) -> npt.NDArray[np.void]:
        """The rows from `first` on that are complete, ROW_DTYPE, a copy."""
        return self.complete(np.concatenate(self.recent_parts(first)).view(ROW_DTYPE), first)

    def recent_parts(self, first: int) -> list[npt.NDArray[np.void]]:
        """The rows from `first` on where they lie, as bytes, the incomplete ones too."""
        end = self._next
        lo = self._limit - len(self._raw)
        if first >= lo:
            return [self._raw[first - lo : end - lo]]
        parts = [self._raw[: max(end - lo, 0)]]
        for chunk in reversed(self._chunks[:-1]):
            lo -= len(chunk)
            parts.append(chunk[max(first - lo, 0) : max(end - lo, 0)].view(f"V{ROW_BYTES}"))
            if lo <= first:
                break
        return parts[::-1]

    def refresh(self) -> bool:
        """Whether rows were added since `events` was last read."""
        return len(self._events) != self._next

    def _make_room(self, rows: int) -> bool:
        with self._chunk_lock:
            if self._next == self._limit:
                self._add_chunk()
        return True

    def _add_chunk(self) -> None:
        # A full chunk stays where it is: another thread may still be writing rows that it has claimed there.
        # Each begins at a multiple of its own length, so that a row's slot is its seq modulo that length.
        rows = min(max(self._limit, _FIRST_ROWS), _MOST_ROWS)
        self._attach(bytearray(rows * ROW_BYTES), 0, rows)
        self._chunks.append(self._rows)
        self._limit += rows
