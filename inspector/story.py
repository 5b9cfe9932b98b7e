"""The facts around a finding, gathered from the trace alone: what the report prints and the JSON holds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvscope.inspector.attended import write_found
from kvscope.inspector.biography import SlotWriter, describe, slot_writers
from kvscope.inspector.findings import Finding
from kvscope.inspector.placed import misplaced
from kvscope.inspector.readers import CONTENT_CODES, Reader, readers_of
from kvscope.inspector.runs import run_of
from kvscope.inspector.source import (
    IntArray,
    Names,
    TraceLike,
    actor_of,
    frozen,
    joined,
    life,
    row_of,
    short_path,
    site_of,
)  # fmt: skip
from kvscope.inspector.state import STATE_NAMES, BlockState, Holder, PoolState, holders, state_at
from kvscope.inspector.units import counted
from kvscope.traces.schema import EventArray, Kind
from kvscope.traces.sink import Frame, Site

# Events that a detector names beside the life's own story: role -> heading.
_EXTRA = {
    "first_release": "first released by",
    "taken": "held already since this, by",
    "write": "written by",
    "previous": "event before by",
    "lease": "leased by",
    "landed": "landed at",
    "misplaced": "misplaced write by",
    "step_begin": "step begun by",
    "preempted": "stale since the preemption by",
}
_STATE_WORDS = {
    int(BlockState.PRIVATE): "private to", int(BlockState.SHARED): "shared by",
    int(BlockState.IN_TRANSIT): "held by leases", int(BlockState.LOST): "lost: held by nobody any more",
}  # fmt: skip
_LEDGER_KINDS = (Kind.ALLOC, Kind.SHARE, Kind.HIT, Kind.RELEASE, Kind.LEASE, Kind.UNLEASE)
_LEDGER_WORDS = {Kind.ALLOC: "alloc", Kind.SHARE: "fork", Kind.HIT: "hit", Kind.RELEASE: "release",
                 Kind.LEASE: "lease", Kind.UNLEASE: "unlease"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Moment:
    """One event of the story: what it was and where it came from."""

    role: str
    seq: int
    t_s: float
    step: int
    text: str
    actor: str
    stack: tuple[str, ...]  # "take              engine/pool.py:88", innermost first


@dataclass(frozen=True, slots=True)
class WrittenRun:
    """Neighbouring slots that one sequence wrote last."""

    slot_lo: int
    slot_hi: int
    seq_id: int
    seq: int
    copied: bool


@dataclass(frozen=True)
class Story:
    """Everything that a report says about one finding."""

    finding: Finding
    names: Names
    act: Moment
    now: str  # "b5 is now b5#1, shared by haiku and haiku/1"
    holders: list[Holder]
    moments: list[Moment]
    written_before: list[WrittenRun]
    clobbered: list[int]  # slots of this life that more than one sequence wrote, to the end of the trace
    clobberers: list[int]  # those sequences
    missing: str
    ledger: list[str]
    pool: PoolState  # of the neighbourhood of the block; empty without one
    readers: list[Reader] = field(default_factory=list)


def tell(finding: Finding, trace: TraceLike) -> Story:
    """Gather the story of a finding, from what its own writer wrote."""
    trace = run_of(frozen(trace), finding.seq)
    names = Names(trace.facts)
    has_block = 0 <= finding.block < trace.num_blocks
    around = max(0, finding.block // 4 - 1) * 4
    pool = state_at(trace, finding.seq, range(around, min(around + 12, trace.num_blocks) if has_block else around))
    rows = life_rows(trace, finding.block, finding.gen) if has_block else np.empty(0, dtype=np.int64)
    before = rows[np.asarray(trace.seqs)[rows] < finding.seq]
    torn = [w for w in slot_writers(trace, trace.events, rows.tolist()) if len(w.writers) > 1] if has_block else []
    return Story(
        finding=finding,
        names=names,
        act=moment(trace, "act", finding.seq, names),
        now=_now(trace, finding, pool, names) if has_block else "",
        holders=_other_holders(trace, finding) if has_block else [],
        moments=[moment(trace, heading, seq, names) for heading, seq in _sections(trace, finding, before)],
        written_before=runs(slot_writers(trace, trace.events, before.tolist())) if has_block else [],
        clobbered=[w.slot for w in torn],
        clobberers=sorted({s for w in torn for s in w.writers}),
        missing=missing(trace, finding, names),
        ledger=_ledger(trace, finding, rows, names) if has_block else [],
        pool=pool,
        readers=readers_of(trace, finding) if has_block and finding.code in CONTENT_CODES else [],
    )


def moment(trace: TraceLike, role: str, seq: int, names: Names) -> Moment:
    """An event in words, with its time, step, actor and stack."""
    row = row_of(trace, seq)
    event = trace.events[row]
    site = site_of(trace, row)
    frames: tuple[Site | Frame, ...] = (site.frames or (site,)) if site else ()
    width = max((len(f.function) for f in frames), default=0)
    return Moment(
        role=role,
        seq=seq,
        t_s=float(event["t_ns"]) * 1e-9,
        step=int(event["step"]),
        text=describe(trace, row, names),
        actor=actor_of(trace, row),
        stack=tuple(f"#{i} {f.function:<{width}}  {short_path(f.file)}:{f.line}" for i, f in enumerate(frames)),
    )


def life_rows(trace: TraceLike, block: int, gen: int) -> IntArray:
    """The rows of one life of a block."""
    events = trace.events
    return np.flatnonzero((events["block"] == block) & (events["gen"] == gen))


def runs(slots: list[SlotWriter]) -> list[WrittenRun]:
    """Neighbouring slots with the same last writer as one run; the event is the last of the run's."""
    out: list[WrittenRun] = []
    for slot in slots:
        last = out[-1] if out else None
        if last and last.slot_hi == slot.slot and (last.seq_id, last.copied) == (slot.seq_id, slot.copied):
            out[-1] = WrittenRun(last.slot_lo, slot.slot + 1, last.seq_id, max(last.seq, slot.seq), last.copied)
        else:
            out.append(WrittenRun(slot.slot, slot.slot + 1, slot.seq_id, slot.seq, slot.copied))
    return out


