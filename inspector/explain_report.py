"""An explanation in words, and as JSON (`kvexplain/1`). From the trace alone."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import Any

from kvscope.inspector.explanation import BadRead, Explanation, TokenStep, Victim, Write
from kvscope.inspector.findings import one_line
from kvscope.inspector.report import report, story_json
from kvscope.inspector.runs import runs_of
from kvscope.inspector.source import Frozen, Names, TraceLike, frozen, joined, life
from kvscope.inspector.story import tell
from kvscope.inspector.units import agrees, counted

_VICTIMS = 12
_STEPS = 12  # that are listed
_SAME = (
    "not damaged. Provenance compared every slot of its steps beside the tensors, and found the right prefix in each.\n"
    "Events hold no bytes; by them alone another sequence wrote what it read:"
)


def explanation_text(told: Explanation, trace: TraceLike, *, name: str = "run.kvtrace") -> str:
    """The story as text.

    Args:
        name: how the trace is named in copy-and-paste commands.
    """
    trace = _part(told, trace)
    parts = _head(told)
    if told.writer is not None:
        number, count = told.writer
        parts.insert(0, f"(Writer {number} of {count} of this trace: the last one that has such a request.)")
    if told.read is not None:
        parts += _read(told, told.read)
    if told.cause is not None:
        parts += _cause(told)
    if told.victims:
        parts += _victims(told)
    if told.verdict in ("clean", "unknown"):
        parts += _clean(told, trace)
    if told.lost:
        parts.append("Events are missing: steps among them, and reads of what was written there, were not compared.")
    if told.cause is not None:
        parts += ["", "The finding in full:", report(told.cause, trace, name=name)]
    return "\n".join(parts)


def explanation_json(told: Explanation, trace: TraceLike, *, name: str = "run.kvtrace") -> dict[str, Any]:
    """The same as plain values, with the whole story of the finding."""
    trace = _part(told, trace)
    return {
        "schema": "kvexplain/1",
        "trace": name,
        "request": told.request,
        "samples": told.samples,
        "beams": told.beams or None,
        **({} if told.writer is None else {"writer": told.writer[0], "writers": told.writer[1]}),
        "verdict": told.verdict,
        "token": told.token,
        "steps": told.steps,
        "first_damaged": {
            "sample": told.sample,
            "token": told.first_token,
            "token_sample": told.first_sample or None,
            "through": told.through or None,
            "step": told.first_step[0] if told.first_step else None,
            "seq": told.first_step[1] if told.first_step else None,
        }
        if told.sample
        else None,
        "read": asdict(told.read) if told.read is not None else None,
        "should": told.should or None,
        "cause": story_json(tell(told.cause, trace), trace, name) if told.cause is not None else None,
        "followed": [finding.to_json() for finding in told.followed],
        "blast_radius": [asdict(victim) for victim in told.victims],
        "findings_elsewhere": [finding.to_json() for finding in told.elsewhere],
        "findings_on_its_blocks": [finding.to_json() for finding in told.touching],
        "other_tables": [finding.to_json() for finding in told.other_tables],
        "other_steps": told.other_steps,
        "why_it_may_differ": told.why_it_may_differ,
        "token_steps": [asdict(made) for made in told.made],
        "events_missing": told.lost,
        "same_prefix": told.same_prefix,
    }


def _part(told: Explanation, trace: TraceLike) -> Frozen:
    """What the explained request's own writer wrote."""
    runs = runs_of(frozen(trace))
    return runs[0 if told.writer is None else told.writer[0] - 1]


