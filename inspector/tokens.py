"""Which step made each output token of a sequence, its parent's steps before a fork included. From the trace alone."""

from __future__ import annotations

import numpy as np

from kvscope.inspector.read_records import Damage, Reads
from kvscope.inspector.source import TraceLike
from kvscope.traces.schema import Kind


class Makers:
    """The SCHED row behind every output token.

    A step makes a token where it reaches further than all steps of the sequence before: a chunk of a prompt makes
    none but the last, and what is computed again after a preemption makes none until it is behind what was there.
    Tokens that are rolled back are made again.

    Args:
        prompts: prompt tokens by sequence.

    Attributes:
        parent: sequence -> whose fork it is.
        of: sequence -> output token (from 0) -> the row whose step made it; a fork has its parent's before it.
    """

    def __init__(self, trace: TraceLike, prompts: dict[int, int]) -> None:
        self.of: dict[int, dict[int, int]] = {}
        self.parent: dict[int, int] = {}
        self._owners: dict[int, int] = {}  # row -> the sequence whose step it is
        self._token: dict[int, int] = {}
        events, top = trace.events, dict[int, int]()
        for row in np.flatnonzero(np.isin(events["kind"], (Kind.SCHED, Kind.FORK, Kind.TRUNCATE))).tolist():
            seq_id, aux = int(events["seq_id"][row]), int(events["aux"][row])
            if events["kind"][row] == Kind.FORK:
                self.parent[seq_id] = aux
                self.of[seq_id], top[seq_id] = dict(self.of.get(aux, {})), top.get(aux, 0)
                continue
            if events["kind"][row] == Kind.TRUNCATE:
                self._cut(seq_id, aux - prompts.get(seq_id, 0))
                top[seq_id] = min(top.get(seq_id, 0), aux)
                continue
            reached = int(events["lblock"][row]) + int(events["fill"][row])
            if reached <= top.get(seq_id, 0):
                continue
            top[seq_id] = reached
            token = reached - prompts.get(seq_id, 0)
            if token >= 0:
                self.of.setdefault(seq_id, {})[token] = row
                self._token[row], self._owners[row] = token, seq_id

    def _cut(self, seq_id: int, last: int) -> None:
        """Tokens behind this one are dropped: what comes there is said anew."""
        for token in [token for token in self.of.get(seq_id, {}) if token > last]:
            del self.of[seq_id][token]

    def inherit(self, reads: Reads) -> None:
        """A fork has its parent's tokens: where one of these came out of a tainted step, the fork is damaged too."""
        bad = {row for damage in reads.damage.values() for row in damage.steps}
        for seq_id, parent in self.parent.items():
            rows = [row for row in self.of.get(seq_id, {}).values() if self._owners[row] != seq_id]
            if tainted := bad.intersection(rows):
                damage = reads.damage.setdefault(seq_id, Damage(seq_id))
                damage.first_row, damage.through = min(tainted), parent

    def token_of(self, row: int) -> int | None:
        """The output token (from 0) that came out of a step; None where none did."""
        return self._token.get(row)
