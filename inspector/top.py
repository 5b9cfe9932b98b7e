"""A pool at a glance: as it is now, of a trace folder that is being written or of a running server; or as it was.

FolderSource     folds rows as they come; nothing of the trace is kept
ServerSource     asks the debug routes
RecordedSource   one moment of a trace: the one that is asked for, else the one in which most was in use
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvscope.errors import KVScopeError, TraceError, UsageError
from kvscope.inspector.facts import usable
from kvscope.inspector.findings import QUICK_CHECK, check
from kvscope.inspector.glance import Glance, Moment, letters_of
from kvscope.inspector.holes import allocator_of
from kvscope.inspector.lineup import Lineup
from kvscope.inspector.livecheck import Checked
from kvscope.inspector.longrun import LongRun, longrun
from kvscope.inspector.lost import Lost
from kvscope.inspector.measures import Series, series, summary
from kvscope.inspector.pace import Pace
from kvscope.inspector.palette import STATES
from kvscope.inspector.remote import Server
from kvscope.inspector.state import (
    MOST_SHOWN,
    check_shown,
    pool_state,
)
from kvscope.inspector.statrow import IN_USE, in_use, measures_now, stat_cells
from kvscope.inspector.telemetry.counted import Counted, totals
from kvscope.traces import TraceReader, open_trace
from kvscope.traces.fold import BlockFold, events_columns
from kvscope.traces.follow import Follower
from kvscope.traces.schema import EventArray

_MAX_SEQ = 1 << 62
_COUNTS = ("seq", "step", "num_blocks", "block_bytes", "saved_blocks", "running", "waiting")


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

    Args:
        until: no event behind this one is looked at.
        checked: what has been found, from (which run it is, how many events it has), as `LiveCheck.look` says it.

    Raises:
        TraceError: there is none.
    """

    def __init__(
        self, path: Path, until: int = _MAX_SEQ, checked: Callable[[str, int], Checked | None] | None = None
    ) -> None:
        self._follower, self._until, self._checked = Follower(path), until, checked
        self._allocator = allocator_of(_facts(path))
        self._name = path.name
        self._begun = 0  # how often it has begun anew
        self._begin()

    @property
    def live(self) -> bool:
        """Whether somebody writes it."""
        return self._follower.live

    def _begin(self) -> None:
        """As one who has not looked yet."""
        self._fold = BlockFold(self._follower.pool.num_blocks, most=MOST_SHOWN)
        self._counted = Counted(MOST_SHOWN)
        self._lineup, self._lost, self._pace = Lineup(), Lost(), Pace()
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
            count = int(np.searchsorted(part.seqs, self._until, side="right"))
            if not count:
                break
            events, seqs = part.events[:count], part.seqs[:count]
            self._fold.apply(events_columns(events, seqs))
            self._counted.add(events)
            self._lineup.add(events)
            self._pace.add(events)
            self._lost.add_events(events, seqs)
            self._clock(events, int(seqs[0]))
            self._next = int(seqs[-1]) + 1
        check_shown(self._fold.size, "kvscope top")
        lost = self._lost.per_block(self._fold.gen)
        now = pool_state(self._fold, self._next - 1, follower.pool.block_size, lost=lost)
        pool = measures_now(now, follower.pool.block_bytes) | {
            "step": self._step, "running": len(self._lineup.running), "waiting": len(self._lineup.waiting),
            "lineup_known": self._lineup.known,
        }  # fmt: skip
        counts, run = totals(self._counted, follower.dropped), str(self._begun)
        found = None if self._checked is None else self._checked(run, self._next)
        return Glance(self._name, follower.live, pool, counts, letters_of(now), self._t_ns / 1e9,
                      findings=None if found is None else _told(found), missing=follower.missing,
                      let_go=follower.let_go, unseen=self._unseen, began_s=(self._began_ns or 0) / 1e9, run=run,
                      allocator=self._allocator, tokens_per_s=self._pace.tokens_per_s)  # fmt: skip

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
            self._step, self._t_ns = int(events["step"].max(initial=self._step)), int(events["t_ns"][-1])


