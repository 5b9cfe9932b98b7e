"""A trace as it stood at one moment, as the pages and the inspector read it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvscope.inspector.source import Frozen
from kvscope.inspector.units import counted
from kvscope.traces.schema import EventArray

_OF_READER = ("row_of", "fold_at", "details_between")
_RUN = 1 << 20


@dataclass(frozen=True)
class TraceView:
    """A trace as it stood at one moment: what every offline function of the inspector reads. Never changes."""

    name: str
    path: Path
    events: EventArray
    seqs: Any
    num_blocks: int
    block_size: int
    block_bytes: int
    sites: Sequence[Any]
    actors: Sequence[str]
    facts: Sequence[dict[str, Any]]
    warnings: Sequence[str]
    clean: bool
    live: bool
    dropped: int
    opened: int  # differs for each time a trace is opened anew
    absent: tuple[tuple[int, int], ...]  # [lo, hi) of the numbers of events that were recorded and are not there
    let_go: int  # events below this number went by the recorder's own limits
    damaged_records: tuple[str, ...]  # what is wrong with the files of facts, names and details, a line for each
    reader: Any = field(repr=False, compare=False)

    @property
    def on_demand(self) -> bool:
        """Whether it is long: rows are decoded where they are looked at."""
        return False

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """[lo, hi) of the numbers of events that are not there: let go by the recorder, or missing."""
        let_go = [(0, self.first_seq)] if self.first_seq and not (self.absent and self.absent[0][0] == 0) else []
        return [*let_go, *self.absent]

    @property
    def id(self) -> tuple[str, int, int, bool]:
        """Equal for equal content: the key of everything cached about it."""
        return (str(self.path), self.opened, len(self.events), self.clean or self.live)

    @property
    def last_seq(self) -> int:
        """Number of the last event, -1 where there is none."""
        return int(self.seqs[-1]) if len(self.seqs) else -1

    @property
    def first_seq(self) -> int:
        """Number of the first event, 0 where there is none."""
        return int(self.seqs[0]) if len(self.seqs) else 0

    @property
    def damage(self) -> str:
        """Which events and records are missing and how many, in a line for people; empty where none is."""
        records = ""
        if self.damaged_records:
            records = f"Damaged: {'; '.join(self.damaged_records)}. What is told of requests and calls is incomplete."
        return " ".join(filter(None, (self._lost_events, records)))

    @property
    def _lost_events(self) -> str:
        lost = sum(hi - lo for lo, hi in self.absent)
        if not lost:
            return ""
        if not len(self.events):
            return f"Damaged: all {counted(lost, 'event is', 'events are')} missing, and nothing can be shown."
        (lo, _), (_, hi) = self.absent[0], self.absent[-1]
        where = f"{lo:,} to {hi - 1:,}" if len(self.absent) == 1 else f"in {len(self.absent)} places"
        of = f"{lost:,} of {lost + len(self.events):,} events {'is' if lost == 1 else 'are'}"
        return f"Damaged: {of} missing ({where}). What is shown comes from the others."

    def detail(self, seq: int) -> tuple[int, ...] | None:
        """The details of one event."""
        return self.reader.detail(seq)  # type: ignore[no-any-return]

    def details_of(self, kind: int) -> Any:
        """(seqs, values) of the events of a kind that have details."""
        return self.reader.details_of(kind)


class LongView(TraceView):
    """A long trace: the inspector reads it a piece at a time. Of one that grows, the rows of one moment."""

    folded = long = True

    def __getattr__(self, name: str) -> Any:
        if name in _OF_READER:
            return getattr(self.reader, name)
        raise AttributeError(f"a view has no attribute {name!r}")

    def columns(self, names: Sequence[str], lo: int = 0, hi: int | None = None) -> dict[str, Any]:
        """Columns of some rows, none but those of the view."""
        return self.reader.columns(names, lo, self.rows if hi is None else min(hi, self.rows))  # type: ignore[no-any-return]

    def chunks(
        self, names: Sequence[str], lo: int = 0, hi: int | None = None, rows: int = _RUN
    ) -> Iterator[dict[str, Any]]:
        """`columns` in runs of at most `rows` rows, one after the other."""
        end = self.rows if hi is None else min(hi, self.rows)
        for at in range(lo, end, rows):
            yield self.columns(names, at, min(at + rows, end))

    def detail_arrays(self, kind: int) -> tuple[Any, Any, Any]:
        """(seqs, offsets, values) of the events of a kind that have details, none but those of the view."""
        seqs, offsets, values = self.reader.detail_arrays(kind)
        count = int(np.searchsorted(seqs, self.last_seq, side="right"))
        return seqs[:count], offsets[: count + 1], values[: offsets[count]]

    def details_of(self, kind: int) -> Any:
        """The same with a tuple for each."""
        seqs, offsets, values = self.detail_arrays(kind)
        ends, flat = offsets.tolist(), values.tolist()
        return seqs, [tuple(flat[lo:hi]) for lo, hi in itertools.pairwise(ends)]

    @property
    def on_demand(self) -> bool:
        """Yes."""
        return True

    @property
    def rows(self) -> int:
        """How many events."""
        return len(self.seqs)

    @property
    def rows_on_demand(self) -> EventArray:
        """The events."""
        return self.events

    @property
    def frozen(self) -> Frozen:
        """The view as the inspector reads it, made once."""
        if "_frozen" not in self.__dict__:
            object.__setattr__(self, "_frozen", Frozen(self))
        return self.__dict__["_frozen"]  # type: ignore[no-any-return]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """[lo, hi) of the numbers of missing events."""
        return self.reader.gaps  # type: ignore[no-any-return]
