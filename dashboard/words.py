"""Events in words, for the time bar and tables: block events as the inspector says them, the others here."""

from __future__ import annotations

from typing import Any

from kvscope.inspector.biography import describe, kind_words, reason_words
from kvscope.inspector.holes import IN_ONE_PIECE, allocator_of
from kvscope.inspector.source import Names, named_detail
from kvscope.inspector.units import counted
from kvscope.traces.fold import BLOCK_KINDS
from kvscope.traces.schema import Kind, unpack_range


def event_text(view: Any, row: int, names: Names) -> str:
    """One event in words: `b5#1: write slots [3:4] by haiku (decode)`, `haiku admitted, 32 tokens cached`."""
    event = view.events[row]
    kind = int(event["kind"])
    if kind in BLOCK_KINDS:
        return f"{block_text(event)}: {describe(view, row, names)}"
    return _other(view, row, names)


def block_text(event: Any) -> str:
    """`b37#12`, `b37` where the life is not known, empty where the event names no block."""
    block, gen = int(event["block"]), int(event["gen"])
    return "" if block < 0 else f"b{block}#{gen}" if gen >= 0 else f"b{block}"


def short_site(site: str) -> str:
    """A call site with its file's last two names only: `engine/pool.py:88 in release`."""
    path, colon, rest = site.partition(":")
    return "/".join(path.split("/")[-2:]) + colon + rest


def _other(view: Any, row: int, names: Names) -> str:
    event = view.events[row]
    kind, seq_id, aux = int(event["kind"]), int(event["seq_id"]), int(event["aux"])
    who = names(seq_id) if seq_id >= 0 else ""
    reason = reason_words(int(event["reason"]))
    because = f" ({reason})" if reason else ""
    if kind == Kind.SCHED:
        lo, count = int(event["lblock"]), int(event["fill"])
        return f"{who} scheduled: computes positions [{lo}:{lo + count}], reads up to {unpack_range(aux)[1]}"
    if kind in (Kind.WAIT, Kind.REFUSED):
        detail = named_detail(view, int(view.seqs[row]), Kind(kind))
        said = f": {_needs(view, kind, detail)}" if "free" in detail else ""
        return f"{who} {'waits' if kind == Kind.WAIT else 'refused'}{because}{said}"
    texts: dict[int, str] = {
        Kind.SUBMIT: f"{who} submitted, {counted(aux, 'prompt token')}",
        Kind.ADMIT: f"{who} admitted, {counted(aux, 'token')} cached",
        Kind.RESUME: f"{who} resumed, {counted(aux, 'token')} to compute again",
        Kind.PREEMPT: f"{who} preempted after {counted(aux, 'token')}{because}",
        Kind.FINISH: f"{who} finished with {counted(aux, 'output token')}{because}",
        Kind.ABORT: f"{who} aborted with {counted(aux, 'output token')}{because}",
        Kind.FORK: f"{who} forked from {names(aux)}",
        Kind.TRUNCATE: f"{who} truncated to {counted(aux, 'token')}",
        Kind.MISS: f"{who}: prefix match ends before block {int(event['lblock'])}{because}",
        Kind.STEP_BEGIN: f"step begins with {counted(aux, 'sequence')}",
        Kind.STEP_END: f"step ends, {counted(aux, 'token')} computed",
        Kind.WITNESS: "witness: what the pool itself counts",
        Kind.POOL: f"pool of {counted(aux, 'block')}",
        Kind.GROW: f"pool grows from {int(event['lblock'])} to {counted(aux, 'block')}",
        Kind.SHRINK: f"pool shrinks from {int(event['lblock'])} to {counted(aux, 'block')}",
        Kind.GAP: _gap(aux),
    }
    return texts.get(kind, f"{kind_words(kind)} {who}{because}".strip())


def _gap(aux: int) -> str:
    if aux > 0:
        return f"{counted(aux, 'event')} lost here"
    return "another writer goes on" + (f", with a new pool of {counted(-aux, 'block')}" if aux else "")


def _needs(view: Any, kind: int, detail: dict[str, int]) -> str:
    """What was needed and what there was: also why free blocks did not do, where they must lie side by side."""
    needed, free = detail["needed"], detail["free"]
    needs, there = f"needs {counted(needed, 'block')}", f"{free} {'is' if free == 1 else 'are'} free"
    if kind == Kind.REFUSED and "largest" in detail:
        return f"{needs} side by side, {there}, the largest hole has {detail['largest']}"
    if needed <= free and allocator_of(view.facts) in IN_ONE_PIECE:
        return f"{needs} side by side, {there}, in holes too small"
    return f"{needs}, {free} free"
