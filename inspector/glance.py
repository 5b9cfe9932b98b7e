"""What `kvscope top` sees at one moment, and what the last such glances say together."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.numerals import unit_text
from kvscope.inspector.pace import LEAST_S
from kvscope.inspector.state import STATE_LETTERS, URGENCY, WRITING_LETTER, BlockState, PoolState
from kvscope.inspector.statrow import Cell, going_cells, in_use, moment_cells, now_cells

LETTERS = STATE_LETTERS + WRITING_LETTER
_RANK = np.asarray([URGENCY.index(letter) for letter in LETTERS], np.uint8)


@dataclass(frozen=True)
class Moment:
    """Which moment of a recorded run is seen, and what becomes of it."""

    seq: int
    step: int
    at_s: float  # since the first event
    last_seq: int
    chosen: str  # `asked`, `most_in_use`, or `end` where nothing ever was
    most_seq: int  # the event at which most was in use
    in_use_at_end: int  # blocks
    lost_at_end: int  # of those
    first_finding: int | None = None  # its event
    asked: int | None = None  # the event that was asked for: another one where that one is missing


@dataclass(frozen=True)
class Glance:
    """What is seen at one moment. `pool` and `totals` hold measures by their names; None where they are not known."""

    name: str
    live: bool
    pool: dict[str, Any]
    totals: dict[str, int]
    letters: npt.NDArray[np.uint8]  # index into LETTERS, one per block
    at_s: float  # when: of the trace's clock for a folder, the wall's for a server
    findings: dict[str, Any] | None = None
    failed: str | None = None
    missing: int = 0  # events that are known to be lost, but for those that a recorder with limits let go
    let_go: int = 0  # those
    unseen: int = 0  # of those, what went before it was looked at: `totals` are without
    began_s: float | None = None  # of the same clock as `at_s`: when the first event that is here was, of a folder
    run: str = ""  # which of a server's runs; of a folder: which part of it was looked at without a hole
    allocator: str = "paged"
    tokens_per_s: float | None = None  # computed, of the newest steps; a server's is left to `History.rates`
    moment: Moment | None = None  # of a recorded run
    whole: tuple[Cell, ...] = ()  # a recorded run in numbers, as the overview has them

    def row(self, tokens_per_s: float | None, *, away: bool = False) -> tuple[Cell, ...]:
        """The pool in numbers, as the dashboard's live and replay page has them; `away`: as it last was."""
        pool = self.pool
        if self.moment is not None:
            when = moment_cells(self.moment.step, self.moment.at_s)
        elif away:
            when = going_cells(None, None, known=True, tokens_per_s=None)
        else:
            known = pool.get("lineup_known", True)
            when = going_cells(pool["running"], pool["waiting"], known, tokens_per_s)
        return now_cells(pool, self.allocator, None if self.findings is None else self.findings["count"], when)

    def by_letter(self) -> dict[str, int]:
        """Blocks by the letters of the map."""
        counts = np.bincount(self.letters, minlength=len(LETTERS)).tolist()
        return dict(zip(LETTERS, counts, strict=True))

    def cells(self, most: int) -> tuple[int, str]:
        """(blocks per cell, one letter per cell) in at most so many cells."""
        count = len(self.letters)
        per = max(1, -(-count // max(most, 1)))
        ranks = np.zeros(-(-count // per) * per if count else 0, np.uint8)
        ranks[:count] = _RANK[self.letters]
        top = ranks.reshape(-1, per).max(axis=1) if count else ranks
        return per, "".join(URGENCY[rank] for rank in top.tolist())

    def to_json(self, rates: dict[str, float | None]) -> dict[str, Any]:
        """As one JSON object."""
        per, cells = self.cells(1 << 17)
        return {
            "schema": "kvscope-top/1", "name": self.name, "live": self.live, "failed": self.failed, "pool": self.pool,
            "totals": self.totals, "rates": rates, "findings": self.findings,
            "missing_events": self.missing + self.let_go, "let_go_events": self.let_go,
            "unseen_events": self.unseen,
            "moment": None if self.moment is None else asdict(self.moment),
            "row": _named(self.row(rates["tokens_per_s"]) if self.pool else ()), "run": _named(self.whole),
            "map": {"blocks_per_cell": per, "cells": cells},
        }  # fmt: skip


@dataclass
class History:
    """The last glances of one run, for rates and a curve of the pool."""

    kept: deque[Glance] = field(default_factory=lambda: deque(maxlen=240))
    away: str = ""  # why there is no newer one, in one line; empty where all is well

    def add(self, glance: Glance) -> None:
        """The newest one; what was seen of another run is forgotten."""
        if self.kept and self.kept[-1].run != glance.run:
            self.kept.clear()
        self.kept.append(glance)
        self.away = ""

    def rates(self, span: int = 5) -> dict[str, float | None]:
        """Events, tokens and preemptions per second over the last few glances; None where hardly any time has passed.

        Of a single glance at a recorded trace they are of the whole time up to it.
        """
        last = self.kept[-1]
        before = self.kept[max(0, len(self.kept) - 1 - span)]
        tokens = "computed_tokens" if "computed_tokens" in last.totals else "generated_tokens"
        names = {"events_per_s": "events", "tokens_per_s": tokens, "preemptions_per_s": "preemptions"}
        since, passed = before.totals, last.at_s - before.at_s
        if len(self.kept) == 1 and last.began_s is not None:
            since, passed = {}, last.at_s - last.began_s
        found = {
            key: (last.totals[name] - since.get(name, 0)) / passed
            if passed >= LEAST_S and name in last.totals else None for key, name in names.items()
        }  # fmt: skip
        return found if last.tokens_per_s is None else found | {"tokens_per_s": last.tokens_per_s}

    def used(self) -> list[float]:
        """Share of the pool that is in use, glance by glance."""
        return [in_use(g.pool["blocks"]) / max(g.pool["num_blocks"], 1) for g in self.kept if g.pool]


def letters_of(pool: PoolState) -> npt.NDArray[np.uint8]:
    """Index into LETTERS, per block."""
    writing = pool.writing & (pool.state == BlockState.PRIVATE)
    return np.where(writing, len(STATE_LETTERS), pool.state).astype(np.uint8)


def _named(cells: tuple[Cell, ...]) -> list[dict[str, str]]:
    return [{"name": name, "value": value, "unit": unit_text(value, unit)} for name, value, unit, _ in cells]
