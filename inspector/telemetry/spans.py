"""Events to spans: what a request went through, as phases with times, folded from the trace as it grows.

    queued -> prefill -> decode -> (preempted -> prefill -> decode)* -> end

A span per request and, of few steps, a span per step; never one per block. What happens to blocks in between is told
as an event of the request's span, and only where it is rare: copies on write, evictions, preemptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.traces.follow import Part
from kvscope.traces.schema import EventArray, Kind, Reason, unpack_range

MAX_EVENTS = 120  # of one span: SDKs keep 128


@dataclass(slots=True)
class Phase:
    """A stretch of a sequence's life; times in ns since the trace began. `end` is -1 while it lasts."""

    name: str  # queued, prefill, decode or preempted
    seq_id: int
    start: int
    seq: int  # the event it begins with
    end: int = -1


@dataclass(slots=True)
class SpanEvent:
    """Something that happened once: preempted, cow, evicted or finding."""

    name: str
    t_ns: int
    attributes: dict[str, Any]


@dataclass(slots=True)
class RequestSpan:
    """One request from its submission to the end of its last sequence."""

    request: int
    start: int
    seq: int
    prompt_tokens: int
    max_tokens: int
    samples: int
    phases: list[Phase] = field(default_factory=list)
    events: list[SpanEvent] = field(default_factory=list)
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    first_token: int = -1
    end: int = -1
    finish: list[str] = field(default_factory=list)
    aborted: bool = False
    dropped_events: int = 0

    def add(self, event: SpanEvent) -> None:
        """An event of this request; those beyond what a span holds are counted."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped_events += 1


@dataclass(slots=True)
class StepSpan:
    """One engine step."""

    step: int
    seq: int
    start: int
    sequences: int
    end: int = -1
    tokens: int = 0


@dataclass(slots=True)
class _Sequence:
    span: RequestSpan
    phase: Phase
    prompt: int
    target: int  # positions after which its tokens are its own
    closing: bool = False  # the step under way computes them
    computed: int = 0


class SpanFold:
    """Folds parts of a trace, in order; what has ended is taken with `ended` and `steps`.

    Args:
        every: one step of so many becomes a span.
    """

    def __init__(self, every: int = 100) -> None:
        self.ended: list[RequestSpan] = []
        self.steps: list[StepSpan] = []
        self._every = every
        self._live: dict[int, _Sequence] = {}
        self._open: dict[int, int] = {}  # requests under way: their sequences that have not ended
        self._step: StepSpan | None = None
        self._evicted: list[
            tuple[int, int, int, int, int]
        ] = []  # seq, t_ns, block, gen, reason; for whom is not known yet

    def span_of(self, seq_id: int) -> RequestSpan | None:
        """The span of a sequence that has not ended."""
        known = self._live.get(seq_id)
        return None if known is None else known.span

    def add(self, part: Part) -> None:
        """Take in the next rows."""
        events, seqs = part.events, part.seqs
        positions, offsets, values = part.details
        detail = {int(p): values[offsets[i] : offsets[i + 1]] for i, p in enumerate(positions.tolist())
                  if events["kind"][p] in (Kind.SUBMIT, Kind.COW)}  # fmt: skip
        for row in self._telling(events).tolist():
            event = events[row]
            handler = _HANDLERS[int(event["kind"])]
            handler(self, int(seqs[row]), event, detail.get(row))

    def _telling(self, events: EventArray) -> npt.NDArray[np.int64]:
        """Rows that change a phase: of the many SCHED and ALLOC rows only those that somebody waits for."""
        kind = events["kind"]
        rows = _WANTED[kind]
        prefilling = [s for s, known in self._live.items() if known.phase.name == "prefill"]
        starts = (kind == Kind.ADMIT) | (kind == Kind.RESUME)
        rows |= (kind == Kind.SCHED) & np.isin(events["seq_id"], [*prefilling, *events["seq_id"][starts].tolist()])
        evicted = np.flatnonzero(kind == Kind.EVICT)
        if len(evicted) or self._evicted:  # the next block that is handed out says who wanted it
            given = np.flatnonzero(kind == Kind.ALLOC)
            after = np.searchsorted(given, [0, *evicted.tolist()] if self._evicted else evicted)
            rows[given[after[after < len(given)]]] = True
        return np.flatnonzero(rows)

    def _enter(self, known: _Sequence, name: str, t_ns: int, seq: int) -> None:
        known.phase.end = t_ns
        known.phase = Phase(name, known.phase.seq_id, t_ns, seq)
        known.span.phases.append(known.phase)

    def _submit(self, seq: int, event: Any, detail: Any) -> None:
        if detail is None or len(detail) < 3:
            return
        request, most, samples = (int(value) for value in detail[:3])
        seq_id, t_ns, prompt = int(event["seq_id"]), int(event["t_ns"]), int(event["aux"])
        span = RequestSpan(request, t_ns, seq, prompt, most, samples)
        phase = Phase("queued", seq_id, t_ns, seq)
        span.phases.append(phase)
        self._live[seq_id] = _Sequence(span, phase, prompt, prompt)
        self._open[request] = 1

    def _admit(self, seq: int, event: Any, _: Any) -> None:
        known = self._live.get(int(event["seq_id"]))
        if known is None:
            return
        resumed = event["kind"] == Kind.RESUME
        if not resumed:
            known.span.cached_tokens = int(event["aux"])
        at_once = resumed and (event["reason"] == Reason.SWAPPED or int(event["aux"]) <= 1)
        self._enter(known, "decode" if at_once else "prefill", int(event["t_ns"]), seq)

    def _sched(self, _: int, event: Any, __: Any) -> None:
        known = self._live.get(int(event["seq_id"]))
        if known is not None:
            known.computed = unpack_range(int(event["aux"]))[1]
            known.closing = known.phase.name == "prefill" and known.computed >= known.target

    def _step_begin(self, seq: int, event: Any, _: Any) -> None:
        step = int(event["step"])
        if step % self._every == 0:
            self._step = StepSpan(step, seq, int(event["t_ns"]), int(event["aux"]))

    def _step_end(self, seq: int, event: Any, _: Any) -> None:
        t_ns = int(event["t_ns"])
        for known in [known for known in self._live.values() if known.closing]:
            known.closing = False
            self._enter(known, "decode", t_ns, seq)
            if known.span.first_token < 0:
                known.span.first_token = t_ns
        if self._step is not None and self._step.step == int(event["step"]):
            self._step.end, self._step.tokens = t_ns, int(event["aux"])
            self.steps.append(self._step)
            self._step = None

    def _fork(self, seq: int, event: Any, _: Any) -> None:
        parent = self._live.get(int(event["aux"]))
        if parent is None:
            return
        phase = Phase("decode", int(event["seq_id"]), int(event["t_ns"]), seq)
        parent.span.phases.append(phase)
        self._live[phase.seq_id] = _Sequence(parent.span, phase, parent.prompt, parent.target, computed=parent.computed)
        self._open[parent.span.request] += 1

    def _preempt(self, seq: int, event: Any, _: Any) -> None:
        known = self._live.get(int(event["seq_id"]))
        if known is None:
            return
        computed, t_ns = int(event["aux"]), int(event["t_ns"])
        known.closing, known.target = False, max(known.prompt, computed + 1)
        known.span.preemptions += 1
        known.span.add(SpanEvent("preempted", t_ns, {
            "kvscope.trace.seq": seq, "kvscope.sequence.id": phase_id(known), "kvscope.reason": word(event),
            "kvscope.sequence.computed_tokens": computed,
        }))  # fmt: skip
        self._enter(known, "preempted", t_ns, seq)

    def _cow(self, seq: int, event: Any, detail: Any) -> None:
        known = self._live.get(int(event["seq_id"]))
        if known is not None:
            attributes = {**_block(seq, event), "kvscope.cow.source": int(event["aux"])}
            if detail is not None and len(detail) >= 4:
                attributes["kvscope.cow.slots"] = int(detail[3] - detail[2])
            known.span.add(SpanEvent("cow", int(event["t_ns"]), attributes))

    def _evict(self, seq: int, event: Any, _: Any) -> None:
        row = (seq, int(event["t_ns"]), int(event["block"]), int(event["gen"]), int(event["reason"]))
        self._evicted = [*self._evicted[-MAX_EVENTS:], row]

    def _alloc(self, _: int, event: Any, __: Any) -> None:
        rows, self._evicted = self._evicted, []
        known = self._live.get(int(event["seq_id"]))
        if known is None:
            return
        for seq, t_ns, block, gen, reason in rows:
            known.span.add(SpanEvent("evicted", t_ns, {
                "kvscope.trace.seq": seq, "kvscope.block.id": block, "kvscope.block.generation": gen,
                "kvscope.reason": _word(reason),
            }))  # fmt: skip

    def _end(self, seq: int, event: Any, _: Any) -> None:
        known = self._live.pop(int(event["seq_id"]), None)
        if known is None:
            return
        span, t_ns = known.span, int(event["t_ns"])
        known.phase.end = t_ns
        span.output_tokens += int(event["aux"])
        span.finish.append(word(event))
        span.aborted |= event["kind"] == Kind.ABORT
        self._open[span.request] -= 1
        if not self._open[span.request]:
            del self._open[span.request]
            span.end = t_ns
            self.ended.append(span)


def phase_id(known: _Sequence) -> int:
    """The sequence that a phase belongs to."""
    return known.phase.seq_id


def word(event: Any) -> str:
    """The reason of an event, in lower case."""
    return _word(int(event["reason"]))


def _word(reason: int) -> str:
    try:
        return Reason(reason).name.lower()
    except ValueError:
        return f"reason {reason}"


def _block(seq: int, event: Any) -> dict[str, Any]:
    return {"kvscope.trace.seq": seq, "kvscope.block.id": int(event["block"]),
            "kvscope.block.generation": int(event["gen"])}  # fmt: skip


_HANDLERS: dict[int, Any] = {
    Kind.SUBMIT: SpanFold._submit, Kind.ADMIT: SpanFold._admit, Kind.RESUME: SpanFold._admit,
    Kind.SCHED: SpanFold._sched, Kind.STEP_BEGIN: SpanFold._step_begin, Kind.STEP_END: SpanFold._step_end,
    Kind.FORK: SpanFold._fork, Kind.PREEMPT: SpanFold._preempt, Kind.COW: SpanFold._cow, Kind.EVICT: SpanFold._evict,
    Kind.ALLOC: SpanFold._alloc, Kind.FINISH: SpanFold._end, Kind.ABORT: SpanFold._end,
}  # fmt: skip
_WANTED = np.zeros(256, np.bool_)
_WANTED[[kind for kind in _HANDLERS if kind not in (Kind.SCHED, Kind.ALLOC)]] = True
