"""The injector's own record of the device: which prefix lies in each slot, by whose write, and who read what is wrong.

It is told what the device is ordered to do, and knows nothing of events, words or tables of the trace, so that what is
found in a trace can be held against it. Plain dictionaries: it is made to be read, not to be fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Prefix = tuple[object, ...]


class Cell(NamedTuple):
    """What a slot holds: whose write, in which step, of which prefix."""

    seq_id: int
    step: int
    prefix: Prefix
    tainted: bool = False  # computed in a step that had read what is wrong


class Row(NamedTuple):
    """What a step does for one sequence: it computes positions [lo, hi) and attends to [first, hi).

    writes: (position, slot) pairs, slots over the whole pool; reads: the slot of each position from `first` on, below
    0 where there is none. prefixes: of the positions [0, len(tokens)).
    """

    seq_id: int
    lo: int
    hi: int
    first: int
    writes: Sequence[tuple[int, int]]
    reads: Sequence[int]
    prefixes: Sequence[Prefix]
    prompt: int  # tokens


@dataclass(frozen=True, slots=True)
class FirstWrong:
    """The first step of a sequence that read another prefix than its own."""

    seq_id: int
    step: int
    position: int
    block: int
    slot: int
    found: Cell | None  # None: nothing was ever written there
    token: int | None  # the output token that came out of that step, from 0; None: a part of the prompt


@dataclass(slots=True)
class Harm:
    """What wrong KV did to one sequence: every step that read it, or what such a step wrote."""

    seq_id: int
    steps: list[tuple[int, int, int]] = field(default_factory=list)  # step, positions [lo, hi) that it computed
    tokens: dict[int, int] = field(
        default_factory=dict
    )  # output token (from 0) -> its step: all from the first wrong one on
    through: int = -1  # whose tainted KV the first of these steps read; -1: it read a wrong prefix itself


class DeviceTruth:
    """Every slot of a device as it is ordered to fill it.

    Attributes:
        first: by sequence, its first reading of another prefix than its own.
        harm: by sequence, all that came of it, through other sequences too.
        ran: the steps that the device has run; a broken manager may stop before one that it began.
    """

    def __init__(self, block_size: int) -> None:
        self.size = block_size
        self.slots: dict[int, Cell] = {}
        self.host: dict[int, dict[int, Cell]] = {}
        self.first: dict[int, FirstWrong] = {}
        self.harm: dict[int, Harm] = {}
        self.ran: set[int] = set()
        self._reached: dict[int, int] = {}  # positions that steps have computed, by sequence
        self._prompts: dict[int, int] = {}
        self._born: dict[int, dict[int, int]] = {}  # tainted tokens that a fork has from its parent

    def copy(self, source: int, target: int, slots: int) -> None:
        """The first `slots` slots of a block are copied; the target's others stay."""
        for slot in range(slots):
            self.slots.pop(target * self.size + slot, None)
            if (cell := self.slots.get(source * self.size + slot)) is not None:
                self.slots[target * self.size + slot] = cell

    def swap(self, blocks: Iterable[int], slots: Iterable[int], *, out: bool) -> None:
        """Blocks go to slots of the host, or come back."""
        for block, slot in zip(blocks, slots, strict=True):
            places = range(block * self.size, (block + 1) * self.size)
            if out:
                self.host[slot] = {p - places.start: self.slots[p] for p in places if p in self.slots}
                continue
            for place in places:
                self.slots.pop(place, None)
            self.slots |= {places.start + offset: cell for offset, cell in self.host.get(slot, {}).items()}

    def resize(self, num_blocks: int) -> None:
        """Blocks 0..num_blocks - 1 exist from now on."""
        self.slots = {slot: cell for slot, cell in self.slots.items() if slot < num_blocks * self.size}

    def fork(self, parent: int, child: int) -> None:
        """The child has what its parent has, and its parent's tokens are its own."""
        self._reached[child] = self._reached.get(parent, 0)
        self._born[child] = dict(self.harm[parent].tokens if parent in self.harm else {})
        if self._born[child]:
            self.harm[child] = Harm(child, [], self._born[child], parent)

    def cut(self, seq_id: int, length: int) -> None:
        """The sequence is rolled back to its first `length` tokens; what it says from there on it says anew."""
        self._reached[seq_id] = min(self._reached.get(seq_id, 0), length)
        last = length - self._prompts.get(seq_id, 0)
        for tokens in (self._born.get(seq_id, {}), self.harm[seq_id].tokens if seq_id in self.harm else {}):
            for token in [token for token in tokens if token > last]:
                del tokens[token]
        if seq_id in self.harm and not (self.harm[seq_id].steps or self.harm[seq_id].tokens):
            del self.harm[seq_id]

    def step(self, number: int, rows: Sequence[Row]) -> None:
        """One step: the KV of all rows lands, then each attends to its own, and a token comes out of it."""
        self.ran.add(number)
        for row in rows:
            for position, slot in row.writes:
                self.slots[slot] = Cell(row.seq_id, number, row.prefixes[position])
        wrong = {i for i, row in enumerate(rows) if self._reads_wrong(number, row)}
        through = {}
        tainted, known = set(wrong), -1
        self._taint(rows, wrong)
        while len(tainted) > known:  # layer by layer all rows of a step read each other's
            known = len(tainted)
            for i, row in enumerate(rows):
                writer = self._tainted_by(row)
                if i not in tainted and writer is not None:
                    tainted.add(i)
                    through[i] = writer
                    self._taint(rows, {i})
        for i, row in enumerate(rows):
            token = self._token(row)
            if i in tainted:
                self._hurt(number, row, token, through.get(i, -1))
            elif token is not None and row.seq_id in self.harm and self.harm[row.seq_id].tokens:
                self.harm[row.seq_id].tokens[token] = number  # it goes on from a wrong one
        for row in rows:
            self._reached[row.seq_id] = max(self._reached.get(row.seq_id, 0), row.hi)
            self._prompts[row.seq_id] = row.prompt

    def _reads_wrong(self, number: int, row: Row) -> bool:
        for position, slot in enumerate(row.reads, row.first):
            cell = self.slots.get(slot)
            if cell is not None and position < len(row.prefixes) and cell.prefix == row.prefixes[position]:
                continue
            found = FirstWrong(row.seq_id, number, position, slot // self.size, slot % self.size, cell,
                               self._token(row))  # fmt: skip
            self.first.setdefault(row.seq_id, found)
            return True
        return False

    def _tainted_by(self, row: Row) -> int | None:
        return next((cell.seq_id for slot in row.reads if (cell := self.slots.get(slot)) and cell.tainted), None)

    def _taint(self, rows: Sequence[Row], which: set[int]) -> None:
        for i in which:
            for _, slot in rows[i].writes:
                if self.slots[slot].seq_id == rows[i].seq_id:
                    self.slots[slot] = self.slots[slot]._replace(tainted=True)

    def _token(self, row: Row) -> int | None:
        """The output token that comes out: none of a chunk of the prompt, and of what is computed again."""
        if row.hi <= self._reached.get(row.seq_id, 0) or row.hi < row.prompt:
            return None
        return row.hi - row.prompt

    def _hurt(self, number: int, row: Row, token: int | None, through: int) -> None:
        harm = self.harm.get(row.seq_id)
        if harm is None:
            harm = self.harm[row.seq_id] = Harm(row.seq_id, [], self._born.get(row.seq_id, {}), through)
        harm.steps.append((number, row.lo, row.hi))
        if token is not None:
            harm.tokens[token] = number
