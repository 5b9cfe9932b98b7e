"""Perfetto's native format (TrackEvent): open the file at ui.perfetto.dev, or with trace_processor.

One process; below it, in this order:

    findings    an instant for each broken rule
    steps       a slice for each engine step
    requests    a lane for each sequence: queued, prefill, decode, preempted; instants where it forks or copies
    copies      an instant where a copy has run; a flow leads to it from the copy on the sequence's lane
    counters    blocks by state (they add up to the pool's size), used blocks, table entries

Counters change at the end of an operation: the rows of one operation share their time. Packets are written as they
are made, section by section; Perfetto sorts them. Times are those of the trace, made to never run backwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import BinaryIO

import numpy as np

from kvscope.inspector.export import proto
from kvscope.inspector.export.parts import Progress, no_progress
from kvscope.inspector.lanes import Bar, Lane, lanes
from kvscope.inspector.measures import COUNT_NAMES, counts_by_part
from kvscope.inspector.source import Frozen, IntArray, TraceLike, details_map, frozen, life
from kvscope.traces.schema import Kind

ROOT, REQUESTS, STEPS, COPIES, FINDINGS = 1, 2, 3, 4, 5
FIRST_COUNTER, FIRST_LANE = 100, 1 << 32
COUNTERS = ("held_blocks", *COUNT_NAMES, "table_entries")
MOST_CHECKED = 300_000  # events; a longer trace is for `kvscope check` to check
_FORK_FLOW = 1 << 62
_BUFFER = 1 << 20


def write_perfetto(trace: TraceLike, rows: range, file: BinaryIO, progress: Progress = no_progress) -> int:
    """Write the part of the trace that `rows` span; returns the number of packets."""
    return _Timeline(frozen(trace), rows).write(file, progress)


class _Timeline:
    """The sections of one file."""

    def __init__(self, trace: Frozen, rows: range) -> None:
        self.trace, self.rows = trace, rows
        times = np.maximum(trace.events["t_ns"].astype(np.int64), 0)
        self.times: IntArray = np.maximum.accumulate(times) if len(times) else times
        self.first_seq = int(trace.seqs[rows.start]) if len(rows) else 0
        self.last_seq = int(trace.seqs[rows.stop - 1]) if len(rows) else -1
        self.lanes: set[int] = set()

    def write(self, file: BinaryIO, progress: Progress) -> int:
        """All sections, through a buffer of a megabyte."""
        total, buffer, size = 0, [], 0
        for done, section in enumerate((self._tracks, self._lanes, self._copies, self._steps, self._counters)):
            for packet in section():
                buffer.append(packet)
                size += len(packet)
                total += 1
                if size > _BUFFER:
                    file.write(b"".join(buffer))
                    buffer, size = [], 0
            progress(done + 1, 5)
        file.write(b"".join(buffer))
        return total

    def time_of(self, seq: int) -> int:
        """The time of an event of the trace, cut to the part that is written."""
        row = int(np.searchsorted(self.trace.seqs, seq))
        return int(self.times[min(max(row, self.rows.start), self.rows.stop - 1)])

    def inside(self, seq: int) -> bool:
        """Whether an event lies in the part that is written."""
        return self.first_seq <= seq <= self.last_seq

    def _tracks(self) -> Iterator[bytes]:
        yield proto.track(ROOT, 0, "KVScope", process=1)
        yield proto.track(FINDINGS, ROOT, "findings", rank=1)
        yield proto.track(STEPS, ROOT, "steps", rank=2)
        yield proto.track(REQUESTS, ROOT, "requests", rank=3, by_time=True)
        yield proto.track(COPIES, ROOT, "copies", rank=4)
        for i, counter in enumerate(COUNTERS):
            yield proto.track(FIRST_COUNTER + i, ROOT, counter.replace("_", " "), rank=10 + i, counter=True)
        yield from self._findings()

    def _findings(self) -> Iterator[bytes]:
        if not len(self.rows):
            return
        if len(self.trace.events) > MOST_CHECKED:
            told = proto.name(f"not checked: more than {MOST_CHECKED:,} events; run kvscope check")
            yield proto.event(self.time_of(self.first_seq), proto.INSTANT, FINDINGS, told)
            return
        from kvscope.inspector.findings import check

        for found in check(self.trace).findings:
            if self.inside(found.seq):
                told = proto.name(f"{found.code} {found.title}") + proto.notes((("seq", found.seq), ("why", found.why)))
                yield proto.event(self.time_of(found.seq), proto.INSTANT, FINDINGS, told)

    def _lanes(self) -> Iterator[bytes]:
        shown = []
        for lane in lanes(self.trace, held=False):
            bars = [bar for bar in lane.bars if bar.seq_hi >= self.first_seq and bar.seq_lo <= self.last_seq]
            if bars:
                shown.append((lane, bars))
                self.lanes.add(lane.seq_id)
                yield proto.track(FIRST_LANE + lane.seq_id, REQUESTS, f"{lane.name} (s{lane.seq_id})")
        forks = self._forks()
        for lane, _ in shown:  # before the slices: a flow starts at what comes first among events of one time
            if lane.seq_id in forks:
                rest = proto.name(f"fork to {lane.name}") + proto.flow(_FORK_FLOW | forks[lane.seq_id])
                yield proto.event(self.time_of(forks[lane.seq_id]), proto.INSTANT, FIRST_LANE + lane.parent, rest)
        for lane, bars in shown:
            uuid = FIRST_LANE + lane.seq_id
            for bar in bars:
                rest = proto.name(bar.phase) + proto.notes(_about(lane, bar))
                if bar is lane.bars[0] and lane.seq_id in forks:
                    rest += proto.flow(_FORK_FLOW | forks[lane.seq_id], ends=True)
                yield proto.event(self.time_of(bar.seq_lo), proto.BEGIN, uuid, rest)
                yield proto.event(self.time_of(bar.seq_hi), proto.END, uuid)

    def _forks(self) -> dict[int, int]:
        """By child the seq of its fork, for forks in the part that is written of a parent that has a lane."""
        events, seqs = self.trace.events, self.trace.seqs
        rows = np.flatnonzero(events["kind"] == Kind.FORK)
        rows = rows[(rows >= self.rows.start) & (rows < self.rows.stop)].tolist()
        found = {int(events["seq_id"][row]): row for row in reversed(rows)}  # the first of each child
        return {
            child: int(seqs[row]) for child, row in found.items()
            if child in self.lanes and int(events["aux"][row]) in self.lanes
        }  # fmt: skip

    def _copies(self) -> Iterator[bytes]:
        """Where a lane copies a block, where that copy has run, and a flow between the two where both are known."""
        events, seqs = self.trace.events, self.trace.seqs
        rows = np.flatnonzero((events["kind"] == Kind.COW) | (events["kind"] == Kind.COPY_DONE))
        rows = rows[(rows >= self.rows.start) & (rows < self.rows.stop)]
        details = details_map(self.trace, Kind.COW)
        open_copies: dict[tuple[int, int], tuple[int, int, str]] = {}
        for row in rows.tolist():
            event = events[row]
            seq, target = int(seqs[row]), (int(event["block"]), int(event["gen"]))
            if event["kind"] == Kind.COW:
                source, gen = (*details.get(seq, ()), int(event["aux"]), -1)[:2]
                open_copies[target] = (seq, int(event["seq_id"]), f"copy {life(source, gen)} to {life(*target)}")
                continue
            begun, seq_id, what = open_copies.pop(
                target, (-1, -1, f"copy {life(int(event['aux']), -1)} to {life(*target)}")
            )
            link = begun >= 0 and seq_id in self.lanes
            if link:
                rest = proto.name(what) + proto.notes((("seq", begun),)) + proto.flow(begun + 1)
                yield proto.event(self.time_of(begun), proto.INSTANT, FIRST_LANE + seq_id, rest)
            rest = proto.name(what) + (proto.flow(begun + 1, ends=True) if link else b"")
            yield proto.event(self.time_of(seq), proto.INSTANT, COPIES, rest)
        for seq, seq_id, what in open_copies.values():  # that never ran, as far as the trace knows
            if seq_id in self.lanes:
                yield proto.event(self.time_of(seq), proto.INSTANT, FIRST_LANE + seq_id, proto.name(f"{what}: not run"))

    def _steps(self) -> Iterator[bytes]:
        """Steps end in the order they began; one that begins before its predecessor ends is drawn from that end on."""
        events = self.trace.events
        rows = np.flatnonzero((events["kind"] == Kind.STEP_BEGIN) | (events["kind"] == Kind.STEP_END))
        rows = rows[(rows >= self.rows.start) & (rows < self.rows.stop)]
        waiting: deque[tuple[int, int, int]] = deque()  # row, step, sequences
        free_from = 0
        for row in rows.tolist():
            if events["kind"][row] == Kind.STEP_BEGIN:
                waiting.append((row, int(events["step"][row]), int(events["aux"][row])))
            elif waiting:
                free_from = yield from self._step(*waiting.popleft(), row, free_from, int(events["aux"][row]))
        for begun in waiting:
            free_from = yield from self._step(*begun, self.rows.stop - 1, free_from, -1)

    def _step(
        self, begin: int, step: int, sequences: int, end: int, free_from: int, tokens: int
    ) -> Generator[bytes, None, int]:
        begins = max(int(self.times[begin]), free_from)
        ends = max(int(self.times[end]), begins)
        rest = proto.name(f"step {step}") + proto.notes((("sequences", sequences), ("tokens", tokens)))
        yield proto.event(begins, proto.BEGIN, STEPS, rest)
        yield proto.event(ends, proto.END, STEPS)
        return ends

    def _counters(self) -> Iterator[bytes]:
        if not len(self.rows):
            return
        before = dict.fromkeys(COUNTERS, -1)
        for lo, values in counts_by_part(self.trace, COUNTERS):  # in parts: no more of a long trace in memory
            rows = np.arange(max(lo, self.rows.start), min(lo + len(values[COUNTERS[0]]), self.rows.stop))
            if not len(rows):
                continue
            more = rows[-1] + 1 < self.rows.stop and self.times[rows[-1] + 1] == self.times[rows[-1]]
            last = np.append(np.flatnonzero(np.diff(self.times[rows])), [] if more else len(rows) - 1).astype(np.int64)
            for i, counter in enumerate(COUNTERS):  # the last row of each moment
                found = values[counter][rows[last] - lo]
                changed = np.diff(found, prepend=before[counter]) != 0
                for t_ns, value in zip(self.times[rows[last]][changed].tolist(), found[changed].tolist(), strict=True):
                    yield proto.event(t_ns, proto.COUNTER, FIRST_COUNTER + i, proto.count(value))
                before[counter] = int(found[-1]) if len(found) else before[counter]


def _about(lane: Lane, bar: Bar) -> list[tuple[str, int | str]]:
    about: list[tuple[str, int | str]] = [
        ("seq", bar.seq_lo),
        ("step", bar.step_lo),
        ("prompt tokens", lane.prompt_tokens),
    ]
    if lane.cached_tokens:
        about.append(("cached tokens", lane.cached_tokens))
    if bar is lane.bars[-1]:
        about.append(("outcome", lane.outcome))
    return about
