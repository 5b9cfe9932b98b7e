"""What the inspector needs of a trace, and small questions that every module asks of it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvscope.errors import TraceError
from kvscope.inspector.facts import usable
from kvscope.traces.fold import MAX_BLOCKS, RESIZING, BlockFold, resized, resizings
from kvscope.traces.schema import DETAIL_FIELDS, EventArray, Kind
from kvscope.traces.sink import Site
from kvscope.traces.sink import Trace as TraceLike

IntArray = npt.NDArray[np.int64]
_GAP = np.uint8(Kind.GAP)


class Frozen:
    """A trace as it is now: every column is read once, and a recorder that goes on writing changes nothing here."""

    begins = 0  # the number that its first event has, where none is missing in front of it
    followed = False  # whether another writer goes on behind its last event
    runs: tuple[Frozen, ...] | None = None  # its parts by writers; see runs.py

    def __init__(self, trace: TraceLike) -> None:
        self.events: EventArray = trace.rows_on_demand if hasattr(trace, "rows_on_demand") else trace.events
        self.on_demand = not isinstance(
            self.events, np.ndarray
        )  # a long trace: rows are decoded when they are asked for
        self._kinds: npt.NDArray[np.uint8] | None = None
        self.before = fold_before(trace)
        given = trace.num_blocks if self.before is None else max(trace.num_blocks, self.before.size)
        self.num_blocks = most_blocks(given, self.events, self.kinds)  # block ids of the whole trace are below
        self.block_size, self.block_bytes = trace.block_size, trace.block_bytes
        self.seqs: IntArray = np.asarray(trace.seqs, dtype=np.int64)[: len(self.events)]
        self.sites, self.actors = trace.sites, trace.actors
        self.facts, self.warnings = tuple(usable(trace.facts)), tuple(trace.warnings)
        self.clean, self.dropped = bool(trace.clean), int(trace.dropped)
        self.missing = int(getattr(trace, "missing", 0))  # events, as of now: what is said of them goes with the rows
        last = int(self.seqs[-1]) if len(self.seqs) else -1
        self.torn = sum(hi - lo for lo, hi in getattr(trace, "gaps", ()) if lo > last)  # events behind the last one
        self.detail, self.details_of = trace.detail, trace.details_of
        self.source = trace

    @property
    def complete(self) -> bool:
        """Whether its last event is the last that the writer wrote: what is held then stays held."""
        return self.clean and not self.torn

    @property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """The kind of each row, side by side; of a long trace read anew each time."""
        if self._kinds is not None:
            return self._kinds
        kinds: npt.NDArray[np.uint8] = np.ascontiguousarray(self.events["kind"])
        if not self.on_demand:
            self._kinds = kinds
        return kinds

    @functools.cached_property
    def present(self) -> IntArray:
        """How many rows there are of each of 256 kinds."""
        return np.bincount(self.kinds, minlength=256)

    def detail_arrays(self, kind: int) -> tuple[IntArray, IntArray, IntArray]:
        """(seqs, offsets, values) of a kind's details; those of `seqs[i]` are `values[offsets[i] : offsets[i + 1]]`."""
        if hasattr(self.source, "detail_arrays"):
            found: tuple[IntArray, IntArray, IntArray] = self.source.detail_arrays(kind)
            return found
        seqs, rows = self.details_of(kind)
        offsets = np.cumsum([0, *map(len, rows)])
        values = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(offsets[-1]))
        return np.asarray(seqs, np.int64), offsets, values

    def details_between(self, lo: int, hi: int) -> tuple[IntArray, IntArray, IntArray]:
        """(seqs, offsets, values) of the details of all events from seq `lo` to below `hi`; of a reader only."""
        found: tuple[IntArray, IntArray, IntArray] = self.source.details_between(lo, hi)  # type: ignore[attr-defined]
        return found


def rows_with(events: EventArray, name: str, value: int) -> IntArray:
    """The rows that have a value in a column; of a long trace looked for once for each value."""
    found = getattr(events, "rows_with", None)
    rows: IntArray = np.flatnonzero(events[name] == value) if found is None else found(name, value)
    return rows


