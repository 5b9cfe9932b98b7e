"""What the inspector needs of a trace, and small questions that every module asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError
from kvscope.traces.schema import DETAIL_FIELDS, EventArray, Kind

IntArray = npt.NDArray[np.int64]


class SiteLike(Protocol):
    """A call site: where in the engine an event was made."""

    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...
    @property
    def function(self) -> str: ...


class TraceLike(Protocol):
    """A trace as the inspector reads it: `TraceReader` and `MemoryRecorder` both fit.

    `events[i]` has the number `seqs[i]`; numbers ascend and are dense unless events were lost.
    """

    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def events(self) -> EventArray: ...
    @property
    def seqs(self) -> npt.NDArray[Any]: ...
    @property
    def sites(self) -> Sequence[Any]: ...
    @property
    def actors(self) -> Sequence[str]: ...
    @property
    def facts(self) -> Sequence[dict[str, Any]]: ...
    def detail(self, seq: int) -> tuple[int, ...] | None: ...


def rows_until(trace: TraceLike, seq: int) -> int:
    """How many leading rows have a number of at most `seq`."""
    return int(np.searchsorted(np.asarray(trace.seqs), seq, side="right"))


def row_of(trace: TraceLike, seq: int) -> int:
    """The index of event `seq`.

    Raises:
        TraceError: the trace has no such event.
    """
    row = rows_until(trace, seq) - 1
    if row < 0 or int(trace.seqs[row]) != seq:
        first, last = (int(trace.seqs[0]), int(trace.seqs[-1])) if len(trace.seqs) else (0, -1)
        raise TraceError(f"the trace has no event {seq}: it holds {first}..{last} (lost events have no row)")
    return row


def details_map(trace: TraceLike, kind: Kind) -> dict[int, tuple[int, ...]]:
    """The details of all events of one kind, by their number."""
    bulk = getattr(trace, "details_of", None)
    if bulk is not None:
        seqs, values = bulk(kind)
        return {int(s): tuple(v) for s, v in zip(seqs, values, strict=True)}
    rows = np.flatnonzero(trace.events["kind"] == kind)
    pairs = ((int(s), trace.detail(int(s))) for s in np.asarray(trace.seqs)[rows])
    return {s: v for s, v in pairs if v is not None}


def named_detail(trace: TraceLike, seq: int, kind: Kind) -> dict[str, int]:
    """The details of one event by field name; empty where it has none."""
    return dict(zip(DETAIL_FIELDS.get(kind, ()), trace.detail(seq) or (), strict=False))


def is_clean(trace: TraceLike) -> bool:
    """Whether the trace was closed by its writer; a recorder that says nothing counts as closed."""
    return bool(getattr(trace, "clean", True))


def gap_rows(trace: TraceLike) -> list[tuple[int, int]]:
    """Where events are missing: (row that follows the hole, events lost), in order."""
    seqs = np.asarray(trace.seqs, dtype=np.int64)
    if not len(seqs):
        return []
    holes: dict[int, int] = {}
    if seqs[0] > 0:
        holes[0] = int(seqs[0])
    jumps = np.diff(seqs)
    for row in np.flatnonzero(jumps > 1).tolist():
        holes[row + 1] = int(jumps[row]) - 1
    marks = np.flatnonzero(trace.events["kind"] == Kind.GAP).tolist()
    for row in marks:
        near = row + 1 if row + 1 in holes else row
        holes[near] = max(holes.get(near, 0), int(trace.events["aux"][row]))
    return sorted(holes.items())


class Names:
    """The names of sequences: `haiku`, or `haiku/1` for its second sample, or `s7` where no fact names it."""

    def __init__(self, facts: Iterable[dict[str, Any]]) -> None:
        self._request: dict[int, int] = {}
        self._sample: dict[int, int] = {}
        self._name: dict[int, str] = {}
        for fact in facts:
            if fact.get("type") == "request":
                request = int(fact["request"])
                self._name[request] = str(fact.get("name") or f"r{request}")
                for sample, seq_id in enumerate(fact.get("seq_ids") or ()):
                    self._request[int(seq_id)] = request
                    self._sample[int(seq_id)] = sample
            elif fact.get("type") == "sample":
                self._request[int(fact["seq_id"])] = int(fact["request"])
                self._sample[int(fact["seq_id"])] = int(fact.get("sample", 0))

    def request(self, seq_id: int) -> int | None:
        """The request a sequence belongs to, where the facts say so."""
        return self._request.get(seq_id)

    def __call__(self, seq_id: int) -> str:
        request = self._request.get(seq_id)
        if request is None:
            return f"s{seq_id}"
        name, sample = self._name.get(request, f"r{request}"), self._sample[seq_id]
        return f"{name}/{sample}" if sample else name


def site_of(trace: TraceLike, row: int) -> SiteLike | None:
    """The call site of a row, where one was recorded."""
    index = int(trace.events["site"][row])
    if not 0 <= index < len(trace.sites):
        return None
    site: SiteLike | None = trace.sites[index]
    return site if site is not None and site.file else None


def site_text(trace: TraceLike, row: int) -> str:
    """`pool.py:88 in release`, or `?` where no call site was recorded."""
    site = site_of(trace, row)
    return f"{site.file}:{site.line} in {site.function}" if site else "?"


def actor_of(trace: TraceLike, row: int) -> str:
    """The name of the acting thread or stream."""
    index = int(trace.events["actor"][row])
    return trace.actors[index] if index < len(trace.actors) else f"actor {index}"


def life(block: int, gen: int) -> str:
    """`b37#12`: block 37 in its twelfth life; `b37` where the life is not known."""
    return f"b{block}#{gen}" if gen >= 0 else f"b{block}"
