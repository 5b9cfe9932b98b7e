"""The report of a check: text for people, the same content as JSON (`kvsan/1`) for tools. From the trace alone."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from kvscope.inspector import link
from kvscope.inspector.findings import CheckResult, Finding, FindingGroup, group, one_line
from kvscope.inspector.rules import RULES
from kvscope.inspector.runs import run_of
from kvscope.inspector.source import Names, TraceLike, frozen, joined, life, row_of, short_path, site_of
from kvscope.inspector.story import Moment, Story, freed_at, tell
from kvscope.inspector.units import agrees, counted

WIDTH = 66
_LISTED = 5  # further findings of a group that get a line
_LEDGER_SHOWN = 24
_FRAMES = 4  # of a stack
LEGEND = "F free  Q quarantined  P private  S shared  C cached (ref 0)  W being written  T in transit"


def report(
    found: CheckResult | Finding | Story, trace: TraceLike, *, name: str = "run.kvtrace", most: int | None = None,
    code_first: str = "",
) -> str:  # fmt: skip
    """The text report of one finding, or of its story where that has been told, or of a whole check.

    Of findings with equal code and call site the first is told in full and the others are counted.

    Args:
        name: how the trace is named in copy-and-paste commands.
        most: tell at most so many groups of findings.
        code_first: groups of this code come before the others, where it is known what to look for.
    """
    trace = frozen(trace)
    if isinstance(found, Finding):
        return _one(tell(found, trace), trace, name)
    if isinstance(found, Story):
        return _one(found, trace, name)
    groups = sorted(group(found.findings, trace), key=lambda each: each.first.code != code_first)
    shown = groups if most is None else groups[:most]
    parts = [_one(tell(g.first, trace), trace, name) + _others(g, trace) for g in shown]
    if len(shown) < len(groups):
        more = len(groups) - len(shown)
        told = f"`kvscope check {quote(name)} --max {len(groups)}` tells all"
        parts.append(f"... and {more} more {agrees(more, 'kind', 'kinds')} of mistake; {told}")
    parts.append("=" * WIDTH)
    parts.append(totals(found, len(groups)))
    return "\n".join(parts)


def totals(result: CheckResult, groups: int) -> str:
    """One line: how many findings, in how much."""
    looked = ((result.events, "event"), (result.blocks, "block"), (result.slots, "slot"))
    return (
        f"{counted(len(result.findings), 'finding')} of {counted(groups, 'kind')} in "
        f"{', '.join(counted(*each) for each in looked)} (detectors {' '.join(result.detectors)})"
    )


def to_json(result: CheckResult, trace: TraceLike, *, name: str = "run.kvtrace") -> dict[str, Any]:
    """The whole check as plain values: every finding, and the story of the first of each group."""
    trace = frozen(trace)
    groups = group(result.findings, trace)
    return {
        "schema": "kvsan/1",
        "trace": name,
        "clean": result.clean,
        "checked": {"events": result.events, "blocks": result.blocks, "slots": result.slots,
                    "elapsed_s": result.elapsed_s},
        "detectors": list(result.detectors),
        "idle": dict(result.idle),
        "notes": list(result.notes),
        "findings": [finding.to_json() for finding in result.findings],
        "groups": [
            {"code": g.first.code, "count": 1 + len(g.others), "first_seq": g.first.seq,
             "story": story_json(tell(g.first, trace), trace, name)}
            for g in groups
        ],
    }  # fmt: skip


def story_json(story: Story, trace: TraceLike, name: str) -> dict[str, Any]:
    """One finding with all that its text report says."""
    finding, names = story.finding, story.names
    rule = RULES[finding.code]

    def who(seq_id: int) -> dict[str, Any]:
        return {"seq_id": seq_id, "name": names(seq_id), "request": names.request(seq_id)}

    return {
        **finding.to_json(),
        "act": asdict(story.act) | ({"by": who(finding.seq_id)} if finding.seq_id >= 0 else {}),
        "now": story.now or None,
        "also_held_by": [asdict(h) | (who(h.seq_id) if h.seq_id >= 0 else {}) for h in story.holders],
        "moments": [asdict(m) for m in story.moments],
        "written_before": [asdict(w) | who(w.seq_id) for w in story.written_before],
        "clobbered_slots": story.clobbered,
        "clobbered_by": [who(s) for s in story.clobberers],
        "missing": story.missing or None,
        "rule": {"kind": rule.kind, "text": rule.text},
        "ledger": story.ledger,
        "blast_radius": [asdict(r) | who(r.seq_id) for r in story.readers],
        "view": _view(finding, name),
        "url": _link(finding, name),
        "summary": _summary(story, trace),
    }


def _one(story: Story, trace: TraceLike, name: str) -> str:
    finding = story.finding
    head = f"KVSAN: {finding.severity.upper()}: {finding.title}"
    parts = [
        "=" * WIDTH,
        f"{head:<{WIDTH - 8}} [{finding.code}]",
        *_act(story),
        *_held(story),
        *_written(story),
        *(line for m in story.moments for line in _moment(m)),
        "",
        *_why(story),
        *_ledger(story),
        *_pool(story),
        *_blast(story),
        "",
        f"View:    {_view(finding, name)}",
        f"         {_link(finding, name)}",
        f"SUMMARY: {_summary(story, trace)}",
    ]
    return "\n".join(parts)


def _act(story: Story) -> list[str]:
    finding, act, names = story.finding, story.act, story.names
    by = f"  by {_who(finding.seq_id, names)}" if finding.seq_id >= 0 else ""
    actor = f'  actor "{act.actor}"'
    what = act.text
    if finding.slots and act.text.startswith("write"):
        count = counted(finding.slots, "slot")
        place = f"{life(finding.block, finding.gen)}{_slots(finding.slot_lo, finding.slot_hi)}"
        what = f"WRITE of {count} at {place}"
    lines = [f"{what}{by if what is not act.text else ''}{actor}", *_where(act)]
    return [*lines, f"  {story.now}"] if story.now else lines


def _where(moment: Moment) -> list[str]:
    return [
        f"    seq {moment.seq}   t=+{moment.t_s:.6f} s   {_step(moment.step)}",
        *_stack(moment),
    ]


def _stack(moment: Moment) -> list[str]:
    """The innermost frames; the JSON has them all."""
    lines = [f"    {frame}" for frame in moment.stack[:_FRAMES]]
    more = len(moment.stack) - _FRAMES
    return [*lines, f"    ... {counted(more, 'frame')} more"] if more > 0 else lines


def _moment(moment: Moment) -> list[str]:
    return [
        f'{moment.role} actor "{moment.actor}", seq {moment.seq}, {_step(moment.step)}:',
        f"    {moment.text}",
        *_stack(moment),
    ]


def _held(story: Story) -> list[str]:
    lines = []
    for holder in story.holders:
        if holder.kind == "table":
            place = f"as its block {holder.lblock}, since seq {holder.since_seq}"
            lines.append(f"    {_who(holder.seq_id, story.names)} {place}")
        else:
            filled = holder.slot_lo < holder.slot_hi
            slots = f"slots [{holder.slot_lo}:{holder.slot_hi}]" if filled else "no slot that was filled"
            place = f"{slots}, since seq {holder.since_seq}"
            lines.append(f"    lease {holder.lease_id} over {place}")
    return ["also held by:", *lines] if lines else []


def _written(story: Story) -> list[str]:
    lines = []
    if story.written_before and story.finding.code in ("KV006", "KV015", "KV001", "KV010", "KV014"):
        lines.append("its slots were written before by:")
        for run in story.written_before:
            how = "copied for" if run.copied else "written by"
            where = f"    [{run.slot_lo}:{run.slot_hi}]".ljust(14)
            lines.append(f"{where}{how} {_who(run.seq_id, story.names)}, seq {run.seq}")
    if story.missing:
        lines += ["missing:", f"    {story.missing}"]
    if story.clobbered:
        who = [story.names(s) for s in story.clobberers]
        by = f"both {who[0]} and {who[1]}" if len(who) == 2 else f"more than one of {joined(who)}"
        where = f"{life(story.finding.block, story.finding.gen)} ({_ranges(story.clobbered)})"
        count = counted(len(story.clobbered), "slot")
        were = "was" if len(story.clobbered) == 1 else "were"
        lines += ["clobbered:", f"    {count} of {where} {were} written by {by} by the end of the trace"]
    return lines


def _why(story: Story) -> list[str]:
    rule = RULES[story.finding.code]
    text = f"Why this is {rule.kind}: {story.finding.why}. {rule.text[0].upper()}{rule.text[1:]}"
    return textwrap.wrap(text, 100, subsequent_indent="  ", break_on_hyphens=False)


def _ledger(story: Story) -> list[str]:
    if not story.ledger:
        return []
    head = f"Ledger of {life(story.finding.block, story.finding.gen)}:  "
    steps = story.ledger
    if len(steps) > _LEDGER_SHOWN:
        steps = [*steps[:4], f"... {len(steps) - _LEDGER_SHOWN} more ...", *steps[4 - _LEDGER_SHOWN :]]
    rows = [" | ".join(steps[i : i + 4]) for i in range(0, len(steps), 4)]
    pad = " " * (len(head) - 2)
    return [head + rows[0], *(f"{pad}| {row}" for row in rows[1:])]


def _pool(story: Story) -> list[str]:
    block, pool = story.finding.block, story.pool
    if not pool.num_blocks:
        return []
    lines = [f"Pool around b{block}:"]
    first, end = pool.first, pool.first + pool.num_blocks
    notes = {0: LEGEND[: LEGEND.index("  S")], 1: LEGEND[LEGEND.index("S") : LEGEND.index("  W")],
             2: LEGEND[LEGEND.index("W") :] + ("  L lost" if pool.num_lost else "")}  # fmt: skip
    width = len(f"b{first + 8}")
    for i, start in enumerate(range(first, end, 4)):
        cells = ""
        for b in range(start, min(start + 4, end)):
            mark = "[" if b == block else "]" if b == block + 1 and b > start else " "
            cells += mark + pool.letter(b)
        cells += "]" if block == min(start + 4, end) - 1 else " "
        arrow = "=>" if start <= block < start + 4 else "  "
        lines.append(f" {arrow}{f'b{start}':>{width}}:{cells:<10}  {notes[i]}".rstrip())
    return lines


def _blast(story: Story) -> list[str]:
    if not story.readers:
        return []
    lines = []
    for r in story.readers[:6]:
        steps = f"steps {r.first_step}-{r.last_step}" if r.last_step != r.first_step else f"step {r.first_step}"
        several = r.last_token != r.first_token  # positions: the prompt's count, as they do in slots and steps
        tokens = (
            f"tokens at positions {r.first_token}-{r.last_token}" if several else f"token at position {r.first_token}"
        )
        where = f"{life(story.finding.block, r.gen)}[{r.slot_lo}:{r.slot_hi}]"
        verb = "are" if several else "is"
        lines.append(f"{_who(r.seq_id, story.names)} read {where} in {steps} -> its {tokens} {verb} suspect")
    if len(story.readers) > 6:
        lines.append(f"... and {counted(len(story.readers) - 6, 'more reader')}")
    return [f"Blast radius: {lines[0]}", *(f"              {line}" for line in lines[1:])]


def _others(found: FindingGroup, trace: TraceLike) -> str:
    if not found.others:
        return ""
    count = len(found.others)
    lines = [f"\n+ {count} more {found.first.code} from the same call site:"]
    lines += [f"    {one_line(f, Names(run_of(frozen(trace), f.seq).facts))}" for f in found.others[:_LISTED]]
    if count > _LISTED:
        lines.append(f"    ... and {count - _LISTED} more, the last at seq {found.others[-1].seq}")
    return "\n".join(lines)


def _view(finding: Finding, name: str) -> str:
    block = f" --block {finding.block}" if finding.block >= 0 else ""
    return f"kvscope dashboard {quote(name)} --seq {finding.seq}{block}"


def _link(finding: Finding, name: str) -> str:
    """Where that command shows it, and any dashboard on the usual port that has the trace."""
    block = finding.block if finding.block >= 0 else None
    page = "blocks" if block is None else "biography"
    return link.url(page=page, trace=Path(name).stem, seq=finding.seq, block=block)


def _summary(story: Story, trace: TraceLike) -> str:
    finding = story.finding
    trace = run_of(frozen(trace), finding.seq)
    site = site_of(trace, row_of(trace, finding.seq))
    place = f" {life(finding.block, finding.gen)}" if finding.block >= 0 else ""
    where = f" {short_path(site.file)}:{site.line} in {site.function}" if site else place
    for role, seq in (("freed", freed_at(trace, finding)), ("allocated", finding.seq_of("allocated"))):
        other = site_of(trace, row_of(trace, seq)) if seq is not None else None
        if other is not None:
            return f"KVSAN: {finding.code} {finding.name}{where} ({role} {short_path(other.file)}:{other.line})"
    return f"KVSAN: {finding.code} {finding.name}{where}"


def _who(seq_id: int, names: Names) -> str:
    """`request haiku/1 (sequence 9)`."""
    if names.request(seq_id) is None:
        return f"sequence {seq_id}"
    return f"request {names(seq_id)} (sequence {seq_id})"


def _step(step: int) -> str:
    return f"step {step}" if step >= 0 else "before the first step"


def _slots(lo: int, hi: int) -> str:
    return f"[{lo}]" if hi == lo + 1 else f"[{lo}:{hi}]"


def _ranges(slots: list[int]) -> str:
    """`[2:5] [7]` of ascending slot numbers."""
    parts: list[list[int]] = []
    for slot in slots:
        if parts and parts[-1][1] == slot:
            parts[-1][1] += 1
        else:
            parts.append([slot, slot + 1])
    return " ".join(_slots(lo, hi) for lo, hi in parts)