def _other_holders(trace: TraceLike, finding: Finding) -> list[Holder]:
    """Who else held the block just before the event; of a hand-out its own sequence too, at another place."""
    found = holders(trace, finding.block, finding.seq - 1)
    handed = trace.events["kind"][row_of(trace, finding.seq)] == Kind.ALLOC
    return [h for h in found if h.kind == "lease" or handed or h.seq_id != finding.seq_id]


def _sections(trace: TraceLike, finding: Finding, rows: IntArray) -> list[tuple[str, int]]:
    """(heading, event) of the life's own story before the finding, its end first, then what the detector names.

    Args:
        rows: the rows of the life before the finding.
    """
    events, seqs = trace.events[rows], np.asarray(trace.seqs)[rows]
    kind = events["kind"]

    def last(which: npt.NDArray[np.bool_]) -> int | None:
        found = np.flatnonzero(which)
        return int(seqs[found[-1]]) if len(found) else None

    freed = freed_at(trace, finding)
    valid = seqs < (freed if freed is not None else finding.seq)
    out = [
        ("freed by", freed),
        ("evicted by", last(kind == Kind.EVICT)),
        ("handed out again by", _reused(trace, finding)),
    ]
    if finding.code in ("KV004", "KV006", "KV007", "KV010", "KV015"):
        out.append(("shared by", last(((kind == Kind.SHARE) | (kind == Kind.HIT)) & valid)))
    if finding.code in ("KV011", "KV015", "KV016", "KV020"):
        out.append(("published by", last(kind == Kind.PUBLISH)))
    out.append(("previously allocated by" if freed is not None else "allocated by", last(kind == Kind.ALLOC)))
    if finding.code in CONTENT_CODES:
        out.append(("last valid write by", last(_rightful(events) & valid & ~misplaced(trace, rows))))
    if finding.code == "KV023":
        out += [("what is there written by", _written_there(trace, finding)), ("copied by", finding.seq_of("copied"))]
    out += [(heading, finding.seq_of(role)) for role, heading in _EXTRA.items()]
    return [(heading, seq) for heading, seq in out if seq is not None]


def _rightful(events: EventArray) -> npt.NDArray[np.bool_]:
    """The writes of a life by its only holder, before it was published: no other write is one to rely on."""
    out, held, published = np.zeros(len(events), dtype=np.bool_), set[tuple[int, int]](), False
    for at, event in enumerate(events):
        kind, entry = int(event["kind"]), (int(event["seq_id"]), int(event["lblock"]))
        if kind in (Kind.ALLOC, Kind.SHARE, Kind.HIT):
            held.add(entry)
        elif kind == Kind.RELEASE:
            held.discard(entry)
        elif kind == Kind.PUBLISH:
            published = True
        elif kind == Kind.WRITE:
            out[at] = held == {entry} and not published
    return out


def _written_there(trace: TraceLike, finding: Finding) -> int | None:
    """The write of what a checker found in a slot."""
    row = write_found(trace, row_of(trace, finding.seq), trace.block_size)
    return int(trace.seqs[row]) if row >= 0 else None


def freed_at(trace: TraceLike, finding: Finding) -> int | None:
    """The release that took the last holder of the life away, or the free of one that is held, before the finding."""
    if not 0 <= finding.block < trace.num_blocks:
        return None
    events = trace.events
    rows = life_rows(trace, finding.block, finding.gen)
    rows = rows[np.asarray(trace.seqs)[rows] < finding.seq]
    counts = rows[(events["ref_after"][rows] >= 0) & (events["ref_before"][rows] >= 0)]
    moved = counts[events["ref_before"][counts] != events["ref_after"][counts]]
    if len(moved) and events["ref_after"][moved[-1]] == 0:
        return int(trace.seqs[moved[-1]])
    let_go = rows[np.isin(events["kind"][rows], (Kind.FREE, Kind.QUARANTINE))]  # though somebody holds it
    return int(trace.seqs[let_go[-1]]) if len(let_go) else None