def _head(told: Explanation) -> list[str]:
    who = f"Request {told.request}"
    if len(told.samples) > 1 and told.beams:
        who += f" (a search with {told.beams} beams, which were {told.request}/0 to {told.samples[-1]} in turn)"
    elif len(told.samples) > 1:
        who += f" ({len(told.samples)} samples)"
    if told.other_tables:
        sound = counted(told.steps - len(told.other_steps), "step")
        return [
            f"{who}: not known. By the events {sound} of it read what was written for it;",
            *_tables(told),
            *_made(told),
        ]
    if told.verdict == "unknown":
        told_of = "The trace tells of no step (SCHED between STEP_BEGIN and STEP_END), and so of nothing that it read"
        return [f"{who}: not known. {told_of}; `kvscope check` judges what the allocator did."]
    if told.verdict == "clean":
        verdict, which = ("clean as far as recorded", " recorded") if told.lost else ("clean", "")
        each = "Its one" if told.steps == 1 else f"Each of its {told.steps}"
        head = (
            f"{who}: {verdict}. {each}{which} {agrees(told.steps, 'step', 'steps')} read what the request, its parent "
            "or its prefix wrote."
        )
        return [head, *_made(told)]
    where = (
        "its prompt was computed from foreign KV"
        if told.first_token is None
        else f"damaged from token {told.first_token} of {_whose(told)} on"
    )
    if told.verdict == "not-affected":
        return [f"{who}: token {told.token} is not affected: its step read what was written for it.",
                *_made(told), f"The request is {where}."]  # fmt: skip
    lines = [f"{who}: {_SAME} {where}." if told.same_prefix else f"{who}: {where}."]
    if told.token is not None and told.token != told.first_token:
        lines += [f"Token {told.token} is one of these.", *_made(told)]
    elif told.token is not None:
        lines.append(f"Token {told.token} is the first of these.")
    return lines


def _tables(told: Explanation) -> list[str]:
    """Steps that went through a table that nobody knows: what they read cannot be told."""
    first, steps = told.other_tables[0], told.other_steps
    listed = joined(map(str, steps if len(steps) <= _STEPS else [*steps[:_STEPS], f"{len(steps) - _STEPS} more"]))
    which = f"step{'s' * (len(steps) > 1)} {listed}"
    return [
        f"in {which} the worker used another table [KV018], and what was read through that is not known:",
        *textwrap.wrap(first.why, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False),
    ]


def _whose(told: Explanation) -> str:
    """The first bad token need not be of the sample that was hit first."""
    return "its output" if told.first_sample == told.sample else f"the output of {told.first_sample}"


def _made(told: Explanation) -> list[str]:
    """What is known of the token asked for: its step, and what that read."""
    lines = []
    for made in told.made:
        lines.append(
            f"Token {told.token} of {made.name} came out of step {made.step} (seq {made.seq}){_parent(made)}, "
            f"which read its positions {made.positions[0]} to {made.positions[1] - 1} "
            f"in {counted(made.blocks, 'block')}, in a batch with {counted(made.company, 'other sequence')}."
        )
        if told.verdict == "damaged":
            lines += _tainted(made)
    return lines


def _parent(made: TokenStep) -> str:
    return f" of {made.parent}, its parent" if made.parent else ""


def _tainted(made: TokenStep) -> list[str]:
    """Whether what the step of a token read was tainted, and by whom."""
    read = made.foreign
    if read is None and made.through:
        wrote = "it wrote itself" if made.through == (made.parent or made.name) else f"{made.through} wrote"
        return [f"    it is tainted: its step read what {wrote} in a step that had read foreign KV"]
    if read is None and made.goes_on_from is not None:
        return [f"    it is tainted: it goes on from token {made.goes_on_from}, which came out of a tainted step"]
    if read is None:
        return ["    it is not tainted: its step read what was written for it"]
    where = f"position {read.position}, {_where(read)}"
    held = f"{counted(read.count, 'position')} of these held foreign KV, the first of them {where}"
    if read.count == 1:
        held = f"1 of these positions held foreign KV: {where}"
    return [f"    {held}", f"    it holds   {_found(read)}", f"    it should  {_write(read.expected, own=True)}"]


def _read(told: Explanation, read: BadRead) -> list[str]:
    whose = []
    if told.through:
        first = f"{read.reader} read foreign KV first, and "
        whose = [f"{first}{told.sample} read what {told.through} then wrote."]
    return [
        *whose,
        f"{_came_out(told, read)}:",
        f"    position {read.position} lies in {_where(read)}",
        f"    it holds   {_found(read)}",
        f"    it should  {_write(read.expected, own=True)}",
    ]  # fmt: skip


def _found(read: BadRead) -> str:
    """What lies in the first wrong slot: the last write, or what the block was filled with since."""
    poison = "NaN, with which a freed block is filled; before that " if read.poison else ""
    return poison + _write(read.found)