class Resizes(NamedTuple):
    """The rows from which on the pool may have another size: where it grows, shrinks, or another writer has its own."""

    rows: IntArray
    before: IntArray  # blocks before each row; -1 where it does not say
    after: IntArray


def resizes(events: EventArray, kinds: npt.NDArray[np.uint8] | None = None) -> Resizes:
    """Where the pool may have changed its size; `kinds` is the column of kinds, where it is at hand."""
    if kinds is None:
        rows = np.unique(np.concatenate([rows_with(events, "kind", kind) for kind in RESIZING]))
    else:
        rows = resizings(kinds)
    told = events[rows]
    after = resized(told["kind"], told["aux"])
    gap = told["kind"] == _GAP
    before = np.where(gap, -1, told["lblock"].astype(np.int64))
    meant = (after >= 0) & (gap | (before >= 0)) & (before <= MAX_BLOCKS)
    return Resizes(rows[meant], before[meant], after[meant])


def most_blocks(num_blocks: int, events: EventArray, kinds: npt.NDArray[np.uint8] | None = None) -> int:
    """The most blocks that the pool ever had: `num_blocks` at first, then what the events say."""
    found = resizes(events, kinds)
    sizes: list[int] = found.before.tolist() + found.after.tolist()
    return max([num_blocks, *sizes])


def pool_sizes(trace: TraceLike) -> IntArray:
    """Blocks of the pool just after each event: it can grow and shrink in the course of a trace."""
    found = resizes(trace.events)
    told = np.append(size_after(trace, 0), found.after)
    sizes: IntArray = np.repeat(told, np.diff(found.rows, prepend=0, append=len(trace.events)))
    return sizes


def size_after(trace: TraceLike, rows: int) -> int:
    """Blocks of the pool after the first `rows` events."""
    found = resizes(trace.events)
    past = int(np.searchsorted(found.rows, rows))
    if past:
        return int(found.after[past - 1])
    before = fold_before(trace)
    if before is not None:
        return before.size
    if not len(found.rows):
        return trace.num_blocks
    # Who goes on has a pool as large as the manifest says; the writer before began with the same.
    return int(found.before[0] if found.before[0] >= 0 else found.after[0])


def fold_before(trace: Any) -> BlockFold | None:
    """What events that a recorder with a limit has let go had made of the pool; None where the trace has its first."""
    if isinstance(trace, Frozen):
        return trace.before
    while not hasattr(trace, "fold_before"):  # a view or what is frozen of a reader, or of something in memory
        inner = getattr(trace, "source", getattr(trace, "reader", None))
        if inner is None or inner is trace:
            return None
        trace = inner
    fold: BlockFold | None = trace.fold_before()
    return fold


def frozen(trace: TraceLike) -> Frozen:
    """`trace` itself if it is frozen already, or what it keeps of itself as `frozen`."""
    if isinstance(trace, Frozen):
        return trace
    kept = getattr(trace, "frozen", None)
    return kept if isinstance(kept, Frozen) else Frozen(trace)


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
    seqs, values = trace.details_of(int(kind))
    return dict(zip(np.asarray(seqs).tolist(), values, strict=True))


def named_detail(trace: TraceLike, seq: int, kind: Kind) -> dict[str, int]:
    """The details of one event by field name; empty where it has none."""
    return dict(zip(DETAIL_FIELDS.get(kind, ()), trace.detail(seq) or (), strict=False))


def gap_rows(trace: TraceLike) -> list[tuple[int, int]]:
    """Where events are missing: (row that follows the hole, events lost), in order."""
    seqs = np.asarray(trace.seqs, dtype=np.int64)
    if not len(seqs):
        return []
    holes: dict[int, int] = {}
    begins = trace.begins if isinstance(trace, Frozen) else 0
    if seqs[0] > begins:
        holes[0] = int(seqs[0]) - begins
    if int(seqs[-1]) - int(seqs[0]) >= len(seqs):  # they rise: else they are dense
        jumps = np.diff(seqs)
        for row in np.flatnonzero(jumps > 1).tolist():
            holes[row + 1] = int(jumps[row]) - 1
    kinds = trace.kinds if isinstance(trace, Frozen) else trace.events["kind"]
    marks = np.flatnonzero(kinds == _GAP)
    for row, lost in zip(marks.tolist(), trace.events[marks]["aux"].tolist(), strict=True):
        near = row + 1 if row + 1 in holes else row
        holes[near] = max(holes.get(near, 0), lost)
    return sorted(holes.items())


