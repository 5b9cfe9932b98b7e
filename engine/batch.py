"""The rows of a step, as columns where a whole batch advances by one token each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, overload

from kvscope.engine.free_list import IntArray
from kvscope.engine.steps import Scheduled, Write

if TYPE_CHECKING:
    from kvscope.engine.lane import Lane


class Places(NamedTuple):
    """Where the last slot of each sequence lies."""

    blocks: IntArray
    lives: IntArray  # block and life, as in `BlockArrays.lives`
    lblocks: IntArray


@dataclass(slots=True, eq=False)
class Decodes(Sequence[Scheduled]):
    """What a batch of appends is to a step: a position for each sequence. Reads as the `Scheduled` it stands for.

    The arrays are not written to any more.
    """

    lane: Lane
    ids: list[int]  # the sequences, in order
    members: frozenset[int]
    nth: int  # of the tokens that the lane took
    base: IntArray  # where each sequence would have been before the first of them
    places: Places

    @property
    def ends(self) -> IntArray:
        """Behind the positions."""
        return self.base + self.nth

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Scheduled]:
        return (Scheduled(seq_id, hi - 1, hi) for seq_id, hi in zip(self.ids, self.ends.tolist(), strict=True))

    @overload
    def __getitem__(self, index: int) -> Scheduled: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scheduled]: ...
    def __getitem__(self, index: int | slice) -> Scheduled | list[Scheduled]:
        if isinstance(index, slice):
            return list(self)[index]
        hi = int(self.ends[index])
        return Scheduled(self.ids[index], hi - 1, hi)

    def writes(self) -> list[Write]:
        """The writes that they are, one by one."""
        places = self.places
        blocks, gens, lblocks = (column.tolist() for column in (places.blocks, places.lives >> 32, places.lblocks))
        return list(zip(self.ids, lblocks, blocks, gens, self.ends.tolist(), strict=True))

    @property
    def latest(self) -> bool:
        """Whether the lane has the same rows, all of them, and has taken no token since."""
        lane = self.lane
        return lane.intact and self.nth == lane.count and self.ids is lane.ids

    def stands_for(self, rows: Sequence[Scheduled]) -> bool:
        """Whether it is these rows."""
        return [row.seq_id for row in rows] == self.ids and list(self) == list(rows)


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

    @property
    def decoding(self) -> int:
        """How many of them, in front, are those of a batch of appends."""
        return 0 if self.decodes is None else len(self.decodes)

    def ends(self) -> list[int]:
        """Of each, the position behind those that it computes."""
        ends: list[int] = [] if self.decodes is None else self.decodes.ends.tolist()
        return [*ends, *(row.hi for row in self.others)]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.others) + self.decoding

    def __iter__(self) -> Iterator[Scheduled]:
        return iter(self.others) if self.decodes is None else chain(self.decodes, self.others)

    @overload
    def __getitem__(self, index: int) -> Scheduled: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scheduled]: ...
    def __getitem__(self, index: int | slice) -> Scheduled | list[Scheduled]:
        batch = self.decoding
        if self.decodes is None or (isinstance(index, int) and index >= batch):
            return self.others[index] if isinstance(index, slice) else self.others[index - batch]
        return self.decodes[index] if isinstance(index, int) and index >= 0 else list(self)[index]
