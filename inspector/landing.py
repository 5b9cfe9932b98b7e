"""When what a trace decides reaches the slots. One rule for all who ask who wrote what.

    write      with the step that takes it, the next that schedules its sequence (SCHED); it lands as that step ends.
               A stranger's, whom no step schedules, and one of a sequence that has ended, with the first step that
               begins behind it. It lands in the block that it was issued into, or in the copy that has taken the place
               of that in the table since
    copy       in front of the writes of the first step that begins behind it, and behind those of the steps before; or
               where its end is told earlier (COPY_DONE), then, behind the steps that have begun
    transfer   when the lease under which it moves ends (UNLEASE); where no event says so, at once

So the copies in front of a step land before its writes, however their events are mixed, and what a step writes is there
when it reads. What no step takes lands nowhere: what a sequence has issued when it ends, what lies behind the cut of a
rollback, what is issued into a block that the sequence gives back. Nor does a copy into a block that is given up first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from kvscope.inspector.source import TraceLike
from kvscope.traces.schema import Kind

_BEGUN = (Kind.ADMIT, Kind.RESUME, Kind.FORK, Kind.SCHED)
Life = tuple[int, int]  # block, life


class Issued(NamedTuple):
    """A write: its row, its block, the place of that in the table of its sequence, and the slots [lo, hi) it fills."""

    row: int
    block: int
    lblock: int
    lo: int
    hi: int


Read = TypeVar("Read")


@dataclass(slots=True)
class OpenStep(Generic[Read]):
    """A step that has begun and not ended."""

    number: int
    copies: dict[int, int] = field(default_factory=dict)  # COW rows that run in front of it -> slots moved, -1 for all
    behind: dict[int, int] = field(default_factory=dict)  # those that run behind it
    strays: list[Issued] = field(default_factory=list)  # writes of strangers
    reads: list[Read] = field(default_factory=list)  # what was noted of its sequences


class Order(Generic[Read]):
    """What is decided and has not landed. Fed with the rows of a trace in order, by kind; says what lands when.

    `Read` is what its user notes of a sequence in a step.
    """

    def __init__(self, trace: TraceLike) -> None:
        events, kinds = trace.events, trace.events["kind"]
        self._size = trace.block_size
        done, over = np.flatnonzero(kinds == Kind.COPY_DONE), np.flatnonzero(kinds == Kind.UNLEASE)
        self._runs_told = set(zip(events["block"][done].tolist(), events["gen"][done].tolist(), strict=True))
        self._ends_told = set(zip(events["aux"][over].tolist(), events["block"][over].tolist(), strict=True))
        self._steps_end = bool((kinds == Kind.STEP_END).any())
        self._known = frozenset(events["seq_id"][np.isin(kinds, _BEGUN)].tolist())
        self._issued: dict[int, list[Issued]] = {}  # by sequence
        self._strays: list[Issued] = []
        self._over: set[int] = set()  # sequences that have ended
        self._copies: dict[Life, int] = {}  # target -> row of the COW
        self._begun: dict[Life, tuple[OpenStep[Read], int]] = {}  # those in front of a step that has begun
        self._moves: dict[tuple[int, int], int] = {}  # lease, block -> row of the SWAP_OUT or SWAP_IN
        self.open: deque[OpenStep[Read]] = deque()

    def lose(self) -> None:
        """Events are missing: what was decided may have landed among them."""
        for waiting in (self._issued, self._strays, self._copies, self._begun, self._moves, self.open, self._over):
            waiting.clear()

    # -- writes -------------------------------------------------------------------------------------------------------

    def write(self, seq_id: int, write: Issued) -> None:
        """A WRITE."""
        taken = seq_id in self._known and seq_id not in self._over
        issued = self._issued.setdefault(seq_id, []) if taken else self._strays
        issued.append(write)

    def start(self, seq_id: int) -> None:
        """The sequence begins, or goes on: what it had issued before is not written any more."""
        self._issued.pop(seq_id, None)
        self._over.discard(seq_id)

    def end(self, seq_id: int) -> None:
        """The sequence ends, or gives way: what it has issued is not written any more; no step takes what follows."""
        self._issued.pop(seq_id, None)
        self._over.add(seq_id)

    def cut(self, seq_id: int, length: int) -> None:
        """A rollback of the sequence to its first `length` positions."""
        cut = [w._replace(hi=min(w.hi, length - w.lblock * self._size)) for w in self._issued.get(seq_id, ())]
        self._issued[seq_id] = [write for write in cut if write.lo < write.hi]

    def give_back(self, seq_id: int, block: int, lblock: int) -> None:
        """The sequence releases an entry of its table for good."""
        if seq_id in self._issued:
            entry = block, lblock
            self._issued[seq_id] = [write for write in self._issued[seq_id] if (write.block, write.lblock) != entry]

    # -- copies and transfers -----------------------------------------------------------------------------------------

    def copy(self, row: int, target: Life, seq_id: int, lblock: int, source: int) -> None:
        """A COW, which puts `target` in the place of `source` in a table; what is issued there goes the same way."""
        self._copies[target] = row
        self._issued[seq_id] = [
            write._replace(block=target[0]) if (write.block, write.lblock) == (source, lblock) else write
            for write in self._issued.get(seq_id, ())
        ]

    def copied(self, target: Life, moved: int) -> int:
        """A COPY_DONE, and the slots that were moved: the row of the COW that lands now; below 0 where none does."""
        row = self._copies.pop(target, -1)
        if row >= 0 and self.open:
            self.open[-1].behind[row] = moved
            return -1
        if row < 0 and target in self._begun:
            step, begun = self._begun.pop(target)
            step.copies[begun] = moved
        return row

    def give_up(self, target: Life) -> None:
        """Nobody holds this life of a block any more: a copy into it that waits is not run."""
        if target not in self._runs_told:
            self._copies.pop(target, None)

    def move(self, row: int, lease: int, block: int) -> bool:
        """A SWAP_OUT or SWAP_IN; whether it waits for the end of its lease."""
        if (lease, block) not in self._ends_told:
            return False
        self._moves[lease, block] = row
        return True

    def moved(self, lease: int, block: int) -> int:
        """An UNLEASE: the row of what has moved under it; below 0 for none."""
        return self._moves.pop((lease, block), -1)

    # -- steps --------------------------------------------------------------------------------------------------------

    def begin(self, number: int) -> Iterator[OpenStep[Read]]:
        """A STEP_BEGIN; yields the steps before it, in a trace that does not say when they end."""
        if not self._steps_end:
            yield from self.rest()
        strays, self._strays = self._strays, []
        step: OpenStep[Read] = OpenStep(number, dict.fromkeys(self._copies.values(), -1), strays=strays)
        self._begun |= {life: (step, row) for life, row in self._copies.items()}
        self._copies.clear()
        self.open.append(step)

    def take(self, seq_id: int) -> list[Issued]:
        """A SCHED: the writes that land with its step."""
        return self._issued.pop(seq_id, [])

    def note(self, number: int, read: Read) -> None:
        """What is noted of a SCHED, for the end of its step; one behind lost events has none that began."""
        if not self.open:
            self.open.append(OpenStep(number))
        self.open[-1].reads.append(read)

    def ended(self, number: int) -> Iterator[OpenStep[Read]]:
        """A STEP_END: yields the step, unless that began where events are missing."""
        if self.open and self.open[0].number <= number:
            yield self.open.popleft()

    def rest(self) -> Iterator[OpenStep[Read]]:
        """The steps that are open, oldest first; none is afterwards."""
        while self.open:
            yield self.open.popleft()

    def waiting(self) -> tuple[list[Issued], list[int]]:
        """(writes that no step has taken, rows of copies that have not run), but for those of open steps."""
        issued = [write for each in self._issued.values() for write in each]
        return [*issued, *self._strays], list(self._copies.values())
