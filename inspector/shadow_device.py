"""Shadow words on a GPU: written, copied and compared there; the host sees one number per sequence and step.

The words that sequences expect lie on the device too, a row per sequence, and only new ones are sent: one transfer a
step, and a handful of launches however many sequences there are.

All of it runs on a stream of its own, in the order of the calls and beside the model: nothing here reads keys or
values. Only what the engine packed for a step is waited for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from kvscope import kernels
from kvscope.inspector.shadow_words import UNWRITTEN, IntArray, Wrong

if TYPE_CHECKING:
    from kvscope.engine.runner import StepInputs
    from kvscope.engine.scheduler import StepPlan

NOBODY = -1  # what `by` holds where nothing was written
_ABSENT = (UNWRITTEN, NOBODY)  # word; writer << 32 | step


def _stream_on(device: str) -> torch.cuda.Stream | None:
    """A stream of its own where there are streams."""
    if torch.device(device).type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event_on(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
    return None if stream is None else torch.cuda.Event()  # type: ignore[no-untyped-call]


class _Asked(NamedTuple):
    """A step whose comparison is queued. `first`: [rows] first wrong position or -1, once it is on the host."""

    plan: StepPlan
    first: IntArray
    tables: torch.Tensor
    expected: list[IntArray]
    slots: int


class DeviceWords:
    """Word of every slot, and who wrote it in which step, as tensors on the engine's device.

    Args:
        device, backend: where, and by which kernels (`kernels.check_provenance`).
    """

    def __init__(self, num_blocks: int, block_size: int, *, device: str, backend: str | None = None) -> None:
        self.block_size, self.device, self.backend = block_size, device, backend
        self._stream = _stream_on(device)
        self._index = -1 if self._stream is None else self._stream.device_index  # (a device takes longer to look up)
        self._host: dict[int, list[torch.Tensor]] = {}
        with self._aside():
            self._cells = self._empty(num_blocks)
            self._buffer = torch.zeros((8, 256), dtype=torch.int64, device=device)  # expected words, one row a sequence
        self._row: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        # What the engine made of the step is there; the answer is. Made once: that costs more than to record one.
        self._packed, self._brought = _event_on(self._stream), _event_on(self._stream)
        self._told = False  # `_packed` is of the step to come
        self._waiting: _Asked | None = None
        self._seen: _Asked | None = None  # the step before: freed while the device computes, not while it waits

    def _empty(self, num_blocks: int) -> list[torch.Tensor]:
        shape = (num_blocks, self.block_size)
        return [torch.full(shape, value, dtype=torch.int64, device=self.device) for value in _ABSENT]

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On the stream of the words, where there are streams."""
        if self._stream is None:
            yield
        else:
            with torch.cuda.stream(self._stream):
                yield

    # -- moves ------------------------------------------------------------------------------------------------------

    def copy(self, source: int, target: int, slots: int) -> None:
        """As `SlotWords.copy`."""
        with self._aside():
            for cells, absent in zip(self._cells, _ABSENT, strict=True):
                cells[target, :slots] = cells[source, :slots]
                cells[target, slots:] = absent

    def swap(self, blocks: Sequence[int], slots: Sequence[int], *, out: bool) -> None:
        """As `SlotWords.swap`; the words stay on the device."""
        with self._aside():
            for block, slot in zip(blocks, slots, strict=True):
                if out:
                    self._host[slot] = [cells[block].clone() for cells in self._cells]
                elif slot in self._host:
                    for cells, kept in zip(self._cells, self._host[slot], strict=True):
                        cells[block] = kept

    def resize(self, num_blocks: int) -> None:
        """As `SlotWords.resize`."""
        with self._aside():
            old, self._cells = self._cells, self._empty(num_blocks)
            kept = min(num_blocks, len(old[0]))
            for cells, before in zip(self._cells, old, strict=True):
                cells[:kept] = before[:kept]

    # -- a step -----------------------------------------------------------------------------------------------------

    def packed(self) -> None:
        """The inputs of the next `step` are queued; what the engine queues from now on is not waited for by it."""
        if self._stream is not None and self._packed is not None:
            self._packed.record(torch.cuda.current_stream(self._index))
            self._told = True

    def step(self, plan: StepPlan, inputs: StepInputs, expected: list[IntArray], step: int, window: int) -> None:
        """Write the words of a step and queue the comparison of all that it reads; `fetch` has the answer."""
        self._wait_for(inputs)
        with self._aside():
            of_row = self._write(plan, inputs, expected, step)
            parts = [
                self._check(plan, inputs, of_row, lo, hi, window)
                for lo, hi in ((0, inputs.decodes), (inputs.decodes, len(plan.rows)))
                if lo < hi
            ]
            first = parts[0] if len(parts) == 1 else torch.cat(parts)
            there = self._on_its_way(first)
        self._seen = None
        slots = sum(row.hi - (max(0, row.lo - window + 1) if window else 0) for row in plan.rows)
        self._waiting = _Asked(plan, there, inputs.tables, expected, slots)

    def _on_its_way(self, first: torch.Tensor) -> IntArray:
        """The answer as it will be on the host: its transfer is queued as well, so that `fetch` only looks."""
        if self._brought is None:
            return first.numpy()
        there = torch.empty(first.shape, dtype=first.dtype, pin_memory=True)
        there.copy_(first, non_blocking=True)
        self._brought.record()
        return there.numpy()

    def _wait_for(self, inputs: StepInputs) -> None:
        """What the engine's stream has made of this step is there before ours reads it, and is kept until then."""
        if self._stream is not None:
            if self._told and self._packed is not None:
                self._stream.wait_event(self._packed)
                self._told = False
            else:
                self._stream.wait_stream(torch.cuda.current_stream(self._index))
            for tensor in (inputs.tables, inputs.slots, inputs.seq_lens):
                tensor.record_stream(self._stream)

    def _write(self, plan: StepPlan, inputs: StepInputs, expected: list[IntArray], step: int) -> torch.Tensor:
        """Words of the step's tokens, and what its sequences expect; returns the resident row of each sequence."""
        new = self._new_words(plan, expected)
        seq_ids, places, lo, hi = (np.array(column) for column in zip(
            *((row.seq_id, self._row[row.seq_id], row.lo, row.hi) for row in plan.rows), strict=True))  # fmt: skip
        written = np.concatenate([words[row.lo : row.hi] for words, row in zip(expected, plan.rows, strict=True)])
        by = np.repeat(seq_ids << 32 | step, hi - lo)
        # One array goes over: [new rows, columns, words], a token's word and writer, a sequence's resident row.
        sent = torch.from_numpy(np.concatenate([*new, written, by, places]).astype(np.int64, copy=False))
        if self._stream is not None:  # from pinned memory, or the host would wait for all that is queued before
            sent = sent.pin_memory().to(self.device, non_blocking=True)
        sizes = [len(new[0])] * 3 + [len(by)] * 2 + [len(places)]
        rows, columns, values, words, writers, of_row = torch.split(sent, sizes)
        shadow, by_slot = self._cells
        kernels.write_words(
            shadow, by_slot, inputs.slots, words, writers, self._buffer, rows, columns, values, backend=self.backend
        )
        return of_row

    def _check(
        self, plan: StepPlan, inputs: StepInputs, of_row: torch.Tensor, lo: int, hi: int, window: int
    ) -> torch.Tensor:
        """First wrong positions of the rows [lo, hi) of the step.

        A prefill's first query sees `window` positions, its last one so many more as the chunk is long: of several
        rows the shortest chunk counts, so that no entry behind a window is looked at.
        """
        seen = window + min(row.hi - row.lo for row in plan.rows[lo:hi]) - 1 if window else 0
        width = min(self._buffer.shape[1], inputs.tables.shape[1] * self.block_size)
        return kernels.check_provenance(
            self._cells[0], inputs.tables[lo:hi], inputs.seq_lens[lo:hi], self._buffer[:, :width], window=seen,
            rows=of_row[lo:hi], backend=self.backend,
        )  # fmt: skip

    def fetch(self) -> tuple[int, list[Wrong]]:
        """(slots compared, what is wrong) of the last step; waits for the device."""
        if self._waiting is None:
            return 0, []
        asked, self._waiting = self._waiting, None
        self._seen = asked
        if self._brought is not None:
            self._brought.synchronize()
        wrong: list[Wrong] = []
        if asked.first.tobytes() == b"\xff" * asked.first.nbytes:  # -1 everywhere; the device waits meanwhile
            return asked.slots, wrong
        for i in np.flatnonzero(asked.first >= 0).tolist():
            position, row = int(asked.first[i]), asked.plan.rows[i]
            with self._aside():
                block = int(asked.tables[i, position // self.block_size])
                offset = position % self.block_size
                word, by = (int(cells[block, offset]) for cells in self._cells)
            writer, step = (-1, -1) if by == NOBODY else (by >> 32, by & 0xFFFFFFFF)
            slot = block * self.block_size + offset
            wrong.append(Wrong(row.seq_id, position, slot, int(asked.expected[i][position]), word, writer, step, 1))
        return asked.slots, wrong

    def _new_words(self, plan: StepPlan, expected: list[IntArray]) -> tuple[IntArray, IntArray, IntArray]:
        """Resident row, position and word of what the device does not have yet; it counts as sent."""
        self._reserve(plan, max(len(words) for words in expected))
        found: list[tuple[int, int, int, IntArray]] = []
        for row, words in zip(plan.rows, expected, strict=True):
            place, sent = self._row[row.seq_id], self._sent[row.seq_id]
            if sent < row.hi:
                found.append((place, sent, row.hi, words[sent : row.hi]))
                self._sent[row.seq_id] = row.hi
        none = np.empty(0, dtype=np.int64)
        if not found:
            return none, none, none
        places, low, high, words_of = zip(*found, strict=True)
        counts = np.array(high) - np.array(low)
        columns = np.arange(counts.sum()) + np.repeat(np.array(low) - np.cumsum(counts) + counts, counts)
        return np.repeat(places, counts), columns, np.concatenate(words_of)

    def _reserve(self, plan: StepPlan, width: int) -> None:
        """A row for every sequence of the plan; those of others are taken when there are too many."""
        wanted = [row.seq_id for row in plan.rows if row.seq_id not in self._row]
        if len(self._row) + len(wanted) > len(self._buffer):
            keep = {row.seq_id for row in plan.rows}
            for seq_id in [s for s in self._row if s not in keep]:
                del self._row[seq_id], self._sent[seq_id]
        rows, columns = self._buffer.shape
        more_rows, more_columns = max(rows, 2 * len(plan.rows)), columns if width <= columns else 2 * width
        if (more_rows, more_columns) != (rows, columns):
            old, self._buffer = self._buffer, self._buffer.new_zeros((more_rows, more_columns))
            self._buffer[:rows, :columns] = old
        free = iter(sorted(set(range(len(self._buffer))) - set(self._row.values())))
        for seq_id in wanted:
            self._row[seq_id], self._sent[seq_id] = next(free), 0
