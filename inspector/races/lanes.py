"""An interleaving in lanes: one column per thread, and what ran between two switches as one stretch of source lines."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from kvscope.inspector.races.pylevel import Place
from kvscope.inspector.races.worker import Run

_HEAD, _TAIL = 2, 4  # lines of a long stretch that are shown


@dataclass(frozen=True, slots=True)
class Step:
    """One line that ran. what: at hook level, the event or the lock; else empty."""

    place: Place
    what: str = ""

    @property
    def source(self) -> str:
        """The line as it is in the file."""
        return linecache.getline(self.place.file, self.place.line).strip()

    @property
    def words(self) -> str:
        """As it is printed."""
        where = f"{PurePath(self.place.file).name}:{self.place.line}" if self.place.file else ""
        return f"{where}  {self.what or self.source}".strip()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"file": self.place.file, "line": self.place.line, "function": self.place.function,
                "source": self.source, "what": self.what or None}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one thread did between two switches. preempted: it could have gone on behind its last step."""

    thread: int
    steps: tuple[Step, ...]
    preempted: bool
    gil: bool = True  # a GIL allows the switch that ends it

    def shown(self) -> Iterator[str]:
        """The first and last lines, and every call between them."""
        lines = [step.words for step in self.steps]
        calls = {i for i, step in enumerate(self.steps) if step.what.startswith("call ")}
        keep = {*range(_HEAD), *range(len(lines) - _TAIL, len(lines)), *calls}
        hidden = 0
        for i, line in enumerate(lines):
            if len(lines) <= _HEAD + _TAIL + 1 or i in keep:
                if hidden:
                    yield f"... {hidden} more"
                yield line
                hidden = 0
            else:
                hidden += 1


@dataclass(frozen=True, slots=True)
class Lanes:
    """The stretches of one run, in order."""

    threads: int
    stretches: tuple[Stretch, ...]

    def text(self, width: int = 110) -> str:
        """As plain text of at most so many columns."""
        column = max(24, (width - 2) // self.threads - 3)
        names = "".join(f"| {f'worker-{i + 1}':{column}} " for i in range(self.threads))
        rule = "+" + "-" * (column + 2)
        out = [names.rstrip(), rule * self.threads]
        for n, stretch in enumerate(self.stretches):
            for line in stretch.shown():
                cells = ["" for _ in range(self.threads)]
                cells[stretch.thread] = line if len(line) <= column else line[: column - 1] + "~"
                out.append("".join(f"| {cell:{column}} " for cell in cells).rstrip())
            if n + 1 < len(self.stretches):
                out.append(f"+{self._why(stretch):-<{(column + 3) * self.threads - 1}}")
        return "\n".join(out)

    def _why(self, stretch: Stretch) -> str:
        if not stretch.preempted:
            return ""
        return f"- worker-{stretch.thread + 1} is stopped here{'' if stretch.gil else ' (no GIL would do that)'} "

    def to_json(self) -> list[dict[str, Any]]:
        """Plain values."""
        return [
            {"thread": s.thread, "preempted": s.preempted, "gil": s.gil, "steps": [step.to_json() for step in s.steps]}
            for s in self.stretches
        ]


def lanes_of(run: Run, threads: int) -> Lanes:
    """The lanes of a detailed run."""
    preempted = {run.decisions.at[n]: run.details[run.decisions.at[n] - 1].gil for n, _ in run.decisions.switches
                 if not run.decisions.forced[n]}  # fmt: skip
    out: list[Stretch] = []
    start = 0
    ends = sorted({*(at for at in run.switches if 0 < at < len(run.trail)), *preempted, len(run.trail)})
    for end in ends:
        for lo, hi in _same_thread(run, start, end):
            stopped = hi == end and end in preempted
            steps = tuple(_steps(run, lo, hi, pending=stopped))
            out.append(Stretch(run.trail[lo][0], steps, stopped, preempted.get(end, True)))
        start = end
    return Lanes(threads, tuple(out))


def _same_thread(run: Run, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Pieces of [start, end) that are one thread's: a thread that ended without a point hands over in silence."""
    lo = start
    for i in range(start + 1, end + 1):
        if i == end or run.trail[i][0] != run.trail[lo][0]:
            if lo < i:
                yield lo, i
            lo = i


def _steps(run: Run, lo: int, hi: int, *, pending: bool) -> Iterator[Step]:
    """The lines of some points, each once in a row. The point at which a thread is stopped has not run yet."""
    last: Step | None = None
    for i in range(lo, hi):
        label, place = run.trail[i][1], run.details[i]
        step = Step(place, _what(label))
        if pending and i == hi - 1:
            step = Step(place, f"(next: {step.what or step.source})")
        if last is None or (step.place[:2], step.what) != (last.place[:2], last.what):
            yield step
        last = step


def _what(label: tuple[Any, ...]) -> str:
    """A label of a lock, a call or an event; empty for a plain line, whose source says more."""
    kind = label[0]
    if kind == "call":
        return f"call {label[1]}({label[2]})"
    if kind in ("acquire", "release", "try", "sleep", "point", "event"):
        return " ".join(str(part) for part in (label[1:] if kind in ("point", "event") else label))
    return ""
