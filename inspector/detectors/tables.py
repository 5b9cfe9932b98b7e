"""The tables of a replay: their entries, and the digest of all of them."""

from __future__ import annotations

from kvscope.inspector.detectors.records import WORD, Sequence, mixed


class Tables:
    """The sequences, and what their tables add up to."""

    def __init__(self) -> None:
        self.sequences: dict[int, Sequence] = {}
        self.ending: set[int] = set()  # sequences that ended since tables were last compared
        self.entries = 0
        self.digest = 0

    def _drop(self, sequence: Sequence, lblock: int) -> None:
        life = sequence.table.pop(lblock, None)
        if life is not None:
            self.entries -= 1
            self._digest(sequence, lblock, life, -1)

    def _digest(self, sequence: Sequence, lblock: int, life: tuple[int, int], sign: int) -> None:
        word = sign * mixed(life[0], life[1], lblock)
        sequence.digest = (sequence.digest + word) & WORD
        self.digest = (self.digest + word) & WORD

    def _clear(self, sequence: Sequence) -> None:
        for lblock in list(sequence.table):
            self._drop(sequence, lblock)

    def close_tables(self) -> None:
        """What sequences that have ended did not release stands in no table any more."""
        for seq_id in self.ending:
            if self.sequences[seq_id].over:
                self._clear(self.sequences[seq_id])
        self.ending.clear()
