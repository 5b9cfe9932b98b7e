"""A pool at a glance, as it is now: of a trace folder that is being written, or of a running server.

FolderSource   folds rows as they come; nothing of the trace is kept
ServerSource   asks the debug routes
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError
from kvscope.inspector.lineup import Lineup
from kvscope.inspector.lost import Lost
from kvscope.inspector.remote import Server
from kvscope.inspector.state import (
    MOST_SHOWN,
    STATE_LETTERS,
    URGENCY,
    WRITING_LETTER,
    BlockState,
    PoolState,
    check_shown,
    pool_state,
)
from kvscope.inspector.telemetry.counted import Counted, totals
from kvscope.traces.fold import BlockFold, events_columns
from kvscope.traces.follow import Follower
from kvscope.traces.schema import EventArray, Kind

LETTERS = STATE_LETTERS + WRITING_LETTER
_RANK = np.asarray([URGENCY.index(letter) for letter in LETTERS], np.uint8)


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
    began_s: float = 0.0  # of the same clock as `at_s`: when the first event that is here was
    run: str = ""  # which of a server's runs; of a folder: which part of it was looked at without a hole

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
            "map": {"blocks_per_cell": per, "cells": cells},
        }  # fmt: skip


class Source(Protocol):
    """Where glances come from."""

    def look(self) -> Glance:
        """The pool now.

        Raises:
            TraceError: it cannot be seen any more.
        """
        ...


class FolderSource:
    """A trace folder, or a packed trace.

    Raises:
        TraceError: there is none.
    """

    def __init__(self, path: Path) -> None:
        self._follower = Follower(path)
        self._name = path.name
        self._begun = 0  # how often it has begun anew
        self._begin()

    def _begin(self) -> None:
        """As one who has not looked yet."""
        self._fold = BlockFold(self._follower.pool.num_blocks, most=MOST_SHOWN)
        self._counted = Counted(MOST_SHOWN)
        self._lineup, self._lost = Lineup(), Lost()
        self._computed = 0  # positions computed in all steps
        self._step, self._t_ns, self._next = -1, 0, 0
        self._unseen = 0  # events below this number were let go before it looked
        self._began_ns: int | None = None  # of the first event; 0 where the trace has it

    def look(self) -> Glance:
        """Fold what was written since; where some of it was let go meanwhile, begin anew with what is left.

        Raises:
            TraceError: the pool is too large to be shown.
        """
        follower = self._follower
        follower.refresh()
        if follower.first > self._next:
            if self._next:
                self._begun += 1
                self._begin()
            self._begin_with(follower.base)
        for part in follower.rows(self._next):
            self._fold.apply(events_columns(part.events, part.seqs))
            self._counted.add(part.events)
            self._lineup.add(part.events)
            self._lost.add_events(part.events, part.seqs)
            self._clock(part.events, int(part.seqs[0]))
            self._next = int(part.seqs[-1]) + 1
        check_shown(self._fold.size, "kvscope top")
        lost = self._lost.per_block(self._fold.gen)
        now = pool_state(self._fold, self._next - 1, follower.pool.block_size, lost=lost)
        pool = _measures(now, follower.pool.block_bytes) | {
            "step": self._step, "running": len(self._lineup.running), "waiting": len(self._lineup.waiting),
            "lineup_known": self._lineup.known,
        }  # fmt: skip
        counts = totals(self._counted, follower.dropped) | {"computed_tokens": self._computed}
        return Glance(self._name, follower.live, pool, counts, letters_of(now), self._t_ns / 1e9,
                      missing=follower.missing, let_go=follower.let_go, unseen=self._unseen,
                      began_s=(self._began_ns or 0) / 1e9, run=str(self._begun))  # fmt: skip

    def _begin_with(self, base: BlockFold | None) -> None:
        """What came before the first row that is left went unseen; `base` is what it made, where that is known."""
        self._unseen, self._lineup.known = self._follower.let_go, False
        if base is not None:
            check_shown(base.size, "kvscope top")
            self._fold = BlockFold(len(base), most=MOST_SHOWN)
            self._fold.begin_as(base)
            self._fold.size, self._next = base.size, self._follower.let_go

    def _clock(self, events: EventArray, first_seq: int) -> None:
        if len(events):
            if self._began_ns is None:
                self._began_ns = int(events["t_ns"][0]) if first_seq else 0
            self._computed += int(events["aux"][events["kind"] == Kind.STEP_END].sum())
            self._step, self._t_ns = int(events["step"].max(initial=self._step)), int(events["t_ns"][-1])


class ServerSource:
    """A running server with debug routes; arguments as `Server`'s."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 10.0) -> None:
        self._server = Server(url, token, timeout_s)
        self.url = self._server.url

    def look(self) -> Glance:
        """Ask it; raises as `Server.get` does."""
        try:
            return self._glance(self._server.json("/frame"))
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # another program's answer
            raise TraceError(f"{self.url} answered with something that is no frame: is it `kvscope serve`?") from error

    def _glance(self, frame: dict[str, Any]) -> Glance:
        totals = dict(frame["totals"] or {}) | {"generated_tokens": frame["generated_tokens"]}
        known = frame["pool"] is not None
        letters = letters_of(self._server.pool()) if known else np.empty(0, np.uint8)
        return Glance(frame["model"] if known else self.url, True, frame["pool"] or {}, totals, letters, time.time(),
                      frame["findings"], frame["failed"], run=str(frame["run"]))  # fmt: skip


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
        """Events, tokens and preemptions per second over the last few glances; None where no time has passed."""
        last = self.kept[-1]
        before = self.kept[max(0, len(self.kept) - 1 - span)]
        passed = last.at_s - before.at_s
        tokens = "generated_tokens" if "generated_tokens" in last.totals else "computed_tokens"
        names = {"events_per_s": "events", "tokens_per_s": tokens, "preemptions_per_s": "preemptions"}
        whole = last.at_s - last.began_s
        if passed <= 0 and whole > 0 and len(self.kept) == 1 and tokens == "computed_tokens":
            return {key: last.totals.get(name, 0) / whole for key, name in names.items()}  # of the whole trace
        return {
            key: (last.totals[name] - before.totals.get(name, 0)) / passed
            if passed > 0 and name in last.totals else None for key, name in names.items()
        }  # fmt: skip

    def used(self) -> list[float]:
        """Share of the pool that could not be handed out, glance by glance."""
        return [1 - (g.pool["blocks"]["free"] + g.pool["blocks"]["cached"]) / g.pool["num_blocks"]
                for g in self.kept if g.pool]  # fmt: skip


def letters_of(pool: PoolState) -> npt.NDArray[np.uint8]:
    """Index into LETTERS, per block."""
    writing = pool.writing & (pool.state == BlockState.PRIVATE)
    return np.where(writing, len(STATE_LETTERS), pool.state).astype(np.uint8)


def _measures(now: PoolState, block_bytes: int) -> dict[str, Any]:
    in_tables = now.entries - now.lost
    reached = int(now.held.sum()) * now.block_size
    slots, filled = reached + now.num_lost * now.block_size, int(now.fill[now.held].sum())
    entries, distinct = int(in_tables.sum()), int((in_tables > 0).sum())
    return {
        "seq": now.seq, "blocks": now.counts, "num_blocks": now.num_blocks, "block_size": now.block_size,
        "block_bytes": block_bytes, "table_entries": entries, "saved_blocks": entries - distinct,
        "saved_bytes": (entries - distinct) * block_bytes,
        "lost_blocks": now.num_lost, "filled_slots": filled,
        "tail_waste": 1 - filled / reached if reached else None, "utilization": filled / slots if slots else None,
        "sharing_factor": entries / distinct if distinct else None,
        "pool_utilization": filled / (now.num_blocks * now.block_size) if now.num_blocks else None,
    }  # fmt: skip
