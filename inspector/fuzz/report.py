"""What a fuzz run was asked and what it found: for people, as JSON (`kvscope-fuzz/1`), and as JUnit XML."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from kvscope.inspector.fuzz.protocol import NAMES
from kvscope.inspector.junit_file import write_suite, xml_text

_OF_OUR_ENGINE = ("KV002", "KV016")
_NEEDED = {
    "KV004": ("refcount",),
    "KV013": ("begin_step",),
    "KV017": ("lease", "lookup"),
    "KV019": ("drain",),
}  # one of
BEAT_S = 0.2  # how often a worker says how far it is


@dataclass(frozen=True, slots=True)
class Job:
    """What to do.

    seconds: of hunting; making a finding short may take `shrink_seconds` more. hang_seconds: after which a call that
    has not returned counts as hanging. replay: play this
    interleaving only. database: folder of programs that failed before; None for none.
    """

    target: str
    seed: int = 0
    seconds: float = 60.0
    threads: int = 1
    shrink_seconds: float = 10.0
    hang_seconds: float = 5.0
    database: str | None = None
    allow_output: bool = False
    replay: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken rule: its code, why, a program or an interleaving that shows it, and how long that is."""

    code: str
    why: str
    program: str
    length: int
    known: bool = False  # it failed in an earlier run, too
    replay: str | None = None  # of an interleaving: the string that plays it again
    lanes: str | None = None  # and the interleaving for people


@dataclass(slots=True)
class Report:
    """How a run ended: clean, with a finding, or with the reason why the target cannot be used."""

    job: Job
    finding: Finding | None = None
    unusable: str | None = None
    examples: int = 0
    rules: int = 0
    calls: int = 0
    elapsed_s: float = 0.0
    missing: list[str] = field(default_factory=list)  # optional methods that the target does not offer
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """Exit code: 0 clean, 1 a finding, 2 an unusable target."""
        return 2 if self.unusable else 1 if self.finding else 0

    def to_json(self) -> dict[str, Any]:
        """One object."""
        verdict = ("clean", "finding", "unusable")[self.status]
        finding = self.finding and {**asdict(self.finding), "name": NAMES.get(self.finding.code, "race")}
        return {
            "schema": "kvscope-fuzz/1", "target": self.job.target, "seed": self.job.seed, "seconds": self.job.seconds,
            "threads": self.job.threads, "verdict": verdict, "finding": finding, "error": self.unusable,
            "examples": self.examples, "rules": self.rules, "calls": self.calls, "elapsed_s": round(self.elapsed_s, 3),
            "not_offered": self.missing, "notes": self.notes,
        }  # fmt: skip

    def text(self) -> str:
        """For people: the program that fails and why, or how much was tried."""
        if self.finding is not None:
            heading = f"{_title(self.finding.code)}: {self.finding.why}"
            again = f"kvscope fuzz {self.job.target} "
            again += f"--replay {self.finding.replay}" if self.finding.replay else f"--seed {self.job.seed}"
            parts = [heading, *([self.finding.lanes] if self.finding.lanes else []), self.finding.program]
            return "\n\n".join([*parts, f"again: {again}"])
        tried = f"{self.examples:,} programs, {self.calls:,} calls in {self.elapsed_s:.1f} s, seed {self.job.seed}"
        lacks = f"; not offered, so not tried: {', '.join(self.missing)}" if self.missing else ""
        return f"no finding: {tried}{lacks}"

    def write_junit(self, path: Path) -> None:
        """One test case per rule, skipped where it was not tried; the file is whole or not there."""
        suite = ElementTree.Element("testsuite", name=xml_text(f"kvscope fuzz {self.job.target}"))
        codes = [*NAMES] if self.finding is None or self.finding.code in NAMES else [*NAMES, self.finding.code]
        for code in codes:
            name = _title(code)
            case = ElementTree.SubElement(suite, "testcase", classname="kvscope.fuzz", name=name, time="0")
            if self.finding is not None and self.finding.code == code:
                failure = ElementTree.SubElement(case, "failure", type=code, message=xml_text(self.finding.why))
                failure.text = xml_text(self.text())
            elif reason := self._not_tried(code):
                ElementTree.SubElement(case, "skipped", message=xml_text(reason))
        if self.unusable:
            case = ElementTree.SubElement(suite, "testcase", classname="kvscope.fuzz", name="target", time="0")
            ElementTree.SubElement(case, "error", type="unusable", message=xml_text(self.unusable))
        counts = {"tests": len(codes) + bool(self.unusable), "failures": int(self.finding is not None),
                  "errors": int(bool(self.unusable)), "skipped": len(suite.findall("testcase/skipped"))}  # fmt: skip
        for key, value in counts.items():
            suite.set(key, str(value))
        suite.set("time", f"{self.elapsed_s:.3f}")
        write_suite(path, suite)

    def _not_tried(self, code: str) -> str:
        """Why nothing was looked at that could have broken this rule; empty if something was."""
        if self.unusable:
            return "the target cannot be used"
        if self.job.replay:
            return "one interleaving was played again, nothing else"
        if code in _OF_OUR_ENGINE:
            return "cannot be told of an allocator from outside: told of our own engine"
        needed = _NEEDED.get(code, ())
        if needed and not set(needed) - set(self.missing):
            return f"needs {' or '.join(needed)}, which the target does not offer"
        return ""


def _title(code: str) -> str:
    """A rule's code and name; what has no code of its own is a race."""
    return f"{code} {NAMES[code]}" if code in NAMES else code