class Names:
    """The names of sequences: `haiku`, or `haiku/1` for its second sample, or `s7` where no fact names it."""

    def __init__(self, facts: Iterable[dict[str, Any]]) -> None:
        self._request: dict[int, int] = {}
        self._sample: dict[int, int] = {}
        self._name: dict[int, str] = {}
        self._beams: dict[int, int] = {}
        for fact in usable(facts):
            if fact.get("type") == "request":
                request = int(fact["request"])
                self._name[request] = str(fact.get("name") or f"r{request}")
                self._beams[request] = beams if isinstance(beams := fact.get("beams"), int) else 0
                for sample, seq_id in enumerate(fact.get("seq_ids") or ()):
                    self._request[int(seq_id)] = request
                    self._sample[int(seq_id)] = sample
            elif fact.get("type") == "sample":
                self._request[int(fact["seq_id"])] = int(fact["request"])
                self._sample[int(fact["seq_id"])] = int(fact.get("sample", 0))

    def request(self, seq_id: int) -> int | None:
        """The request a sequence belongs to, where the facts say so."""
        return self._request.get(seq_id)

    def beams(self, seq_id: int) -> int:
        """Beams of the search that a sequence belongs to; 0 where it is a sample."""
        return self._beams.get(self._request.get(seq_id, -1), 0)

    def whole(self, seq_id: int) -> str:
        """The name of the request that a sequence belongs to; its own where no fact names one."""
        request = self._request.get(seq_id)
        return f"s{seq_id}" if request is None else self._name.get(request, f"r{request}")

    def __call__(self, seq_id: int) -> str:
        request = self._request.get(seq_id)
        if request is None:
            return f"s{seq_id}"
        name, sample = self._name.get(request, f"r{request}"), self._sample[seq_id]
        return f"{name}/{sample}" if sample else name


def site_of(trace: TraceLike, row: int) -> Site | None:
    """The call site of a row, where one was recorded."""
    index = int(trace.events[row]["site"])
    site = trace.sites[index] if 0 <= index < len(trace.sites) else None
    return site if site is not None and site.file else None


def short_path(file: str) -> str:
    """A source file as `engine/pool.py` where it is ours, `typer/main.py` where installed, else as it was recorded."""
    path = file.replace("\\", "/")
    for root in ("/kvscope/", "/site-packages/"):
        _, found, rest = path.rpartition(root)
        if found:
            return rest
    return file


def joined(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *head, last = list(words) or [""]
    return f"{', '.join(head)} and {last}" if head else last


def site_text(trace: TraceLike, row: int) -> str:
    """`pool.py:88 in release`, or `?` where no call site was recorded."""
    site = site_of(trace, row)
    return f"{short_path(site.file)}:{site.line} in {site.function}" if site else "?"


def actor_of(trace: TraceLike, row: int) -> str:
    """The name of the acting thread or stream."""
    index = int(trace.events[row]["actor"])
    return trace.actors[index] if index < len(trace.actors) else f"actor {index}"


def life(block: int, gen: int) -> str:
    """`b37#12`: block 37 in its twelfth life; `b37` where the life is not known."""
    return f"b{block}#{gen}" if gen >= 0 else f"b{block}"


__all__ = [
    "Frozen",
    "IntArray",
    "Names",
    "TraceLike",
    "actor_of",
    "details_map",
    "frozen",
    "gap_rows",
    "joined",
    "life",
    "named_detail",
    "row_of",
    "rows_until",
    "rows_with",
    "short_path",
    "site_of",
    "site_text",
]
