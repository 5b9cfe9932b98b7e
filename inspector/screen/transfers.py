"""Leases and the host tier: each lease ends on the life it began on, what moves is leased, slots are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvscope.inspector.screen.columns import Chunk
from kvscope.inspector.source import IntArray
from kvscope.traces.schema import Kind

_LEASE, _UNLEASE, _OUT, _IN, _WITNESS, _STEP_END = (
    int(kind) for kind in (
        Kind.LEASE, Kind.UNLEASE, Kind.SWAP_OUT, Kind.SWAP_IN, Kind.WITNESS, Kind.STEP_END,
    )
)  # fmt: skip
_LEAVES = (Kind.ADMIT, Kind.RESUME, Kind.FORK, Kind.FINISH, Kind.ABORT)  # a sequence is not parked any more
_SWAPS = (Kind.SWAP_OUT, Kind.SWAP_IN)
HOST_USED = 8  # in the details of a WITNESS


class LastSteps(Protocol):
    """By sequence, the last step that it was in; -1 for none."""

    def __getitem__(self, seq_id: int, /) -> Any: ...


class Steps(NamedTuple):
    """Per chunk row, how many steps have begun and ended; per sequence, the last one that it was in before."""

    begun: IntArray
    ended: IntArray
    last: LastSteps


class Transfers:
    """What is leased and what is in the host tier between two chunks.

    Row by row: next to the rows of steps there are few. `held`: (lease id, block) -> life.
    """

    def __init__(self) -> None:
        self.held: dict[tuple[int, int], int] = {}
        self._swaps = False  # there ever was one
        self._used: Counter[int] = Counter()  # holders of each host slot
        self._parked: dict[int, dict[int, int]] = {}  # sequence -> logical block -> slot
        self._coming: dict[int, dict[int, int]] = {}  # the same of those that have left the host tier last
        self._moving: dict[int, set[int]] = {}  # lease -> slots
        self._arriving: list[tuple[int, int]] = []  # (sequence, lease) of blocks that are being filled from a slot

    def check(self, chunk: Chunk, suspects: dict[str, IntArray], steps: Steps) -> None:
        """Add suspicious rows."""
        self._swaps |= any(chunk.present[kind] for kind in _SWAPS)
        if not self._swaps:
            rows = chunk.rows(Kind.LEASE, Kind.UNLEASE)
            self._unswapped(chunk, suspects)
        else:
            rows = chunk.rows(Kind.LEASE, Kind.UNLEASE, *_SWAPS, *_LEAVES, Kind.WITNESS, Kind.STEP_END)
        told = self._told(chunk) if self._swaps else {}
        bad = []
        columns = (rows, chunk.kind[rows], chunk.aux[rows], chunk.block[rows], chunk.at("gen", rows),
                   chunk.seq_id[rows], chunk.lblock[rows])  # fmt: skip
        for row, kind, aux, block, gen, seq_id, lblock in zip(*(c.tolist() for c in columns), strict=True):
            if kind == _LEASE:
                sound = (aux, block) not in self.held
                self.held[aux, block] = gen
            elif kind == _UNLEASE:
                sound = self.held.pop((aux, block), None) == gen
                self._landed(aux)
            elif kind in (_OUT, _IN):
                lease = told.get(row, -1)
                sound = lease < 0 or (lease, block) in self.held
                sound &= kind == _OUT or seq_id not in self._coming or self._coming[seq_id].get(lblock) == aux
                self._moves(kind, seq_id, lblock, aux, lease)
            elif kind == _WITNESS:
                sound = told.get(row, -1) < 0 or told[row] == len(self._used)
            elif kind == _STEP_END:
                sound = not self._arriving or not self._read_early(chunk, row, steps)
            else:
                sound = True
                self._leaves(seq_id)
            if not sound:
                bad.append(row)
        if bad:
            suspects["transfers"] = np.asarray(bad, dtype=np.int64)

    @staticmethod
    def _unswapped(chunk: Chunk, suspects: dict[str, IntArray]) -> None:
        """No pool counts host slots that nothing was ever put into."""
        rows, detail = chunk.detail(Kind.WITNESS)
        whole = detail.at >= 0
        counts = detail.values[detail.at[whole], HOST_USED] > 0
        if counts.any():
            suspects["host slots"] = rows[whole][counts]

    @staticmethod
    def _told(chunk: Chunk) -> dict[int, int]:
        """By row: the lease of a swap, the slots in use that a WITNESS tells."""
        out: dict[int, int] = {}
        for kind, column in ((Kind.SWAP_OUT, 1), (Kind.SWAP_IN, 1), (Kind.WITNESS, HOST_USED)):
            rows, detail = chunk.detail(kind)
            whole = detail.at >= 0
            out.update(zip(rows[whole].tolist(), detail.values[detail.at[whole], column].tolist(), strict=True))
        return out

    def _moves(self, kind: int, seq_id: int, lblock: int, slot: int, lease: int) -> None:
        if kind == _OUT:
            parked = self._parked.setdefault(seq_id, {})
            self._used[slot] += slot not in parked.values()
            parked[lblock] = slot
        else:
            self._arriving.append((seq_id, lease))
        if kind == _IN or lease >= 0:
            self._hold(self._moving.setdefault(lease, set()), slot)

    def _leaves(self, seq_id: int) -> None:
        """The sequence is back on the device, or has ended."""
        self._coming.pop(seq_id, None)
        if seq_id in self._parked:
            self._coming[seq_id] = self._parked.pop(seq_id)
            self._drop(set(self._coming[seq_id].values()))

    def _landed(self, lease: int) -> None:
        slots = self._moving.pop(lease, None)
        if slots is not None:
            self._drop(slots)
            self._arriving = [arrival for arrival in self._arriving if arrival[1] != lease]

    def _hold(self, holder: set[int], slot: int) -> None:
        if slot not in holder:
            holder.add(slot)
            self._used[slot] += 1

    def _drop(self, slots: set[int]) -> None:
        for slot in slots:
            self._used[slot] -= 1
            if not self._used[slot]:
                del self._used[slot]

    def _read_early(self, chunk: Chunk, row: int, steps: Steps) -> bool:
        """Whether the step that ends here read for a sequence whose blocks are still on their way in."""
        scheds = chunk.rows(Kind.SCHED)
        scheds = scheds[: int(scheds.searchsorted(row))]
        for seq_id in {seq_id for seq_id, _ in self._arriving}:
            mine = scheds[chunk.seq_id[scheds] == seq_id]
            last = int(steps.begun[mine[-1]]) - 1 if len(mine) else int(steps.last[seq_id])
            if last == steps.ended[row] - 1:
                return True
        return False


__all__ = ["HOST_USED", "Steps", "Transfers"]
