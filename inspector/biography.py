"""The biography of one block: its lives, and in each what happened to it, who did it, and from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvscope.inspector.source import (
    IntArray,
    Names,
    TraceLike,
    frozen,
    named_detail,
    rows_until,
    rows_with,
    site_text,
)
from kvscope.inspector.state import check_block
from kvscope.inspector.units import counted
from kvscope.traces.schema import EventArray, Kind, Reason, unpack_range

# Kinds after which the block is nobody's and its content is gone.
_ENDS = (Kind.FREE, Kind.SETTLE)


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One event of a block in words."""

    seq: int
    t_ns: int
    step: int
    kind: str  # lower-case name of the kind
    text: str  # "write slots [0:3] by haiku"
    who: str  # the sequence that acts, "" where none does
    seq_id: int
    ref: int  # holders after it, -1 = not counted by this event
    site: str  # "pool.py:88 in release"


@dataclass(frozen=True, slots=True)
class SlotWriter:
    """Who wrote a slot last within a life."""

    slot: int
    seq: int
    seq_id: int
    copied: bool  # by copy-on-write instead of a write
    writers: tuple[int, ...]  # all sequences that wrote it, in order of their first write


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a block, from its hand-out to its end."""

    block: int
    gen: int
    events: tuple[LifeEvent, ...]
    slots: tuple[SlotWriter, ...]
    max_ref: int
    end: str  # "free", "settle", or "" while it lasts

    @property
    def first_seq(self) -> int:
        """Number of its first event."""
        return self.events[0].seq

    @property
    def last_seq(self) -> int:
        """Number of its last event."""
        return self.events[-1].seq

    @property
    def sequences(self) -> tuple[int, ...]:
        """All sequences that took part, in order of appearance."""
        return tuple(dict.fromkeys(e.seq_id for e in self.events if e.seq_id >= 0))


def biography(trace: TraceLike, block: int, until: int | None = None) -> list[Life]:
    """The lives of a block, oldest first; events up to number `until` where given.

    An event made with a stale handle stands in the life that its author believed in.

    Raises:
        UsageError: the pool has no such block.
    """
    trace = frozen(trace)
    check_block(trace, block)
    events = trace.events if until is None else trace.events[: rows_until(trace, until)]
    # A copy out of this block is an event of the target, but part of this block's story too.
    copies = np.union1d(rows_with(events, "kind", Kind.COW), rows_with(events, "kind", Kind.COPY_DONE))
    copied_from = copies[events[copies]["aux"] == block]
    rows = np.union1d(rows_with(events, "block", block), copied_from)
    told = events[rows]
    names = Names(trace.facts)
    lives: dict[int, list[int]] = {}
    current = 0
    for i, (own, gen) in enumerate(zip((told["block"] == block).tolist(), told["gen"].tolist(), strict=True)):
        gen = gen if own else current
        if own:
            current = max(current, gen)
        lives.setdefault(gen, []).append(i)
    return [_life(trace, rows[lives[gen]], told[lives[gen]], block, gen, names) for gen in sorted(lives)]


def _life(trace: TraceLike, rows: IntArray, events: EventArray, block: int, gen: int, names: Names) -> Life:
    own = events["block"] == block
    kinds = events["kind"][own].tolist()
    ended = [Kind(kind).name.lower() for kind in kinds if kind in _ENDS]
    return Life(
        block=block,
        gen=gen,
        events=tuple(_event(trace, event, block, row, names) for event, row in zip(events, rows.tolist(), strict=True)),
        slots=tuple(slot_writers(trace, trace.events, rows[own].tolist())),
        max_ref=int(events["ref_after"][own].max(initial=0)),
        end=ended[-1] if ended else "",
    )


def slot_writers(trace: TraceLike, events: EventArray, rows: list[int]) -> list[SlotWriter]:
    """Per slot who wrote it last, of the WRITE and COW rows among `rows` (all of one life), in slot order."""
    last: dict[int, tuple[int, int, bool]] = {}
    writers: dict[int, dict[int, None]] = {}
    picked = events[np.asarray(rows, np.int64)]
    columns = [picked[name].tolist() for name in ("kind", "aux", "fill", "seq_id")]
    for row, kind, aux, fill, seq_id in zip(rows, *columns, strict=True):
        seq = int(trace.seqs[row])
        if kind == Kind.WRITE:
            lo, hi = unpack_range(aux)
        elif kind == Kind.COW:
            detail = named_detail(trace, seq, Kind.COW)
            lo, hi = detail.get("slot_lo", 0), detail.get("slot_hi", fill)
        elif kind == Kind.SWAP_IN:
            lo, hi = 0, fill
        else:
            continue
        for slot in range(max(lo, 0), min(hi, trace.block_size)):
            last[slot] = (seq, seq_id, kind == Kind.COW)
            writers.setdefault(slot, {})[seq_id] = None
    return [SlotWriter(slot, *last[slot], tuple(writers[slot])) for slot in sorted(last)]


def _event(trace: TraceLike, event: Any, block: int, row: int, names: Names) -> LifeEvent:
    kind, seq_id = int(event["kind"]), int(event["seq_id"])
    own = int(event["block"]) == block
    return LifeEvent(
        seq=int(trace.seqs[row]),
        t_ns=int(event["t_ns"]),
        step=int(event["step"]),
        kind=kind_words(kind),
        text=describe(trace, row, names, own=own),
        who=names(seq_id) if seq_id >= 0 else "",
        seq_id=seq_id,
        ref=int(event["ref_after"]) if own else -1,
        site=site_text(trace, row),
    )


def describe(trace: TraceLike, row: int, names: Names, *, own: bool = True) -> str:
    """One event of a block in words; `own` is False where the block is the source of somebody's copy."""
    event = trace.events[row]
    kind, reason = int(event["kind"]), reason_words(int(event["reason"]))
    seq_id, target = int(event["seq_id"]), f"b{int(event['block'])}#{int(event['gen'])}"
    who = f" by {names(seq_id)}" if seq_id >= 0 else ""
    because = f" ({reason})" if reason else ""
    place = f" as its block {int(event['lblock'])}" if event["lblock"] >= 0 else ""
    count = f" {int(event['ref_before'])} -> {int(event['ref_after'])}" if event["ref_after"] >= 0 else ""
    lo, hi = unpack_range(int(event["aux"])) if kind == Kind.WRITE else (0, 0)
    lease = f"lease {int(event['aux'])}"
    if kind in (Kind.COW, Kind.COPY_DONE):
        detail = named_detail(trace, int(trace.seqs[row]), Kind.COW)
        slots = f"slots [{detail['slot_lo']}:{detail['slot_hi']}] " if "slot_hi" in detail else ""
        moved = "moved " if event["reason"] == Reason.RESIZED else "copied "
        done = "copy has run: " if kind == Kind.COPY_DONE else moved
        other = f"from b{int(event['aux'])}" if own else f"to {target}"
        return f"{done}{slots}{other}{who}"
    texts: dict[int, str] = {
        Kind.ALLOC: f"allocated{who}{place}{because},{count}",
        Kind.SHARE: f"shared{who}{place}{because},{count}",
        Kind.HIT: f"prefix hit{who}{place},{count}",
        Kind.RELEASE: f"released{who}{because},{count}",
        Kind.FREE: f"put on the free list{because}",
        Kind.WRITE: f"write slots [{lo}:{hi}]{who}{because}",
        Kind.COMMIT: f"committed, {counted(int(event['fill']), 'slot')} filled",
        Kind.PUBLISH: "published in the prefix index",
        Kind.UNPUBLISH: f"withdrawn from the prefix index{because}",
        Kind.EVICT: f"evicted{because}",
        Kind.QUARANTINE: f"quarantined: an open step uses it{because}",
        Kind.SETTLE: "that step is done, free again",
        Kind.LEASE: f"{lease} taken{who}{because},{count}",
        Kind.UNLEASE: f"{lease} ended{who}{because},{count}",
        Kind.SWAP_OUT: f"swapped out{who} to host slot {int(event['aux'])}",
        Kind.SWAP_IN: f"filled{who}{place} from host slot {int(event['aux'])}",
    }
    return texts.get(kind, f"{kind_words(kind)}{who}{because}")


_KIND_NAMES = {int(k): k.name.lower() for k in Kind}
_REASON_NAMES = {int(r): r.name.lower().replace("_", " ") for r in Reason} | {int(Reason.NONE): ""}


def kind_words(kind: int) -> str:
    """A kind as one lower-case word; kinds of a newer format are shown as unknown."""
    return _KIND_NAMES.get(kind, f"unknown event {kind}")


def reason_words(reason: int) -> str:
    """A reason as words: `copy on write`; empty for none."""
    return _REASON_NAMES.get(reason, f"reason {reason}")