def _reused(trace: TraceLike, finding: Finding) -> int | None:
    """The hand-out that began the next life, up to the finding or to what landed in it."""
    events, seqs = trace.events, np.asarray(trace.seqs)
    until = finding.seq_of("landed") or finding.seq
    rows = np.flatnonzero((events["block"] == finding.block) & (events["kind"] == Kind.ALLOC))
    rows = rows[(events["gen"][rows] > finding.gen) & (seqs[rows] < until)]
    return int(seqs[rows[0]]) if len(rows) and finding.block >= 0 else None


def _now(trace: TraceLike, finding: Finding, pool: PoolState, names: Names) -> str:
    block = finding.block
    held = list(dict.fromkeys(names(h.seq_id) for h in holders(trace, block, finding.seq) if h.kind == "table"))
    at = block - pool.first
    if not 0 <= at < pool.num_blocks:
        return f"b{block} is not in the pool"
    state = _STATE_WORDS.get(int(pool.state[at]), STATE_NAMES[int(pool.state[at])])
    current = life(block, int(pool.gen[at]))
    by = f" {joined(held) or 'nobody who lives'}" if state.endswith(("to", "by")) else ""
    freed, after = freed_at(trace, finding), ""
    if freed is not None:
        t = trace.events["t_ns"]
        elapsed = float(t[row_of(trace, finding.seq)] - t[row_of(trace, freed)]) * 1e-3
        after = f" ({counted(finding.seq - freed, 'event')} / {elapsed:.1f} us after the release)"
    return f"b{block} is now {current}, {state}{by}{after}"


def missing(trace: TraceLike, finding: Finding, names: Names) -> str:
    """What should have happened, where one operation is missing; empty where none is."""
    name, who = life(finding.block, finding.gen), names(finding.seq_id) if finding.seq_id >= 0 else ""
    early = _published_unwritten(trace, finding) if finding.code == "KV015" else None
    if early is not None:
        return f"the publication of {name} (seq {early}) was due only after this write, which fills it"
    if finding.code in ("KV006", "KV015"):
        if finding.slot_lo <= 0:  # it begins with the block's first slot: nothing in front of it is to be kept
            return f"a fresh block for {who} in the place of {name} was due before seq {finding.seq}"
        return (
            f"copy-on-write of {name} slots [0:{finding.slot_lo}] into a fresh block for {who} was due before "
            f"seq {finding.seq}"
        )
    if finding.code == "KV005" and (due := _due(trace, finding)):
        return due
    if finding.code == "KV005" and who:
        if trace.events[row_of(trace, finding.seq)]["kind"] == Kind.PREEMPT:
            return f"the release of {name} by {who} when it was preempted (seq {finding.seq})"
        return f"a release of {name} by {who} was due after seq {finding.seq}"
    return ""


def _due(trace: TraceLike, finding: Finding) -> str:
    """What a leak lacks that is no release of a table entry; empty where it is one."""
    name, event = life(finding.block, finding.gen), trace.events[row_of(trace, finding.seq)]
    if event["block"] != finding.block:
        return ""
    if event["kind"] in (Kind.RELEASE, Kind.UNLEASE):
        return f"{name} was to be put on the free list, or into quarantine, after seq {finding.seq}"
    if event["kind"] == Kind.QUARANTINE:
        return f"{name} was to leave quarantine when the last step that used it had ended"
    if event["kind"] == Kind.LEASE:
        return f"the end of lease {int(event['aux'])} on {name} was due after seq {finding.seq}"
    return ""


def _published_unwritten(trace: TraceLike, finding: Finding) -> int | None:
    """The publication of a life some of whose slots at hand were not written then; None where all were."""
    events, rows = trace.events, life_rows(trace, finding.block, finding.gen)
    published = rows[(events["kind"][rows] == Kind.PUBLISH) & (np.asarray(trace.seqs)[rows] < finding.seq)]
    if not len(published):
        return None
    filled = {w.slot for w in slot_writers(trace, events, rows[rows < published[-1]].tolist())}
    lacking = set(range(finding.slot_lo, finding.slot_hi)) - filled
    return int(trace.seqs[published[-1]]) if lacking else None


def _ledger(trace: TraceLike, finding: Finding, rows: IntArray, names: Names) -> list[str]:
    """How the count of holders went, up to the event: `->2 fork haiku/1`."""
    events, out = trace.events, list[str]()
    for row in rows.tolist():
        event, seq = events[row], int(trace.seqs[row])
        if seq > finding.seq:
            break
        kind = int(event["kind"])
        if kind in _LEDGER_KINDS:
            who = names(int(event["seq_id"])) if event["seq_id"] >= 0 else str(int(event["aux"]))
            start = f"{int(event['ref_before'])} " if not out else ""
            out.append(f"{start}->{int(event['ref_after'])} {_LEDGER_WORDS[Kind(kind)]} {who}")
        if seq == finding.seq:
            word = Kind(kind).name.lower()
            out = [*out[:-1], f"{out[-1]}  <== here"] if kind in _LEDGER_KINDS else [*out, f"{word}  <== here"]
    return out
