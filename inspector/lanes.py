"""Request lanes: what each sequence was doing when, as bars, and how many blocks it held."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvscope.inspector.facts import usable
from kvscope.inspector.runs import runs_of
from kvscope.inspector.source import Frozen, IntArray, Names, TraceLike, frozen
from kvscope.inspector.state import TABLE_KINDS
from kvscope.traces.fold import kind_mask
from kvscope.traces.schema import EventArray, Kind, Reason

QUEUED, PREFILL, DECODE, PREEMPTED = "queued", "prefill", "decode", "preempted"


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one phase: from event `seq_lo` to event `seq_hi`, half open in time."""

    phase: str  # queued, prefill, decode or preempted
    t0_ns: int
    t1_ns: int
    seq_lo: int
    seq_hi: int
    step_lo: int
    step_hi: int


@dataclass(frozen=True, slots=True)
class Lane:
    """One sequence from its arrival to its end. `held` changes at events `held_seq`, table entries after each."""

    seq_id: int
    name: str
    request: int | None
    parent: int  # the sequence it was forked from, -1 = none
    bars: tuple[Bar, ...]
    outcome: str  # "finish", "abort", or "running" where the trace ends before it does
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int | None
    preemptions: int
    held_seq: IntArray
    held_t_ns: IntArray
    held: IntArray
    cut: bool = False  # it began before the first event that is here: its bars begin with its own first event

    @property
    def max_held(self) -> int:
        """The most blocks it held at once."""
        return int(self.held.max()) if len(self.held) else 0


def most_at_once(found: Sequence[Lane]) -> int:
    """The most sequences that computed at once: their prompts, or token by token."""
    running = [bar for lane in found for bar in lane.bars if bar.phase in (PREFILL, DECODE)]
    edges = sorted([(bar.seq_lo, 1) for bar in running] + [(bar.seq_hi, -1) for bar in running])
    return max(itertools.accumulate(by for _, by in edges), default=0)


@dataclass
class _Draft:
    """A lane while its events are read."""

    seq_id: int
    parent: int = -1
    phase: str = ""
    since: tuple[int, int, int] = (0, 0, 0)  # t_ns, seq, step
    bars: list[Bar] = field(default_factory=list)
    outcome: str = "running"
    prompt: int = 0
    decode_from: int = 0  # the first position that is decoded, not prefilled
    cached: int = 0
    output: int | None = None
    preemptions: int = 0
    cut: bool = False

    def turn(self, phase: str, now: tuple[int, int, int]) -> None:
        """Close the open bar and open the next one; the empty phase opens none."""
        if self.phase:
            (t0, s0, p0), (t1, s1, p1) = self.since, now
            self.bars.append(Bar(self.phase, t0, t1, s0, s1, p0, p1))
        self.phase, self.since = phase, now


_LANE_KINDS = (
    Kind.SUBMIT, Kind.ADMIT, Kind.RESUME, Kind.FORK, Kind.SCHED, Kind.PREEMPT, Kind.FINISH, Kind.ABORT,
)  # fmt: skip
# As numbers: a member is looked up in Python, and this is asked for every row.
_SUBMIT, _ADMIT, _RESUME, _FORK, _SCHED, _PREEMPT, *_ENDS = map(int, _LANE_KINDS)
_PIECE = 65_536
_LANE_MASK = kind_mask(_LANE_KINDS)
_TABLE_MASK = kind_mask(TABLE_KINDS)


def lanes(trace: TraceLike, *, held: bool = True) -> list[Lane]:
    """One lane per sequence, in order of first appearance; of each writer of the trace its own.

    Args:
        held: count the blocks held as well; without it `Lane.held` and its companions are empty.
    """
    return [lane for run in runs_of(frozen(trace)) for lane in _lanes(run, held=held)]


def _lanes(trace: Frozen, *, held: bool) -> list[Lane]:
    events = trace.events
    prompts = _prompts(trace)
    # Who submits nothing begins with ADMIT; elsewhere what is admitted first here was submitted before.
    early = len(events) and int(trace.seqs[0]) > trace.begins and trace.present[_SUBMIT]
    arrivals = () if early else (_ADMIT,)
    rows = _telling(events, prompts, np.flatnonzero(_LANE_MASK[events["kind"]] & (events["seq_id"] >= 0)))
    drafts: dict[int, _Draft] = {}
    for lo in range(0, len(rows), _PIECE):  # in pieces: Python numbers take ten times the memory of a column
        piece = rows[lo : lo + _PIECE]
        columns = [events[name][piece].tolist() for name in ("kind", "seq_id", "aux", "lblock", "t_ns", "step")]
        numbers = np.asarray(trace.seqs)[piece].tolist()
        for number, kind, seq_id, aux, lblock, t_ns, step in zip(numbers, *columns, strict=True):
            draft = drafts.get(seq_id)
            if draft is None:
                draft = drafts[seq_id] = _Draft(seq_id)
                if kind not in (_SUBMIT, _FORK):
                    draft.cut = kind not in arrivals
                    draft.prompt = draft.decode_from = prompts.get(seq_id, 0)
            _advance(drafts, draft, kind, aux, lblock, (t_ns, number, step))
    if len(events):
        end = (int(events["t_ns"][-1]), int(trace.seqs[-1]), int(events["step"][-1]))
        for draft in drafts.values():
            draft.turn("", end)
    nothing = np.empty(0, np.int64)
    counts = _held(trace, drafts) if held else dict.fromkeys(drafts, (nothing, nothing, nothing))
    names = Names(trace.facts)
    return [
        Lane(
            d.seq_id, names(d.seq_id), names.request(d.seq_id), d.parent, tuple(d.bars), d.outcome, d.prompt, d.cached,
            d.output, d.preemptions, *counts[d.seq_id], d.cut,
        )
        for d in drafts.values()
    ]  # fmt: skip


