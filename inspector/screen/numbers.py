"""The rules of numbers: reserved blocks, counters that cannot be, limits that were promised. No state of blocks."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.limits import Limits
from kvscope.inspector.screen.columns import Chunk
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import Kind

_HIT = np.uint8(Kind.HIT)
_FIRST = np.zeros(1, dtype=np.int64)


class Numbers:
    """What is known between two chunks: the steps that are open, and the number of the last one begun."""

    def __init__(self, block_size: int) -> None:
        self.block_size, self.limits = block_size, Limits()
        self._open = np.empty((0, 3), dtype=np.int64)  # sequences told, rows, tokens of the steps that have not ended
        self._step = -1

    def check(self, chunk: Chunk, suspects: dict[str, IntArray], begun: IntArray, ended: IntArray) -> None:
        """Add suspicious rows.

        Args:
            begun, ended: per chunk row, steps so far.
        """
        found = {
            "steps": self._steps(chunk, begun, ended),
            "admitted": self._admitted(chunk),
            "limits": self._beyond(chunk),
        }
        checks = chunk.rows(Kind.CHECK)
        if len(checks):
            wrong = chunk.at("fill", checks)
            found["check"] = checks[(wrong > chunk.aux[checks]) & (chunk.aux[checks] >= 0)]
        if self.limits.reserved:
            found["reserved block"] = np.flatnonzero(np.isin(chunk.block, list(self.limits.reserved)))
        suspects.update({rule: rows for rule, rows in found.items() if len(rows)})

    def _steps(self, chunk: Chunk, begun: IntArray, ended: IntArray) -> IntArray:
        """Steps are counted upwards, and have as many sequences and tokens as they say."""
        begins, ends, scheds = (chunk.rows(kind) for kind in (Kind.STEP_BEGIN, Kind.STEP_END, Kind.SCHED))
        numbers = chunk.at("step", begins).tolist()
        back = [at for at, was, now in zip(begins, [self._step, *numbers], numbers, strict=False) if now < was]
        self._step = numbers[-1] if numbers else self._step
        cuts = np.concatenate([_FIRST, scheds.searchsorted(begins), [len(scheds)]])  # where each step's rows begin
        outside = self._outside(chunk, begins, ends[ended[ends] >= begun[ends]], scheds, int(cuts[1]))
        if len(outside):
            return outside
        have = len(self._open)
        steps = np.zeros((have + len(begins), 3), dtype=np.int64)
        steps[:have], steps[have:, 0] = self._open, chunk.aux[begins]
        total = np.concatenate([_FIRST, np.maximum(chunk.at("fill", scheds), 0).cumsum(dtype=np.int64)])
        first = 0 if have else 1  # the rows before the chunk's first step belong to the last one before it
        steps[have - 1 + first :, 1] += (cuts[1:] - cuts[:-1])[first:]
        steps[have - 1 + first :, 2] += (total[cuts[1:]] - total[cuts[:-1]])[first:]
        over = steps[: len(ends)]
        ends, tokens = ends[: len(over)], chunk.aux[ends[: len(over)]]
        wrong = (over[:, 0] > 0) & (over[:, 0] != over[:, 1]) | (tokens > 0) & (tokens != over[:, 2])
        self._open = steps[len(ends) :]
        return np.concatenate([np.asarray(back, dtype=np.int64), ends[wrong & (over[:, 1] > 0)]])

    def _outside(self, chunk: Chunk, begins: IntArray, closing: IntArray, scheds: IntArray, before: int) -> IntArray:
        """SCHED rows while no step is open.

        Args:
            closing: the ends after which none is. before: SCHED rows before the chunk's first step.
        """
        if not len(self._open) and before:
            return scheds[:1]
        following = begins.searchsorted(closing)
        until = np.append(begins, chunk.length)[following]
        lo, hi = scheds.searchsorted(closing), scheds.searchsorted(until)
        return scheds[lo[lo < hi]]

    def _admitted(self, chunk: Chunk) -> IntArray:
        """No more tokens are counted as cached than the hits behind the admission hold."""
        rows = chunk.rows(Kind.ADMIT)
        rows = rows[chunk.aux[rows] > 0]
        if not len(rows):
            return rows
        hits = chunk.rows(Kind.HIT)
        last = np.diff(hits, append=-1) != 1  # of its run
        end = np.append(hits[last] + 1, chunk.length + 1)
        until = end[np.searchsorted(end, rows + 2)]  # behind the first run of hits behind the row
        behind = rows + 1 < chunk.length
        behind[behind] = chunk.kind[rows[behind] + 1] == _HIT
        return rows[chunk.aux[rows] > np.where(behind, until - rows - 1, 0) * self.block_size]

    def _beyond(self, chunk: Chunk) -> IntArray:
        """Nothing is larger than what was promised."""
        limits, none = self.limits, np.empty(0, dtype=np.int64)
        begins = chunk.rows(Kind.STEP_BEGIN) if limits.max_seqs else none
        ends = chunk.rows(Kind.STEP_END) if limits.max_batched_tokens else none
        scheds = chunk.rows(Kind.SCHED) if limits.max_model_len else none
        return np.concatenate([
            begins[chunk.aux[begins] > limits.max_seqs], ends[chunk.aux[ends] > limits.max_batched_tokens],
            scheds[chunk.aux[scheds] >> 32 > limits.max_model_len],
        ])  # fmt: skip
