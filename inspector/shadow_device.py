"""Shadow words on a GPU: written, copied and compared there; the host sees one number per sequence and step.

The words that sequences expect lie on the device too, a row per sequence, and only new ones are sent. Rows of the
check are these resident rows: tables and lengths of a step are scattered into their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvscope import kernels
from kvscope.inspector.shadow_words import UNWRITTEN, IntArray, Wrong

if TYPE_CHECKING:
    from kvscope.engine.runner import StepInputs
    from kvscope.engine.scheduler import StepPlan

_ABSENT = (UNWRITTEN, -1, -1)  # word, writer, step


class DeviceWords:
    """Word, writer and step of every slot, as tensors on the engine's device.

    Args:
        device, backend: where, and by which kernels (`kernels.check_provenance`).
    """

    def __init__(self, num_blocks: int, block_size: int, *, device: str, backend: str | None = None) -> None:
        self.block_size, self.device, self.backend = block_size, device, backend
        self._cells = self._empty(num_blocks)
        self._host: dict[int, list[torch.Tensor]] = {}
        self._buffer = torch.zeros((8, 256), dtype=torch.int64, device=device)  # expected words, a row per sequence
        self._row: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._waiting: tuple[StepPlan, torch.Tensor, torch.Tensor, list[IntArray], int] | None = None

    def _empty(self, num_blocks: int) -> list[torch.Tensor]:
        shape = (num_blocks, self.block_size)
        return [torch.full(shape, value, dtype=torch.int64, device=self.device) for value in _ABSENT]

    # -- moves ------------------------------------------------------------------------------------------------------

    def copy(self, source: int, target: int, slots: int) -> None:
        """As `SlotWords.copy`."""
        for cells, absent in zip(self._cells, _ABSENT, strict=True):
            cells[target, :slots] = cells[source, :slots]
            cells[target, slots:] = absent

    def swap(self, blocks: Sequence[int], slots: Sequence[int], *, out: bool) -> None:
        """As `SlotWords.swap`; the words stay on the device."""
        for block, slot in zip(blocks, slots, strict=True):
            if out:
                self._host[slot] = [cells[block].clone() for cells in self._cells]
            elif slot in self._host:
                for cells, kept in zip(self._cells, self._host[slot], strict=True):
                    cells[block] = kept

    def resize(self, num_blocks: int) -> None:
        """As `SlotWords.resize`."""
        old, self._cells = self._cells, self._empty(num_blocks)
        kept = min(num_blocks, len(old[0]))
        for cells, before in zip(self._cells, old, strict=True):
            cells[:kept] = before[:kept]

    # -- a step -----------------------------------------------------------------------------------------------------

    def step(self, plan: StepPlan, inputs: StepInputs, expected: list[IntArray], step: int, window: int) -> None:
        """Write the words of a step and queue the comparison of all that it reads; `fetch` has the answer."""
        order = self._rows(plan, expected)
        counts = [row.hi - row.lo for row in plan.rows]
        of_row = np.repeat(order, counts)
        rows = torch.as_tensor(of_row, device=self.device)
        words, writers, steps = (cells.view(-1) for cells in self._cells)
        words[inputs.slots] = self._buffer[rows, inputs.positions]
        writers[inputs.slots] = torch.as_tensor(
            np.repeat([row.seq_id for row in plan.rows], counts), dtype=torch.int64, device=self.device
        )
        steps[inputs.slots] = step
        first = torch.full((len(self._buffer),), -1, dtype=torch.int32, device=self.device)
        for lo, hi in ((0, inputs.decodes), (inputs.decodes, len(plan.rows))):
            if lo < hi:
                part = self._check(plan, inputs, order, lo, hi, window)
                first = torch.maximum(first, part)
        places = torch.as_tensor(order, device=self.device)
        self._waiting = (plan, first[places], inputs.tables, expected, window)

    def _check(
        self, plan: StepPlan, inputs: StepInputs, order: IntArray, lo: int, hi: int, window: int
    ) -> torch.Tensor:
        """First wrong positions by resident row, for the rows [lo, hi) of the step.

        A prefill's first query sees `window` positions, its last one so many more as the chunk is long: of several
        rows the shortest chunk counts, so that no entry behind a window is looked at.
        """
        places = torch.as_tensor(order[lo:hi], device=self.device)
        tables = inputs.tables.new_zeros((len(self._buffer), inputs.tables.shape[1]))
        lengths = inputs.seq_lens.new_zeros(len(self._buffer))
        tables[places], lengths[places] = inputs.tables[lo:hi], inputs.seq_lens[lo:hi]
        seen = window + min(row.hi - row.lo for row in plan.rows[lo:hi]) - 1 if window else 0
        width = min(self._buffer.shape[1], inputs.tables.shape[1] * self.block_size)
        return kernels.check_provenance(
            self._cells[0], tables, lengths, self._buffer[:, :width], window=seen, backend=self.backend
        )

    def fetch(self) -> tuple[int, list[Wrong]]:
        """(slots compared, what is wrong) of the last step; waits for the device."""
        if self._waiting is None:
            return 0, []
        plan, first, tables, expected, window = self._waiting
        self._waiting = None
        slots = sum(row.hi - (max(0, row.lo - window + 1) if window else 0) for row in plan.rows)
        wrong = []
        for i, position in enumerate(first.tolist()):
            if position >= 0:
                row = plan.rows[i]
                block = int(tables[i, position // self.block_size])
                offset = position % self.block_size
                word, writer, step = (int(cells[block, offset]) for cells in self._cells)
                slot = block * self.block_size + offset
                want = int(expected[i][position])
                wrong.append(Wrong(row.seq_id, position, slot, want, word, writer, step, 1))
        return slots, wrong

    def _rows(self, plan: StepPlan, expected: list[IntArray]) -> IntArray:
        """The resident row of every row of the plan, with its new words sent."""
        self._reserve(plan, max(len(words) for words in expected))
        order, rows, columns, values = [], [], [], []
        for row, words in zip(plan.rows, expected, strict=True):
            place, sent = self._row[row.seq_id], self._sent[row.seq_id]
            order.append(place)
            if sent < row.hi:
                rows.append(np.full(row.hi - sent, place))
                columns.append(np.arange(sent, row.hi))
                values.append(words[sent : row.hi])
                self._sent[row.seq_id] = row.hi
        if rows:
            new = torch.as_tensor(np.stack([np.concatenate(x) for x in (rows, columns, values)]), device=self.device)
            self._buffer[new[0], new[1]] = new[2]
        return np.array(order, dtype=np.int64)

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