def _prompts(trace: TraceLike) -> dict[int, int]:
    """Prompt tokens of the sequences of requests, as the facts tell them."""
    requests = [fact for fact in usable(trace.facts) if fact.get("type") == "request"]
    return {
        int(seq_id): int(fact.get("prompt_tokens") or 0) for fact in requests for seq_id in fact.get("seq_ids") or ()
    }


def _telling(events: EventArray, prompts: dict[int, int], rows: IntArray) -> IntArray:
    """The rows without those SCHED rows, nearly all, that turn no phase: within the prompt, or after decoding began."""
    kind, seq_id = events["kind"][rows], events["seq_id"][rows]
    sched = kind == Kind.SCHED
    if len(rows) < _PIECE or not sched.any() or int(seq_id.max()) > _PIECE + len(rows):
        return rows
    prompt = np.zeros(int(seq_id.max()) + 1, np.int64)
    for owner, aux in prompts.items():  # of those whose arrival is not here
        if 0 <= owner < len(prompt):
            prompt[owner] = aux
    changing = np.bincount(seq_id[kind == Kind.SUBMIT], minlength=len(prompt)) > 1  # sequences of no one prompt
    changing[seq_id[kind == Kind.PREEMPT]] = True
    few = rows[(kind == Kind.SUBMIT) | (kind == Kind.FORK)]
    told = (events[name][few].tolist() for name in ("kind", "seq_id", "aux"))
    for what, owner, aux in zip(*told, strict=True):
        prompt[owner] = aux if what == Kind.SUBMIT else prompt[aux] if 0 <= aux < len(prompt) else 0
    order = np.argsort(seq_id, kind="stable")
    decoding = (sched & (events["lblock"][rows] >= prompt[seq_id]))[order]
    again = np.zeros(len(rows), np.bool_)
    again[1:] = decoding[1:] & decoding[:-1] & (seq_id[order][1:] == seq_id[order][:-1])
    kept = np.ones(len(rows), np.bool_)
    kept[order] = ~sched[order] | (decoding & ~again)
    found: IntArray = rows[kept | changing[seq_id]]
    return found


def _advance(
    drafts: dict[int, _Draft], draft: _Draft, kind: int, aux: int, lblock: int, now: tuple[int, int, int]
) -> None:
    """Take one event into a lane."""
    if kind == _SUBMIT:
        draft.prompt = draft.decode_from = aux
        draft.turn(QUEUED, now)
    elif kind == _ADMIT:
        draft.cached = aux
        draft.turn(PREFILL, now)
    elif kind == _RESUME:
        draft.turn(PREFILL, now)
    elif kind == _FORK:
        parent = drafts.get(aux)
        draft.parent = aux
        draft.prompt = draft.decode_from = parent.prompt if parent else 0
        draft.turn(DECODE, now)
    elif kind == _SCHED and draft.cut and not draft.phase and not draft.bars:
        draft.turn(DECODE if lblock >= draft.decode_from else PREFILL, now)
    elif kind == _SCHED and draft.phase == PREFILL and lblock >= draft.decode_from:
        draft.turn(DECODE, now)
    elif kind == _PREEMPT:
        draft.preemptions += 1
        draft.decode_from = max(draft.decode_from, aux)  # what was computed is prefilled again
        draft.turn(PREEMPTED, now)
    elif kind in _ENDS:
        draft.outcome = Kind(kind).name.lower()
        draft.output = aux
        if draft.cut and not draft.phase and not draft.bars:
            draft.turn(DECODE, now)
        draft.turn("", now)


def _held(trace: TraceLike, drafts: dict[int, _Draft]) -> dict[int, tuple[IntArray, IntArray, IntArray]]:
    """Per sequence: event numbers, times, and table entries held after each."""
    events = trace.events
    rows = np.flatnonzero(_TABLE_MASK[events["kind"]])
    rows = rows[np.argsort(events["seq_id"][rows], kind="stable")]
    owner = events["seq_id"][rows]
    moves = np.where(events["kind"][rows] == Kind.RELEASE, -1, 1).astype(np.int64)
    moves[events["reason"][rows] == Reason.COPY_ON_WRITE] = 0  # one entry takes the place of another
    numbers = np.asarray(trace.seqs, dtype=np.int64)
    t_ns = events["t_ns"].astype(np.int64)
    wanted = np.asarray(list(drafts), owner.dtype)
    starts, ends = (np.searchsorted(owner, wanted, side=side).tolist() for side in ("left", "right"))
    out = {}
    for draft, lo, hi in zip(drafts.values(), starts, ends, strict=True):
        mine, held = rows[lo:hi], np.cumsum(moves[lo:hi])
        if draft.cut and len(held):  # what it held before: all of it is given back at its end
            held -= held[-1] if draft.outcome != "running" else min(int(held.min()), 0)
        out[draft.seq_id] = (numbers[mine], t_ns[mine], held)
    return out
