"""From "request 7 talks nonsense" to the event that did it: `explain` and what it says, from the trace alone.

The reads of every step are compared slot by slot (reads.py); the first foreign one of the request names the block, the
write that is there and the write that should be; the findings of a check name the event that should have been another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kvscope.errors import UsageError
from kvscope.inspector.blame import cause_of
from kvscope.inspector.explanation import BadRead, Explanation, TokenStep, Verdict, Victim, Write
from kvscope.inspector.findings import CheckResult, Finding, check
from kvscope.inspector.read_records import OTHER_PREFIX, Damage, Foreign, Reads
from kvscope.inspector.reads import reads_of, row_seq
from kvscope.inspector.requests import find_request, prompt_lengths
from kvscope.inspector.runs import run_of, runs_of
from kvscope.inspector.should import SHOULD, SHOULD_AT
from kvscope.inspector.source import Frozen, Names, TraceLike, frozen, row_of
from kvscope.inspector.story import tell
from kvscope.inspector.tokens import Makers
from kvscope.inspector.units import counted
from kvscope.traces.schema import Kind, Reason, unpack_range


def explain(
    trace: TraceLike, request: str | int, token: int | None = None, *, result: CheckResult | None = None
) -> Explanation:
    """The story of one request; where several writers of the trace have such a one, that of the last.

    Args:
        request: its name, `NAME/1` for one sample of it, its number, or `s7` for a sequence.
        token: index of one of its output tokens, from 0; the first damaged one by default.
        result: a check of the same trace, if there is one already.

    Raises:
        UsageError: there is no such request or token; says which there are.
    """
    whole = frozen(trace)
    runs = runs_of(whole)
    number, seq_ids = _last_with(runs, request)
    trace = runs[number]
    if result is not None and len(runs) > 1:
        result = replace(result, findings=tuple(f for f in result.findings if run_of(whole, f.seq) is trace))
    told = _explained(trace, seq_ids, token, result if result is not None else check(trace))
    return replace(told, writer=(number + 1, len(runs))) if len(runs) > 1 else told


def _last_with(runs: Sequence[Frozen], request: str | int) -> tuple[int, list[int]]:
    """The last of a trace's writers that has the request, and its sequences.

    Raises:
        UsageError: none has it, or one has several of that name.
    """
    refused: UsageError | None = None
    for number in reversed(range(len(runs))):
        try:
            return number, find_request(runs[number], Names(runs[number].facts), request)
        except UsageError as error:
            refused = refused or error
    raise refused or UsageError("the trace has no events")


def _explained(trace: Frozen, seq_ids: list[int], token: int | None, found: CheckResult) -> Explanation:
    names = Names(trace.facts)
    reads = reads_of(trace, found)
    context = _Context(trace, names, found, reads, seq_ids, token)
    if token is not None:
        context.check_token()
    if damages := reads.of(seq_ids):
        return context.damaged(damages)
    alike = _Context(trace, names, found, reads_of(trace, found, alike=True), seq_ids, token)
    if damages := alike.reads.of(seq_ids):
        return alike.damaged(damages, same_prefix=True)
    return context.clean()


class _Context:
    """What all parts of an explanation need."""

    def __init__(
        self, trace: Frozen, names: Names, result: CheckResult, reads: Reads, seq_ids: list[int], token: int | None
    ) -> None:
        self.trace, self.names, self.result, self.reads = trace, names, result, reads
        self.seq_ids, self.token = seq_ids, token
        # A hole between the events, or events that were dropped, or are torn off behind the last one.
        self.lost = reads.lost or bool(getattr(trace.source, "missing", 0))
        self.makers = Makers(trace, prompt_lengths(trace, names))
        self.makers.inherit(reads)
        self.request = names(seq_ids[0]) if len(seq_ids) == 1 else min(names.whole(s) for s in seq_ids)

    # -- tokens -------------------------------------------------------------------------------------------------

    def check_token(self) -> None:
        """Raises UsageError where no step of the request made the token asked for."""
        made = {token for seq_id in self.seq_ids for token in self.makers.of.get(seq_id, ())}
        if self.token not in made:
            last = f"tokens {min(made)}..{max(made)}" if made else "no tokens"
            raise UsageError(f"{self.request} has no token {self.token}: its steps made {last}")

    def tainted_tokens(self, seq_id: int) -> dict[int, int]:
        """The tainted output tokens of a sequence, each with the row of its step: its parent's, before the fork.

        From the first one on all are: each goes on from those before it, also where a preemption had its KV computed
        again, from tokens that were wrong already. What such a step writes is what these tokens should have, so whoever
        finds it in the prefix cache reads nothing foreign.
        """
        made = self.makers.of.get(seq_id, {})
        owners = set(self.trace.events["seq_id"][list(made.values())].tolist()) | {seq_id}
        hurt = {row for owner in owners if owner in self.reads.damage for row in self.reads.damage[owner].steps}
        first = min((token for token, row in made.items() if row in hurt), default=None)
        return {} if first is None else {token: row for token, row in sorted(made.items()) if token >= first}

    def made(self) -> list[TokenStep]:
        """The steps that made the token asked for; none where no token was."""
        events = self.trace.events
        out: list[TokenStep] = []
        if self.token is None:
            return out
        begins = np.flatnonzero(events["kind"] == Kind.STEP_BEGIN)
        told: set[int] = set()
        for asked in self.seq_ids:
            row = self.makers.of.get(asked, {}).get(self.token, -1)
            if row < 0 or row in told:
                continue  # samples that were forked later share their parent's step
            told.add(row)
            lo, hi = unpack_range(int(events["aux"][row]))
            begun = begins[begins < row]
            company = max(0, int(events["aux"][begun[-1]]) - 1) if len(begun) else 0
            size, seq_id = self.trace.block_size, int(events["seq_id"][row])
            damage = self.reads.damage.get(seq_id, Damage(seq_id))
            foreign, first = damage.read.get(row), min(self.tainted_tokens(asked), default=None)
            out.append(TokenStep(self.names(asked), row_seq(self.trace, row), int(events["step"][row]), (lo, hi),
                                 -(-hi // size) - lo // size, company,
                                 self.bad_read(foreign) if foreign is not None else None,
                                 self.names(damage.handed[row]) if row in damage.handed else "",
                                 self.names(seq_id) if seq_id != asked else "",
                                 first if first is not None and first < self.token else None))  # fmt: skip
        return sorted(out, key=lambda step: step.seq)

    # -- verdicts -----------------------------------------------------------------------------------------------

    def damaged(self, damages: list[Damage], *, same_prefix: bool = False) -> Explanation:
        damage = damages[0]
        tainted = [(*each, s) for s in self.seq_ids for each in self.tainted_tokens(s).items()]
        tokens = {token for token, _, _ in tainted}
        first = min(tainted, default=None)
        hit = self.token is None or self.token in tokens
        verdict: Verdict = "not-affected" if not hit else "same-prefix" if same_prefix else "damaged"
        source = damage if damage.first is not None and damage.through < 0 else self._source(damage)
        blamed = cause_of(self.trace, self.result, source.first) if source.first is not None else None
        cause = blamed.finding if blamed is not None else None
        return Explanation(
            request=self.request,
            samples=[self.names(s) for s in self.seq_ids],
            verdict=verdict,
            token=self.token,
            steps=sum(self.reads.steps.get(s, 0) for s in self.seq_ids),
            read=self.bad_read(source.first) if source.first is not None else None,
            sample=self.names(damage.seq_id),
            first_token=first[0] if first is not None else None,
            first_step=self.step_of(first[1]) if first is not None else None,
            first_sample=self.names(first[2]) if first is not None else "",
            through=self.names(damage.through) if damage.through >= 0 else "",
            cause=cause,
            followed=blamed.followed if blamed is not None else (),
            should=self.should(cause),
            victims=self.victims(),
            elsewhere=[f for f in self.result.findings if cause is None or f.code != cause.code],
            made=self.made(),
            beams=self.names.beams(self.seq_ids[0]),
            lost=self.lost,
            same_prefix=same_prefix,
        )  # fmt: skip

    def step_of(self, row: int) -> tuple[int, int]:
        """The step of a SCHED row, and its number."""
        return int(self.trace.events["step"][row]), row_seq(self.trace, row)

    def _source(self, damage: Damage) -> Damage:
        """The sequence that the damage came from, step by step back."""
        seen = {damage.seq_id}
        while damage.through >= 0 and damage.through not in seen and damage.through in self.reads.damage:
            seen.add(damage.through)
            damage = self.reads.damage[damage.through]
        return damage

    def clean(self) -> Explanation:
        blocks = self._blocks()
        other = sorted({row for seq_id in self.seq_ids for row in self.reads.other_rows.get(seq_id, ())})
        touching = [f for f in self.result.findings if (f.block, f.gen) in blocks]
        return Explanation(
            request=self.request,
            samples=[self.names(s) for s in self.seq_ids],
            verdict="clean" if self.reads.steps and not other else "unknown",
            token=self.token,
            steps=sum(self.reads.steps.get(s, 0) for s in self.seq_ids),
            read=None,
            victims=self.victims(),
            elsewhere=list(self.result.findings),
            touching=touching,
            other_tables=[f for f in self.result.findings if f.code == "KV018" and f.seq_id in self.seq_ids]
            if other
            else [],
            other_steps=list(dict.fromkeys(self.trace.events["step"][other].tolist())),
            why_it_may_differ=self.reasons(),
            made=self.made(),
            beams=self.names.beams(self.seq_ids[0]),
            lost=self.lost,
        )

    def _blocks(self) -> set[tuple[int, int]]:
        events = self.trace.events
        rows = np.isin(events["seq_id"], self.seq_ids) & (events["block"] >= 0)
        return set(zip(events["block"][rows].tolist(), events["gen"][rows].tolist(), strict=True))

    # -- parts --------------------------------------------------------------------------------------------------

    def bad_read(self, foreign: Foreign) -> BadRead:
        """The first wrong position of a step, in words of the trace."""
        events, size = self.trace.events, self.trace.block_size
        block, seq = max(foreign.slot // size, -1), row_seq(self.trace, foreign.row)
        here = (events["block"][: foreign.row] == block) & (events["gen"][: foreign.row] >= 0)
        return BadRead(
            seq=seq,
            step=int(events["step"][foreign.row]),
            position=foreign.position,
            block=block,
            gen=int(events["gen"][: foreign.row][here].max(initial=-1)),
            slot=foreign.slot % size if foreign.slot >= 0 else foreign.position % size,
            count=foreign.count,
            found=self._found(foreign),
            expected=self.write(foreign.expected),
            reader=self.names(int(events["seq_id"][foreign.row])),
            token=self.makers.token_of(foreign.row),
            poison=self._poisoned(foreign),
        )

    def _found(self, foreign: Foreign) -> Write:
        """The write whose content was read; where the trace holds none, the writer that a checker read in the slot."""
        if foreign.writer is None:
            return self.write(foreign.found)
        seq_id, step = foreign.writer
        return Write(None, step, seq_id, self.names(seq_id))

    def _poisoned(self, foreign: Foreign) -> bool:
        """Whether a look at the bytes (layer 3) found poison in the slot, for this reader, from this step on."""
        events, size = self.trace.events[foreign.row :], self.trace.block_size
        told = (events["kind"] == Kind.MISMATCH) & (events["reason"] == Reason.POISON)
        told &= events["seq_id"] == self.trace.events["seq_id"][foreign.row]
        told &= (events["block"] == foreign.slot // size) & (events["fill"] == foreign.slot % size)
        return foreign.slot >= 0 and bool(told.any())

    def write(self, row: int) -> Write:
        """The write of a row."""
        if row < 0:
            return Write(None, None, None, "another prefix" if row == OTHER_PREFIX else "nobody")
        event = self.trace.events[row]
        seq_id = int(event["seq_id"])
        return Write(row_seq(self.trace, row), int(event["step"]), seq_id, self.names(seq_id))

    def should(self, cause: Finding | None) -> str:
        """What should have happened instead."""
        if cause is None:
            return ""
        kind = int(self.trace.events["kind"][row_of(self.trace, cause.seq)])
        known = SHOULD_AT.get((cause.code, Kind(kind))) if kind in set(Kind) else None
        return tell(cause, self.trace).missing or known or SHOULD.get(cause.code, "")

    def victims(self) -> list[Victim]:
        """Everybody that damage reached, in order."""
        out = []
        for damage in sorted(self.reads.damage.values(), key=lambda d: d.first_row):
            tokens = self.tainted_tokens(damage.seq_id)
            out.append(
                Victim(
                    damage.seq_id, self.names(damage.seq_id), self.names.request(damage.seq_id),
                    min(tokens, default=None), len(tokens), row_seq(self.trace, damage.first_row),
                    self.names(damage.through) if damage.through >= 0 else "",
                )
            )  # fmt: skip
        return out

    def reasons(self) -> list[str]:
        """Why the text of a clean request may differ from another run's all the same."""
        events = self.trace.events
        mine = np.isin(events["seq_id"], self.seq_ids)

        def count(kind: Kind) -> int:
            return int(np.count_nonzero(mine & (events["kind"] == kind)))

        steps = np.unique(events["step"][mine & (events["kind"] == Kind.SCHED)])
        begins = events[events["kind"] == Kind.STEP_BEGIN]
        sizes = begins["aux"][np.isin(begins["step"], steps)]
        out = ["sampling: with a temperature above 0 another seed draws other tokens"]
        if len(sizes):
            out.append(
                f"batch numerics: its steps held {_between(int(sizes.min()), int(sizes.max()))}; in other company "
                "sums are rounded in another order, and a near tie may go the other way"
            )
        if count(Kind.RESUME):
            times = counted(count(Kind.RESUME), "time")
            out.append(f"it was preempted and computed again {times}, in other chunks than at first")
        if count(Kind.HIT):
            hits = counted(count(Kind.HIT), "block")
            out.append(f"{hits} of its prompt came from the prefix cache, computed in another batch")
        out.append("the prompt: a chat template, a date or a space that differs changes every token after it")
        out.append("bytes: a kernel that writes wrong values at the right place leaves a clean ledger")
        return out


def _between(least: int, most: int) -> str:
    return counted(most, "sequence") if least == most else f"{least} to {counted(most, 'sequence')}"


__all__ = ["BadRead", "Explanation", "TokenStep", "Victim", "Write", "explain", "find_request"]
