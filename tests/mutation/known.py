"""Survivors that no test can tell apart from the original, or that change nothing but speed, and why."""

from __future__ import annotations

# By `Mutant.key`. Each is argued for itself: a kind of mutant is never excused.
KNOWN: dict[str, str] = {
    (
        "inspector/detectors/records.py: last_use: int = -1  # ordinal of the last step that used it, known once it is "
        "released -> last_use: int = - 2  # ordinal of the last step that used it, known once it is released"
    ): "the same: any number below that of the first step says that none used it",
    (
        "engine/tables.py: if keep == self.first or gone >= _MANY: -> if keep != self.first or gone >= _MANY:"
    ): "the same digest, computed anew or by subtraction",
    (
        "inspector/screen/runs.py: ROW_BITS = 20  # a chunk has less than 2**20 rows "
        "-> ROW_BITS = 19  # a chunk has less than 2**20 rows"
    ): "smaller chunks, the same findings",
    (
        "inspector/screen/sequences.py: _MOST = 1 << 40  # positions -> _MOST = 1 << 41  # positions"
    ): "positions beyond 2**40 are left to the replay; keys have room for 2**43",
}  # fmt: skip
