"""The sanitizer beside a running engine: a sink that checks, at the end of steps, what it passes on.

With the reaction "raise" the rows of a step are looked at by the screen just after its STEP_END, before a token that
the step computed leaves the engine; with "log" those of several steps together, where steps are small. At the first
suspicion the recorded events are replayed under the detectors, and from then on the detectors follow event by event:
findings are theirs, with all that a report needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from kvscope.errors import Sanitized, UsageError
from kvscope.inspector.detectors import detector_types
from kvscope.inspector.detectors.player import Player
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.findings import Finding
from kvscope.inspector.given import remembered
from kvscope.inspector.limits import LIMITING
from kvscope.inspector.screen.live import Bulk, ByColumns, ByRows, Singles, live_screen
from kvscope.inspector.source import TraceLike, frozen, rows_until
from kvscope.traces.schema import Kind
from kvscope.traces.sheet import Sheet
from kvscope.traces.sink import EventSink, Ints

Reaction = Literal["log", "raise"]

_LOG = logging.getLogger("kvscope.sanitizer")
_WITNESS, _GAP = int(Kind.WITNESS), int(Kind.GAP)
_WITNESS_VALUES = (8, 9)
_AT_ONCE = 256  # events: so few are looked at without waiting for more, where a look costs little
_LEAST, _MOST = 4096, 32_768  # events between two looks that cost much
_OFTEN_S, _SELDOM_S = 0.2, 1.0


class OnlineSanitizer:
    """An `EventSink` in front of another one.

    Args:
        sink: where the events go; it numbers them.
        num_blocks, block_size, block_bytes: of the pool that writes; the bytes are compared with what facts promise.
        reaction: "log" reports each finding once, as a warning or to `on_finding`; "raise" stops the engine with
            `Sanitized`.
        every: look at the end of the first step with so many events to look at. None: after each step with "raise";
            with "log" after 256 events, or, where the part in C was not built, after 4,096, and after up to 32,768
            while they come faster than five looks a second.
        trace: reads back what the sink has recorded; asked for at the first suspicion only. None: the sink itself.
        on_finding: called with each new finding.
        screen: what makes the screen of a pool (blocks, slots per block).
    """

    def __init__(
        self,
        sink: EventSink,
        *,
        num_blocks: int,
        block_size: int,
        block_bytes: int = 0,
        reaction: Reaction = "log",
        every: int | None = None,
        trace: Callable[[], TraceLike] | None = None,
        on_finding: Callable[[Finding, TraceLike], None] | None = None,
        screen: Callable[[int, int], ByRows | ByColumns] = live_screen,
    ) -> None:
        if reaction not in ("log", "raise"):
            raise UsageError(f"reaction is {reaction!r}: must be log or raise")
        if trace is None and not hasattr(sink, "events"):
            kept = f"{type(sink).__name__} gives no events back"
            raise UsageError(f"{kept}: say where they can be read, such as trace=lambda: open_trace(recorder.path)")
        self.findings: list[Finding] = []
        self.checked = 0  # events looked at
        self.stopped = False  # whether it has stopped the engine
        self._reaction, self._trace, self._on_finding = reaction, trace, on_finding
        self._block_bytes = block_bytes
        self._source, self._sink = sink, remembered(sink)
        # Straight through: what needs no look costs no call.
        self.begin, self.skip_frames, self.emit = self._sink.begin, sink.skip_frames, self._sink.emit
        self.emit_alloc, self.emit_end = self._sink.emit_alloc, self._sink.emit_end
        self.emit_lives, self.emit_ends = self._sink.emit_lives, self._sink.emit_ends
        self._emit_many, self._emit_sheet, self._detail = self._sink.emit_many, self._sink.emit_sheet, self._sink.detail
        self._singles: Singles = {}
        self._bulk: Bulk = []
        self._first = self._sink.next_seq  # number of the first event not looked at
        self._dropped = self._drops()
        self._screen: ByRows | ByColumns | None = screen(num_blocks, block_size)
        self._marks = self._sink if self._sink is sink else None  # whose rows are complete when they are marked
        self._player: Player | None = None
        self._step, self._witnessed = -1, False
        self._adapts = every is None and reaction == "log" and self._screen.least > _AT_ONCE
        self.every = every if every is not None else 1 if reaction == "raise" else self._screen.least
        self._looked_at = time.monotonic()
        self._facts: list[Mapping[str, Any]] = []

    def fact(self, record: Mapping[str, Any]) -> None:
        """Pass a fact on; what it says of model and scheduler is looked at too."""
        self._sink.fact(record)
        if record.get("type") in LIMITING and self._screen is not None:
            self._facts.append(record)

    @property
    def step(self) -> int:
        """The step that the next rows belong to."""
        return int(self._sink.step)

    @step.setter
    def step(self, value: int) -> None:
        self._sink.step = value
        if not self._witnessed and value > self._step:
            self._step = value
            self._step_is_over()  # nobody says when a step is over: when the next one is planned

    @property
    def next_seq(self) -> int:
        """The number that the next row gets."""
        return int(self._sink.next_seq)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)  # what keeps rows must see calls of every name

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
        seq: int = self._emit_many(
            kind, reason, block=block, gen=gen, ref_before=ref_before, ref_after=ref_after, fill=fill, seq_id=seq_id,
            lblock=lblock, aux=aux, details=details,
        )  # fmt: skip
        if details is not None:
            self._bulk.append((seq, np.array(details, dtype=np.int64)))
        return seq

    def emit_sheet(self, sheet: Sheet, details: npt.NDArray[np.int64] | None = None) -> int:
        """Pass the rows of a sheet on."""
        seq: int = self._emit_sheet(sheet, details)
        if details is not None:
            last = seq + len(sheet) - len(details)  # they are of the last rows
            self._bulk.append((last, np.array(details, dtype=np.int64)))
        return seq

    def detail(self, seq: int, values: Sequence[int]) -> None:
        """Pass details on; those of a WITNESS complete the step, and its rows are checked."""
        self._detail(seq, values)
        self._singles[seq] = values
        if len(values) in _WITNESS_VALUES and (self._witnessed or self._is_witness(seq)):
            self._witnessed = True  # from now on these many values are enough; a WAIT's may be as many: one look more
            self._step_is_over()

    def check(self) -> None:
        """Look at what came since the last look.

        Raises:
            Sanitized: there is a new finding, and the reaction is "raise".
        """
        if self._drops() > self._dropped:  # what is left tells no whole story
            return
        screen = self._screen
        if screen is None:
            rows = self._sink.recent(self._first)
            self._looked(len(self._sealed_rows() if rows is None else rows))
            self._follow()
            return
        if self._facts:
            screen.learn(self._facts, self._block_bytes)
            self._facts = []
        parts, marks = self._sink.recent_parts(self._first), self._marks
        if parts is None:
            parts, marks = [self._sealed_rows()], None
        self._looked(screen.look(parts, self._first, self._singles, self._bulk, marks))
        if screen.suspects:
            self._screen = None
            self._follow()

    def close(self) -> None:
        """The run is over: look at the rest, and at what is left behind."""
        self.check()
        lost = self._drops() > self._dropped
        if self._screen is not None and not lost:
            self._screen.finish(self.checked)
            if self._screen.suspects:
                self._screen = None
                self._follow()
        if self._player is not None:
            self._player.finish()
            self._tell()

    # -- inside -------------------------------------------------------------------------------------------------

    def _step_is_over(self) -> None:
        waiting = self._sink.next_seq - self._first
        if waiting >= self.every or self._player is not None or 2 * waiting > self._sink.recent_rows:
            self.check()
            if self._adapts:
                self._adapt()

    def _adapt(self) -> None:
        """Look at more at once while events come fast: a look costs much less per event then."""
        now = time.monotonic()
        since, self._looked_at = now - self._looked_at, now
        if since < _OFTEN_S:
            self.every = min(2 * self.every, _MOST)
        elif since > _SELDOM_S:
            self.every = max(self.every // 2, _LEAST)

    def _drops(self) -> int:
        return int(getattr(self._sink, "dropped", 0))

    def _is_witness(self, seq: int) -> bool:
        rows = self._sink.recent(seq)
        return rows is not None and len(rows) > 0 and int(rows["kind"][0]) == _WITNESS

    def _sealed_rows(self) -> npt.NDArray[np.void]:
        """The rows not looked at from what the sink has recorded: there were more at once than it has in memory."""
        trace = frozen(self._trace() if self._trace is not None else self._source)  # type: ignore[arg-type]
        rows: npt.NDArray[np.void] = trace.events[rows_until(trace, self._first - 1) :]
        return rows

    def _looked(self, count: int) -> None:
        """So many more events have been looked at: their details are forgotten."""
        if not count:
            return
        end = self._first = self._first + count
        self.checked += count
        later = end < self._sink.next_seq
        self._singles = {seq: values for seq, values in self._singles.items() if seq >= end} if later else {}
        self._bulk = [part for part in self._bulk if part[0] >= end] if later else []

    def _follow(self) -> None:
        """Play to the detectors what the trace holds beyond what they have seen."""
        trace = _Open(self._trace() if self._trace is not None else self._source)  # type: ignore[arg-type]
        if self._player is None:
            ledger = Ledger(frozen(trace))
            self._player = Player(ledger, [make(ledger) for make in detector_types().values()])
        ledger = self._player.ledger
        begin = rows_until(trace, ledger.seq)
        ledger.continue_with(frozen(trace))
        rows = trace.events[begin:]
        lost = set(np.flatnonzero(rows["kind"] == _GAP).tolist())
        self._player.feed(rows, np.asarray(trace.seqs[begin:], dtype=np.int64), lost)
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
            self.stopped = True
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
