"""The sanitizer beside a running engine: a sink that checks, at the end of steps, what it passes on.

With the reaction "raise" the rows of a step are looked at by the screen just after its STEP_END, before a token that
the step computed leaves the engine; with "log" those of several steps together, which costs less. At the first
suspicion the recorded events are replayed under the detectors, and from then on the detectors follow event by event:
findings are theirs, with all that a report needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvscope.errors import Sanitized, UsageError
from kvscope.inspector.detectors import detector_types
from kvscope.inspector.detectors.player import Player
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.findings import Finding
from kvscope.inspector.screen.columns import Chunk, GivenDetails
from kvscope.inspector.screen.screen import Screen, understood
from kvscope.inspector.source import TraceLike, frozen, rows_until
from kvscope.traces.schema import EVENT_DTYPE, EventArray, Kind
from kvscope.traces.sheet import Sheet
from kvscope.traces.sink import EventSink, Ints, SpelledOut

Reaction = Literal["log", "raise"]

_LOG = logging.getLogger("kvscope.sanitizer")
_STEP_BEGIN, _WITNESS = int(Kind.STEP_BEGIN), int(Kind.WITNESS)
_EVERY = 4096
_COLUMNS = ("kind", "reason", "block", "gen", "ref_before", "ref_after", "fill", "seq_id", "lblock", "aux")


class OnlineSanitizer(SpelledOut):
    """An `EventSink` in front of another one.

    Args:
        sink: where the events go; it numbers them.
        num_blocks, block_size: of the pool that writes.
        reaction: "log" reports each finding once, as a warning or to `on_finding`; "raise" stops the engine with
            `Sanitized`.
        every: look at the end of the first step with so many events to look at. None: after each step with "raise",
            after 4,096 events with "log".
        trace: reads back what the sink has recorded; asked for at the first suspicion only. None: the sink itself.
        on_finding: called with each new finding.
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        num_blocks: int,
        block_size: int,
        reaction: Reaction = "log",
        every: int | None = None,
        trace: Callable[[], TraceLike] | None = None,
        on_finding: Callable[[Finding, TraceLike], None] | None = None,
    ) -> None:
        if reaction not in ("log", "raise"):
            raise UsageError(f"reaction is {reaction!r}: must be log or raise")
        self.findings: list[Finding] = []
        self.checked = 0  # events looked at
        self._sink, self._reaction, self._trace, self._on_finding = sink, reaction, trace, on_finding
        # Straight through: what needs no look costs no call.
        self.begin, self.skip_frames = sink.begin, sink.skip_frames
        self._emit = sink.emit
        self._pieces: list[npt.NDArray[np.int64]] = []
        self._rows: list[tuple[int, ...]] = []
        self._details: dict[int, Sequence[int]] = {}
        self._first = -1  # number of the first event not looked at
        self._screen: Screen | None = Screen(num_blocks, block_size)
        self._player: Player | None = None
        self._lost = False
        self._due = -1
        self._every = every if every is not None else 1 if reaction == "raise" else _EVERY
        self._waiting = 0  # rows in `_pieces`
        self._facts: list[Mapping[str, Any]] = []

    def fact(self, record: Mapping[str, Any]) -> None:
        """Pass a fact on; what it says of model and scheduler is looked at too."""
        self._sink.fact(record)
        if record.get("type") in ("model", "scheduler") and self._screen is not None:
            self._facts.append(record)

    @property
    def step(self) -> int:
        """The step that the next rows belong to."""
        return self._sink.step

    @step.setter
    def step(self, value: int) -> None:
        self._sink.step = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def emit(
        self,
        kind: int,
        reason: int = 0,
        block: int = -1,
        gen: int = -1,
        ref_before: int = -1,
        ref_after: int = -1,
        fill: int = -1,
        seq_id: int = -1,
        lblock: int = -1,
        aux: int = 0,
    ) -> int:
        """Pass one row on; a step that begins without a WITNESS before it makes the last one checked."""
        if kind == _STEP_BEGIN and self._due >= 0:
            self._step_is_over()
        seq = self._emit(kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)
        self._rows.append((kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux))
        if self._first < 0:
            self._first = seq
        if kind == _WITNESS:
            self._due = seq
        if seq < 0:
            self._lost = True
        return seq

    def emit_many(
        self,
        kind: int,
        reason: int = 0,
        *,
        block: Ints = -1,
        gen: Ints = -1,
        ref_before: Ints = -1,
        ref_after: Ints = -1,
        fill: Ints = -1,
        seq_id: Ints = -1,
        lblock: Ints = -1,
        aux: Ints = 0,
        details: npt.NDArray[np.int64] | None = None,
    ) -> int:
        """Pass many rows on."""
        seq = self._sink.emit_many(
            kind, reason, block=block, gen=gen, ref_before=ref_before, ref_after=ref_after, fill=fill, seq_id=seq_id,
            lblock=lblock, aux=aux, details=details,
        )  # fmt: skip
        values = (kind, reason, block, gen, ref_before, ref_after, fill, seq_id, lblock, aux)
        count = max(np.size(value) if np.ndim(value) else -1 for value in values)
        rows = np.empty((1 if count < 0 else count, len(_COLUMNS)), dtype=np.int64)
        for i, value in enumerate(values):
            rows[:, i] = value
        return self._note(seq, rows, details)

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """Pass the rows of a sheet on."""
        seq = self._sink.emit_sheet(sheet, details)
        rows = np.empty((len(sheet), len(_COLUMNS)), dtype=np.int64)
        for i, name in enumerate(_COLUMNS):
            rows[:, i] = sheet.rows[name]
        return self._note(seq, rows, details)

    def _note(self, seq: int, rows: npt.NDArray[np.int64], details: npt.NDArray[np.int64] | None) -> int:
        """Keep rows that were passed on as `seq` and following, to be looked at."""
        if details is not None:
            last = seq + len(rows) - len(details)  # they are of the last rows
            self._details.update(enumerate(map(tuple, details.tolist()), last))
        self._flush()
        self._pieces.append(rows)
        self._waiting += len(rows)
        if self._first < 0 and len(rows):
            self._first = seq
        self._lost |= seq < 0
        return seq

    def detail(self, seq: int, values: Sequence[int]) -> None:
        """Pass details on; those of a WITNESS complete the step, and its rows are checked."""
        self._sink.detail(seq, values)
        self._details[seq] = values
        if seq == self._due:
            self._step_is_over()

    def check(self) -> None:
        """Look at what came since the last look.

        Raises:
            Sanitized: there is a new finding, and the reaction is "raise".
        """
        self._due = -1
        events = self._take()
        if self._lost or not len(events):
            return
        self.checked += len(events)
        first, self._first = self._first, -1
        details, self._details = self._details, {}
        if self._player is None:
            if not self._suspicious(events, first, details):
                return
            self._screen = None
        self._follow()

    def close(self) -> None:
        """The run is over: look at the rest, and at what is left behind."""
        self.check()
        if self._screen is not None and not self._lost:
            self._screen.finish(self.checked)
            if self._screen.suspects:
                self._follow()
        if self._player is not None:
            self._player.finish()
            self._tell()

    def _step_is_over(self) -> None:
        self._due = -1
        if self._waiting + len(self._rows) >= self._every or self._player is not None:
            self.check()

    # -- inside -------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._rows:
            self._pieces.append(np.array(self._rows, dtype=np.int64))
            self._waiting += len(self._rows)
            self._rows = []

    def _take(self) -> EventArray:
        self._flush()
        rows = np.concatenate(self._pieces) if self._pieces else np.empty((0, len(_COLUMNS)), np.int64)
        self._pieces, self._waiting = [], 0
        events = np.zeros(len(rows), dtype=EVENT_DTYPE)
        for i, name in enumerate(_COLUMNS):
            events[name] = rows[:, i]
        return events

    def _suspicious(self, events: EventArray, first: int, details: Mapping[int, Sequence[int]]) -> bool:
        assert self._screen is not None
        given = GivenDetails(details, events["kind"], first)
        self._screen.learn(self._facts, details.get)
        chunk = Chunk(events, first, given)
        if given.ragged or not understood(chunk.present):
            return True
        return self._screen.feed(chunk)

    def _follow(self) -> None:
        """Play to the detectors what the trace holds beyond what they have seen."""
        trace = _Open(self._trace() if self._trace is not None else self._sink)  # type: ignore[arg-type]
        if self._player is None:
            ledger = Ledger(frozen(trace))
            self._player = Player(ledger, [make(ledger) for make in detector_types().values()])
        ledger = self._player.ledger
        begin = rows_until(trace, ledger.seq)
        ledger.continue_with(frozen(trace))
        self._player.feed(trace.events[begin:], np.asarray(trace.seqs[begin:], dtype=np.int64))
        self._tell()

    def _tell(self) -> None:
        assert self._player is not None
        ledger = self._player.ledger
        new, self.findings = ledger.findings[len(self.findings) :], list(ledger.findings)
        for finding in new:
            if self._on_finding is not None:
                self._on_finding(finding, ledger.trace)
            elif self._reaction == "log":
                _LOG.warning("%s [%s] at seq %d: %s", finding.title, finding.code, finding.seq, finding.why)
        if new and self._reaction == "raise":
            raise Sanitized(
                f"{new[0].code} {new[0].title} at seq {new[0].seq}, step {new[0].step}: {new[0].why}; stopped before "
                "the tokens of this step were used (kvscope check tells the whole story)", new[0],
            )  # fmt: skip


class _Open:
    """A trace that is still being written: what living sequences hold is no leak."""

    def __init__(self, trace: TraceLike) -> None:
        self._trace = trace
        self.clean = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)