def _where(read: BadRead) -> str:
    return f"{life(read.block, read.gen)}[{read.slot}]" if read.block >= 0 else "no block any more"


def _came_out(told: Explanation, read: BadRead) -> str:
    """Which step read foreign KV, and the token that came out of it: of a chunk of the prompt none did."""
    more = f" ({read.count} positions of this step are wrong)" if read.count > 1 else ""
    asked = told.token is not None and told.token != told.first_token
    if read.token is not None:
        token = f"oken {read.token} of {read.reader} came out of step {read.step} (seq {read.seq})"
        return f"{'The first bad one: t' if asked else 'T'}{token}, whose attention read foreign KV{more}"
    head = f"The prompt of {read.reader} read foreign KV in step {read.step} (seq {read.seq}){more}"
    if told.first_token is None or told.first_step is None:
        return head
    step, seq = told.first_step
    whose = f" of {told.sample}" if told.sample != read.reader else ""
    return f"{head}; token {told.first_token}{whose}, out of step {step} (seq {seq}), is the first bad one"


def _write(write: Write, *, own: bool = False) -> str:
    if write.seq is None:
        if write.seq_id is not None:
            return (
                f"what {write.name} (sequence {write.seq_id}) wrote in step {write.step}; the trace has no event of it"
            )
        if write.name == "another prefix":
            return "hold the KV of this request's own prefix, which was never in this block"
        return (
            "hold this request's own KV, which nobody had written there" if own else "nothing that was written for it"
        )
    verb = "hold the write" if own else "the write"
    return f"{verb} of {write.name} (sequence {write.seq_id}), seq {write.seq}, step {write.step}"


def _cause(told: Explanation) -> list[str]:
    cause = told.cause
    assert cause is not None
    lines = [
        "The event that should have been another:",
        f"    seq {cause.seq}, step {cause.step}: {cause.title} [{cause.code}]",
    ]
    lines += textwrap.wrap(cause.why, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    if told.should:
        lines.append(f"    missing: {told.should}")
    if told.followed:
        lines.append("What followed from it, on the same block:")
        lines += [f"    seq {f.seq}, step {f.step}: {f.title} [{f.code}]" for f in told.followed]
    return lines


def _victims(told: Explanation) -> list[str]:
    tokens = sum(v.tokens for v in told.victims)
    requests = {v.request if v.request is not None else ("s", v.seq_id) for v in told.victims}
    damage = "Others were damaged" if told.verdict == "clean" else "Blast radius"
    damage = "By the events alone" if told.same_prefix else damage
    head = (
        f"{damage}: {counted(tokens, 'token')} of {counted(len(told.victims), 'sequence')} in "
        f"{counted(len(requests), 'request')}, taint followed through what tainted steps wrote:"
    )
    lines = [f"    {_victim(v)}" for v in told.victims[:_VICTIMS]]
    more = len(told.victims) - _VICTIMS
    return [head, *lines, *([f"    ... and {more} more"] if more > 0 else [])]


def _victim(victim: Victim) -> str:
    if victim.first_token is None:
        what = "no token yet, only its prompt"
    else:
        what = f"{counted(victim.tokens, 'token')} from token {victim.first_token} on"
    how = f"through the KV of {victim.through}" if victim.through else "read foreign KV itself"
    return f"{victim.name} (sequence {victim.seq_id}): {what}, {how}, since seq {victim.first_seq}"


def _clean(told: Explanation, trace: TraceLike) -> list[str]:
    names, lines = Names(trace.facts), []
    if told.touching:
        but = "" if told.verdict == "unknown" else ", none of which changed what it read"
        lines.append(f"Findings on blocks that it held{but}:")
        lines += [f"    {f.code} {f.name}, {one_line(f, names)}" for f in told.touching[:5]]
    elif told.elsewhere:
        codes = joined(dict.fromkeys(f.code for f in told.elsewhere))
        lines.append(
            f"The trace has {counted(len(told.elsewhere), 'finding')} ({codes}); none is on a block of this request."
        )
    if told.verdict == "unknown":
        return lines
    lines.append("Why its text may differ from another run's all the same:")
    for reason in told.why_it_may_differ:
        lines += textwrap.wrap(reason, 100, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
    return lines
