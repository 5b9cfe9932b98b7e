"""A trace that is being written, followed: the pool now and its measures so far, at a cost that only news have.

Nothing here grows with the length of the run: every block's condition is folded in part by part, and the past is kept
as a few hundred points that are thinned out as it grows: peaks and troughs are kept, and what stood over a stretch of
time is drawn as it stood. Measures mean what `measures` says.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.inspector.lineup import Lineup
from kvscope.inspector.measures import decimate, in_force
from kvscope.inspector.pace import Pace
from kvscope.inspector.source import IntArray, fold_before
from kvscope.inspector.state import PoolState, pool_state
from kvscope.inspector.sums import STATES, Part, PoolSums
from kvscope.traces.fold import FOLD_COLUMNS, BlockFold
from kvscope.traces.schema import Kind, Reason

POINTS = 1200  # of the past, at most; two thirds of them after it was thinned out

_MEASURES = (*STATES, "table_entries", "held_blocks", "saved_blocks", "lost_blocks", "sharing_factor", "filled_slots",
             "utilization", "tail_waste")  # fmt: skip
_PEAKS = ("free", "shared", "sharing_factor", "tail_waste")  # whose extremes outlive the thinning
_COLUMNS = (*FOLD_COLUMNS, "t_ns", "step", "reason")
_RUN = 1 << 18

Past = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Moment:
    """What a growing trace shows at one look.

    `past` holds `wall_s`, `seq`, `step`, `run` (how many came before it) and every measure; NaN where events are
    missing and where a run ended. A number in `seq` is one of the trace that is there only where `run` is `restarts`.
    """

    rows: int
    seq: int  # of the last event, -1 where there is none
    step: int
    pool: PoolState
    past: Past
    counts: dict[str, int]  # events by kind, so far
    cow_copies: int
    hit_tokens: int
    query_tokens: int
    tokens_per_s: float | None  # over the last seconds to the present; 0 where nothing came for longer
    idle_s: float  # how long nothing has come
    restarts: int  # how often another run took the place of the one before
    running: int  # sequences that hold blocks
    waiting: int  # sequences that were submitted, or preempted, and are not admitted
    lineup_known: bool = True  # else there are at least so many of either: events were let go before they were seen

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of admitted prompt tokens that the prefix cache had."""
        return self.hit_tokens / self.query_tokens if self.query_tokens else None

    def now(self, measure: str) -> float | None:
        """The last value of a measure; None where it has none."""
        values = self.past[measure]
        return None if not len(values) or np.isnan(values[-1]) else float(values[-1])


