"""What an exploration came to: the failure with its lanes and replay string, or what was explored without one."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from math import floor
from typing import Any

from kvscope.inspector.races.lanes import Lanes
from kvscope.inspector.races.worker import Failure

NOT_EXPLORED = (
    "other programs than this one, switches inside C code, and what a processor's memory order adds without a GIL"
)


@dataclass(slots=True)
class Outcome:
    """The result of `explore`.

    failure: None if every schedule played was good. schedules: how many were played until the first failure, or the
    end. histories: how many differed in the calls' order or results. replay: the string that plays the shortest failing
    schedule again. switches: how often another thread came to run in it, threads that ended included; preemptions:
    how often one was stopped that could have gone on. gil: whether a GIL allows these preemptions. deterministic:
    whether the schedule did exactly the same twice. sequential: orders of uninterrupted calls that results were
    compared with; None where that was not done.
    """

    name: str
    level: str
    threads: int
    failure: Failure | None = None
    replay: str | None = None
    lanes: Lanes | None = None
    schedules: int = 0
    histories: int = 0
    points: int = 0  # of the longest schedule
    preemptions: int = 0
    switches: int = 0
    gil: bool = True
    deterministic: bool = True
    sequential: int | None = None
    seconds: float = 0.0
    to_failure_s: float = 0.0  # until the first failing schedule, before it was made short
    explored: list[dict[str, Any]] = field(default_factory=list)  # per scheduler: its name and statement
    notes: list[str] = field(default_factory=list)

    @property
    def found(self) -> bool:
        """Whether there is a failure."""
        return self.failure is not None

    def statement(self) -> str:
        """What was explored and what was not, in sentences."""
        parts = [_said(phase) for phase in self.explored]
        where = {"hook": "locks and events", "line": "lines", "opcode": "instructions that touch something shared"}
        seen = (
            f"{self.schedules:,} schedules, {self.histories:,} distinct histories, up to {self.points:,} switch points"
        )
        judged = (
            f"results compared with {self.sequential:,} orders of uninterrupted calls"
            if self.sequential is not None
            else "results not compared with a sequential model"
        )
        return f"{seen} at {where[self.level]}; {judged}. {' '.join(parts)} Not explored: {NOT_EXPLORED}."

    def text(self, width: int = 110) -> str:
        """The report, as plain text."""
        lines = [f"{self.name}: {self._verdict()}"]
        if self.failure is not None:
            if self.lanes is not None:
                lines += ["", self.lanes.text(width), ""]
            lines.append(f"  {self.failure.kind}: {self.failure.message}")
            if not self.gil:
                lines.append("  opcode-only: CPython with a GIL does not switch there; builds without one do")
            if not self.deterministic:
                lines.append("  the same schedule did something else the second time: the target is not deterministic")
            lines.append(f"  replay: {self.replay}")
        lines += [f"  {note}" for note in self.notes]
        lines += ["", *textwrap.wrap(self.statement(), width, initial_indent="  ", subsequent_indent="  ")]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        failure = self.failure
        return {
            "name": self.name, "level": self.level, "threads": self.threads, "found": self.found,
            "failure": None if failure is None else {
                "kind": failure.kind, "code": failure.code or None, "message": failure.message,
                "thread": None if failure.thread < 0 else failure.thread,
            },
            "replay": self.replay, "schedules": self.schedules, "histories": self.histories, "points": self.points,
            "preemptions": self.preemptions, "switches": self.switches, "opcode_only": not self.gil,
            "deterministic": self.deterministic, "sequential_orders": self.sequential,
            "seconds": round(self.seconds, 3), "to_failure_s": round(self.to_failure_s, 3), "explored": self.explored,
            "statement": self.statement(), "notes": self.notes,
            "lanes": None if self.lanes is None else self.lanes.to_json(),
        }  # fmt: skip

    def _verdict(self) -> str:
        if self.failure is None:
            return f"no schedule of {self.schedules:,} failed ({self.seconds:.1f} s)"
        code = f" [{self.failure.code}]" if self.failure.code else ""
        return (
            f"{self.failure.kind}{code} after {self.schedules:,} schedules ({self.to_failure_s:.2f} s), shortened to "
            f"{self.switches} switch{'es' if self.switches != 1 else ''} ({self.preemptions} preempting)"
        )


def _preemptions(count: int) -> str:
    return f"{count} preemption{'' if count == 1 else 's'}"


def _said(phase: dict[str, Any]) -> str:
    name = phase["scheduler"]
    if name == "exhaustive":
        bound, done, waiting = phase["bound"], phase["complete_to"], phase["waiting"]
        if done >= bound:
            return f"Every schedule with at most {_preemptions(bound)} was played."
        if done < 0:
            return f"Of the schedules without a preemption some were not played ({waiting:,} known to wait)."
        rest = f"of those with {done + 1} not all ({waiting:,} wait)"
        return f"Every schedule with at most {_preemptions(done)} was played, {rest}."
    if name == "pct":
        chances = ", ".join(
            f"depth {d} with probability >= {min(floor(p * 1_000), 999) / 1_000:.3f}"
            for d, p in phase["found_with_probability"].items()
        )
        return f"PCT (seed {phase['seed']}): a bug would have been found of {chances}."
    if name == "random":
        return f"Random schedules (seed {phase['seed']}): no bound on what they miss."
    return "One given schedule was replayed."
