"""The rows of a step, as columns where a whole batch advances by one token each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy.typing as npt

from kvscope.engine.free_list import IntArray
from kvscope.engine.steps import Scheduled, Write

if TYPE_CHECKING:
    from kvscope.engine.lane import Lane


@dataclass(slots=True, eq=False)
class Decodes(Sequence[Scheduled]):
    """What a batch of appends is to a step: a position for each sequence. Reads as the `Scheduled` it stands for.

    The arrays are not written to any more.
    """

    lane: Lane
    nth: int  # of the tokens that each row of the lane took
    lo: IntArray  # the positions
    lblocks: IntArray  # where they lie
    blocks: IntArray
    gens: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.lane.ids)

    def __iter__(self) -> Iterator[Scheduled]:
        return (Scheduled(seq_id, lo, lo + 1) for seq_id, lo in zip(self.lane.ids, self.lo.tolist(), strict=True))

    @overload
    def __getitem__(self, index: int) -> Scheduled: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scheduled]: ...
    def __getitem__(self, index: int | slice) -> Scheduled | list[Scheduled]:
        if isinstance(index, slice):
            return list(self)[index]
        lo = int(self.lo[index])
        return Scheduled(self.lane.ids[index], lo, lo + 1)

    @property
    def seq_ids(self) -> list[int]:
        """The sequences, in order."""
        return self.lane.ids

    def writes(self) -> list[Write]:
        """The writes that they are, one by one."""
        columns = (self.lblocks.tolist(), self.blocks.tolist(), self.gens.tolist(), (self.lo + 1).tolist())
        return list(zip(self.lane.ids, *columns, strict=True))

    @property
    def latest(self) -> bool:
        """Whether the lane is whole and has taken no token since."""
        return self.lane.intact and self.nth == self.lane.count

    def stands_for(self, rows: Sequence[Scheduled]) -> bool:
        """Whether it is these rows."""
        return (
            [row.seq_id for row in rows] == self.lane.ids
            and [row.lo for row in rows] == (lo := self.lo.tolist())
            and [row.hi - 1 for row in rows] == lo
        )


class StepRows(Sequence[Scheduled]):
    """The rows of one step: those of a batch of appends, if there is one, then others."""

    def __init__(self) -> None:
        self.decodes: Decodes | None = None
        self.others: list[Scheduled] = []

    def add(self, rows: Sequence[Scheduled]) -> None:
        """More rows, behind those that are there."""
        if isinstance(rows, Decodes) and not len(self):
            self.decodes = rows
        else:
            self.others += rows

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.others) + (0 if self.decodes is None else len(self.decodes))

    def __iter__(self) -> Iterator[Scheduled]:
        return iter(self.others) if self.decodes is None else chain(self.decodes, self.others)

    @overload
    def __getitem__(self, index: int) -> Scheduled: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scheduled]: ...
    def __getitem__(self, index: int | slice) -> Scheduled | list[Scheduled]:
        batch = 0 if self.decodes is None else len(self.decodes)
        if self.decodes is None or (isinstance(index, int) and index >= batch):
            return self.others[index] if isinstance(index, slice) else self.others[index - batch]
        return self.decodes[index] if isinstance(index, int) and index >= 0 else list(self)[index]