class Follower:
    """Follows one trace; `look` takes in what is new.

    Args:
        reader: a trace reader, refreshed by the caller. begun_ns: the wall clock at which the trace began.
        before: the follower of what was in this place: its past stays, with a gap. same_run: that was the same run, of
            which events have been passed over since.
    """

    def __init__(
        self, reader: Any, begun_ns: int = 0, before: Follower | None = None, *, same_run: bool = False
    ) -> None:
        self._reader, self._begun_s = reader, begun_ns * 1e-9
        self._rows = 0
        self._kinds = np.zeros(256, np.int64)
        self._lineup = Lineup()
        self._prompts: dict[int, int] = {}
        self._hits = self._queries = self._resized = 0
        self._seq = self._step = -1
        self._begin()
        self._pace = Pace()
        self._past: Past = {name: np.empty(0) for name in ("wall_s", "seq", "step", "run", *_MEASURES)}
        self._restarts = 0
        if before is not None:
            self._restarts = before._restarts + (0 if same_run else 1)
            self._past = {n: np.append(v, np.nan) if len(v) else v for n, v in before._past.items()}

    def _begin(self) -> None:
        """The pool before the first event that the trace has now."""
        if self._reader.rows and int(self._reader.columns(("seq",), 0, 1)["seq"][0]) > self._seq + 1:
            self._lineup, self._prompts = Lineup(known=False), {}
        self._sums = PoolSums.before(self._reader, slots=True)
        self._fold = fold_before(self._reader) or BlockFold(self._reader.num_blocks)

    @property
    def restarts(self) -> int:
        """How often another run took the place of the one before."""
        return self._restarts

    def read_from(self, reader: Any) -> None:
        """Go on with another reader of the same trace."""
        self._reader = reader

    def look(self) -> Moment:
        """The trace as the reader has it now."""
        rows = self._reader.rows
        if self._seq < 0 or (rows and not self._reader.row_of(self._seq)):  # or it has read nothing of what is left
            self._begin()
        # (numbered by what is there: a recorder that keeps the newest events has taken the first rows away)
        for lo in range(self._reader.row_of(self._seq) if self._seq >= 0 else 0, rows, _RUN):
            self._take(Part(self._reader, lo, min(lo + _RUN, rows), _COLUMNS))
        names = {kind.name.lower(): int(self._kinds[kind]) for kind in Kind}
        return Moment(
            rows=self._rows, seq=self._seq, step=self._step,
            pool=self._pool(), past=dict(self._past), counts=names,
            cow_copies=names["cow"] - self._resized, hit_tokens=self._hits, query_tokens=self._queries,
            tokens_per_s=self._pace.tokens_per_s, idle_s=self._pace.idle_s, restarts=self._restarts,
            running=len(self._lineup.running), waiting=len(self._lineup.waiting), lineup_known=self._lineup.known,
        )  # fmt: skip

    def _pool(self) -> PoolState:
        fold = self._fold.copy()
        return pool_state(fold, self._seq, self._reader.block_size, lost=self._sums.lost_references(fold.gen))

    def _take(self, part: Part) -> None:
        kind = part["kind"]
        if not len(kind):
            return
        self._rows += len(kind)
        self._fold.apply(part)
        where, values, _ = self._sums.follow(part)
        self._kinds += np.bincount(kind, minlength=256)[:256]
        self._resized += int(np.count_nonzero((kind == Kind.COW) & (part["reason"] == Reason.RESIZED)))
        self._seq, self._step = int(part["seq"][-1]), int(part["step"].max())
        self._requests(part)
        self._lineup.add(part)
        self._pace.add(part)
        self._remember(part, where, values)

    def _requests(self, part: Part) -> None:
        kind = part["kind"]
        for row in np.flatnonzero((kind == Kind.SUBMIT) | (kind == Kind.ADMIT)).tolist():
            seq_id, aux = int(part["seq_id"][row]), int(part["aux"][row])
            if kind[row] == Kind.SUBMIT:
                self._prompts[seq_id] = aux
            elif (prompt := self._prompts.pop(seq_id, None)) is not None:
                self._hits, self._queries = self._hits + aux, self._queries + prompt

    def _remember(self, part: Part, where: IntArray, values: npt.NDArray[np.float64]) -> None:
        """Add the part's points to the past; always its last row, so that a quiet pool is drawn as it is."""
        if not len(where):
            where, values = np.array([len(part["kind"]) - 1]), self._sums.totals()[:, None]
        rows = np.append(where, len(part["kind"]) - 1)
        new = {name: np.append(values[i], values[i, -1]) for i, name in enumerate(_MEASURES)}
        new["wall_s"] = self._begun_s + part["t_ns"][rows] * 1e-9
        new["seq"], new["step"] = (part[name][rows].astype(np.float64) for name in ("seq", "step"))
        new["run"] = np.full(len(rows), float(self._restarts))
        holes = np.flatnonzero(part["kind"] == Kind.GAP)  # events were lost, or the writer came back: nothing is known
        before = np.searchsorted(rows, holes)
        new = {name: np.insert(column, before, np.nan) for name, column in new.items()}
        self._past = thinned({name: np.concatenate([self._past[name], new[name]]) for name in self._past})


def thinned(past: Past, points: int = POINTS) -> Past:
    """The same curves in at most `points` points: what stood at each of many times, extremes, and gaps between runs.

    Old and new are thinned alike by time, so that the past does not crowd into the newest corner.
    """
    count = len(past["seq"])
    if count <= points:
        return past
    gaps = np.flatnonzero(np.isnan(past["seq"]))
    clock = _lived(past["wall_s"], gaps)
    room = max(points * 2 // 3 - 3 * len(gaps), 8)
    keep = [gaps, np.maximum(gaps - 1, 0), np.minimum(gaps + 1, count - 1), in_force(clock, room // 2)]
    edges = np.searchsorted(clock, np.linspace(0.0, clock[-1], max(room // (4 * len(_PEAKS)), 1) + 1)[1:-1])
    for lo, hi in itertools.pairwise(np.unique([0, *edges.tolist(), count]).tolist()):
        keep += [lo + decimate(np.arange(hi - lo), past[name][lo:hi], 1)[0] for name in _PEAKS]
    kept = np.unique(np.concatenate(keep))
    return {name: values[kept] for name, values in past.items()}


def _lived(wall_s: npt.NDArray[np.float64], gaps: IntArray) -> npt.NDArray[np.float64]:
    """Seconds since the first point, those of the gaps left out: they are not drawn to scale."""
    clock = np.maximum.accumulate(np.where(np.isnan(wall_s), -np.inf, wall_s))
    spent = np.diff(clock)
    spent[gaps[gaps < len(spent)]] = 0.0
    return np.concatenate([[0.0], np.cumsum(spent)])
