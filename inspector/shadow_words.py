"""Shadow words: beside every slot, which prefix its KV belongs to, who wrote it and when. Numpy alone.

The KV of position p is a function of the tokens 0..p and of the identity of the request, so one word (kernels/prefix)
stands for it. Words are written through the slots that the KV is written through, and move with its copies, swaps and
resizes. `Expected` knows the words that each sequence should find.

What it sees is addressing: a missing copy, a stale table, a use after free, a double allocation, a wrong slot. What it
does not see: a kernel that writes wrong bytes at the right place (`inspector.content` looks at bytes), and two writers
that write the same prefix (the ledger's KV006 reports them).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.engine.prefix import Extras, identity_bytes
from kvscope.kernels.prefix import SEED, next_words, prefix_words

IntArray = npt.NDArray[np.int64]
UNWRITTEN = 0


def identity_seed(extras: Extras) -> int:
    """The word in front of the first token of a request with these extras."""
    if not extras:
        return SEED
    return int.from_bytes(hashlib.blake2b(identity_bytes(extras), digest_size=8).digest(), "little") | 1


class Reading(NamedTuple):
    """What one sequence reads in a step: positions [first, end) through its table."""

    seq_id: int
    table: npt.NDArray[np.integer]  # physical blocks, logical order
    first: int
    end: int


class Wrong(NamedTuple):
    """The first position of a sequence that leads to another prefix than its own."""

    seq_id: int
    position: int
    slot: int  # physical, over the whole pool
    expected: int
    found: int  # UNWRITTEN: nothing was written there
    writer: int  # the sequence that wrote what was found, -1 = nobody
    step: int  # in which step
    positions: int  # of this sequence that are wrong


class SlotWords:
    """Word, writer and step of every slot of a pool, and of the host slots behind it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        # Side by side by kind: a check looks at the words of a block as one row, and seldom at the rest.
        self.words = np.zeros((num_blocks, block_size), dtype=np.int64)
        self.tags = np.full((num_blocks, block_size, 2), -1, dtype=np.int64)  # writer, step
        self._host: dict[int, tuple[IntArray, IntArray]] = {}

    def write(self, slots: IntArray, words: IntArray, writers: IntArray, step: int) -> None:
        """The KV of these slots (distinct, or the last one wins) is written by this step."""
        self.words.reshape(-1)[slots] = words
        tags = self.tags.reshape(-1, 2)
        tags[slots, 0] = writers
        tags[slots, 1] = step

    def copy(self, source: int, target: int, slots: int) -> None:
        """The first `slots` slots of a block are copied; the target's others hold nothing."""
        self.words[target, :slots], self.tags[target, :slots] = self.words[source, :slots], self.tags[source, :slots]
        self.words[target, slots:], self.tags[target, slots:] = UNWRITTEN, -1

    def swap(self, blocks: Sequence[int], slots: Sequence[int], *, out: bool) -> None:
        """Blocks go to slots of the host tier, or come back."""
        for block, slot in zip(blocks, slots, strict=True):
            if out:
                self._host[slot] = self.words[block].copy(), self.tags[block].copy()
            elif slot in self._host:
                self.words[block], self.tags[block] = self._host[slot]

    def resize(self, num_blocks: int) -> None:
        """Blocks 0..num_blocks - 1 exist from now on."""
        words, tags = self.words, self.tags
        self.words = np.zeros((num_blocks, self.block_size), dtype=np.int64)
        self.tags = np.full((num_blocks, self.block_size, 2), -1, dtype=np.int64)
        kept = min(num_blocks, len(words))
        self.words[:kept], self.tags[:kept] = words[:kept], tags[:kept]

    def check(self, readings: Sequence[Reading], expected: Sequence[IntArray]) -> tuple[int, list[Wrong]]:
        """Compare every slot that these sequences read with the words they expect; (slots compared, what is wrong).

        Args:
            expected: per reading the words of its positions [0, end).
        """
        size, compared, out = self.block_size, 0, list[Wrong]()
        for reading, words in zip(readings, expected, strict=True):
            first, end = reading.first, reading.end
            low = first // size
            found = self.words.take(reading.table[low : -(-end // size)], 0).reshape(-1)
            found, wanted = found[first - low * size : end - low * size], words[first:end]
            assert len(found) == len(wanted) == end - first, "a table is shorter than what its sequence reads"
            compared += len(found)
            if found.tobytes() != wanted.tobytes():  # a tenth of what comparing them as numbers costs
                out.append(self._first_wrong(reading, found, wanted))
        return compared, out

    def _first_wrong(self, reading: Reading, found: IntArray, wanted: IntArray) -> Wrong:
        wrong = np.flatnonzero(found != wanted)
        at = int(wrong[0])
        lblock, offset = divmod(reading.first + at, self.block_size)
        block = int(reading.table[lblock])
        writer, step = self.tags[block, offset].tolist()
        return Wrong(
            reading.seq_id, reading.first + at, block * self.block_size + offset, int(wanted[at]), int(found[at]),
            writer, step, len(wrong),
        )  # fmt: skip


class Expected:
    """The words that each living sequence should find, extended token by token."""

    def __init__(self) -> None:
        self._words: dict[int, IntArray] = {}
        self._known: dict[int, int] = {}

    def of(self, seq_id: int, tokens: Sequence[int], end: int, extras: Extras = ()) -> IntArray:
        """The words of positions [0, end) of a sequence with these tokens; only new ones are computed."""
        known, words = self._known.get(seq_id, 0), self._words.get(seq_id)
        if words is None or known > len(tokens):
            words, known = np.empty(max(64, 2 * end), dtype=np.int64), 0
            self._words[seq_id] = words
        if known < end:
            if end > len(words):
                words = np.concatenate([words[:known], np.empty(2 * end - known, dtype=np.int64)])
                self._words[seq_id] = words
            seed = int(words[known - 1]) if known else identity_seed(extras)
            words[known:end] = prefix_words(tokens[known:end], seed)
            self._known[seq_id] = end
        return words[:end]

    def words(self, seq_id: int, end: int) -> IntArray:
        """The words of positions [0, end), which are known."""
        return self._words[seq_id][:end]

    def known(self, seq_id: int) -> int:
        """Positions of a sequence whose words are known already."""
        return self._known.get(seq_id, 0)

    def continue_many(self, seq_ids: Sequence[int], tokens: Sequence[int]) -> None:
        """One more token for each of these sequences, whose words are known up to it."""
        last = np.array([self._words[s][self._known[s] - 1] for s in seq_ids], dtype=np.int64)
        for seq_id, word in zip(seq_ids, next_words(last, tokens).tolist(), strict=True):
            known, words = self._known[seq_id], self._words[seq_id]
            if known == len(words):
                words = self._words[seq_id] = np.concatenate([words, np.empty(known, dtype=np.int64)])
            words[known] = word
            self._known[seq_id] = known + 1

    def forget(self, alive: set[int], *, keep: int = 256) -> None:
        """Sequences that are not among these have ended; the last `keep` of them can still be named as owners."""
        gone = [s for s in self._words if s not in alive]
        for seq_id in gone[: max(0, len(gone) - keep)]:
            del self._words[seq_id], self._known[seq_id]

    def __len__(self) -> int:
        return len(self._words)

    def cut(self, seq_id: int, length: int) -> None:
        """The sequence was rolled back to its first `length` tokens."""
        if seq_id in self._known:
            self._known[seq_id] = min(self._known[seq_id], length)

    def owner(self, word: int) -> tuple[int, int]:
        """(a sequence, length of its prefix) that this word stands for; (-1, -1) if nobody known has it."""
        for seq_id, words in self._words.items():
            at = np.flatnonzero(words[: self._known[seq_id]] == word)
            if len(at) and word != UNWRITTEN:
                return seq_id, int(at[0]) + 1
        return -1, -1
