"""What the comparison of reads keeps: a foreign read, what damage reached a sequence, where each position lies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvscope.inspector.source import IntArray

if TYPE_CHECKING:
    from kvscope.inspector.landing import Issued

NEVER = -1  # no write: nothing was written here, as far as the trace tells
MOST_POSITIONS = 1 << 24  # of a sequence: what an event says of a table's entry behind them is not followed
OTHER_PREFIX = -2  # what a hit on another prefix than its own counts on: no write of this trace
GIVEN_BACK = -2  # a slot, not a write: the position's block was given back, and the table has no other for it
NOWHERE = -3  # the same of what was written to a block that there is not
UNKNOWN = -3  # which write it is, or should be, lies in a part of the trace that is missing: nothing can be said


@dataclass(frozen=True, slots=True)
class Foreign:
    """The first position of a step that held another write than its sequence counts on. Rows, not seqs."""

    row: int  # of the SCHED event
    position: int
    slot: int  # physical slot over the whole pool; below 0 where the position lies in no block any more
    found: int  # row of the WRITE whose bytes are there, or NEVER
    expected: int  # row of the WRITE that should be there, NEVER or OTHER_PREFIX
    count: int  # positions of the step that are wrong
    writer: tuple[int, int] | None = None  # sequence and step of what is there, where no WRITE tells of it


@dataclass(slots=True, eq=False)
class StepRead:
    """What one sequence read in a step: position by position from `lo` on."""

    row: int  # of the SCHED event
    seq_id: int
    lo: int
    table_from: int  # the first position that its table has
    slots: IntArray
    counts_on: IntArray
    writes: list[Issued]  # that land with the step
    found: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    wrong: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    odd: dict[int, int] | None = None  # logical block -> where the worker's row has it instead; None: nobody knows
    told: Foreign | None = None  # what a checker beside the tensors found

    @property
    def first_wrong(self) -> Foreign:
        """The first position at which it found another write than it counted on; there is one."""
        at = int(np.argmax(self.wrong))
        return Foreign(self.row, self.lo + at, int(self.slots[at]), int(self.found[at]), int(self.counts_on[at]),
                       int(self.wrong.sum()))  # fmt: skip


@dataclass(slots=True)
class Damage:
    """What reached one sequence."""

    seq_id: int
    first: Foreign | None = None  # the first step that read foreign KV itself
    first_row: int = -1  # the first tainted step, whether by itself or through another sequence's tainted KV
    through: int = -1  # the sequence whose tainted KV came first, -1 where the first one is its own reading
    steps: list[int] = field(default_factory=list)  # rows of all tainted SCHED events
    read: dict[int, Foreign] = field(default_factory=dict)  # of these, the ones that read foreign KV themselves
    handed: dict[int, int] = field(default_factory=dict)  # tainted SCHED row -> whose tainted KV it read first


@dataclass
class Reads:
    """The reads of a whole trace."""

    damage: dict[int, Damage]  # by sequence, only the damaged
    steps: dict[int, int]  # steps by sequence
    slots: int  # slots that were compared
    lost: bool  # whether events are missing, and only what is known after them was compared
    # SCHED row -> the slots, over the whole pool, where it read foreign KV; none where it read tainted KV.
    wrong: dict[int, IntArray] = field(default_factory=dict)
    other_rows: dict[int, list[int]] = field(default_factory=dict)  # sequence -> SCHED rows through tables nobody knows

    def of(self, seq_ids: list[int]) -> list[Damage]:
        """The damage of these sequences, earliest first."""
        return sorted((self.damage[s] for s in seq_ids if s in self.damage), key=lambda d: d.first_row)


class Table:
    """One sequence: where each position lies, and which write it counts on there."""

    def __init__(self, counts_on: int = NEVER) -> None:
        self.slots: IntArray = np.full(64, -1, dtype=np.int64)
        self.counts_on: IntArray = np.full(64, counts_on, dtype=np.int64)
        self.entries: dict[int, tuple[int, int]] = {}  # logical block -> block, life
        self.issued_to = 0  # positions below are written, or will be by a step
        self.inherited = False  # a fork's, of which no event has said a word
        self._counts_on = counts_on  # where nothing was said

    def copy(self) -> Table:
        """The table of a fork: all that its parent has, unless events name what it takes."""
        made = Table(self._counts_on)
        made.slots, made.counts_on, made.entries = self.slots.copy(), self.counts_on.copy(), dict(self.entries)
        made.issued_to, made.inherited = self.issued_to, True
        return made

    def named(self) -> None:
        """An event names an entry of it: it has those that are named."""
        if self.inherited:
            self.inherited, self.issued_to = False, 0
            self.slots[:] = -1
            self.entries.clear()

    def reserve(self, end: int) -> None:
        if end > len(self.slots):
            more = max(end, 2 * len(self.slots)) - len(self.slots)
            self.slots = np.concatenate([self.slots, np.full(more, -1, dtype=np.int64)])
            self.counts_on = np.concatenate([self.counts_on, np.full(more, self._counts_on, dtype=np.int64)])


@dataclass(slots=True)
class Early:
    """A block that was published with slots that its publisher had yet to write, and who has hit it since."""

    seq_id: int
    lblock: int
    hits: list[tuple[Table, slice]] = field(default_factory=list)
