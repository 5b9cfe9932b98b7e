"""Detectors over a replay of the ledger: who they are, and running them over a trace.

The screen (inspector/screen) answers for all of them at once on a trace without faults; what it suspects is replayed.

player.py    the events one after another
replay.py    the ledger: blocks, tables and steps as the events make them
moves.py     copies and the host tier, for the ledger
tables.py    tables and their digests, for the ledger
placing.py   what a step writes against what it computes, for the ledger
ledger.py    OWN REF FREE CONS     who holds what
takes.py     CONS     what is taken twice by one holder
origins.py   OWN      where forks, copies and transfers take content from
life.py      GEN FENCE INIT SLOT    lives, steps
rows.py      TABLE    the worker's table rows
sharing.py   COW PUB INDEX KEY EVICT LEASE    shared and published blocks
beside.py    PROG WINDOW    who waits, what a window needs; SHADOW CONTENT    what checkers beside the tensors found
numbers.py   NULL META CAP    reserved blocks, counters that cannot be, promises and budgets
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from kvscope.errors import UsageError
from kvscope.inspector.units import agrees, counted

if TYPE_CHECKING:
    from kvscope.inspector.detectors.base import Detector
    from kvscope.inspector.detectors.replay import Ledger
    from kvscope.inspector.findings import CheckResult, Finding
    from kvscope.inspector.source import Frozen, TraceLike

DETECTOR_NAMES = (
    "OWN", "REF", "FREE", "CONS", "GEN", "FENCE", "COW", "PUB", "INDEX", "KEY", "EVICT", "LEASE", "INIT", "TABLE",
    "SLOT", "NULL", "WINDOW", "PROG", "META", "CAP", "SHADOW", "CONTENT",
)  # fmt: skip


def detector_types() -> dict[str, type[Detector]]:
    """The detector classes by name, in the order of `DETECTOR_NAMES`."""
    from kvscope.inspector.detectors import beside, ledger, life, numbers, rows, sharing

    classes: tuple[type[Detector], ...] = (
        ledger.Own, ledger.Ref, ledger.Free, ledger.Cons, life.Gen, life.Fence, sharing.Cow, sharing.Pub,
        sharing.Index, sharing.Key, sharing.Evict, sharing.Lease, life.Init, rows.Table, life.Slot, numbers.Null,
        beside.Window, beside.Prog, numbers.Meta, numbers.Cap, beside.Shadow, beside.Content,
    )  # fmt: skip
    return {c.name: c for c in classes}


def run_detectors(trace: TraceLike, *, only: Iterable[str] | None = None, replay: bool = False) -> CheckResult:
    """Check a trace under the detectors: by the vectorised screen, and event by event where that suspects anything.

    Args:
        replay: go through all events in any case; the result is the same.

    Raises:
        UsageError: `only` names a detector that does not exist.
    """
    from kvscope.inspector.geometry import other_pool
    from kvscope.inspector.runs import runs_of
    from kvscope.inspector.screen.whole import screened
    from kvscope.inspector.source import frozen, size_after

    started = time.perf_counter()
    types = detector_types()
    wanted = list(types) if only is None else list(only)
    unknown = [name for name in wanted if name not in types]
    if unknown:
        raise UsageError(f"no detector is called {unknown[0]!r}; there are {' '.join(types)}")
    trace = frozen(trace)
    runs = runs_of(trace)
    if len(runs) > 1:
        return _merged(trace, [run_detectors(run, only=wanted, replay=replay) for run in runs], wanted, started)
    if not replay:
        looked = screened(trace)
        if looked.clean:
            size = size_after(trace, len(trace.events))
            notes = (*_lost(trace, looked.unjudged, looked.unknown, size), *_unclosed(trace))
            return _result(trace, wanted, (), looked.blocks, looked.slots, notes, started)
    wrong = other_pool(trace)
    if wrong is not None:
        return _result(trace, wanted, (wrong,), 1, 0, (), started)
    return _replayed(trace, wanted, started)


def _replayed(trace: Frozen, wanted: list[str], started: float) -> CheckResult:
    from kvscope.inspector.detectors.player import Player
    from kvscope.inspector.detectors.replay import Ledger
    from kvscope.inspector.source import gap_rows

    ledger = Ledger(trace)
    types = detector_types()
    detectors = [types[name](ledger) for name in wanted]
    gaps = gap_rows(trace)
    player = Player(ledger, detectors)
    player.feed(trace.events, trace.seqs, {row for row, _ in gaps})
    player.finish()
    slots = sum(bits.bit_count() for bits in ledger.ever_written.values())
    notes = (
        *_not_kept(ledger), *_lost(trace, ledger.unjudged, ledger.unknown_blocks, ledger.num_blocks), *_unclosed(trace)
    )  # fmt: skip
    return _result(trace, wanted, ledger.findings, len(ledger.touched), slots, notes, started)


def _result(
    trace: Frozen,
    wanted: list[str],
    findings: Iterable[Finding],
    blocks: int,
    slots: int,
    notes: tuple[str, ...],
    started: float,
) -> CheckResult:
    from kvscope.inspector.findings import CheckResult

    types = detector_types()
    present = trace.present.astype(np.bool_)
    idle = {}
    for name in wanted:
        kinds = types[name].kinds()
        if not present[list(kinds)].any():
            idle[name] = f"the trace has no {' '.join(k.name for k in kinds)} events"
        elif why := types[name].idle(trace):
            idle[name] = why
    return CheckResult(
        findings=tuple(sorted(findings, key=lambda f: (f.seq, f.code))),
        events=len(trace.events),
        blocks=blocks,
        slots=slots,
        detectors=tuple(name for name in wanted if name not in idle),
        idle=tuple(idle.items()),
        notes=notes,
        elapsed_s=time.perf_counter() - started,
    )


def _merged(trace: Frozen, results: list[CheckResult], wanted: list[str], started: float) -> CheckResult:
    """What was found in the parts of a trace by its writers."""
    from kvscope.inspector.findings import CheckResult

    ran = {name for result in results for name in result.detectors}
    times = counted(len(results) - 1, "time")
    notes = [
        f"another writer went on {times}: what each did with its own pool is judged by itself, and what those before "
        "the last held when they ended is not counted as leaked"
    ]
    for number, result in enumerate(results, 1):
        notes += [note if number == len(results) else f"writer {number}: {note}" for note in result.notes]
    return CheckResult(
        findings=tuple(sorted((f for result in results for f in result.findings), key=lambda f: (f.seq, f.code))),
        events=len(trace.events),
        blocks=max(result.blocks for result in results),
        slots=sum(result.slots for result in results),
        detectors=tuple(name for name in wanted if name in ran),
        idle=tuple((name, why) for name, why in results[-1].idle if name not in ran),
        notes=tuple(notes),
        elapsed_s=time.perf_counter() - started,
    )


def _not_kept(ledger: Ledger) -> tuple[str, ...]:
    if not ledger.not_kept:
        return ()
    more = f"{counted(ledger.not_kept, 'more finding')} {agrees(ledger.not_kept, 'was', 'were')} counted but not kept"
    return (f"{more}: the first {len(ledger.findings):,} are",)


def _lost(trace: Frozen, unjudged: int, unknown: int, num_blocks: int) -> tuple[str, ...]:
    """How much could be judged, where events are missing."""
    from kvscope.inspector.source import gap_rows

    gaps = gap_rows(trace)
    if not gaps:
        return ()
    missing = sum(lost for _, lost in gaps)
    return (
        f"{counted(missing, 'event')} {agrees(missing, 'is', 'are')} missing in {counted(len(gaps), 'place')}: "
        f"{counted(unjudged, 'event')} could not be judged, {unknown} of {num_blocks} blocks are still unknown at the "
        "end, and which steps were open is not judged after the first of them",
    )


def _unclosed(trace: Frozen) -> tuple[str, ...]:
    if trace.complete or trace.followed:
        return ()
    if trace.clean:
        behind = f"{counted(trace.torn, 'event')} behind the last one {agrees(trace.torn, 'is', 'are')} missing"
        return (f"{behind}: what is held there is not counted as leaked",)
    return ("the trace was not closed by its writer: blocks that living sequences hold are not counted as leaks",)