class RecordedSource:
    """One moment of a trace.

    Args:
        seq: its event; None for the first one at which most was in use.

    Raises:
        TraceError: there is no trace, or what was at that event is not known. UsageError: it has no such event.
    """

    def __init__(self, path: Path, seq: int | None = None) -> None:
        self._path, self._seq = path, seq

    def look(self) -> Glance:
        """The trace at that moment, and the run as a whole; raises as `FolderSource.look` does."""
        end = FolderSource(self._path).look()  # (also what refuses a pool too large to be shown)
        trace = open_trace(self._path)
        if not trace.rows:
            return end
        first, last = int(trace.columns(("seq",), 0, 1)["seq"][0]), end.pool["seq"]
        if self._seq is not None and not first <= self._seq <= last:
            raise UsageError(f"{self._path.name} has no event {self._seq}: it has {first} to {last}")
        measured = longrun(trace) if trace.long else series(trace)
        most_seq, most = _most_in_use(measured)
        seq = self._seq if self._seq is not None else most_seq if most else last
        seen = end if seq == last else FolderSource(self._path, seq).look()
        found = quick_check(trace)
        row = trace.row_of(seq) - 1
        here, begun = trace.columns(("seq", "step", "t_ns"), row, row + 1), trace.columns(("t_ns",), 0, 1)
        since_s = (int(here["t_ns"][0]) - int(begun["t_ns"][0])) * 1e-9
        moment = Moment(
            int(here["seq"][0]), int(here["step"][0]), since_s, last, most_seq=most_seq, asked=self._seq,
            chosen="asked" if self._seq is not None else "most_in_use" if most else "end",
            in_use_at_end=in_use(end.pool["blocks"]), lost_at_end=end.pool["lost_blocks"],
            first_finding=min((f.seq for f in found.result.findings), default=None) if found else None,
        )  # fmt: skip
        whole = stat_cells(summary(trace, measured), None if found is None else len(found.result.findings))
        return replace(seen, live=end.live, moment=moment, whole=whole,
                       findings=None if found is None else _told(found))  # fmt: skip


def quick_check(trace: TraceReader) -> Checked | None:
    """What a check finds, where it is done within a second or so; else None."""
    return Checked(check(trace), trace.rows) if trace.rows <= QUICK_CHECK else None


def _most_in_use(measured: LongRun | Series) -> tuple[int, int]:
    """(event, blocks) where most were in use first."""
    if isinstance(measured, LongRun):
        picked = measured.picked
        held, seqs = np.sum([picked[name] for name in IN_USE], axis=0), picked["seq"]
    else:
        held, seqs = measured.held_blocks, measured.seq
    at = int(np.argmax(held))
    return int(seqs[at]), int(held[at])


def _told(found: Checked) -> dict[str, Any]:
    """As a server's frame says it."""
    codes = dict(Counter(f.code for f in found.result.findings))
    return {"checked_events": found.events, "count": len(found.result.findings), "codes": codes}


def _facts(path: Path) -> list[Any]:
    """The facts that a trace has now; those that cannot be read are another command's to tell of."""
    with contextlib.suppress(KVScopeError, OSError):
        return usable(open_trace(path).facts)
    return []


class ServerSource:
    """A running server with debug routes; arguments as `Server`'s."""

    def __init__(self, url: str, token: str | None = None, timeout_s: float = 10.0) -> None:
        self._server = Server(url, token, timeout_s)
        self.url = self._server.url

    def look(self) -> Glance:
        """Ask it; raises as `Server.get` does."""
        try:
            return self._glance(self._server.json("/frame"))
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:  # another program's answer
            raise TraceError(f"{self.url} answered with something that is no frame: is it `kvscope serve`?") from error

    def _glance(self, frame: dict[str, Any]) -> Glance:
        totals = _ints(frame["totals"] or {}) | _ints({"generated_tokens": frame["generated_tokens"]})
        pool = {} if frame["pool"] is None else _pool_in(frame["pool"])
        letters = letters_of(self._server.pool()) if pool else np.empty(0, np.uint8)
        found, failed = frame["findings"], frame["failed"]
        if found is not None:
            found = {**found, "count": int(found["count"])}
        return Glance(str(frame["model"]) if pool else self.url, True, pool, totals, letters, time.time(),
                      found, None if failed is None else str(failed), run=str(frame["run"]))  # fmt: skip


def _pool_in(said: dict[str, Any]) -> dict[str, Any]:
    """The pool of a server's frame, where it is one: KeyError, TypeError, ValueError or ArithmeticError else."""
    counts = {name: said[name] for name in _COUNTS if name != "seq" or said["seq"] is not None}
    blocks = {state.name: 0 for state in STATES} | _ints(said["blocks"])  # (an older server names fewer states)
    ratios = {name: None if said[name] is None else float(said[name]) for name in ("sharing_factor", "tail_waste")}
    return {**said, **_ints(counts), **ratios, "blocks": blocks}


def _ints(said: dict[str, Any]) -> dict[str, int]:
    return {name: int(value) for name, value in said.items()}
