"""The blast radius of one finding: who read the slots that it left wrong, in which steps. From the trace alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvscope.inspector.block_reads import foreign_reads
from kvscope.inspector.findings import Finding
from kvscope.inspector.source import IntArray, TraceLike, row_of
from kvscope.traces.schema import Kind, unpack_range

# Codes whose fault leaves wrong bytes behind that later steps read.
CONTENT_CODES = frozenset({"KV001", "KV002", "KV006", "KV009", "KV010", "KV013", "KV014", "KV015", "KV016", "KV018"})


@dataclass(frozen=True, slots=True)
class Reader:
    """A sequence that read slots of the block in steps after the fault."""

    seq_id: int
    slot_lo: int
    slot_hi: int
    gen: int
    first_step: int
    last_step: int
    first_token: int  # positions of the first and last token that came out of these steps
    last_token: int


def readers_of(trace: TraceLike, finding: Finding) -> list[Reader]:
    """Who read the touched slots in steps after the fault, and found foreign KV there: by the rule of `explain`.

    In a pool that is too large to be laid out: whoever read them.
    """
    if finding.code == "KV018":
        return _through_table(trace, finding)
    slot_lo, slot_hi = max(finding.slot_lo, 0), finding.slot_hi if finding.slots else trace.block_size
    at, from_here = finding.seq_of("landed") or finding.seq, _read_from(trace, finding)
    tenures, out = _tenures(trace, finding.block), []
    # Its own life, and the one that is there when it happens: what is handed out later is written anew.
    lives = {finding.gen} | {gen for _, _, gen, since, until in tenures if since <= at < until}
    foreign = foreign_reads(trace, finding.block, (min(lives), max(lives)))
    hit = [row for row, slots in (foreign or {}).items() if ((slots >= slot_lo) & (slots < slot_hi)).any()]
    for seq_id, lblock, gen, since, until in tenures:
        if until <= finding.seq or gen not in lives:
            continue
        steps = _steps_of(trace, seq_id, max(since, from_here), until, lblock * trace.block_size + slot_lo)
        steps = steps[np.isin(steps, hit)] if foreign is not None else steps
        if len(steps):
            events = trace.events[steps]
            ends = events["lblock"].astype(np.int64) + events["fill"]
            reach = min(slot_hi, int(ends.max()) - lblock * trace.block_size)
            out.append(Reader(seq_id, slot_lo, max(reach, slot_lo + 1), gen, int(events["step"][0]),
                              int(events["step"][-1]), int(ends[0]), int(ends[-1])))  # fmt: skip
    return out


def _read_from(trace: TraceLike, finding: Finding) -> int:
    """The event from which on steps read what the finding left: within a step all of its rows do, the earlier too."""
    row = row_of(trace, finding.seq)
    if trace.events["kind"][row] not in (Kind.SCHED, Kind.COPY_DONE):
        return finding.seq
    begins = np.flatnonzero(trace.events["kind"][:row] == Kind.STEP_BEGIN)
    return int(trace.seqs[begins[-1]]) if len(begins) else finding.seq


def _through_table(trace: TraceLike, finding: Finding) -> list[Reader]:
    """The step itself: no event says who reads a block that stands in the worker's table alone."""
    row = row_of(trace, finding.seq)
    event = trace.events[row]
    end = int(event["lblock"]) + int(event["fill"])
    return [Reader(finding.seq_id, 0, min(trace.block_size, end), finding.gen, finding.step, finding.step, end, end)]


def _steps_of(trace: TraceLike, seq_id: int, since: int, until: int, position: int) -> IntArray:
    """SCHED rows of a sequence after event `since`, before `until`, that read beyond `position`."""
    events, seqs = trace.events, np.asarray(trace.seqs)
    rows = np.flatnonzero((events["kind"] == Kind.SCHED) & (events["seq_id"] == seq_id))
    rows = rows[(seqs[rows] >= since) & (seqs[rows] < until)]
    reads = np.asarray([unpack_range(int(a)) for a in events["aux"][rows]], dtype=np.int64).reshape(-1, 2)
    return rows[reads[:, 1] > position]


def _tenures(trace: TraceLike, block: int) -> list[tuple[int, int, int, int, int]]:
    """(seq_id, lblock, gen, from event, to event) of every table entry that ever held the block."""
    events = trace.events
    open_: dict[tuple[int, int], tuple[int, int]] = {}
    out = []
    end = int(trace.seqs[-1]) + 1 if len(events) else 0
    for row in np.flatnonzero(events["block"] == block).tolist():
        kind, key = int(events["kind"][row]), (int(events["seq_id"][row]), int(events["lblock"][row]))
        if kind in (Kind.ALLOC, Kind.SHARE, Kind.HIT):
            open_[key] = (int(events["gen"][row]), int(trace.seqs[row]))
        elif kind == Kind.RELEASE and key in open_:
            out.append((*key, *open_.pop(key), int(trace.seqs[row])))
    return sorted(out + [(*key, gen, since, end) for key, (gen, since) in open_.items()])
